"""Commands in the entries of a log, and their results. Values only.

The payload of an entry is an envelope, the clock of the leader, and the command.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from lithify.errors import LithifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Done = Callable[["Result"], None]
    RunDone = Callable[[slice, "CommandResults | LithifyError"], None]
    """Gets a part of a run of commands, and the outcome of all commands in it."""

__all__ = ["ENVELOPE", "CommandResult", "CommandResults", "Result", "single", "unwrap_many"]

ENVELOPE = struct.Struct("<Q")
"""Before each command in an entry: the clock of the leader that received it, in milliseconds."""


class CommandResult(NamedTuple):
    """A command was applied at an index, or a read saw everything up to it.

    A tuple, for the reason in `Entry`.
    """

    index: int  # type: ignore[assignment]  # No caller uses tuple.index.
    reply: bytes


Result = CommandResult | LithifyError


class CommandResults(NamedTuple):
    """Consecutive commands were applied, the first one at an index."""

    index: int  # type: ignore[assignment]  # No caller uses tuple.index.
    replies: list[bytes]


def single(done: Done) -> RunDone:
    """The callback of a run of one command."""

    def ended(_: slice, result: CommandResults | LithifyError) -> None:
        done(
            CommandResult(result.index, result.replies[0])
            if isinstance(result, CommandResults)
            else result
        )

    return ended


def unwrap_many(payloads: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
    """(the leader's clock for each in milliseconds, the commands) of entries' payloads."""
    unpack, size = ENVELOPE.unpack_from, ENVELOPE.size
    return [unpack(payload)[0] for payload in payloads], [payload[size:] for payload in payloads]
