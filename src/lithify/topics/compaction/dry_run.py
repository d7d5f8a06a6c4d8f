"""A dry run of one topic, as a row that commands and HTTP show.

A dry run writes nothing but key indexes, so it cannot seal the active ledger, which a run does
first. What of the topic it has not looked at stands in the row and in the text:

    topic            the name
    text             for a person: what holds the horizon, the plan, and what was not looked at
    plan             the plan as JSON
    declined         why a run would do nothing, as in a report; null if it would do something
    active_entries   in the active ledger, which a run would seal and judge as well
    active_bytes     their bytes

Takes as long as judging does: belongs into a thread of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lithify.compaction.planning.plan import human_bytes
from lithify.topics.statistics.backlog import ledgers_of

if TYPE_CHECKING:
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.topics.topic import Topic

__all__ = ["plan_row"]


def plan_row(topic: Topic, jobs: Jobs | None = None, *, waits: bool = True) -> dict[str, Any]:
    """What a run would do now; `waits` is that of `TopicCompaction.plan`."""
    # Before the plan: what is sealed meanwhile is then in both, and not in neither.
    _, _, entries, size_bytes = ledgers_of(topic)[-1]
    found = topic.compaction.plan(jobs, waits=waits)
    if entries and found.declined is not None and topic.compaction.is_new():
        # What is sealed brings nothing, but a run seals and judges the active ledger as well.
        found = replace(found, declined=None)
    text = found.explain()
    if entries:
        text += (
            f"\nnot included: {entries} entries ({human_bytes(size_bytes)}) of the active ledger, "
            "which a run seals first"
        )
    return {
        "topic": str(topic.name),
        "text": text,
        "plan": found.plan.to_json(),
        "declined": found.declined_row(),
        "active_entries": entries,
        "active_bytes": size_bytes,
    }
