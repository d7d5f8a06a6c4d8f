"""A member of the simulated cluster: its disk, its groups, and what its threads have to do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from lithify.errors import WriteFailed
from lithify.events import WriteRefused
from lithify.raft.core.values import HardState
from lithify.raft.group.group import Group
from lithify.raft.group.removed_members import NEVER_LEFT
from lithify.raft.kv import format as kv
from lithify.raft.kv.machine import KvMachine
from lithify.raft.kv.rows import ROW
from lithify.raft.storage.storage import RaftStorage
from lithify.raft.storage.wal.wal import Rolled
from lithify.testing.faulty_fs import Fault, FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.fs import MemoryFileSystem
    from lithify.raft.kv.state import KvState
    from lithify.raft.machine import CommandBatch, Effect
    from lithify.raft.pending_work import Job
    from lithify.raft.storage.segment_writer import Flushed
    from lithify.raft.storage.wal.wal import WalEvent
    from tests.property.raft_cluster import World


class WatchedMachine(KvMachine):
    """Tells the world what is applied."""

    def __init__(self, applied: dict[int, tuple[int, bytes]]) -> None:
        super().__init__()
        self.applied = applied

    def apply_many(
        self, batch: CommandBatch, start: int, state: KvState
    ) -> tuple[KvState, list[bytes], Sequence[Effect]]:
        state, replies, effects = super().apply_many(batch, start, state)
        for place in range(start, start + len(replies)):
            index, fact = batch.index + place, (batch.term, batch.commands[place])
            assert self.applied.setdefault(index, fact) == fact, f"two histories at {index}"
        return state, replies, effects


class Member:
    """One process: its disk, and what its threads have to do."""

    def __init__(self, world: World, name: str, disk: MemoryFileSystem) -> None:
        self.world = world
        self.name = name
        self.disk = disk
        rng = world.random
        kind = rng.choice(["CRASH", "CRASH_AFTER"])
        lives = rng.randrange(20, 1500) if world.crashes else 10**9
        faults = [Fault("mutating", "*", lives, kind=kind)]
        if world.crashes and rng.random() < 0.4:
            trouble = rng.choice(("ENOSPC", "EIO", "SHORT"))
            faults.append(Fault("mutating", "*", rng.randrange(1, 600), 3, kind=trouble))
        self.fs = FaultyFileSystem(disk, faults)
        self.events: list[WalEvent] = []
        self.rolled: list[Rolled] = []
        self.flushed: list[tuple[Rolled, list[Flushed]]] = []
        self.jobs: list[tuple[Group[Any], Job]] = []
        self.reads: list[tuple[Group[Any], Job]] = []
        self.results: list[tuple[Group[Any], Job, object]] = []
        self.calls = 0
        self.storage = RaftStorage(self.fs, "d", world.storage_settings)
        self.storage.open_groups(world.live_in)
        self.storage.removing = self.remove
        settings = world.settings_of(name)
        self.groups: dict[str, Group[Any]] = {}
        left = world.left.get(name, NEVER_LEFT)
        for group in world.applied:
            own = self.storage.groups.get(group) or self.storage.create(group)
            if own.hard_state.term <= left.term:
                own.hard_state = HardState(left.term + 1, name)
            machine = world.machine_of(group)
            self.groups[group] = Group(self.storage, group, name, machine, settings, rng.randrange)
            world.check_live(self, group)

    def remove(self, files: Callable[[], None]) -> None:
        # What the disk refuses to remove is found by the next start.
        with contextlib.suppress(OSError, WriteFailed):
            files()

    def flush_wal(self) -> None:
        self.events += self.storage.wal.flush()

    def take_event(self) -> None:
        event = self.events.pop(0)
        if isinstance(event, Rolled):
            self.rolled.append(event)
            return
        for name, group in self.groups.items():
            if isinstance(event, WriteRefused) or event.group.partition("/")[0] == name:
                group.wal_event(event)

    def write_segments(self) -> None:
        try:
            flushed = self.storage.flush(self.rolled[0])
        except (OSError, WriteFailed):
            # It is tried again until the disk takes it.
            self.world.counts["refused"] += 1
        else:
            self.flushed.append((self.rolled.pop(0), flushed))

    def settle(self) -> None:
        rolled, flushed = self.flushed.pop(0)
        self.storage.settle(rolled, flushed)
        for each in flushed:
            self.groups[each.group].settled(each)

    def run_job(self) -> None:
        self.run(*self.jobs.pop(0))

    def run_read(self) -> None:
        # Any of them: readers overtake each other.
        self.run(*self.reads.pop(self.world.random.randrange(len(self.reads))))

    def run(self, group: Group[Any], job: Job) -> None:
        try:
            self.results.append((group, job, job()))
        except (OSError, WriteFailed) as error:
            self.results.append((group, job, error))
        except Exception as error:
            raise AssertionError(f"{job.what} failed") from error

    def finish_job(self) -> None:
        group, job, result = self.results.pop(0)
        what = "failures" if isinstance(result, Exception) else job.what.split(" ")[0]
        self.world.counts[what] += 1
        group.job_done(job, result)

    def background(self) -> list[Callable[[], None]]:
        """What its threads could do now."""
        can = [self.flush_wal] if self.world.random.random() < self.world.wal_share else []
        for queue, act in (
            (self.events, self.take_event),
            # The next file's entries go behind those of the last, which must be taken in by then.
            (self.rolled and not self.flushed, self.write_segments),
            (self.flushed, self.settle),
            (self.jobs, self.run_job),
            (self.reads, self.run_read),
            (self.results, self.finish_job),
        ):
            if queue:
                can.append(act)
        return can

    def leads(self, name: str) -> bool:
        return self.groups[name].leading_term > 0


def check_live(member: Member, name: str) -> None:
    """Every row of the state leads to an entry with its value."""
    state: KvState = member.groups[name].state
    places = {ROW.unpack(row)[0]: (key, row) for key, row in state.rows.items()}
    assert frozenset(state.live.live_set()) == frozenset(places)
    for entry in member.storage.groups[name].log.read(sorted(places)):
        key, row = places[entry.index]
        command = entry.payload[8:]
        assert kv.parse_key(command)[1] == key
        assert kv.digest_of(kv.value_at(command)) == ROW.unpack(row)[2]
