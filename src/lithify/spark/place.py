"""Resolves the path or address of a topic in a Spark query to its partitions.

    DATA/topics/TENANT/NAMESPACE/TOPIC                the topic's directory in a data directory, or
    DATA/topics/TENANT/NAMESPACE/TOPIC-partition-3    one partition of it
    …/DIRECTORY                                       any directory with the log of a topic in it
    http://NODE:8080/persistent/TENANT/NAMESPACE/TOPIC
                                                      the same by name; /topics or /admin/v2 may
                                                      precede /persistent

A node is asked for its data directory, which must be on this machine: files are read directly, not
transferred. The node's own text in the directory's lock proves that it is the same directory.

The partitions of a topic come from the definitions. A partition that was never used has no files
and no messages.

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
from lithify.topics.definitions.definitions import Definitions
from lithify.topics.definitions.definitions_file import read_definitions_in
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.topics import TopicNotFound

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = ["NodeRefused", "Partition", "TopicPlace", "ask_node", "data_of", "find_place"]

TIMEOUT_S = 60.0
_RUNTIME = "/admin/v2/brokers/configuration/runtime"


class NodeRefused(LithifyError):
    """A request to a node failed; `status` is the HTTP status of its response, 0 without one."""

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
    """The directory of the log."""


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """The location of a topic, as the query names it."""

    data: str
    """The data directory; empty outside a data directory, or before `resolved`."""
    name: TopicName | None
    directory: str = ""
    """The directory of a topic outside a data directory."""
    node: str = ""
    """The address of its node, if the query names the topic by it."""
    token: str = ""

    def resolved(self, fs: FileSystem) -> TopicPlace:
        """Return the place with its data directory; asks the node for it if needed."""
        if not self.node or self.data:
            return self
        data, is_here = data_of(fs, self.node, self.token)
        if not is_here:
            raise InvalidInput(
                f"the data directory {data!r} of the node at {self.node} is not on this machine"
            )
        return TopicPlace(data, self.name, node=self.node, token=self.token)

    def partitions(self, fs: FileSystem) -> list[Partition]:
        """The partitions of the topic whose log has files."""
        if self.name is None:
            return [Partition(self.directory, -1, f"{self.directory}/log")]
        place = self.resolved(fs)
        topics = (read_definitions_in(fs, place.data) or Definitions()).topics
        definition, whole = topics.get(str(self.name)), topics.get(str(self.name.whole))
        if definition is not None and definition.partitions:
            names = [self.name.partition_name(each) for each in range(definition.partitions)]
        elif definition is not None or (whole and 0 <= self.name.partition < whole.partitions):
            names = [self.name]
        else:
            raise TopicNotFound(f"topic {self.name} does not exist in {place.data}")
        logs = [
            Partition(str(name), name.partition, f"{place.data}/topics/{name.path}/log")
            for name in names
        ]
        return [each for each in logs if fs.exists(f"{each.directory}/{MANIFEST}")]

    @property
    def produce_url(self) -> str:
        """The URL to which messages are posted."""
        assert self.name is not None
        return f"{self.node}/topics/{_url_path(self.name)}"

    def keep_from(self, subscription: str, partition: Partition, position: int) -> None:
        """Retain the log from a position on with a durable subscription; creates it if needed."""
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


def data_of(fs: FileSystem, node: str, token: str) -> tuple[str, bool]:
    """The data directory of a node, and whether it is on this machine."""
    runtime = ask_node(f"{node}{_RUNTIME}", token)
    data, owner = str(runtime.get("dataDirectory", "")), str(runtime.get("owner", ""))
    lock = f"{data}/{LOCK}"
    return data, bool(data) and fs.exists(lock) and lock_owner(fs, lock) == owner


def _url_path(name: TopicName) -> str:
    space = name.namespace
    return f"persistent/{space.tenant}/{space.name}/{quote(name.local, safe='')}"


def find_place(fs: FileSystem, path: str, token: str = "") -> TopicPlace:
    """Parse a path or an address; checks for existing files but reads none."""
    if path.startswith(("http://", "https://")):
        url = urlsplit(path)
        before, separator, rest = url.path.partition("/persistent/")
        parts = [unquote(part) for part in rest.rstrip("/").split("/")]
        if not separator or len(parts) != 3 or before not in {"", "/topics", "/admin/v2"}:
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
    """The JSON response of a node to a GET, or to a POST or `method` with `body`."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    # `find_place` has checked that the scheme is http or https.
    request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            response = json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(1000).decode(errors="replace")
        raise NodeRefused(f"{url} answers {error.code}: {reason}", error.code) from error
    except (OSError, ValueError) as error:
        raise NodeRefused(f"{url} does not answer: {error}") from error
    if not isinstance(response, dict):
        raise NodeRefused(f"{url} answers {response!r}, expected a JSON object")
    return response
