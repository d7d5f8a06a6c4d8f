"""The manifest of a node's directory: the files that must exist when the node starts.

    MANIFEST    one checked line, replaced as a whole
                {"version": 1,
                 "wal": {"7": 268435812, "8": 96},
                 "ends": {"default": [4096, 0, 0]},
                 "doubts": {"default": 12}}

Without it a directory whose files were deleted would open as an empty one, and the member would
vote again although it has lost its votes and its acknowledged entries.

`wal` has the files of the write-ahead log that must exist, each with a number of bytes that are
durable. A file is listed when its first bytes are durable, before anything in it is acknowledged,
and gets its final length when the next one is created. Files below the first one are not needed; a
crash may have brought them back. A file above the last has nothing that was acknowledged.

`ends` has the end of segments and snapshot of each group: [index, file, install]. It is written
before files of the write-ahead log are deleted, because from then on the entries are nowhere else,
and when a snapshot of another member is installed. `file` and `install` are those of the last
install (`snapshots.Place`): a row from before an install does not count.

`doubts` has the groups whose member may have lost acknowledged entries with a damaged batch, with
the member's term: see `wal/wal.py`. A row is removed when the member has caught up.

Any thread may call.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, NamedTuple

from lithify.errors import DamagedFile, UnsupportedVersion
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.raft.storage.file_names import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.fs import FileSystem

__all__ = ["End", "RaftManifest"]

_VERSION = 1


class End(NamedTuple):
    """The end of segments and snapshot of a group; see the module."""

    last_index: int
    wal_file: int = 0
    install_index: int = 0


class RaftManifest:
    """See the module."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        """Read the file, if there is one."""
        self._fs = fs
        self.path = f"{directory}/{MANIFEST}"
        self._lock = threading.Lock()
        self.wal: dict[int, int] = {}
        self.ends: dict[str, End] = {}
        self.doubts: dict[str, int] = {}
        self._gone: set[str] = set()
        self.exists = fs.exists(self.path)
        if not self.exists:
            return
        lines, _ = read_lines(fs, self.path)
        if len(lines) != 1:
            raise DamagedFile(self.path, 0, f"has {len(lines)} lines, not one")
        value = json.loads(lines[0][1])
        if value["version"] != _VERSION:
            raise UnsupportedVersion(self.path, value["version"], _VERSION)
        self.wal = {int(number): size for number, size in value["wal"].items()}
        self.ends = {group: End(*end) for group, end in value["ends"].items()}
        self.doubts = value["doubts"]

    def disregard_files(self) -> None:
        """A version without a manifest has changed the files; the next `save` lists them."""
        self.wal, self.ends, self.exists = {}, {}, False

    def save(self) -> None:
        """Make the current value durable."""
        with self._lock:
            self._save()

    def begin_file(self, number: int, size_bytes: int, closed: Mapping[int, int]) -> None:
        """A file of the write-ahead log is durable up to a size; `closed` has files that are full.

        If the disk refuses, the file counts as listed: what is on disk is unknown.
        """
        with self._lock:
            self.wal |= {**closed, number: size_bytes}
            self._save()

    def end_files(self, number: int, ends: Mapping[str, End]) -> None:
        """Files up to this number are not needed: their entries are where `ends` says."""
        with self._lock:
            self.wal = {each: size for each, size in self.wal.items() if each > number}
            for group, end in ends.items():
                if group in self._gone:
                    continue
                # An install that finished meanwhile wins over a row computed before it.
                before = self.ends.get(group, End(0))
                self.ends[group] = end if end[1:] >= before[1:] else before
            self._save()

    def installed(self, group: str, end: End) -> None:
        """A snapshot of another member has become a group's log."""
        with self._lock:
            self.ends[group] = end
            self._save()

    def doubt(self, doubts: Mapping[str, int]) -> None:
        """Members may have lost entries that they acknowledged in these terms, or before."""
        with self._lock:
            for group, term in doubts.items():
                self.doubts[group] = max(term, self.doubts.get(group, 0))
            self._save()

    def trust(self, group: str) -> None:
        """A member has everything that is committed."""
        with self._lock:
            if self.doubts.pop(group, None) is not None:
                self._save()

    def forget(self, group: str) -> None:
        """A group was removed; the next write of the file omits it."""
        with self._lock:
            self._gone.add(group)
            self.ends.pop(group, None)
            self.doubts.pop(group, None)

    def _save(self) -> None:
        value = {
            "version": _VERSION,
            "wal": {str(number): size for number, size in sorted(self.wal.items())},
            "ends": self.ends,
            "doubts": self.doubts,
        }
        write_atomic(self._fs, self.path, encode_line(json.dumps(value)))
        self.exists = True
