"""The horizon of the history: the last revision that may be compacted, and what holds it. Pure.

newest revision   the newest one stays readable, so that its pages can be read one by one
retention         what was in force `retention_ms` ago, and all that came later, stays readable
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

__all__ = ["history_horizon"]


def history_horizon(
    state: MetastoreState, now_ms: int, retention_ms: int, others: Iterable[Hold]
) -> Horizon:
    """The horizon with these pins and named holds."""
    holds = [
        Hold("newest revision", max(state.revision - 1, 0)),
        Hold("retention", _older_than(state, now_ms, retention_ms), f"{retention_ms} ms"),
    ]
    return find_horizon((*holds, *others))


def _older_than(state: MetastoreState, now_ms: int, retention_ms: int) -> int:
    """The last revision that was replaced before the retention began."""
    # Without commands the time of the store stands still.
    now = max(state.time, timestamp(now_ms))
    in_force = state.revisions.newest_at(add_ms(now, -retention_ms))
    return max(in_force - 1, state.floor)
