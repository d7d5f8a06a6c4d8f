"""The identity of a node and the list of its groups: the file NODE.

    NODE    one checked line, replaced as a whole
            {"version": 5, "node": "n1", "cluster": "raft", "cluster_id": "9d0e…",
             "identity": "0b5c…", "standing": "accepted", "known": {"n2": "c41d…"},
             "starts": [7, ["a1b2c3d4", …]], "met_starts": {"n2": ["c41d…", 3, "e5f60718"]},
             "starts_shown": {"n2": ["c41d…", 3, "e5f60718"]},
             "starts_known": {"n2": [7, "a1b2c3d4"]},
             "book": {"n2": "127.0.0.1:7002"},
             "groups": {"default": ["n1", "n2", "n3"]},
             "left": {"orders@5f0c93a1e2b47d86": [1, 4, 3, 271]},
             "dropped": {"jobs@0a51cc23f08e9b17": ["n3"]}, "stopped": {}}

`identity` is that of this directory, 16 random bytes in hexadecimal digits. `standing` is what the
other nodes think of it, `known` has their identities. `starts` has the number of starts and the
marks of the last ones, `met_starts` the newest known start of each other node, `starts_shown` the
newest start that each other node has shown itself, `starts_known` the newest own start that each
other node is known to have recorded (`raft/net/peer_recognition.py`). The last two are omitted
while empty. `book` has the last known addresses of other nodes. `stopped` has the groups in which
this node no longer participates, with reasons.

`groups` is the manifest of this node's groups, by key (`raft/storage/file_names.py`), with the
members that each had when it was created, which no log entry has; empty for a group to which this
node was added later. A group begins when it is written here, before its first file, and ends when
it is in `dropped` or `left`, before its last file is deleted. Files of such a group are deleted
when the node starts, and its entries in the write-ahead log are ignored: a crash between the two
leaves nothing that counts. Files of a group that is in none of the three prove that NODE is older
than they are. Then the node does not start: no file is deleted because it is not named.

`left` has the groups from which this node was removed: how often, its term, and term and index of
its last entry, which bind it if it is added again (`raft/group/removed_members.py`). Its files then
have another name. `dropped` has the groups that have ended, each with those of its last members
that may not know it yet. They are notified until they confirm, and so is a node that asks. A group
that all members have confirmed is not forgotten at once: a member that was removed before the end,
perhaps a leader behind a partition, may return and would start the group here again. So the last
`KNOWN_MAX` are kept. A member that is away for longer finds no node to ask, and keeps its files.

A directory belongs to one node of one cluster for good. Since version 5 there is a manifest beside
it (`raft/storage/manifest.py`), written before this file.

The node calls, in the event loop's thread; `identity_saving.py` calls `write` in another one.
"""

from __future__ import annotations

import json
import threading
from errno import EDQUOT, ENOSPC
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

from lithify.errors import DamagedFile, InvalidInput, UnsupportedVersion
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.logger import get_logger
from lithify.raft.core.configuration import check_name
from lithify.raft.group.removed_members import NEVER_LEFT, RemovedMembership
from lithify.raft.net.peer_recognition import (
    KnownStart,
    OwnStart,
    PeerRecognition,
    Standing,
    Starts,
)
from lithify.raft.storage.file_names import NODE, files_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem
    from lithify.raft.core.raft_core import Status

__all__ = ["NodeIdentity", "stored_owner"]

log = get_logger("lithify.raft")

_VERSION = 5
IDENTITY_BYTES = 16
MARK_BYTES = 4
LISTED_FROM = 5
"""The first version with a manifest."""
KNOWN_MAX = 256
"""The number of ended groups that are kept though all members know their end."""


class NodeIdentity:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        node: str,
        cluster: str,
        draw: Callable[[int], bytes] = token_bytes,
    ) -> None:
        """Read or create the file; `InvalidInput` if the directory is another node's."""
        check_name(node)
        self._fs = fs
        self.path = f"{directory}/{NODE}"
        self._lock = threading.Lock()
        self.changes = 0
        """The number of changes since it was read."""
        self.durable = 0
        """The number of changes that are in the file."""
        self.node = node
        self.cluster = cluster
        self.book: dict[str, str] = {}
        self.groups: dict[str, list[str]] = {}
        self.left: dict[str, RemovedMembership] = {}
        self.dropped: dict[str, list[str]] = {}
        self.stopped: dict[str, str] = {}
        self._draw = draw
        self.is_listed: bool | None = None
        """Must there be a manifest? False if the file has a version without one."""
        self.recognition = PeerRecognition(node, draw(IDENTITY_BYTES).hex(), Standing.NEW)
        if not fs.exists(self.path):
            self.is_new = True
            return
        self.is_new = False
        value = _read_value(fs, self.path)
        if value["version"] not in range(1, _VERSION + 1):
            raise UnsupportedVersion(self.path, value["version"], _VERSION)
        owner = (value["node"], value["cluster"])
        if owner != (node, cluster):
            what = f"{directory} belongs to node {owner[0]} of cluster {owner[1]}"
            raise InvalidInput(f"{what}, not to {node} of {cluster}")
        self.book, self.groups = value["book"], value["groups"]
        self.left = {key: RemovedMembership(*left) for key, left in value.get("left", {}).items()}
        dropped = value.get("dropped", {})
        if isinstance(dropped, list):
            # Version 2 does not have the members: all other nodes are notified.
            dropped = {key: sorted(self.book) for key in dropped}
        self.dropped = dropped
        self.stopped = value.get("stopped", {})
        self._read_recognition(value)

    def _read_recognition(self, value: dict[str, Any]) -> None:
        # Up to version 3 there were no identities: this one is the first that other nodes see.
        own = value.get("identity", self.recognition.own)
        standing = Standing(value.get("standing", Standing.ACCEPTED))
        self.recognition = PeerRecognition(self.node, own, standing, value.get("known", {}))
        self.is_listed = value["version"] >= LISTED_FROM
        number, marks = value.get("starts", (0, ()))
        self.recognition.starts = Starts(number, tuple(marks))
        met = value.get("met_starts", {})
        self.recognition.met_starts = {name: KnownStart(*each) for name, each in met.items()}
        shown = value.get("starts_shown", {})
        self.recognition.starts_shown = {name: KnownStart(*each) for name, each in shown.items()}
        own_starts = value.get("starts_known", {})
        self.recognition.starts_known = {name: OwnStart(*each) for name, each in own_starts.items()}
        self.recognition.cluster_id = value.get("cluster_id", "")

    def start(self, *, is_seen: bool) -> None:
        """Count a start of the node, durably, unless the disk is full and no other node sees it."""
        recognition = self.recognition
        recognition.starts = recognition.starts.again(self._draw(MARK_BYTES).hex())
        recognition.ticks = 0
        try:
            self.save()
        except OSError as error:
            if is_seen or self.is_new or error.errno not in (ENOSPC, EDQUOT):
                raise
            # The next change of the file records it.
            log.warning("the start of this node is not recorded", reason=str(error))

    def renounce(self) -> None:
        """The directory is an older copy: draw a new identity."""
        self.recognition.renounce(self._draw(IDENTITY_BYTES).hex())
        self.save()

    def join_cluster(self, cluster_id: str) -> None:
        """Set the cluster's id."""
        self.recognition.cluster_id = cluster_id
        self.save()

    def save(self) -> None:
        """Make all changes durable."""
        self.changes += 1
        self.write(*self.line())

    @property
    def is_durable(self) -> bool:
        """Are all changes in the file?"""
        return self.durable >= self.changes

    def write(self, number: int, line: bytes) -> None:
        """Replace the file, unless it is newer; any thread."""
        with self._lock:
            if number > self.durable:
                write_atomic(self._fs, self.path, line)
                self.durable = number

    def line(self) -> tuple[int, bytes]:
        """(number of changes, the file with all of them)."""
        recognition = self.recognition
        value = {
            "version": _VERSION,
            "node": self.node,
            "cluster": self.cluster,
            "cluster_id": recognition.cluster_id,
            "identity": recognition.own,
            "standing": recognition.standing,
            "known": recognition.known,
            "starts": recognition.starts,
            "met_starts": recognition.met_starts,
            "book": self.book,
            "groups": self.groups,
            "left": self.left,
            "dropped": self.dropped,
            "stopped": self.stopped,
        }
        if recognition.starts_shown:
            value["starts_shown"] = recognition.starts_shown
        if recognition.starts_known:
            value["starts_known"] = recognition.starts_known
        return self.changes, encode_line(json.dumps(value))

    def files_of(self, key: str) -> str:
        """The name of a group's files on this node."""
        return files_name(key, self.left.get(key, NEVER_LEFT).times)

    @property
    def files(self) -> set[str]:
        """The names of the files of all groups of this node."""
        return set(map(self.files_of, self.groups))

    def is_gone(self, files: str) -> bool:
        """Was the group of these files dropped, or are they of an earlier membership?"""
        key, _, times = files.partition("~")
        return key in self.dropped or int(times or 0) < self.left.get(key, NEVER_LEFT).times

    def begin(self, key: str, members: list[str]) -> None:
        """Add a group."""
        self.groups[key] = members
        try:
            self.save()
        except OSError:
            # Otherwise the next save would record a group that does not exist.
            del self.groups[key]
            raise

    def drop(self, key: str, others: list[str]) -> None:
        """Remove a group that has ended; its other members may not know it yet."""
        del self.groups[key]
        self.stopped.pop(key, None)
        self.dropped[key] = others
        self._strike_off()
        self.save()

    def end_known(self, key: str, node: str) -> None:
        """A node has confirmed the end of a group."""
        waiting = self.dropped.get(key, [])
        if node in waiting:
            # Not written each time: after a restart all are notified again.
            waiting.remove(node)
            if not waiting:
                self._strike_off()
                self.save()

    def _strike_off(self) -> None:
        known = [key for key, waiting in self.dropped.items() if not waiting]
        for key in known[:-KNOWN_MAX]:
            del self.dropped[key]

    def leave(self, key: str, status: Status) -> None:
        """Remove a group that this node was removed from; record how far it had come."""
        del self.groups[key]
        self.stopped.pop(key, None)
        self.left[key] = self.left.get(key, NEVER_LEFT).again(status)
        self.save()

    def stop(self, key: str, reason: str) -> None:
        """Record that this node no longer participates in a group."""
        self.stopped[key] = reason
        self.save()

    def learn(self, book: dict[str, str]) -> bool:
        """As `merge_addresses`, and durable."""
        news = self.merge_addresses(book)
        if news:
            self.save()
        return news

    def merge_addresses(self, book: dict[str, str]) -> bool:
        """Take in addresses of nodes; returns whether some are new."""
        news = {name: at for name, at in book.items() if self.book.get(name) != at}
        news.pop(self.node, None)
        if not news:
            return False
        for name in news:
            check_name(name)
        self.book |= news
        return True


def stored_owner(fs: FileSystem, directory: str) -> tuple[str, str] | None:
    """(node, cluster) of a directory; None if it has no file `NODE`."""
    path = f"{directory}/{NODE}"
    if not fs.exists(path):
        return None
    value = _read_value(fs, path)
    return value["node"], value["cluster"]


def _read_value(fs: FileSystem, path: str) -> dict[str, Any]:
    lines, _ = read_lines(fs, path)
    if len(lines) != 1:
        raise DamagedFile(path, 0, f"has {len(lines)} lines, not one")
    value: dict[str, Any] = json.loads(lines[0][1])
    return value
