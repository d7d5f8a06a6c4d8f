"""One group's log on disk, driven by hand: segments of five entries, snapshots, compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.clock import ManualClock
from lithify.compaction.run.compactor import DryRun
from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.raft.compaction.group_compaction import GroupCompaction, RunWanted
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import SnapshotMeta
from lithify.raft.entry import Entry
from lithify.raft.storage.file_names import parse_segment
from lithify.raft.storage.live_state import LiveState
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.storage import RaftStorage, StorageSettings
from lithify.raft.storage.wal.wal import Resend, Rolled, Written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.errors import LithifyError
    from lithify.fs import FileSystem
    from lithify.raft.compaction.group_compaction import CompactionOutcome
    from lithify.raft.storage.wal.wal import WalEvent

GROUP = "orders"
DIRECTORY = f"d/groups/{GROUP}"
LIMITS = SegmentLimits(5, 10_000)
BY_CALL = GroupCompactionSettings(after_drops=None)


def rebuild(_: str, pieces: Iterable[bytes]) -> LiveSet:
    """The state of these tests is the live set itself."""
    return LiveSet.from_bytes(b"".join(pieces))


def entry(index: int, term: int = 1) -> Entry:
    return Entry(index, term, b"value %d of term %d" % (index, term), 2)


class Member:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        settings: GroupCompactionSettings = BY_CALL,
        root: str = "d",
    ) -> None:
        self.fs = fs
        self.clock = ManualClock()
        self.storage = RaftStorage(fs, root, StorageSettings(segments=LIMITS))
        self.storage.open_groups(rebuild)
        self.own = self.storage.groups.get(GROUP) or self.storage.create(GROUP)
        self.log = self.own.log
        self.compactor = GroupCompaction(
            fs, self.own.directory, self.log, LIMITS, self.clock, settings
        )

    @property
    def disk(self) -> MemoryFileSystem:
        assert isinstance(self.fs, MemoryFileSystem)
        return self.fs

    def fill(self, stop: int, term: int = 1, first: int | None = None) -> Member:
        """Write entries below `stop` and bring them to segments."""
        return self.write(stop, term, first).roll()

    def write(self, stop: int, term: int = 1, first: int | None = None) -> Member:
        """Write entries below `stop`, which are durable then, to the write-ahead log."""
        begin = self.log.last_index + 1 if first is None else first
        self.log.append([entry(index, term) for index in range(begin, stop)])
        self._take(self.storage.wal.flush())
        return self

    def roll(self) -> Member:
        self._take(self.storage.wal.roll())
        return self

    def _take(self, events: list[WalEvent]) -> None:
        for event in events:
            if isinstance(event, Written):
                self.log.mark_durable(event)
            elif isinstance(event, Rolled):
                self.storage.settle(event, self.storage.flush(event))
            else:
                assert not isinstance(event, Resend), "nothing of this was lost"

    def snapshot(self, index: int, live: Iterable[int]) -> Member:
        needed = LiveSet.from_iterable(live)
        head = Head(SnapshotMeta(index, 1, Config(frozenset({"n1"}))))
        place = self.log.place()
        stored = self.own.snapshots.write(head, [needed.to_bytes()], needed, place)
        self.own.stored = stored
        self.log.snapshot(LiveState(index, needed), 1)
        self.own.snapshots.remove_older(stored)
        self.compactor.request_drop()
        return self

    def compact(self, *, merge: bool = True) -> CompactionOutcome:
        """A whole compaction, from the question to its end."""
        if merge:
            self.compactor.request(RunWanted())
        else:
            self.compactor.request_drop()
        job = self.compactor.next_job()
        assert job is not None
        outcome = job()
        self.compactor.done(outcome)
        return outcome

    def plan(self) -> DryRun:
        """What a merge would do now."""
        found: list[DryRun | LithifyError] = []
        self.compactor.plan(found.append)
        job = self.compactor.next_job()
        assert job is not None
        self.compactor.done(job())
        (plan,) = found
        assert isinstance(plan, DryRun)
        return plan

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """(number, first, last) of each segment."""
        return [(span.number, span.first, span.last) for span in self.log.segments.spans]

    @property
    def files(self) -> list[int]:
        """The numbers of the segments that have a file of their own."""
        directory = self.own.directory
        names = [
            n for n in self.fs.list(directory) if not self.fs.stat(f"{directory}/{n}").is_symlink
        ]
        return [number for name in names if (number := parse_segment(name)) is not None]

    @property
    def links(self) -> list[int]:
        directory = self.own.directory
        names = [n for n in self.fs.list(directory) if self.fs.stat(f"{directory}/{n}").is_symlink]
        return [number for name in names if (number := parse_segment(name)) is not None]

    def check(self) -> None:
        """Everything that must be readable is."""
        live = list(self.log.state.live)
        assert [e.index for e in self.log.read(live)] == live
        for index in (*live, *range(self.log.snapshot_index + 1, self.log.last_index + 1)):
            (found,) = self.log.read([index])
            assert found == entry(index, found.term)
