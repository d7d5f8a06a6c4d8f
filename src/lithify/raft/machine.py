"""What a replicated state machine is to the group that runs it. Values and protocols; pure.

    class Counter:                                  # a machine; its state is any value
        version = 1
        def init(self): return 0
        def apply(self, meta, command, state):
            return state + int(command), b"%d" % (state + int(command)), ()
        ...

A group calls, in its own thread but where another is named:

1. `init` for the first state, or `load` with what `save` has given, in whatever thread.
2. `apply` for every command, in the order of the log, on every member. Its result may depend on
   nothing but its arguments: all members must come to the same state. It may change the state in
   place and give it back. A machine that has `apply_many` gets whole runs of commands instead, so
   that what one costs is not spent on calls.
3. `query` for a read; it changes nothing that anybody could see. It gives the answer, or says with
   a `Reading` which live commands it needs for it, which is how values that were left in the log
   are found again. What takes long is done there too: its `then` is called by another thread while
   `apply` goes on, so it must have kept aside what it needs.
4. `live_indexes` and `save`, one after the other, when a snapshot is to be taken. `save` returns at
   once; its pieces are taken by another thread while `apply` goes on, so it must have kept aside
   what it needs. About `PIECE_BYTES` a piece.
5. `rewrite_command` to move a live entry to the head of the log: a command that does for the old
   index what the entry did, if it still counts then; None if there is nothing to move.
6. `audience` and `farewell`, on the leader: of those that the machine would send to, the ones
   that are not there any more are taken leave of, by a command.

An index that was not live at one snapshot is never live again, and none above the snapshot is.

Effects are what `apply` wants done besides. Each member gets them, and after a restart those since
the last snapshot once more. `Send`, `ReadEntries` and the command of a `Timer` are the leader's;
the others are done by every member. What is sent may be lost when leaders change, and must be
made to show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lithify.liveset import LiveSet

__all__ = [
    "Batch",
    "Checkpoint",
    "Effect",
    "Machine",
    "ManyMachine",
    "Meta",
    "ReadEntries",
    "Reading",
    "ReleaseCursor",
    "Send",
    "Timer",
]

S = TypeVar("S")


class Meta(NamedTuple):
    """About the command that is being applied. A tuple for the reason that `Entry` is one."""

    index: int  # type: ignore[assignment]  # Nobody looks for the place of a value in it.
    term: int
    time_ms: int
    """The clock of the leader that took the command; the same on all members, but it may jump."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Commands of one term that follow each other in the log."""

    index: int
    """Of the first."""
    term: int
    times_ms: list[int]
    """As in `Meta`, of each."""
    commands: list[bytes]


@dataclass(frozen=True, slots=True)
class ReleaseCursor:
    """The log up to this index is not needed but for what is live: a good place for a snapshot.

    At the index of the command it is a snapshot of now; below it, the newest checkpoint at or below
    becomes one.
    """

    index: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Write the state, so that it can become a snapshot later."""


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read the commands at these ascending indexes, which are live; then do what comes of them."""

    indexes: tuple[int, ...]
    then: Callable[[list[bytes]], Sequence[Effect]]


@dataclass(frozen=True, slots=True)
class Timer:
    """Propose a command when so many ticks have passed; one of the same name takes its place."""

    name: bytes
    ticks: int
    command: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Give something to whoever is known under this name to the process that runs the leader."""

    to: bytes
    data: bytes


Effect = ReleaseCursor | Checkpoint | ReadEntries | Timer | Send


@dataclass(frozen=True, slots=True)
class Reading:
    """An answer to be made of the commands at these ascending indexes, which are live.

    `then` makes it, or says what else is to be read. It is called in any thread, at once only if
    the commands are in memory. One of no indexes is about nothing but the time that `then` takes.
    """

    indexes: tuple[int, ...]
    then: Callable[[Sequence[bytes]], bytes | Reading]


class Machine(Protocol[S]):
    """See the module."""

    @property
    def version(self) -> int:
        """Of the commands and of the state; a snapshot of a higher one is refused."""

    def init(self) -> S:
        """The state before the first command."""

    def apply(self, meta: Meta, command: bytes, state: S) -> tuple[S, bytes, Sequence[Effect]]:
        """(state, reply, effects) of a command."""

    def query(self, state: S, query: bytes) -> bytes | Reading:
        """The answer to a question, or what it takes to make it."""

    def live_indexes(self, state: S) -> LiveSet:
        """The indexes whose commands the state still needs."""

    def rewrite_command(self, state: S, index: int, command: bytes) -> bytes | None:
        """A command that does again what the one at a live index did."""

    def audience(self, state: S) -> Iterable[bytes]:
        """The names that it may `Send` something to."""

    def farewell(self, name: bytes) -> bytes:
        """A command after which nothing is sent to a name any more."""

    def save(self, state: S) -> Iterable[bytes]:
        """The state in pieces."""

    def load(self, pieces: Iterable[bytes]) -> S:
        """The state that `save` has given."""


@runtime_checkable
class ManyMachine(Protocol[S]):
    """A machine that applies runs of commands."""

    def apply_many(
        self, batch: Batch, start: int, state: S
    ) -> tuple[S, list[bytes], Sequence[Effect]]:
        """(state, replies, effects) of the commands of a batch from the place `start` on.

        It stops behind the first one that has effects, so that they are done before the next
        command is applied, and is then called again for those that have no reply yet.
        """
