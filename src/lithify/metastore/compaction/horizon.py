"""The horizon of the history: the last revision that may be compacted, and what holds it. Pure.

newest revision   the newest one stays readable, so that its pages can be read one by one
retention         what was in force `retention_ms` ago, and all that came later, stays readable: the
                  newest `revisions_max` revisions at most, because all members have them in memory
pins              readers on this node (`LocalMetastore.pins`)
hold NAME         named holds (`holds.py`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.compaction.planning.horizon import Hold, Horizon, find_horizon
from lithify.hybrid_time import add_ms, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.metastore.state import MetastoreState

__all__ = ["REVISIONS_MAX", "history_horizon"]

REVISIONS_MAX = 1_000_000


def history_horizon(
    state: MetastoreState,
    now_ms: int,
    retention_ms: int,
    others: Iterable[Hold],
    revisions_max: int = REVISIONS_MAX,
) -> Horizon:
    """The horizon with these pins and named holds."""
    retention = Hold("retention", _older_than(state, now_ms, retention_ms), f"{retention_ms} ms")
    too_many = _above_limit(state, revisions_max)
    if too_many > retention.position:
        retention = Hold("retention", too_many, f"{revisions_max} revisions")
    newest = Hold("newest revision", max(state.revision - 1, 0))
    return find_horizon((newest, retention, *others))


def _above_limit(state: MetastoreState, revisions_max: int) -> int:
    """The last revision that the newest ones of this number do not need; the floor if none."""
    numbers = state.revisions.numbers
    if len(numbers) <= revisions_max:
        return state.floor
    return max(numbers[-revisions_max] - 1, state.floor)


def _older_than(state: MetastoreState, now_ms: int, retention_ms: int) -> int:
    """The last revision that was replaced before the retention began."""
    # Without commands the time of the store stands still.
    now = max(state.time, timestamp(now_ms))
    in_force = state.revisions.newest_at(add_ms(now, -retention_ms))
    return max(in_force - 1, state.floor)
