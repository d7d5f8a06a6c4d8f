"""Who a node is: the one file of its directory that is not about its logs.

    NODE    one checked line, replaced as a whole
            {"version": 1, "node": "n1", "cluster": "raft", "book": {"n2": "127.0.0.1:7002"},
             "groups": {"default": ["n1", "n2", "n3"]}}

`book` says where other nodes were last reached. `groups` has the members that each group had when
it was created, which no log entry says; empty for a group that this node was added to later.

A directory belongs to one node of one cluster for good. Votes and entries were given in that name:
who took it over without them could help to choose a leader that lacks what was acknowledged.

Called by the node, from the event loop's thread.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lithify.compaction.lines import encode_line, read_lines
from lithify.errors import DamagedFile, InvalidInput, UnsupportedVersion
from lithify.fs import write_atomic
from lithify.raft.core.config import check_name
from lithify.raft.names import NODE

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = ["Identity"]

_VERSION = 1


class Identity:
    """See the module."""

    def __init__(self, fs: FileSystem, directory: str, node: str, cluster: str) -> None:
        """Read the file, or begin one; `InvalidInput` if the directory is another node's."""
        check_name(node)
        self._fs = fs
        self._path = f"{directory}/{NODE}"
        self.node = node
        self.cluster = cluster
        self.book: dict[str, str] = {}
        self.groups: dict[str, list[str]] = {}
        if not fs.exists(self._path):
            self.is_new = True
            return
        self.is_new = False
        lines, _ = read_lines(fs, self._path)
        if len(lines) != 1:
            raise DamagedFile(self._path, 0, f"has {len(lines)} lines, not one")
        value = json.loads(lines[0][1])
        if value["version"] != _VERSION:
            raise UnsupportedVersion(self._path, value["version"], _VERSION)
        owner = (value["node"], value["cluster"])
        if owner != (node, cluster):
            what = f"{directory} belongs to node {owner[0]} of cluster {owner[1]}"
            raise InvalidInput(f"{what}, not to {node} of {cluster}")
        self.book, self.groups = value["book"], value["groups"]

    def save(self) -> None:
        """Make it durable."""
        value = {
            "version": _VERSION,
            "node": self.node,
            "cluster": self.cluster,
            "book": self.book,
            "groups": self.groups,
        }
        write_atomic(self._fs, self._path, encode_line(json.dumps(value)))

    def learn(self, book: dict[str, str]) -> bool:
        """Take in where nodes are reached; were some elsewhere before?"""
        news = {name: at for name, at in book.items() if self.book.get(name) != at}
        news.pop(self.node, None)
        if not news:
            return False
        for name in news:
            check_name(name)
        self.book |= news
        self.save()
        return True
