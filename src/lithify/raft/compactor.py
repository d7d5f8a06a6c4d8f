"""When a group's segments are compacted, one compaction at a time, and how the group takes it in.

The group's thread asks and takes in; the log worker's thread runs:

    compactor.ask()                   # a snapshot was taken: phase 1
    compactor.ask(merge=True)         # somebody wants phase 3
    job = compactor.next_job()        # None if there is nothing to do, or one is under way
    outcome = job()                   # in the worker's thread
    compactor.done(outcome)           # in the group's thread again

1. `next_job` plans phase 1 from what is in memory and drops the group's references to the dead
   segments; the job then removes the files. A read that was planned before finds an index gone, as
   it is.
2. If phase 3 is due, the job also measures, plans and merges. `done` takes the merged segments in.
   Until then the old references lead to the merged file, by the old names.
3. What is asked for meanwhile is remembered. If the snapshot has moved since the job was made,
   phase 1 is done once more.
4. Links that merges have left are removed when they are `link_keep_ms` old; until then whoever
   still has an old name finds the merged file.

A merge that fails ends its run: what was merged before it is taken in, and `Outcome.failure` says
what happened. The next job then does nothing but tidy up. Before that nothing may be dropped: a
merged file that is in place, but not known to the group yet, has entries of its neighbours.

Phase 3 is due when it was asked for, and by the triggers in `CompactionSettings`, each of which can
be switched on alone. Those that go by what is dead look at entries, which are known without
reading, and do not count again what a merge has left because it could not be merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from lithify.compaction.budget import Allowance, Budget
from lithify.raft import merging
from lithify.raft.compaction import (
    compactable,
    plan_drops,
    plan_merges,
    rounds,
    run_drops,
    run_measure,
    run_merges,
    run_tidy,
)
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.raft.group_log import GroupLog
    from lithify.raft.live_state import LiveState
    from lithify.raft.segment import SegmentLimits
    from lithify.raft.segments import Span

__all__ = ["CompactionSettings", "Compactor", "Outcome"]

LINK_KEEP_MS = 60_000


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """When phase 3 runs by itself; a trigger that is None is off."""

    after_drops: int | None = 8
    """After so many runs of phase 1."""
    dead_ratio: float | None = None
    """When this share of the entries in the compacting section has died."""
    dead_bytes: int | None = None
    """When about so many bytes of it have died."""
    interval_ms: int | None = None
    """Every so often."""
    link_keep_ms: int = LINK_KEEP_MS
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        check_range("after_drops", self.after_drops, 1, 2**31)
        check_range("dead_ratio", self.dead_ratio, 0, 1)
        check_range("dead_bytes", self.dead_bytes, 1, 2**62)
        check_range("interval_ms", self.interval_ms, 1, 2**48)
        check_range("link_keep_ms", self.link_keep_ms, 0, 2**48)


@dataclass(slots=True)
class Outcome:
    """What a job has done."""

    removed: list[str] = field(default_factory=list)
    """Files that are gone."""
    gone: list[str] = field(default_factory=list)
    """Segments that are in a lower one now."""
    refs: list[SegmentRef] = field(default_factory=list)
    """Segments that were written anew."""
    read_bytes: int = 0
    written_bytes: int = 0
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Dead:
    """What is dead in the compacting section, as far as it is known without reading."""

    entries: int = 0
    size_bytes: int = 0
    of_entries: int = 0

    @classmethod
    def of(cls, spans: Sequence[Span], state: LiveState) -> _Dead:
        """Bytes are counted as if all entries of a segment were of one size."""
        dead = size = entries = 0
        for span in compactable(spans, state):
            ref = span.ref
            here = ref.entries - state.live.count_in(span.first, span.last + 1)
            dead += here
            size += ref.frame_bytes * here // ref.entries
            entries += ref.entries
        return cls(dead, size, entries)


class Compactor:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        log: GroupLog,
        limits: SegmentLimits,
        clock: Clock,
        settings: CompactionSettings | None = None,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._log = log
        self._limits = limits
        self._clock = clock
        self._settings = settings or CompactionSettings()
        self._drop_wanted = self._merge_wanted = False
        self._running_at: int | None = None
        """The snapshot's index when the job that is under way was made."""
        self._untidy = False
        """May a merge be half done?"""
        self._merging = False
        """Does the job that is under way merge?"""
        self._drops = 0
        self._left = _Dead()
        self._merged_ms = clock.now_ms()
        self._purge_ms: int | None = None
        self.runs = self.merges = 0
        """Of phase 1, and of phase 3 that came to their end, in this process."""
        self.failure: BaseException | None = None
        """Why the last job did not do everything."""

    # --- the group's thread -----------------------------------------------------------------

    def ask(self, *, merge: bool = False) -> None:
        """Have phase 1 done, and if wanted phase 3, as soon as nothing else is under way."""
        self._drop_wanted = True
        self._merge_wanted |= merge

    @property
    def is_running(self) -> bool:
        """Is a job under way?"""
        return self._running_at is not None

    def next_job(self) -> Callable[[], Outcome] | None:
        """What the worker is to do now; cheap if that is nothing."""
        now_ms = self._clock.now_ms()
        interval_ms = self._settings.interval_ms
        if interval_ms is not None and now_ms >= self._merged_ms + interval_ms:
            self.ask(merge=True)
        purge = self._purge_ms is not None and now_ms >= self._purge_ms
        if self.is_running or not (self._drop_wanted or purge):
            return None
        state, segments = self._log.state, self._log.segments
        if self._untidy:
            self._running_at = state.snapshot_index
            return partial(self._tidy, segments.spans)
        merge = self._drop_wanted and self._drop(state)
        if purge:
            self._purge_ms = None
        if merge:
            self._merge_wanted = False
            self._drops, self._merged_ms = 0, now_ms
            # Looked at again when the links of this run are old enough.
            self._purge_ms = now_ms + self._settings.link_keep_ms
        self._drop_wanted = False
        self._running_at, self._merging = state.snapshot_index, merge
        before_ms = now_ms - self._settings.link_keep_ms
        return partial(self._run, segments.spans, state, before_ms, merge=merge)

    def _drop(self, state: LiveState) -> bool:
        """Phase 1 as far as the group is concerned; is phase 3 due?"""
        segments = self._log.segments
        if compactable(segments.spans, state):
            self._drops += 1
            self.runs += 1
        dropped = plan_drops(segments.spans, state)
        # First the references: nobody can ask for what is about to be removed.
        segments.replace([span.ref.name for span in dropped], ())
        return self._merge_wanted or self._is_due(_Dead.of(segments.spans, state))

    def _is_due(self, dead: _Dead) -> bool:
        settings = self._settings
        entries = dead.entries - self._left.entries
        size_bytes = dead.size_bytes - self._left.size_bytes
        by_drops = settings.after_drops is not None and self._drops >= settings.after_drops
        by_ratio = settings.dead_ratio is not None and (
            entries > 0 and entries >= settings.dead_ratio * dead.of_entries
        )
        return (
            by_drops
            or by_ratio
            or (settings.dead_bytes is not None and size_bytes >= settings.dead_bytes)
        )

    def done(self, outcome: Outcome | BaseException) -> None:
        """Take in what a job has done."""
        assert self._running_at is not None
        began_at, self._running_at = self._running_at, None
        state, segments = self._log.state, self._log.segments
        if isinstance(outcome, Outcome):
            segments.replace(outcome.gone, outcome.refs)
            self.failure = outcome.failure
        else:
            self.failure = outcome
        self._untidy = self.failure is not None
        self.merges += self._merging and not self._untidy
        if self._untidy:
            # Tried again when somebody asks next: a full disk stays full for a while.
            self._drop_wanted = False
            self._merge_wanted |= self._merging
            self._merged_ms = now_ms = self._clock.now_ms()
            self._purge_ms = now_ms + self._settings.link_keep_ms
        dead = _Dead.of(segments.spans, state)
        if self._merging or dead.entries < self._left.entries:
            self._left = dead
        self._merging = False
        if state.snapshot_index != began_at:
            self.ask()

    def overview(self) -> dict[str, int | str]:
        """What it has done, as it can be printed."""
        failure = str(self.failure or "")
        return {"compactions": self.runs, "merges": self.merges, "compaction_failure": failure}

    # --- the worker's thread ----------------------------------------------------------------

    def _tidy(self, spans: Sequence[Span]) -> Outcome:
        gone, refs = run_tidy(self._fs, self._directory, spans)
        return Outcome(gone=gone, refs=refs)

    def _run(
        self, spans: Sequence[Span], state: LiveState, before_ms: int, *, merge: bool
    ) -> Outcome:
        fs, directory = self._fs, self._directory
        outcome = Outcome()
        try:
            outcome.removed = run_drops(fs, directory, spans)
            if merge:
                self._merge(outcome, compactable(spans, state), state)
            merging.purge_links(fs, directory, before_ms)
        except Exception as error:  # noqa: BLE001  (what was done before it must be taken in)
            outcome.failure = error
        return outcome

    def _merge(self, outcome: Outcome, spans: Sequence[Span], state: LiveState) -> None:
        """Phase 3; what each round has done stands in the outcome when the next one fails."""
        fs, directory, group = self._fs, self._directory, self._log.group
        allowance = Allowance(self._settings.budget, self._clock)
        limits = self._limits
        measured = run_measure(fs, directory, spans, state, limits, allowance.read)
        for merges in rounds(plan_merges(measured, limits)):
            merged = run_merges(fs, directory, group, merges, state, allowance)
            outcome.refs += merged.refs
            for merge in merged.merges:
                outcome.gone += (source.span.ref.name for source in merge.sources[1:])
            outcome.read_bytes = allowance.bytes_read
            outcome.written_bytes = allowance.bytes_written
            if merged.failure is not None:
                raise merged.failure
