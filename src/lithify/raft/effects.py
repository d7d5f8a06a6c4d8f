"""Does what a group's machine wants done besides its replies: snapshots, timers, reading, sending.

Effects are done in their order, before the next command is applied. A timer counts in ticks of this
process, and only a leader proposes its command: `due` gives those that are, each once. What is sent
gathers until it is taken.

The group's thread calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.raft.errors import EntryUnreadable
from lithify.raft.machine import Checkpoint, ReadEntries, ReleaseCursor, Timer
from lithify.raft.requests import unwrap_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.group_log import GroupLog
    from lithify.raft.machine import Effect, Send
    from lithify.raft.snapshotting import Snapshotting

__all__ = ["Effects"]


class Effects:
    """See the module."""

    def __init__(self, log: GroupLog, snapshots: Snapshotting[Any]) -> None:
        self._log = log
        self._snapshots = snapshots
        self._ticks = 0
        self._timers: dict[bytes, tuple[int, bytes]] = {}
        """By name: when it is due, and what is to be proposed then."""
        self._sends: list[Send] = []

    def tick(self) -> None:
        """Time has passed."""
        self._ticks += 1

    def do(self, effects: Sequence[Effect], applied: int, *, leads: bool) -> None:
        """Do those of the command at an index."""
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
            # As if what comes of it were lost when it is sent: who watches sees the gap.
            return
        commands = unwrap_many([entry.payload for entry in entries])[1]
        self.do(effect.then(commands), applied, leads=True)

    def due(self) -> list[bytes]:
        """The commands of the timers that have run out; told once."""
        names = [name for name, (due, _) in self._timers.items() if due <= self._ticks]
        return [self._timers.pop(name)[1] for name in names]

    def forget_timers(self) -> None:
        """The state is another one, whose timers nobody here knows."""
        self._timers.clear()

    def take(self) -> list[Send]:
        """What is to be sent."""
        sends, self._sends = self._sends, []
        return sends
