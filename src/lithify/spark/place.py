"""Where the topic is that a user of Spark names, and how its partitions are found.

    DATA/topics/TENANT/NAMESPACE/TOPIC                the topic's directory in a data directory, or
    DATA/topics/TENANT/NAMESPACE/TOPIC-partition-3    one partition of it
    …/DIRECTORY                                       any directory with the log of a topic in it
    http://NODE:8080/persistent/TENANT/NAMESPACE/TOPIC
                                                      the same by name; /topics or /admin/v2 may
                                                      stand before /persistent

A node is asked for its data directory, which must be on this machine: files are read where they
are, not sent. That it is the same directory is known by its lock, which has the node's own text.

A partitioned topic has all its partitions. Which there are is read from the definitions; one that
was never used has no files and nothing in it.

For the Spark source, on the driver.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from lithify.errors import InvalidInput, LithifyError
from lithify.fs import lock_owner
from lithify.log.file_names import LOCK, MANIFEST
from lithify.positions import unpack
from lithify.topics.definitions.definitions import DefinitionsFile
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.topics import TopicNotFound

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = ["NodeRefused", "Partition", "TopicPlace", "ask_node", "find_place"]

TIMEOUT_S = 60.0
_RUNTIME = "/admin/v2/brokers/configuration/runtime"


class NodeRefused(LithifyError):
    """A node does not answer, or not as it should; `status` is that of its answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Partition:
    """One log of a topic."""

    topic: str
    number: int
    """-1 if the topic is not partitioned."""
    directory: str
    """Of the log."""


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic, as it was named."""

    data: str
    """The data directory; empty for a directory that is in none, or not asked for yet."""
    name: TopicName | None
    directory: str = ""
    """Of a topic that is in no data directory."""
    node: str = ""
    """The address of its node, if it was named by that."""
    token: str = ""

    def resolved(self, fs: FileSystem) -> TopicPlace:
        """The same with its data directory known."""
        if not self.node or self.data:
            return self
        said = ask_node(f"{self.node}{_RUNTIME}", self.token)
        data, owner = str(said.get("dataDirectory", "")), str(said.get("owner", ""))
        lock = f"{data}/{LOCK}"
        if not data or not fs.exists(lock) or lock_owner(fs, lock) != owner:
            raise InvalidInput(
                f"the node at {self.node} has its data in {data!r}, which is not on this machine"
            )
        return TopicPlace(data, self.name, node=self.node, token=self.token)

    def partitions(self, fs: FileSystem) -> list[Partition]:
        """The logs of the topic that have files."""
        if self.name is None:
            return [Partition(self.directory, -1, f"{self.directory}/log")]
        place = self.resolved(fs)
        topics = DefinitionsFile(fs, f"{place.data}/definitions").current.topics
        definition, whole = topics.get(str(self.name)), topics.get(str(self.name.whole))
        if definition is not None and definition.partitions:
            names = [self.name.partition_name(each) for each in range(definition.partitions)]
        elif definition is not None or (whole and 0 <= self.name.partition < whole.partitions):
            names = [self.name]
        else:
            raise TopicNotFound(f"topic {self.name} does not exist in {place.data}")
        found = [
            Partition(str(name), name.partition, f"{place.data}/topics/{name.path}/log")
            for name in names
        ]
        return [each for each in found if fs.exists(f"{each.directory}/{MANIFEST}")]

    @property
    def produce_url(self) -> str:
        """Where its node takes messages."""
        assert self.name is not None
        return f"{self.node}/topics/{_url_path(self.name)}"

    def keep_from(self, subscription: str, partition: Partition, position: int) -> None:
        """Let a durable subscription, which is made if need be, hold the log from a position on."""
        name = quote(subscription, safe="")
        topic = _url_path(TopicName.parse(partition.topic))
        url = f"{self.node}/admin/v2/{topic}/subscription/{name}"
        ledger, entry = unpack(position)
        body = json.dumps({"ledgerId": ledger, "entryId": entry}).encode()
        try:
            ask_node(f"{url}/resetcursor", self.token, body)
        except NodeRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            ask_node(url, self.token, body, "PUT")


def _url_path(name: TopicName) -> str:
    space = name.namespace
    return f"persistent/{space.tenant}/{space.name}/{quote(name.local, safe='')}"


def find_place(fs: FileSystem, path: str, token: str = "") -> TopicPlace:
    """What a path or an address names; nothing is read but to see what is there."""
    if path.startswith(("http://", "https://")):
        url = urlsplit(path)
        before, found, rest = url.path.partition("/persistent/")
        parts = [unquote(part) for part in rest.rstrip("/").split("/")]
        if not found or len(parts) != 3 or before not in {"", "/topics", "/admin/v2"}:
            raise InvalidInput(
                f"{path} must be {url.scheme}://NODE/persistent/TENANT/NAMESPACE/TOPIC"
            )
        node = f"{url.scheme}://{url.netloc}"
        return TopicPlace("", TopicName.parse(f"persistent://{'/'.join(parts)}"), "", node, token)
    directory = os.path.abspath(path.removeprefix("file://"))
    parts = directory.removesuffix("/log").split("/")
    if len(parts) > 4 and parts[-4] == "topics":
        return TopicPlace("/".join(parts[:-4]), TopicName.from_path("/".join(parts[-3:])))
    if fs.exists(f"{directory}/log/{MANIFEST}"):
        return TopicPlace("", None, directory)
    raise InvalidInput(f"{path} must be DATA/topics/TENANT/NAMESPACE/TOPIC, or a node's address")


def ask_node(
    url: str, token: str, body: bytes | None = None, method: str | None = None
) -> dict[str, Any]:
    """What a node answers: to a GET, or to a POST of `body` unless there is another method."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    # The address is one of http or https, which was checked.
    request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            said = json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(1000).decode(errors="replace")
        raise NodeRefused(f"{url} answers {error.code}: {reason}", error.code) from error
    except (OSError, ValueError) as error:
        raise NodeRefused(f"{url} does not answer: {error}") from error
    if not isinstance(said, dict):
        raise NodeRefused(f"{url} answers {said!r}")
    return said
