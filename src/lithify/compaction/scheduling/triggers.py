"""Triggers: what makes a run due, by priority.

| trigger | due when |
|---|---|
| admin | a run was requested; first come, first served |
| unfinished | an earlier run was killed and left its journal |
| lag | the oldest unjudged entry is older than `lag_ms_max` |
| threshold | enough was added, or died, since the last run; the store says what was reached |
| periodic | `period_ms` has passed since the last run began |

A store reports the facts as an `Observation`: `topics/compaction/triggers.py`,
`blobs/compaction/scheduling.py`, `raft/compaction/group_compaction.py`. `due_times` judges them,
and `run_order.py` decides which log is first. Requests of admins are counted there.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["NEVER_MS", "NOTHING_DUE", "RANK", "Observation", "Trigger", "due_times"]

NEVER_MS = -(1 << 62)
"""Earlier than any time."""


class Trigger(StrEnum):
    """Why a run is due, by priority."""

    ADMIN = "admin"
    UNFINISHED = "unfinished"
    LAG = "lag"
    THRESHOLD = "threshold"
    PERIODIC = "periodic"


RANK = {trigger: rank for rank, trigger in enumerate(Trigger)}


@dataclass(frozen=True, slots=True)
class Observation:
    """Observed facts about a log, and the settings that judge them. `None` is off."""

    oldest_unjudged_ms: int | None = None
    """Arrival of the oldest unjudged entry."""
    lag_ms_max: int | None = None
    reached: str = ""
    """Text of the threshold that was reached; empty if none was."""
    period_ms: int | None = None
    unfinished: bool = False


NOTHING_DUE = Observation()


def due_times(
    seen: Observation,
    now_ms: int,
    *,
    unfinished_ms: int | None,
    reached_ms: int | None,
    since_ms: int | None,
) -> list[tuple[Trigger, int, str]]:
    """The triggers of a log with the time at which each is due, past or future, and the reason.

    `unfinished_ms` and `reached_ms` are the times of the first observation with these facts,
    `since_ms` is the start of the last run; None: a periodic run is due at once.
    """
    found: list[tuple[Trigger, int, str]] = []
    if unfinished_ms is not None:
        found.append((Trigger.UNFINISHED, unfinished_ms, "an earlier run was killed"))
    if seen.lag_ms_max is not None and seen.oldest_unjudged_ms is not None:
        age_ms = now_ms - seen.oldest_unjudged_ms
        reason = f"oldest entry no run has judged is {age_ms} ms old, limit {seen.lag_ms_max}"
        found.append((Trigger.LAG, seen.oldest_unjudged_ms + seen.lag_ms_max, reason))
    if reached_ms is not None:
        found.append((Trigger.THRESHOLD, reached_ms, seen.reached))
    if seen.period_ms is not None:
        due_ms = NEVER_MS if since_ms is None else since_ms + seen.period_ms
        found.append((Trigger.PERIODIC, due_ms, f"period of {seen.period_ms} ms is over"))
    return found
