"""The targets of a run on a log with a manifest: one task per group, one file per attempt.

A target's name has the id of its group's first source and a random attempt, so that no two attempts
at a group collide. Each target is opened here before it counts as written: another machine may have
written it to another directory.

Called by `phases.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.compaction.rewrite.rewrite import RewriteTask, check_target, run_rewrite
from lithify.errors import Corrupt, ExecutorUnfit
from lithify.log.file_names import segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.clock import Clock
    from lithify.compaction.limits.budget import Allowance
    from lithify.compaction.rewrite.rewrite import Rewriting, Rewritten
    from lithify.compaction.run.journal import RunRecord
    from lithify.compaction.run.log_port import CompactedLog
    from lithify.compaction.tasks.jobs import Jobs, Progress
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef

__all__ = ["RewriteTargets"]


class RewriteTargets:
    """The targets of a log with a manifest; implements `Targets`."""

    def __init__(
        self,
        log: CompactedLog,
        fs: FileSystem,
        rewriting: Rewriting | None,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._log = log
        self._fs = fs
        self._rewriting = rewriting
        self._clock = clock
        self._random_bytes = random_bytes

    def portions(self, record: RunRecord) -> Sequence[Sequence[int]]:
        """A single portion: the manifest is replaced once per run."""
        return [range(len(record.groups))]

    def write(
        self,
        record: RunRecord,
        numbers: Sequence[int],
        jobs: Jobs,
        allowance: Allowance,
        progress: Progress,
    ) -> Iterator[tuple[int, SegmentRef]]:
        """Rewrite these groups with the jobs."""
        by_id = {segment.id: segment for segment in record.judged}
        budget = allowance.budget.share(min(jobs.slots, len(numbers)))
        tasks, weights = [], []
        for number in numbers:
            sources = tuple(by_id[segment_id] for segment_id in record.groups[number])
            task = RewriteTask(
                self._fs,
                self._log.directory,
                sources,
                segment_name(sources[0].id, self._random_bytes(6).hex()),
                self._clock.now_ms(),
                budget,
                self._rewriting,
                self._clock,
            )
            tasks.append(task)
            weights.append(sum(source.live_bytes for source in sources))
        results = jobs.run(
            "rewrite",
            run_rewrite,
            tasks,
            weights=weights,
            check=allowance.check,
            progress=progress,
        )
        for finished, written in results:
            self._check(written)
            yield numbers[finished], written.target

    def _check(self, written: Rewritten) -> None:
        directory, target = self._log.directory, written.target
        try:
            check_target(self._fs, directory, target, self._log.manifest.log_id)
        except Corrupt as error:
            path = f"{directory}/{target.name}"
            problem = f"wrote {path}, and here it is not what was written: {error}"
            raise ExecutorUnfit(written.host, problem) from error
