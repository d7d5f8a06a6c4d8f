"""Where commands work: at a node, over HTTP, or on a data directory nobody serves.

    --data DIR                      that directory, opened by this process
    --url URL, or LITHIFY_URL       the node at that address
    neither                         the node at http://127.0.0.1:8080

A node that asks for a token is shown that of LITHIFY_TOKEN. Here is what all commands share, and
those on topics: over HTTP these are the paths of Pulsar's admin interface, and those of
`http/produce.py` and `http/tail.py`; both ways give the same values.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import itertools
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from lithify.errors import (
    CONFLICT,
    FAILED,
    NOT_FOUND,
    OUTCOME_UNKNOWN,
    UNREACHABLE,
    USAGE,
    InvalidInput,
    LithifyError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from http.client import HTTPConnection, HTTPResponse

    from lithify.cli.spark_options import SparkOptions
    from lithify.node.node import Node
    from lithify.topics.names import Namespace, TopicName

__all__ = [
    "AnswerLost",
    "NewMessage",
    "NodeNotReached",
    "Refused",
    "RemoteNode",
    "TopicsAdmin",
    "Wanted",
    "open_admin",
    "open_data",
    "open_place",
    "remote_node",
    "topic_path",
]

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 30.0
READ_BYTES = 2**16


class NodeNotReached(LithifyError):
    """No node answers at an address."""

    exit_code = UNREACHABLE

    def __init__(self, url: str, why: str) -> None:
        self.url = url
        super().__init__(
            f"no node answers at {url} ({why}); --url names another, "
            "--data a data directory that no node serves"
        )


class AnswerLost(LithifyError):
    """A node was sent a change and did not answer; the change may have been made."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url} did not answer ({why}): the request may have taken effect or not")


class Refused(LithifyError):
    """A node answered with an error."""

    def __init__(self, reason: str, status: int = HTTPStatus.CONFLICT) -> None:
        super().__init__(reason)
        self.status = status
        self.exit_code = _EXIT_CODES.get(status, FAILED if status >= _SERVER_ERRORS else CONFLICT)


_SERVER_ERRORS = 500
_EXIT_CODES: dict[int, int] = {
    HTTPStatus.BAD_REQUEST: USAGE,
    HTTPStatus.NOT_FOUND: NOT_FOUND,
    HTTPStatus.NOT_ACCEPTABLE: USAGE,
    HTTPStatus.GONE: NOT_FOUND,
    HTTPStatus.PRECONDITION_FAILED: USAGE,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: USAGE,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: USAGE,
    HTTPStatus.UNPROCESSABLE_ENTITY: USAGE,
}
"""As the same error has in the process; of other statuses, 4xx is a refusal, 5xx a failure."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What is to be produced."""

    value: bytes
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages: from a message id on, or else the last so many; and whether to wait."""

    start: str | None = None
    last: int | None = None
    limit: int | None = None
    follow: bool = False


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

    def produce(self, name: TopicName, messages: Sequence[NewMessage]) -> Sequence[str]:
        """Append messages and wait until they are durable; their ids."""

    def read(self, name: TopicName, wanted: Wanted) -> Iterator[dict[str, Any]]:
        """Messages as rows, see `topics/tail.py`."""


@contextmanager
def open_admin(data: str | None, url: str | None, *, create: bool = False) -> Iterator[TopicsAdmin]:
    """What the options name; `create` makes a data directory that is not there."""
    with open_place(data, url, create=create) as place:
        yield place if isinstance(place, RemoteNode) else _Local(place)


@contextmanager
def open_place(
    data: str | None, url: str | None, *, spark: SparkOptions | None = None, create: bool = False
) -> Iterator[RemoteNode | Node]:
    """A node that is asked over HTTP, or one of this process on a data directory."""
    if data is None:
        if spark is not None and (option := spark.first_given):
            setting = option.replace("--", "compaction_")
            raise InvalidInput(f"{option} is for --data; a node's is its setting {setting}")
        yield remote_node(url)
    elif url is not None:
        raise InvalidInput("--data and --url name two different places: give one of them")
    else:
        if spark is not None:
            spark.target()  # A mistake in it is found before anything is opened.
        with open_data(data, create=create) as node:
            yield node


@contextmanager
def open_data(data: str, *, create: bool = False) -> Iterator[Node]:
    """A node on a data directory, which must exist unless it may be created."""
    from lithify.fs import LocalFileSystem
    from lithify.node.node import Node
    from lithify.node.settings import NodeSettings
    from lithify.topics.data_directory import check_no_backup, is_data_directory

    fs = LocalFileSystem()
    check_no_backup(fs, data)
    if not create and not is_data_directory(fs, data):
        raise InvalidInput(f"{data} is not a data directory")
    with Node(NodeSettings(data=data), fs=fs, what="a lithify command") as node:
        yield node


def remote_node(url: str | None) -> RemoteNode:
    """The node at an address, at that of the environment or at the default one."""
    return RemoteNode(url or os.environ.get("LITHIFY_URL") or DEFAULT_URL)


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

    def produce(self, name: TopicName, messages: Sequence[NewMessage]) -> Sequence[str]:
        target = self._topics.get(name, create=True)
        return [
            str(target.append(value=each.value, key=each.key, properties=each.properties))
            for each in messages
        ]

    def read(self, name: TopicName, wanted: Wanted) -> Iterator[dict[str, Any]]:
        from lithify.topics.tail import Place, place_of, place_of_last, read_rows

        if wanted.follow:
            raise InvalidInput("nobody writes to a data directory that no node serves: no --follow")
        topic = self._topics.get(name)
        place = Place() if wanted.start is None else place_of(wanted.start)
        if wanted.last is not None:
            place = place_of_last(topic, wanted.last)
        left = wanted.limit
        while left is None or left > 0:
            rows, place = read_rows(topic, place, limit=left)
            if not rows:
                return
            yield from rows
            left = None if left is None else left - len(rows)


class RemoteNode:
    """A node that is asked over HTTP."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"address {url!r} must begin with http:// or https://")
        self.url = url.rstrip("/")

    def list(self, namespace: Namespace) -> list[str]:
        """See `TopicsAdmin`."""
        return [str(name) for name in self.call("GET", f"persistent/{namespace}")]

    def create(self, name: TopicName, partitions: int) -> None:
        """See `TopicsAdmin`."""
        if partitions:
            self.call("PUT", f"{topic_path(name)}/partitions", partitions)
        else:
            self.call("PUT", topic_path(name))

    def delete(self, name: TopicName) -> None:
        """See `TopicsAdmin`."""
        try:
            partitioned = bool(self._partitions(name))
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            # It may be missing: then its node knows it, although it is not defined.
            partitioned = False
        self.call("DELETE", topic_path(name) + ("/partitions" if partitioned else ""))

    def stats(self, name: TopicName) -> dict[str, Any]:
        """See `TopicsAdmin`."""
        kind = "partitioned-stats" if self._partitions(name) else "stats"
        return dict(self.call("GET", f"{topic_path(name)}/{kind}"))

    def produce(self, name: TopicName, messages: Sequence[NewMessage]) -> Sequence[str]:
        """See `TopicsAdmin`."""
        rows = [
            {"key": each.key, "properties": each.properties, **_payload(each.value)}
            for each in messages
        ]
        with self.open("POST", f"topics/{topic_path(name)}", {"messages": rows}) as answer:
            results = json.loads(self._read("POST", answer))["messagePublishResults"]
        failed = [row["errorMsg"] for row in results if row["errorCode"]]
        if failed:
            raise Refused(f"{len(failed)} of {len(results)} messages: {failed[0]}")
        return [":".join(row["messageId"].split(":")[:2]) for row in results]

    def read(self, name: TopicName, wanted: Wanted) -> Iterator[dict[str, Any]]:
        """See `TopicsAdmin`."""
        from http.client import HTTPException
        from urllib.parse import urlencode

        options = {"start": wanted.start, "last": wanted.last, "limit": wanted.limit}
        given = {key: value for key, value in options.items() if value is not None}
        query = urlencode(given | {"follow": json.dumps(wanted.follow)})
        path = f"topics/{topic_path(name)}/messages?{query}"
        with self.open("GET", path, timeout_s=None if wanted.follow else TIMEOUT_S) as answer:
            try:
                for line in _lines(answer):
                    row = json.loads(line)
                    if "id" not in row:
                        raise Refused(row["error"])
                    yield row
            except (OSError, HTTPException, ValueError) as error:
                # A line that ends in the middle is one that the node did not finish either.
                raise NodeNotReached(self.url, f"it ended: {error}") from error

    def _partitions(self, name: TopicName) -> int:
        return int(self.call("GET", f"{topic_path(name)}/partitions")["partitions"])

    def call(
        self, method: str, path: str, body: object = None, timeout_s: float | None = TIMEOUT_S
    ) -> Any:
        """What a path says that begins with admin/v2/ unless it begins with a slash."""
        path = path[1:] if path.startswith("/") else f"admin/v2/{path}"
        with self.open(method, path, body, timeout_s) as answer:
            text = self._read(method, answer)
        return json.loads(text) if text else None

    def _read(self, method: str, answer: HTTPResponse) -> bytes:
        """All of an answer."""
        from http.client import HTTPException

        try:
            return answer.read()
        except (OSError, HTTPException) as error:
            raise self._no_answer(method, error) from error

    def _no_answer(self, method: str, error: Exception) -> LithifyError:
        """The error of a request that was sent."""
        why = str(error) or type(error).__name__
        return (NodeNotReached if method == "GET" else AnswerLost)(self.url, why)

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        body: object = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Iterator[HTTPResponse]:
        """An answer, to be read; the request has a body of JSON."""
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **_token()}
        # The address was checked to be one of HTTP.
        request = Request(f"{self.url}/{path}", data, headers, method=method)  # noqa: S310
        try:
            answer = urlopen(request, timeout=timeout_s)  # noqa: S310
        except HTTPError as error:
            reason = _reason(error.read()) or f"{self.url}: {error}"
            raise Refused(reason, error.code) from error
        except URLError as error:
            if isinstance(error.reason, BrokenPipeError | ConnectionResetError):
                raise self._no_answer(method, error.reason) from error
            raise NodeNotReached(self.url, str(error.reason)) from error
        except (OSError, HTTPException) as error:
            # urllib wraps the errors of connecting and sending: this one came after those.
            raise self._no_answer(method, error) from error
        with answer:
            yield answer

    def upload(self, path: str, pieces: Iterable[bytes], headers: Mapping[str, str]) -> Any:
        """POST a content as it comes; what the node says to it, be it before it has heard all."""
        from contextlib import closing
        from http.client import HTTPConnection, HTTPException, HTTPSConnection
        from urllib.parse import urlsplit

        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with closing(kind(parts.netloc, timeout=TIMEOUT_S)) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise NodeNotReached(self.url, str(error)) from error
            try:
                connection.putrequest("POST", f"{parts.path}/{path}")
                given = {"Transfer-Encoding": "chunked", **_token(), **headers}
                for name, value in given.items():
                    # The library takes headers as Latin-1; the node reads their bytes as UTF-8.
                    connection.putheader(name, value.encode())
                connection.endheaders()
                _send_pieces(connection, pieces)
                answer = connection.getresponse()
                text = answer.read()
            except (HTTPException, ConnectionError, TimeoutError) as error:
                # Not every error of the system: the content may come from a disk that fails.
                raise self._no_answer("POST", error) from error
        if answer.status >= HTTPStatus.BAD_REQUEST:
            reason = _reason(text) or f"{self.url}: {answer.status} {answer.reason}"
            raise Refused(reason, answer.status)
        return json.loads(text)


def _send_pieces(connection: HTTPConnection, pieces: Iterable[bytes]) -> None:
    for piece in itertools.chain(pieces, (b"",)):
        try:
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        except ConnectionError:
            # A node that refuses does not wait for the rest: its answer is there, and says why.
            return


def _token() -> dict[str, str]:
    token = os.environ.get("LITHIFY_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _payload(value: bytes) -> dict[str, str | None]:
    from lithify.topics.tail import bytes_or_text

    [(name, text)] = bytes_or_text("payload", value).items()
    return {"payloadBase64" if name.endswith("base64") else name: text}


def _lines(answer: HTTPResponse) -> Iterator[bytes]:
    """As they come. Not by `readline`, to which a connection that broke is an end like another."""
    begun: list[bytes] = []
    while read := answer.read1(READ_BYTES):
        first, *rest = read.split(b"\n")
        begun.append(first)
        if rest:
            yield b"".join(begun)
            yield from rest[:-1]
            begun = [rest[-1]]
    if any(begun):
        yield b"".join(begun)


def topic_path(name: TopicName) -> str:
    """The part of a path that names a topic."""
    from urllib.parse import quote

    return f"persistent/{name.namespace}/{quote(name.local, safe='')}"


def _reason(body: bytes) -> str | None:
    """What an answer gives as the reason, if it gives one."""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return None
