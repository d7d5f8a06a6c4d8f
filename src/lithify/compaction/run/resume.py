"""Resumes a run that was killed, from its journal.

1. No journal: remove what a run without a journal may have left.
2. An unreadable journal is discarded, with the files that only it refers to.
3. The manifest names the run as the last one: it was published, and only cleanup is missing.
4. Otherwise the sources must still be in the log and their dead sets intact, or the run is rolled
   back. Existing intact targets are used; the remaining work is done as in a new run.

A resumed run publishes its earlier decision, including the store's facts: nothing is judged again.
Called by `compactor.py`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.compaction.rewrite.rewrite import check_target
from lithify.compaction.run.phases import PhaseTimes, typed_errors
from lithify.compaction.run.publish import publish_edit
from lithify.errors import Corrupt, LithifyError, PlanStale, RunSuspended, UnsupportedVersion
from lithify.events import RunRecovered
from lithify.log.open_segments import read_dead_set

if TYPE_CHECKING:
    from lithify.compaction.limits.budget import Allowance
    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.journal import RunRecord
    from lithify.compaction.run.phases import RunPhases

__all__ = ["resume_run"]


def resume_run(steps: RunPhases, allowance: Allowance) -> Report | None:
    """Finish or discard the unfinished run; None if there is none or it was discarded."""
    log = steps.log
    log.settle()
    try:
        record = steps.journal.read()
    except (Corrupt, UnsupportedVersion) as error:
        steps.events(RunRecovered(log.directory, "?", "?", f"discarded: {error}"))
        steps.discard()
        return None
    if record is None:
        steps.sweep()
        return None
    times = PhaseTimes(steps.clock)
    before = log.manifest
    if before.last_run == record.run_id:
        steps.recovered(record, "it was published, finishing")
        return steps.finish(record, times, before)
    try:
        # The pin keeps the sources on disk until the new generation is published.
        with typed_errors(log.directory), log.pin(f"compaction run {record.run_id}"):
            record = _intact(steps, record)
            steps.recovered(record, f"resuming, {len(record.targets)} groups are copied")
            return steps.carry_out(record, times, allowance, before)
    except LithifyError as error:
        if isinstance(error, RunSuspended) or log.manifest.last_run == record.run_id:
            raise
        steps.give_up(record, error, times, before)
        if isinstance(error, PlanStale):
            steps.recovered(record, f"rolled back: {error}")
            return None
        raise


def _intact(steps: RunPhases, record: RunRecord) -> RunRecord:
    """The record without missing targets; raises `PlanStale` if sources are missing."""
    directory = steps.log.directory
    publish_edit(steps.log.manifest, replace(record, groups=(), dropped=()))
    for segment in record.judged:
        if segment.dead is not None:
            try:
                read_dead_set(steps.fs, directory, segment.dead)
            except Corrupt as error:
                raise PlanStale(str(error)) from error
    targets = {}
    for number, target in record.targets.items():
        with suppress(Corrupt):
            check_target(steps.fs, directory, target, steps.log.manifest.log_id)
            targets[number] = target
    return replace(record, targets=targets)
