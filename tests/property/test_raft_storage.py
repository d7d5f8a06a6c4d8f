"""Random lives of a Raft log with crashes: what was acknowledged stays, in every generation.

A life appends, overwrites, flushes, rolls, takes snapshots that leave live indexes in the log,
installs those of other members, and compacts beside all that, on a disk that dies at some
operation. Then it is opened again, also with a second crash while it is being opened, and compared
with a model:

1. Every live index of the newest durable snapshot is readable, with its term and payload.
2. Nothing above the snapshot is missing up to what was acknowledged.
3. The rest of the log is a beginning of what was written.
4. Segments do not overlap, each is a file, and no other file is left but links to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.fs import FileSystem, MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.log.file_names import HISTORY
from lithify.raft.compaction.group_compaction import CompactionOutcome, GroupCompaction, RunWanted
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import HardState, SnapshotMeta
from lithify.raft.entry import Entry
from lithify.raft.storage.file_names import parse_segment
from lithify.raft.storage.live_state import LiveState
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.storage import RaftStorage, StorageSettings
from lithify.raft.storage.wal.wal import Rolled, StateSaved, WalEvent, Written
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GROUPS = ["a", "b"]
SETTINGS = StorageSettings(wal_bytes_max=600, segments=SegmentLimits(5, 400))


@dataclass
class Model:
    """What one group has written, and how much of it was acknowledged."""

    log: list[Entry] = field(default_factory=list)
    versions: list[list[Entry]] = field(default_factory=lambda: [[]])
    """Logs as they were or may be found: from the last one that was acknowledged on."""
    acknowledged: int = 0
    term: int = 1
    saved: HardState = field(default_factory=HardState)
    asked: HardState = field(default_factory=HardState)
    snapshots: list[tuple[int, frozenset[int]]] = field(default_factory=lambda: [(0, frozenset())])
    """That may be the newest one found: the last durable one, and one that was being written."""
    installed: list[Entry] | None = None
    """The log of the other member, while a snapshot of it is being installed."""

    def write(self, first: int, count: int, rng: Random) -> list[Entry]:
        entries = [
            Entry(first + n, self.term, rng.randbytes(rng.randrange(60)), rng.randrange(3))
            for n in range(count)
        ]
        self.log = self.log[: first - 1] + entries
        self.versions.append(list(self.log))
        return entries

    def ack(self, last: int, term: int) -> None:
        if last <= len(self.log) and self.log[last - 1].term == term:
            self.acknowledged = max(self.acknowledged, last)
            self.versions = [self.log]


def rebuild(_: str, pieces: Iterable[bytes]) -> LiveSet:
    return LiveSet.from_bytes(b"".join(pieces))


class Life:
    """A storage and its model."""

    def __init__(self, fs: FileSystem, rng: Random, models: dict[str, Model]) -> None:
        self.rng = rng
        self.models = models
        self.storage = RaftStorage(fs, "d", SETTINGS)
        self.storage.open_groups(rebuild)
        for group in GROUPS:
            if group not in self.storage.groups:
                self.storage.create(group)
        self.compactors = {group: self.compactor(fs, group) for group in GROUPS}
        self.jobs: dict[str, Callable[[], CompactionOutcome]] = {}
        self.outcomes: dict[str, CompactionOutcome] = {}

    def compactor(self, fs: FileSystem, group: str) -> GroupCompaction:
        found = self.storage.groups[group]
        settings = GroupCompactionSettings(after_drops=self.rng.choice([None, 2]), link_keep_ms=0)
        limits, clock = SETTINGS.segments, ManualClock()
        return GroupCompaction(fs, found.directory, found.log, limits, clock, settings)

    def take(self, events: list[WalEvent]) -> None:
        for event in events:
            if isinstance(event, Written):
                install = self.storage.installing(event.group)
                if install is not None:
                    install.mark_durable(event)
                    continue
                log = self.storage.groups[event.group].log
                log.mark_durable(event)
                model = self.models[event.group]
                model.ack(event.last, event.term)
                assert log.written_index >= model.acknowledged
            elif isinstance(event, StateSaved):
                self.models[event.group].saved = event.state
            elif isinstance(event, Rolled):
                self.storage.settle(event, self.storage.flush(event))

    def step(self) -> None:
        group = self.rng.choice(GROUPS)
        model, storage = self.models[group], self.storage.groups[group]
        choice = self.rng.randrange(14)
        if choice < 4:
            storage.log.append(model.write(len(model.log) + 1, self.rng.randrange(1, 5), self.rng))
        elif choice == 4:
            self.overwrite(group)
        elif choice < 8:
            self.take(self.storage.wal.flush())
        elif choice == 8:
            self.take(self.storage.wal.roll())
        elif choice == 9:
            self.snapshot(group)
        elif choice == 10:
            self.install(group)
        else:
            self.compact(group)

    def compact(self, group: str) -> None:
        """One step of a compaction; everything else may come between two of them."""
        compactor = self.compactors[group]
        if group in self.jobs:
            self.outcomes[group] = self.jobs.pop(group)()
        elif group in self.outcomes:
            outcome = self.outcomes.pop(group)
            assert outcome.failure is None
            compactor.done(outcome)
        else:
            compactor.request_drop()
            if self.rng.random() < 0.6 or compactor.observe().reached:
                compactor.request(RunWanted())
            job = compactor.next_job()
            if job is not None:
                self.jobs[group] = job
        log = self.storage.groups[group].log
        for entry in log.read(list(log.state.live)):
            assert entry == self.models[group].log[entry.index - 1]

    def overwrite(self, group: str) -> None:
        model, storage = self.models[group], self.storage.groups[group]
        model.term += 1
        model.asked = HardState(model.term, "n2", 0)
        self.storage.wal.save(group, model.asked)
        # Nothing that was acknowledged here was committed, but for what a snapshot has.
        first = self.rng.randrange(storage.log.snapshot_index, len(model.log) + 1) + 1
        model.acknowledged = min(model.acknowledged, first - 1)
        storage.log.append(model.write(first, self.rng.randrange(1, 4), self.rng))

    def snapshot(self, group: str) -> None:
        model, storage = self.models[group], self.storage.groups[group]
        old = storage.log.snapshot_index
        if model.acknowledged <= old:
            return
        index = self.rng.randrange(old, model.acknowledged) + 1
        may = [*storage.log.state.live, *range(old + 1, index + 1)]
        live = LiveSet.from_iterable(i for i in may if self.rng.random() < 0.3)
        term = model.log[index - 1].term
        model.snapshots = [model.snapshots[-1], (index, frozenset(live))]
        meta = SnapshotMeta(index, term, Config(frozenset({"n1"})))
        place = storage.log.place()
        stored = storage.snapshots.write(Head(meta), [live.to_bytes()], live, place)
        model.snapshots = model.snapshots[-1:]
        storage.log.snapshot(LiveState(index, live), term)
        storage.snapshots.remove_older(stored)
        storage.stored = stored
        self.compactors[group].request_drop()

    def install(self, group: str) -> None:
        """Another member's log is the same up to what was applied, and then goes its own way."""
        model, storage = self.models[group], self.storage.groups[group]
        log = storage.log
        applied = self.rng.randrange(log.snapshot_index, model.acknowledged + 1)
        index = applied + self.rng.randrange(1, 12)
        model.term += 1
        theirs = model.log[:applied] + [
            Entry(i, model.term, self.rng.randbytes(20)) for i in range(applied + 1, index + 1)
        ]
        may = [*log.state.live, *range(log.snapshot_index + 1, index + 1)]
        live = LiveSet.from_iterable(i for i in may if self.rng.random() < 0.4)
        head = Head(SnapshotMeta(index, model.term, Config(frozenset({"n1"}))))
        install = self.storage.begin_install(group, head, applied)
        for i in live.floor(applied + 1):
            install.add([theirs[i - 1]])
            if self.rng.random() < 0.2:
                self.take(self.storage.wal.roll())
        install.piece(live.to_bytes())
        if self.rng.random() < 0.3:
            self.storage.abort_install(install)
            return
        self.take(self.storage.wal.roll())
        assert install.is_durable
        model.snapshots = [model.snapshots[-1], (index, frozenset(live))]
        model.installed = theirs
        job = self.storage.install_job(install, live)
        self.storage.installed(install, live, job())
        model.log, model.installed = theirs, None
        model.versions, model.acknowledged = [theirs], index
        model.snapshots = model.snapshots[-1:]


def check(storage: RaftStorage, models: dict[str, Model]) -> None:
    for group, model in models.items():
        found = storage.groups.get(group)
        if found is None:
            assert not model.acknowledged
            continue
        log = found.log
        snapshot = log.snapshot_index
        assert (snapshot, frozenset(log.state.live)) in model.snapshots
        if model.installed is not None and snapshot == len(model.installed):
            model.log, model.versions = model.installed, [model.installed]
            model.acknowledged = snapshot
        model.installed = None
        for entry in log.read(list(log.state.live)):
            assert entry == model.log[entry.index - 1]
        assert log.last_index >= max(model.acknowledged, snapshot)
        above = log.entries(snapshot + 1, log.last_index + 1, 2**40)
        assert [e.index for e in above] == list(range(snapshot + 1, log.last_index + 1))
        assert any(v[snapshot : log.last_index] == above for v in model.versions)
        assert found.hard_state in (model.saved, model.asked)
        check_files(storage, group)


def check_files(storage: RaftStorage, group: str) -> None:
    found = storage.groups[group]
    spans = found.log.segments.spans
    assert all(a.first <= a.last < b.first for a, b in pairwise(spans))
    names = [name for name in storage.fs.list(found.directory) if parse_segment(name) is not None]
    assert names == [span.ref.name for span in spans]
    assert not any(storage.fs.stat(f"{found.directory}/{name}").is_symlink for name in names)
    others = set(storage.fs.list(found.directory)) - set(names)
    assert others - {HISTORY} == {"snapshots", "checkpoints"}


def adopt(storage: RaftStorage, models: dict[str, Model]) -> None:
    """Continue with what was found."""
    for group, model in models.items():
        found = storage.groups.get(group)
        if found is None:
            models[group] = Model()
            continue
        log = found.log
        snapshot = log.snapshot_index
        model.log = model.log[:snapshot] + log.entries(snapshot + 1, log.last_index + 1, 2**40)
        model.versions = [model.log]
        model.acknowledged = log.last_index
        model.saved = model.asked = found.hard_state
        model.snapshots = [(snapshot, frozenset(log.state.live))]


def live_through(seed: int, lives: int = 4) -> None:
    rng = Random(seed)
    disk = MemoryFileSystem()
    models = {group: Model() for group in GROUPS}
    for _ in range(lives):
        kind = rng.choice(["CRASH", "CRASH_AFTER"])
        fs = FaultyFileSystem(disk, [Fault("mutating", "*", rng.randrange(1, 150), kind=kind)])
        try:
            life = Life(fs, rng, models)
            for _ in range(rng.randrange(120)):
                life.step()
        except PowerCut:
            pass
        disk = disk.crash_clone(rng) if rng.random() < 0.7 else disk.kill_clone()
        try:
            faults = [Fault("mutating", "*", rng.randrange(1, 20), kind="CRASH")]
            RaftStorage(FaultyFileSystem(disk, faults), "d", SETTINGS).open_groups(rebuild)
        except PowerCut:
            pass
        disk = disk.crash_clone(rng) if rng.random() < 0.7 else disk.kill_clone()
        storage = RaftStorage(disk, "d", SETTINGS)
        storage.open_groups(rebuild)
        check(storage, models)
        adopt(storage, models)
        storage.close()


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_acknowledged_entries_stay(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            live_through(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}: live_through({seed})")
            raise
