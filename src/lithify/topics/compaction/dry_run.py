"""The dry run of one topic as a row for the command line and HTTP.

A dry run writes nothing but key indexes, so unlike a run it does not seal the active ledger. The
row and its text state what the plan therefore omits:

    topic            the name
    text             for people: what holds the horizon, the plan, and what it omits
    plan             the plan as JSON
    declined         why a run would do nothing, as in a report; null if it would do something
    active_entries   entries in the active ledger, which a run would seal and compact as well
    active_bytes     their bytes

Takes as long as computing the live set; call it in a thread of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lithify.compaction.planning.plan import human_bytes
from lithify.topics.ledger_sizes import ledgers_of

if TYPE_CHECKING:
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.topics.compaction.compacted_topic import CompactedTopic

__all__ = ["plan_row"]


def plan_row(
    topic: CompactedTopic, jobs: Jobs | None = None, *, waits: bool = True
) -> dict[str, Any]:
    """What a run would do now; for `waits` see `TopicCompaction.plan`."""
    # Read before the plan: a ledger sealed in between is then counted twice, not omitted.
    _, _, entries, size_bytes = ledgers_of(topic.log)[-1]
    outcome = topic.compaction.plan(jobs, waits=waits)
    if entries and outcome.declined is not None and topic.compaction.is_new():
        # The sealed segments give a run no work, but it would seal and compact the active ledger.
        outcome = replace(outcome, declined=None)
    text = outcome.explain()
    if entries:
        text += (
            f"\nnot included: {entries} entries ({human_bytes(size_bytes)}) of the active ledger, "
            "which a run seals first"
        )
    return {
        "topic": str(topic.name),
        "text": text,
        "plan": outcome.plan.to_json(),
        "declined": outcome.declined_row(),
        "active_entries": entries,
        "active_bytes": size_bytes,
    }
