"""When a leader has its group sleep. Pure.

An idle group costs a heartbeat and an answer per member and tick. So the leader of a group that has
had nothing to do for `sleep_ticks` sends its members to sleep, and sleeps when all do. A sleeping
member sends nothing, and need not be ticked.

1. In place of heartbeats the leader sends `Sleep` of a round. It does so while every member has its
   whole log, that is committed, applied and durable here, and no read or transfer is open.
2. A member that has the same log, committed, applied and durable, sleeps and answers `SleepReply`.
   To any other member it is a heartbeat.
3. When all have answered this round, the leader sleeps. Anything new before ends the round.

Nothing measures time in a group that sleeps. The driver does, for each pair of nodes: it knows the
**epoch** of the process on each node that it has heard lately (`CoreSettings.epoch_of`), and
reports each change (`PeerChanged`). An offer and its answers have the epochs of their senders, and
count only if these are the known ones. So a member that sleeps is notified when the process of its
leader has ended, even if the offer was late; and a leader when the process of a member has.

What wakes a member: any message other than those two, a request, a change of an epoch. A leader
that wakes sends heartbeats, and continues with them, so that one of them arrives. A member that was
not woken by its leader calls it (`WakeUp`), and campaigns when there is no answer.

A message that would have woken a member may be lost, and its sender may have no reason to repeat
it: the leader has removed the member, or has left the group, and its node lives on. So the driver
reports now and then that time has passed (`SleepCheck`). The leader offers the same round again; a
member answers and sleeps on. A leader that misses an answer wakes. So does a member that has missed
more than `MISSED_CHECKS_MAX` offers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.raft.core.messages import SleepReply
    from lithify.raft.core.settings import CoreSettings

__all__ = ["CALL_TICKS", "MISSED_CHECKS_MAX", "LeaderSleep"]

MISSED_CHECKS_MAX = 2
"""A member and its leader are checked at different times: one check may come before the offer."""
CALL_TICKS = 4
"""Between two calls of a member that waits for its leader to wake."""


class LeaderSleep:
    """The offers of one leader in one term, and their answers; see the module."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self.round = 0
        """The number of the newest round of offers."""
        self._quiet_ticks = 0
        self._answers: dict[str, int] = {}
        """By member that has answered this round: the epoch of its process."""

    def tick(self, *, settled: bool) -> None:
        """Count one tick; `settled`: no member and no client waits for anything."""
        if not settled:
            self.end()
            return
        self._quiet_ticks += 1
        if self._quiet_ticks == self._settings.sleep_ticks:
            self.round += 1

    def end(self) -> None:
        """The group has something to do: no answer to this round counts any longer."""
        self._quiet_ticks = 0
        self._answers.clear()

    @property
    def is_offered(self) -> bool:
        """Has the group been quiet for long enough?"""
        return 0 < self._settings.sleep_ticks <= self._quiet_ticks

    def answered(self, reply: SleepReply) -> None:
        """A member sleeps, since an offer of some round."""
        if self.is_offered and reply.round == self.round:
            self._answers[reply.sender] = reply.epoch

    def is_complete(self, members: Iterable[str]) -> bool:
        """Do all these members sleep?"""
        epoch_of = self._settings.epoch_of
        return self.is_offered and all(
            self._answers.get(member, 0) == epoch_of(member) != 0 for member in members
        )

    def begin_check(self) -> None:
        """From here on all members must answer again."""
        self._answers.clear()
