"""The interface between a replicated state machine and its group. Values and protocols; pure.

    class Counter:                                  # a machine; its state is any value
        version = 1
        def init(self): return 0
        def apply(self, meta, command, state):
            return state + int(command), b"%d" % (state + int(command)), ()
        ...

A group calls, in its own thread unless another is named:

1. `init` for the first state, or `load` with the pieces of `save`, in any thread.
2. `apply` for every command, in the order of the log, on every member. Its result may depend only
   on its arguments: all members must get the same state. It may change the state in place and
   return it. A machine with `apply_many` gets whole runs of commands instead, which saves calls.
3. `query` for a read; it has no visible side effects. It returns the answer, or a `QueryRead` with
   the live commands that the answer needs; so values that were left in the log are found again.
   Slow work is done there too: another thread calls its `then` while `apply` continues, so it must
   have copied what it needs.
4. `live_indexes` and `save`, one after the other, to take a snapshot. `save` returns at once;
   another thread reads its pieces while `apply` continues, so it must have copied what it needs. A
   piece has about `PIECE_BYTES`.
5. `rewrite_command` to move a live entry to the head of the log: a command with the effect of the
   entry at the old index, if that is still live then; None if there is nothing to move.
6. `audience` and `farewell`, on the leader: for each receiver that has disconnected, a command that
   removes it.

An index that was not live at one snapshot is never live again, and no index above the snapshot is.

Effects are requests of `apply` besides the reply. Each member gets them, and after a restart those
since the last snapshot again. `Send`, `ReadEntries` and the command of a `Timer` are done by the
leader only, the others by every member. Sent data may be lost when leaders change, so it must let
the receiver detect that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lithify.live_set import LiveSet

__all__ = [
    "Checkpoint",
    "CommandBatch",
    "Effect",
    "Machine",
    "ManyMachine",
    "Meta",
    "QueryRead",
    "ReadEntries",
    "ReleaseCursor",
    "Send",
    "Timer",
]

S = TypeVar("S")


class Meta(NamedTuple):
    """Data about the command that is being applied. A tuple, for the reason in `Entry`."""

    index: int  # type: ignore[assignment]  # No caller uses tuple.index.
    term: int
    time_ms: int
    """The clock of the leader that received it; the same on all members, but it may jump."""


@dataclass(frozen=True, slots=True)
class CommandBatch:
    """Consecutive commands of one term."""

    index: int
    """Of the first command."""
    term: int
    times_ms: list[int]
    """As in `Meta`, of each command."""
    commands: list[bytes]


@dataclass(frozen=True, slots=True)
class ReleaseCursor:
    """Only live entries are needed up to this index: a good place for a snapshot.

    At the index of the command it takes a snapshot now; below it, the newest checkpoint at or below
    the index becomes one.
    """

    index: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Write the state, so that it can become a snapshot later."""


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read the commands at these ascending live indexes, then do the effects of `then`."""

    indexes: tuple[int, ...]
    then: Callable[[list[bytes]], Sequence[Effect]]


@dataclass(frozen=True, slots=True)
class Timer:
    """Propose a command after this number of ticks; replaces a timer of the same name."""

    name: bytes
    ticks: int
    command: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Send data to the client with this name that is connected to the leader."""

    to: bytes
    data: bytes


Effect = ReleaseCursor | Checkpoint | ReadEntries | Timer | Send


@dataclass(frozen=True, slots=True)
class QueryRead:
    """An answer that needs the commands at these ascending live indexes.

    `then` returns it, or what to read next. It is called in any thread, and at once only if the
    commands are in memory. A reading without indexes moves slow work to another thread.
    """

    indexes: tuple[int, ...]
    then: Callable[[Sequence[bytes]], bytes | QueryRead]


class Machine(Protocol[S]):
    """See the module."""

    @property
    def version(self) -> int:
        """The version of commands and state; a snapshot of a higher version is refused."""

    def init(self) -> S:
        """The state before the first command."""

    def apply(self, meta: Meta, command: bytes, state: S) -> tuple[S, bytes, Sequence[Effect]]:
        """(state, reply, effects) of a command."""

    def query(self, state: S, query: bytes) -> bytes | QueryRead:
        """The answer to a query, or what it needs."""

    def live_indexes(self, state: S) -> LiveSet:
        """The indexes whose commands the state still needs."""

    def rewrite_command(self, state: S, index: int, command: bytes) -> bytes | None:
        """A command with the effect of the one at a live index."""

    def audience(self, state: S) -> Iterable[bytes]:
        """The names that it may `Send` to."""

    def farewell(self, name: bytes) -> bytes:
        """A command after which nothing is sent to a name."""

    def save(self, state: S) -> Iterable[bytes]:
        """The state in pieces."""

    def load(self, pieces: Iterable[bytes]) -> S:
        """The state that `save` has written."""


@runtime_checkable
class ManyMachine(Protocol[S]):
    """A machine that applies runs of commands."""

    def apply_many(
        self, batch: CommandBatch, start: int, state: S
    ) -> tuple[S, list[bytes], Sequence[Effect]]:
        """(state, replies, effects) of the commands of a batch from position `start` on.

        It stops after the first one that has effects, so that these are done before the next
        command is applied. It is then called again for the commands without a reply.
        """
