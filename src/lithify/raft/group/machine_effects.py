"""Runs the effects of a group's machine: snapshots, timers, reads, messages to clients.

Effects run in order, before the next command is applied. Timers count ticks of this process, and
only a leader proposes their commands: `due` returns each expired one once. Messages to clients
collect until `take`.

Called in the group's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.raft.commands import unwrap_many
from lithify.raft.errors import EntryUnreadable
from lithify.raft.machine import Checkpoint, ReadEntries, ReleaseCursor, Timer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.machine import Effect, Send
    from lithify.raft.snapshots.taking import SnapshotTaking
    from lithify.raft.storage.group_log import GroupLog

__all__ = ["MachineEffects"]


class MachineEffects:
    """See the module."""

    def __init__(self, log: GroupLog, snapshots: SnapshotTaking[Any]) -> None:
        self._log = log
        self._snapshots = snapshots
        self._ticks = 0
        self._timers: dict[bytes, tuple[int, bytes]] = {}
        """By name: the tick at which it expires, and the command to propose then."""
        self._sends: list[Send] = []

    @property
    def is_idle(self) -> bool:
        """Does no timer run?"""
        return not self._timers

    def tick(self) -> None:
        """Count one tick."""
        self._ticks += 1

    def do(self, effects: Sequence[Effect], applied: int, *, leads: bool) -> None:
        """Run the effects of the command at an index."""
        for effect in effects:
            if isinstance(effect, ReleaseCursor):
                self._snapshots.release(effect.index, applied)
            elif isinstance(effect, Checkpoint):
                self._snapshots.ask_checkpoint()
            elif isinstance(effect, Timer):
                self._timers[effect.name] = self._ticks + effect.ticks, effect.command
            elif isinstance(effect, ReadEntries):
                if leads:
                    self._read(effect, applied)
            elif leads:
                self._sends.append(effect)

    def _read(self, effect: ReadEntries, applied: int) -> None:
        try:
            entries = self._log.read(effect.indexes)
        except EntryUnreadable:
            # As if the message were lost on the way: a watching client detects the gap.
            return
        commands = unwrap_many([entry.payload for entry in entries])[1]
        self.do(effect.then(commands), applied, leads=True)

    def due(self) -> list[bytes]:
        """The commands of the timers that have expired; returned once."""
        names = [name for name, (due, _) in self._timers.items() if due <= self._ticks]
        return [self._timers.pop(name)[1] for name in names]

    def forget_timers(self) -> None:
        """The state was replaced, so its timers are unknown."""
        self._timers.clear()

    def take(self) -> list[Send]:
        """Take the messages to be sent."""
        sends, self._sends = self._sends, []
        return sends
