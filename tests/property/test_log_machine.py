"""The log against dicts: every operation in any order, with kills and power cuts in between.

Blocks and pieces are made tiny, so that a handful of entries crosses many of them.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lithify.checksum import crc32c
from lithify.clock import ManualClock
from lithify.errors import WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.log.file_names import LOCK, MANIFEST, dead_set_name
from lithify.log.log import Log
from lithify.log.manifest import DeadRef, SegmentRef
from lithify.log.segments import block_index, scan
from lithify.log.segments.frame import LogEntry
from lithify.settings import Durability, LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lithify.log.group_commit import Pending
    from lithify.log.reader import Snapshot

DIRECTORY = "/log"
BODY = st.one_of(st.binary(max_size=60), st.integers(100, 1200).map(bytes))
TIME = st.integers(0, 40).map(lambda minutes: 1_700_000_000_000 + minutes * 60_000)
FLAGS = st.integers(0, 2**16 - 1)
TAG = st.integers(0, 2**32 - 1)
PLACE = st.integers(0, 2**32)


@pytest.fixture(autouse=True, scope="module")
def tiny_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_index, "BLOCK_BYTES", 128)
        patch.setattr(scan, "PIECE_BYTES", 256)
        yield


@dataclass(frozen=True, slots=True)
class Held:
    """A reader that stays while the log continues."""

    stack: ExitStack
    snapshot: Snapshot
    log: list[LogEntry]
    compacted: list[LogEntry]


class LogMachine(RuleBasedStateMachine):
    """What the log holds is `entries`; what of it must survive a power cut is `durable`."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.disk = MemoryFileSystem(clock=self.clock)
        self.entries: dict[int, LogEntry] = {}
        self.durable: set[int] = set()
        self.view: dict[int, LogEntry] | None = None
        self.horizon = -1
        self.dead: set[int] = set()
        """Of `entries`: written in a sealed segment, and not to be seen."""
        self.pending: list[tuple[Pending, int]] = []
        self.held: list[Held] = []
        self.runs = 0
        self.failed: dict[int, LogEntry] = {}
        """Cut off after a failed fsync; a power cut may undo the cut."""

    @initialize(mode=st.sampled_from(Durability))
    def create(self, mode: Durability) -> None:
        self.settings = LogSettings(durability=mode, segment_bytes_max=1024, open_files_max=2)
        self.open()

    def open(self) -> None:
        self.fs = FaultyFileSystem(self.disk, clock=self.clock)
        self.log = Log.open(
            self.fs, DIRECTORY, kind="test", settings=self.settings, clock=self.clock
        )

    @property
    def always(self) -> bool:
        return self.settings.durability is Durability.ALWAYS

    # What a reader sees

    def visible(self) -> list[LogEntry]:
        seen = self.durable if self.always else self.entries.keys()
        return [self.entries[p] for p in sorted(seen) if p not in self.dead]

    def visible_compacted(self) -> list[LogEntry]:
        if self.view is None:
            return self.visible()
        above = [entry for entry in self.visible() if entry.position > self.horizon]
        return [*(self.view[p] for p in sorted(self.view)), *above]

    def seen(self, *, compacted: bool) -> list[LogEntry]:
        return self.visible_compacted() if compacted else self.visible()

    # Appending

    def wrote(self, entries: Iterable[LogEntry], pending: Pending) -> None:
        self.entries.update((entry.position, entry) for entry in entries)
        self.pending.append((pending, pending.position))
        self.rolled()

    def rolled(self) -> None:
        """Whatever is not in the active segment was made durable when that began."""
        first = self.log.manifest.active.first_position
        self.durable.update(p for p in self.entries if p < first)

    @rule(body=BODY, time_ms=TIME, flags=FLAGS, tag=TAG)
    def append(self, body: bytes, time_ms: int, flags: int, tag: int) -> None:
        position = self.log.next_position
        pending = self.log.append(body, time_ms=time_ms, flags=flags, tag=tag)
        assert pending.position == position
        self.wrote([LogEntry(position, time_ms, body, flags, tag)], pending)

    @rule(body=BODY, gap=st.integers(0, 2**40), time_ms=TIME)
    def append_behind_a_gap(self, body: bytes, gap: int, time_ms: int) -> None:
        position = self.log.next_position + gap
        pending = self.log.append(body, position=position, time_ms=time_ms)
        assert pending.position == position
        self.wrote([LogEntry(position, time_ms, body)], pending)

    @rule(rows=st.lists(st.tuples(BODY, TIME, FLAGS, TAG), max_size=12))
    def append_many(self, rows: list[tuple[bytes, int, int, int]]) -> None:
        first = self.log.next_position
        entries = [
            LogEntry(first + i, time_ms, body, flags, tag)
            for i, (body, time_ms, flags, tag) in enumerate(rows)
        ]
        pending = self.log.append_many(
            [entry.body for entry in entries],
            time_ms=[entry.time_ms for entry in entries],
            flags=[entry.flags for entry in entries],
            tags=[entry.tag for entry in entries],
        )
        assert not entries or pending.position == entries[-1].position
        self.wrote(entries, pending)

    @rule(rows=st.lists(st.tuples(BODY, st.integers(1, 9)), min_size=1, max_size=8), time_ms=TIME)
    def append_many_with_gaps(self, rows: list[tuple[bytes, int]], time_ms: int) -> None:
        place, entries = self.log.next_position, []
        for body, step in rows:
            place += step
            entries.append(LogEntry(place, time_ms, body))
        pending = self.log.append_many(
            [entry.body for entry in entries],
            time_ms=time_ms,
            positions=[entry.position for entry in entries],
        )
        self.wrote(entries, pending)

    # Making durable

    @precondition(lambda self: self.pending)
    @rule(which=PLACE)
    def wait(self, which: int) -> None:
        pending, position = self.pending.pop(which % len(self.pending))
        synced = not pending.done()
        assert pending.result() == position
        assert pending.done()
        if synced:
            self.durable.update(self.entries)

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.durable.update(self.entries)
        assert not self.always or all(pending.done() for pending, _ in self.pending)

    @rule(seconds=st.floats(0, 1))
    def maintain(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.log.maintain()
        if self.settings.durability is Durability.INTERVAL and seconds * 1000 > 200:
            self.durable.update(self.entries)

    @rule()
    def fsync_fails(self) -> None:
        waiting = [pending for pending, _ in self.pending if not pending.done()]
        lost = self.entries.keys() - self.durable
        after = self.log.next_position
        self.fs.add(Fault("fdatasync"))
        try:
            self.log.sync()
        except WriteFailed:
            # An fsync of nothing is not made, so this one had something to do.
            assert self.log.next_position == after
            if self.always:
                for position in lost:
                    self.failed[position] = self.entries.pop(position)
                for pending in waiting:
                    with pytest.raises(WriteFailed):
                        pending.result()
                self.pending = [(p, n) for p, n in self.pending if p not in waiting]
        else:
            self.durable.update(self.entries)
        self.fs.clear()

    @rule(body=BODY)
    def write_fails(self, body: bytes) -> None:
        self.sync()
        after = self.log.next_position
        self.fs.add(Fault("writev", kind="SHORT"))
        with pytest.raises(WriteFailed):
            self.log.append(body)
        self.fs.clear()
        # The position is used up, unless the write that failed was that of a footer.
        assert self.log.next_position - after in {0, 1}

    # Segments and generations

    @rule()
    def roll(self) -> None:
        self.log.roll()
        self.durable.update(self.entries)

    @rule(which=PLACE)
    def drop_head(self, which: int) -> None:
        places = sorted(self.entries)
        before = places[which % len(places)] if places else which
        expected = [s for s in self.log.manifest.segments if s.sealed and s.last_position < before]
        assert list(self.log.drop_head(before)) == expected
        if expected:
            end = expected[-1].last_position
            self.entries = {p: e for p, e in self.entries.items() if p > end}
            self.durable = {p for p in self.durable if p > end}
            self.dead = {p for p in self.dead if p > end}

    def with_dead_set(self, segment: SegmentRef, dead: set[int]) -> SegmentRef:
        """The segment as compaction publishes it; the file is durable before."""
        entries = self.entries if self.view is None else {**self.view, **self.entries}
        data = LiveSet.from_iterable(dead).to_bytes()
        name = dead_set_name(segment.id, f"run{self.runs}")
        with self.fs.open_append(f"{DIRECTORY}/{name}", exclusive=True) as file:
            file.write(data)
            file.fsync()
        frame_bytes = sum(entries[p].frame_bytes for p in dead)
        ref = DeadRef(name, len(dead), frame_bytes, len(data), crc32c(data))
        return replace(segment, dead=ref)

    def some_of(self, segment: SegmentRef, seed: int) -> set[int]:
        inside = range(segment.first_position, segment.last_position + 1)
        chosen = random.Random(seed)
        return {p for p in self.entries if p in inside and chosen.random() < 0.5}

    @rule(which=PLACE, seed=PLACE)
    def publish_dead_set(self, which: int, seed: int) -> None:
        sealed = self.log.manifest.segments[:-1]
        if not sealed:
            return
        old = sealed[which % len(sealed)]
        dead = self.some_of(old, seed)
        self.runs += 1
        new = self.with_dead_set(old, dead)
        self.log.publish(
            lambda m: replace(m, segments=tuple(new if s == old else s for s in m.segments)),
            "dead set",
        )
        inside = range(old.first_position, old.last_position + 1)
        self.dead = {p for p in self.dead if p not in inside} | dead

    @rule(seed=PLACE)
    def publish_view(self, seed: int) -> None:
        sealed = self.log.manifest.segments[:-1]
        if not sealed:
            return
        self.runs += 1
        view: list[SegmentRef] = []
        alive: dict[int, LogEntry] = {}
        for segment in sealed:
            dead = self.some_of(segment, seed)
            view.append(self.with_dead_set(replace(segment, dead=None), dead))
            inside = range(segment.first_position, segment.last_position + 1)
            alive |= {p: e for p, e in self.entries.items() if p in inside and p not in dead}
        horizon = sealed[-1].last_position
        self.log.publish(lambda m: replace(m, view=tuple(view), horizon=horizon), "view")
        self.view, self.horizon = alive, horizon

    @rule()
    def hold(self) -> None:
        stack = ExitStack()
        snapshot = stack.enter_context(self.log.snapshot())
        self.held.append(Held(stack, snapshot, self.visible(), self.visible_compacted()))

    @precondition(lambda self: self.held)
    @rule(which=PLACE)
    def let_go(self, which: int) -> None:
        held = self.held.pop(which % len(self.held))
        assert list(held.snapshot.read()) == held.log
        assert list(held.snapshot.read(compacted=True)) == held.compacted
        assert list(held.snapshot.read_backward()) == held.log[::-1]
        assert list(held.snapshot.read_backward(compacted=True)) == held.compacted[::-1]
        held.stack.close()

    @rule()
    def reclaim(self) -> None:
        retired = self.log.manifest.retired
        oldest = min((held.snapshot.manifest.generation for held in self.held), default=None)
        ripe = [r for r in retired if oldest is None or r.generation <= oldest]
        done = self.log.reclaim()
        assert (done.files, done.bytes) == (len(ripe), sum(r.file_bytes for r in ripe))
        left = [r.name for r in retired if r not in ripe]
        assert [r.name for r in self.log.manifest.retired] == left
        names = {*self.log.manifest.sizes(), *left, LOCK, MANIFEST}
        assert set(self.disk.list(DIRECTORY)) == names

    # The end of the process, and the next one

    def let_all_go(self) -> None:
        for held in self.held:
            held.stack.close()
        self.held.clear()
        self.pending.clear()

    @rule()
    def close_and_reopen(self) -> None:
        self.let_all_go()
        after = self.log.next_position
        self.log.close()
        self.durable.update(self.entries)
        self.open()
        self.failed.clear()
        assert self.log.next_position <= after

    @rule()
    def kill_and_reopen(self) -> None:
        self.let_all_go()
        self.disk = self.disk.kill_clone()
        self.open()
        self.failed.clear()
        self.durable.update(self.entries)

    @rule(seed=PLACE)
    def lose_power_and_reopen(self, seed: int) -> None:
        self.let_all_go()
        self.disk = self.disk.crash_clone(random.Random(seed))
        self.open()
        with self.log.snapshot() as snapshot:
            recovered = {entry.position for entry in snapshot.read()} | self.dead
        whole = {**self.entries, **self.failed}
        assert self.durable <= recovered <= whole.keys()
        written = sorted(recovered - self.failed.keys())
        assert written == sorted(self.entries)[: len(written)]
        undone = recovered & self.failed.keys()
        assert not undone or min(undone) > max(self.durable, default=-1)
        self.entries = {p: whole[p] for p in recovered}
        self.durable = recovered
        self.failed.clear()

    # Reading

    @rule(start=PLACE, near=st.booleans(), compacted=st.booleans(), limit=st.integers(0, 9))
    def read(self, start: int, near: bool, compacted: bool, limit: int) -> None:
        seen = self.seen(compacted=compacted)
        if near and seen:
            start = max(0, seen[start % len(seen)].position + start % 3 - 1)
        behind = [entry for entry in seen if entry.position >= start]
        before = [entry for entry in reversed(seen) if entry.position <= start]
        with self.log.snapshot() as snapshot:
            assert list(snapshot.read(start, compacted=compacted)) == behind
            some = list(snapshot.read(start, compacted=compacted, limit=limit))
            assert some == behind[:limit]
            found = snapshot.find(start, compacted=compacted)
            assert found == (behind[0].position if behind else None)
            assert list(snapshot.read_backward(start, compacted=compacted)) == before

    @rule(time_ms=TIME, compacted=st.booleans())
    def find_time(self, time_ms: int, compacted: bool) -> None:
        late = [e.position for e in self.seen(compacted=compacted) if e.time_ms >= time_ms]
        with self.log.snapshot() as snapshot:
            assert snapshot.find_time(time_ms, compacted=compacted) == next(iter(late), None)

    @invariant()
    def the_log_is_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        with self.log.snapshot() as snapshot:
            assert list(snapshot.read()) == self.visible()
        assert self.log.next_position > max(self.entries, default=-1)
        seen = self.durable if self.always else self.entries.keys()
        assert not seen or self.log.last_position == max(seen)

    def teardown(self) -> None:
        self.let_all_go()
        if hasattr(self, "log"):
            self.log.abandon()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
