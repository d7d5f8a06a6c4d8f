"""The edit of the manifest that publishes a run, as a pure function.

In place (blobs, raft): judged segments of the log are dropped, replaced by their group's target, or
kept with their new dead set. In the view (topics): the same applies to the segments of the
compacted view and to those of the log that join it; the log itself is unchanged.

The store's facts are merged into the manifest's `state`: they take effect with the generation that
they describe.

The log may have changed since it was judged: segments may have been appended (they are unchanged)
or dropped by retention (then the run is stale, because its targets would restore them).
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from lithify.errors import PlanStale

if TYPE_CHECKING:
    from lithify.compaction.run.journal import RunRecord
    from lithify.log.manifest import Manifest, SegmentRef

__all__ = ["candidates", "publish_edit"]


def candidates(manifest: Manifest, horizon: int, *, in_view: bool) -> tuple[SegmentRef, ...]:
    """The sealed segments that a run with this horizon judges, in position order."""
    log = [s for s in manifest.segments if s.sealed and s.last_position <= horizon]
    if not in_view:
        return tuple(log)
    joining = [s for s in log if s.last_position > manifest.horizon]
    return (*(manifest.view or ()), *joining)


def publish_edit(manifest: Manifest, record: RunRecord) -> Manifest:
    """The generation after `manifest`, once all targets of the run are durable."""
    present = {segment.name for segment in manifest.all_segments()}
    for segment in record.judged:
        if segment.name not in present:
            raise PlanStale(f"{segment.name} was dropped after run {record.run_id} had judged it")
    result = _carried_out(record)
    changed = replace(
        manifest,
        horizon=max(record.horizon, manifest.horizon),
        last_run=record.run_id,
        state={**manifest.state, **record.state},
    )
    if record.in_view:
        return replace(changed, view=result)
    judged = {segment.id for segment in record.judged}
    rest = [segment for segment in manifest.segments if segment.id not in judged]
    segments = sorted([*result, *rest], key=lambda segment: segment.first_position)
    return replace(changed, segments=tuple(segments))


def _carried_out(record: RunRecord) -> tuple[SegmentRef, ...]:
    """The judged segments after drops and rewrites."""
    gone = set(record.dropped)
    flags = {segment.id: segment.flags for segment in record.judged}
    targets = {}
    for number, group in enumerate(record.groups):
        # Copying ignores flags: some of these may belong to dead entries only.
        together = reduce(or_, map(flags.__getitem__, group))
        targets[group[0]] = replace(record.targets[number], flags=together)
        gone.update(group[1:])
    return tuple(
        targets.get(segment.id, segment) for segment in record.judged if segment.id not in gone
    )
