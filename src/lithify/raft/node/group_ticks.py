"""Which groups of a node are ticked: those that do not sleep. No I/O.

    ticks.worked(name, group)           # a group has begun, or has worked
    for group in ticks.tick(): ...      # those that work now

A group that sleeps (`raft/core/sleep.py`) costs nothing at a tick, however many there are. About
every `check_ticks` each of them is checked, a few at each tick.

Called in the node's event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.raft.core import SleepCheck

if TYPE_CHECKING:
    from lithify.raft.group.group import Group

__all__ = ["CHECK_TICKS", "GroupTicks"]

CHECK_TICKS = 600


class GroupTicks:
    """See the module."""

    def __init__(self, check_ticks: int = CHECK_TICKS) -> None:
        self._check_ticks = check_ticks
        self.awake: dict[str, Group[Any]] = {}
        """By name: the groups that need ticks."""
        self._asleep: dict[str, Group[Any]] = {}
        """By name: the others, in the order of their checks."""
        self._checks_due = 0.0

    def worked(self, name: str, group: Group[Any]) -> None:
        """A group has begun, or has worked."""
        if group.needs_ticks:
            if name not in self.awake:
                self.awake[name] = group
                self._asleep.pop(name, None)
        elif name not in self._asleep:
            self._asleep[name] = group
            self.awake.pop(name, None)

    def forget(self, name: str) -> None:
        """A group has left."""
        self.awake.pop(name, None)
        self._asleep.pop(name, None)

    def tick(self) -> list[Group[Any]]:
        """Tick the groups that need it, and check some others; returns those that work now."""
        ticked = list(self.awake.values())
        for group in ticked:
            group.tick()
        self._checks_due += len(self._asleep) / self._check_ticks
        while self._checks_due >= 1:
            self._checks_due -= 1
            name = next(iter(self._asleep))
            checked = self._asleep[name] = self._asleep.pop(name)
            checked.report(SleepCheck())
            ticked.append(checked)
        return ticked
