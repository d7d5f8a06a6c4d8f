"""Where the commands on topics work: at a node, over HTTP, or on a data directory nobody serves.

    --data DIR                      that directory, opened by this process
    --url URL, or LITHIFY_URL       the node at that address
    neither                         the node at http://127.0.0.1:8080

A node that asks for a token is shown that of LITHIFY_TOKEN. Over HTTP these are the paths of
Pulsar's admin interface; both ways give the same values.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from lithify.errors import InvalidInput, LithifyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.node.node import Node
    from lithify.topics.names import Namespace, TopicName

__all__ = ["NodeNotReached", "Refused", "TopicsAdmin", "open_admin", "open_data"]

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 30.0


class NodeNotReached(LithifyError):
    """No node answers at an address."""

    def __init__(self, url: str, why: str) -> None:
        self.url = url
        super().__init__(
            f"no node answers at {url} ({why}); --url names another, "
            "--data a data directory that no node serves"
        )


class Refused(LithifyError):
    """A node answered that it will not."""


class TopicsAdmin(Protocol):
    """What can be done with topics from afar."""

    def list(self, namespace: Namespace) -> list[str]:
        """The names of all topics of a namespace, each partition by itself."""

    def create(self, name: TopicName, partitions: int) -> None:
        """Create a topic; 0 partitions: one that is not partitioned."""

    def delete(self, name: TopicName) -> None:
        """Delete a topic with all its partitions."""

    def stats(self, name: TopicName) -> dict[str, Any]:
        """As `topics/stats.py` has them."""


@contextmanager
def open_admin(data: str | None, url: str | None, *, create: bool = False) -> Iterator[TopicsAdmin]:
    """What the options name; `create` makes a data directory that is not there."""
    if data is None:
        yield _Remote(url or os.environ.get("LITHIFY_URL") or DEFAULT_URL)
    elif url is not None:
        raise InvalidInput("--data and --url name two different places: give one of them")
    else:
        with open_data(data, create=create) as node:
            yield _Local(node)


@contextmanager
def open_data(data: str, *, create: bool = False) -> Iterator[Node]:
    """A node on a data directory, which must exist unless it may be created."""
    from lithify.fs import LocalFileSystem
    from lithify.node.node import Node
    from lithify.node.settings import NodeSettings

    fs = LocalFileSystem()
    if not create and not fs.exists(f"{data}/LOCK"):
        raise InvalidInput(f"{data} is not a data directory")
    with Node(NodeSettings(data=data), fs=fs, what="lithify topics") as node:
        yield node


class _Local:
    def __init__(self, node: Node) -> None:
        self._topics = node.topics

    def list(self, namespace: Namespace) -> list[str]:
        return [str(name) for name in self._topics.list(namespace)]

    def create(self, name: TopicName, partitions: int) -> None:
        if partitions:
            self._topics.create_partitioned(name, partitions)
        else:
            self._topics.create(name)

    def delete(self, name: TopicName) -> None:
        self._topics.delete(name)

    def stats(self, name: TopicName) -> dict[str, Any]:
        from lithify.topics.stats import sum_stats, topic_stats

        count = self._topics.partitions(name)
        if not count:
            return topic_stats(self._topics.get(name))
        parts = [name.partition_name(i) for i in range(count)]
        return sum_stats({str(part): topic_stats(self._topics.get(part)) for part in parts})


class _Remote:
    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"address {url!r} must begin with http:// or https://")
        self._url = url.rstrip("/")

    def list(self, namespace: Namespace) -> list[str]:
        return [str(name) for name in self._call("GET", f"persistent/{namespace}")]

    def create(self, name: TopicName, partitions: int) -> None:
        if partitions:
            self._call("PUT", f"{_path(name)}/partitions", partitions)
        else:
            self._call("PUT", _path(name))

    def delete(self, name: TopicName) -> None:
        self._call("DELETE", _path(name) + ("/partitions" if self._partitions(name) else ""))

    def stats(self, name: TopicName) -> dict[str, Any]:
        kind = "partitioned-stats" if self._partitions(name) else "stats"
        return dict(self._call("GET", f"{_path(name)}/{kind}"))

    def _partitions(self, name: TopicName) -> int:
        return int(self._call("GET", f"{_path(name)}/partitions")["partitions"])

    def _call(self, method: str, path: str, body: object = None) -> Any:
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        token = os.environ.get("LITHIFY_TOKEN")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        # The address was checked to be one of HTTP.
        request = Request(f"{self._url}/admin/v2/{path}", data, headers, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                text = answer.read()
        except HTTPError as error:
            raise Refused(_reason(error.read()) or f"{self._url}: {error}") from error
        except (URLError, OSError) as error:
            raise NodeNotReached(self._url, str(getattr(error, "reason", error))) from error
        return json.loads(text) if text else None


def _path(name: TopicName) -> str:
    from urllib.parse import quote

    return f"persistent/{name.namespace}/{quote(name.local, safe='')}"


def _reason(body: bytes) -> str | None:
    """What an answer gives as the reason, if it gives one."""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return None
