"""A crash at every operation of a life with checkpoints, promotions and snapshots.

The machine keeps its last few commands in the log and says when it wants a checkpoint, and when an
index is released: a checkpoint at or below it then becomes the snapshot, with the live indexes of
its own moment, and segments are dropped. Whatever the crash leaves, the next start finds

1. every command that was answered, in the state;
2. every command that the state needs, in the log, and every live index of the snapshot;
3. no temporary directory, and no snapshot or checkpoint that is not whole;

and the member continues to the end of the story.
"""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING

from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.raft.commands import CommandResult, Result
from lithify.raft.machine import Checkpoint, Effect, Meta, QueryRead, ReleaseCursor
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.raft_members import GROUP, Member, Members

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    State = tuple[int, tuple[int, ...]]
    """(commands so far, the indexes of the last of them)"""

KEPT = 3
TOGETHER = 5


def commands(first: int, stop: int) -> list[bytes]:
    """Large enough that files of the write-ahead log become full, and segments too."""
    return [b"%04d" % number + b"." * 100 for number in range(first, stop)]


LIFE = (
    *commands(0, 50),
    b"checkpoint",
    *commands(50, 60),
    # The checkpoint becomes the snapshot, and the segments before it are dropped.
    b"release 58",
    *commands(60, 70),
    b"checkpoint",
    b"checkpoint",
    *commands(70, 90),
    b"release 85",
    b"snapshot",
    *commands(90, 100),
)


class Keeper:
    """See the module; its state is a value."""

    version = 1

    def init(self) -> State:
        return 0, ()

    def apply(
        self, meta: Meta, command: bytes, state: State
    ) -> tuple[State, bytes, Sequence[Effect]]:
        effects: list[Effect] = []
        if command == b"checkpoint":
            effects.append(Checkpoint())
        elif command == b"snapshot":
            effects.append(ReleaseCursor(meta.index))
        elif command.startswith(b"release"):
            effects.append(ReleaseCursor(int(command[7:])))
        count, kept = state
        return (count + 1, (*kept, meta.index)[-KEPT:]), b"", effects

    def query(self, state: State, query: bytes) -> QueryRead:
        count, kept = state
        return QueryRead(
            kept, lambda commands: json.dumps([count, *map(bytes.decode, commands)]).encode()
        )

    def live_indexes(self, state: State) -> LiveSet:
        return LiveSet.from_iterable(state[1])

    def rewrite_command(self, state: State, index: int, command: bytes) -> bytes | None:
        return None

    def audience(self, state: State) -> Iterable[bytes]:
        return ()

    def farewell(self, name: bytes) -> bytes:
        raise AssertionError("no member is sent anything")

    def save(self, state: State) -> Iterable[bytes]:
        return [json.dumps(state).encode()]

    def load(self, pieces: Iterable[bytes]) -> State:
        count, kept = json.loads(b"".join(pieces))
        return count, tuple(kept)


class Life(Members):
    """One member, on a disk that may die."""

    def __init__(self) -> None:
        super().__init__("n1", machine=Keeper)
        self.disk = MemoryFileSystem(clock=self.clock)
        self.fs = FaultyFileSystem(self.disk, [])
        self.answered = 0

    def live(self) -> None:
        """Begin with what is on the disk, and continue to the end."""
        settings = self["n1"].settings
        self.all["n1"] = Member("n1", self.fs, settings, Keeper)  # type: ignore[arg-type]
        self.elect("n1")
        self.check()
        while self.answered < len(LIFE):
            results: list[Result] = []
            for command in LIFE[self.answered : self.answered + TOGETHER]:
                self["n1"].group.propose(command, results.append)
            self.settle()
            assert all(isinstance(result, CommandResult) for result in results)
            self.answered += len(results)
        self.check()

    def check(self) -> None:
        result = self.ask("n1", lambda done: self["n1"].group.read(b"", done))
        assert isinstance(result, CommandResult)
        count, *kept = json.loads(result.reply)
        assert count >= self.answered  # 1
        assert kept == [command.decode() for command in LIFE[:count]][-KEPT:]  # 2
        self.answered = count
        log = self["n1"].storage.groups[GROUP].log
        live = list(log.state.live)
        assert [entry.index for entry in log.read(live)] == live

    def lose_power(self, seed: int) -> None:
        self.disk = self.disk.crash_clone(Random(seed))
        self.fs = FaultyFileSystem(self.disk, [])

    @property
    def snapshots(self) -> list[str]:
        parents = (f"d/groups/{GROUP}/{kind}" for kind in ("snapshots", "checkpoints"))
        return [name for parent in parents for name in self.disk.list(parent)]


def test_the_life_has_all_of_it() -> None:
    life = Life()
    life.live()
    directory = f"d/groups/{GROUP}"
    names = [life.disk.list(f"{directory}/{kind}") for kind in ("snapshots", "checkpoints")]
    assert [len(found) for found in names] == [1, 0], "what a snapshot makes needless is gone"
    log = life["n1"].storage.groups[GROUP].log
    assert log.snapshot_index > 90
    assert log.segments.spans[0].number > 1, "segments were dropped"


def test_a_crash_at_every_operation_with_checkpoints() -> None:
    nth = crashes = 0
    while True:
        nth += 1
        life = Life()
        life.fs.add(Fault("mutating", "*", nth, kind="CRASH"))
        try:
            life.live()
        except PowerCut:
            crashes += 1
            life.lose_power(nth)
            life.live()
            assert not [name for name in life.snapshots if name.endswith(".tmp")]  # 3
        else:
            break
    print(f"{crashes} crashes")
    assert crashes > 100
