"""The compaction of all blob stores of a node: what they bring to the queue.

    request_id = compactions.request(store, policy)      # waits for its turn
    compactions.status("photos", request_id)             # how that one is, or its report
    compactions.request_due_runs()                       # once a second: what the triggers say
    compactions.cancel("photos"); compactions.status("photos"); compactions.close()

When a run on a store is called for, if its settings say so (`BlobSettings.triggers`):

| trigger | when |
|---|---|
| unfinished | a run was killed: found at the first look, resumed whatever the triggers are |
| periodic | as soon as the node looks, and then `every_ms` after the beginning of the last run |
| admin | whenever a person asks; without this trigger such a request is refused |

A trigger only asks. Whether a run is worth it its policy and settings decide; the report, which is
in the status, says why not. A store of one segment, which cannot be compacted, is left alone.
Order, fairness, back-off and disks are the queue's (`compaction/scheduling/run_queue.py`).

All methods may be called from any thread. A store that is closed suspends its run itself: the next
process resumes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.compaction.reports.status import CompactionState, CompactionStatus
from lithify.compaction.scheduling.schedule import NOTHING_CALLS, Observation, Trigger
from lithify.damage import Damage
from lithify.errors import RunRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.blobs.store import BlobStore
    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.run.log_runs import LogRuns
    from lithify.compaction.scheduling.run_queue import RunQueue
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.errors import LithifyError

__all__ = ["BlobCompactions"]

KIND = "store"


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """One open store; an implementation of `ScheduledLog`."""

    name: str
    store: BlobStore
    damage: Damage

    @property
    def runs(self) -> LogRuns:
        return self.store.compaction.runs

    @property
    def device(self) -> str:
        return self.runs.device

    def began_ms(self) -> None:
        """The first visit of a node is due at once."""

    def observe(self) -> Observation:
        settings, shape = self.store.settings, self.store.shape
        if shape.capacity_bytes == shape.segment_bytes or Trigger.PERIODIC not in settings.triggers:
            return NOTHING_CALLS
        return Observation(period_ms=settings.every_ms)

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:
        return self.store.compaction.run(trigger, None, jobs, control)

    def failed(self, error: LithifyError) -> None:
        self.damage.record(error)


class BlobCompactions:
    """See the module."""

    def __init__(
        self,
        opened: Callable[[], Mapping[str, BlobStore]],
        queue: RunQueue,
        damage: Damage | None = None,
    ) -> None:
        """`opened` are the stores of the node that are open, by name.

        `damage` is told what runs come across.
        """
        self._opened = opened
        self._damage = damage or Damage()
        self.queue = queue

    def request(self, store: BlobStore, policy: str | None = None, *, waits: bool = True) -> str:
        """Have a store compacted as soon as its turn comes; raises if it cannot be.

        The id of the request: each is a run of its own, also while another one goes on. One that
        does not wait is refused if it would have to.
        """
        compaction = store.compaction
        compaction.check(policy)
        if Trigger.ADMIN not in store.settings.triggers:
            what = f"{store.directory} is not compacted on request, its settings say"
            raise RunRefused("triggers", what)

        def run(jobs: Jobs, control: RunControl) -> Report:
            return compaction.run(Trigger.ADMIN, policy, jobs, control)

        return self.queue.request(self._of(store), run, waits=waits)

    def status(self, name: str, request_id: str | None = None) -> CompactionStatus:
        """That of a store, or of a request; a run that waits for its turn counts as running.

        Raises `RequestUnknown`.
        """
        store = self._opened().get(name)
        if store is None:
            return CompactionStatus(CompactionState.NOT_RUN)
        return self.queue.status(_Scheduled(name, store, self._damage), request_id)

    def cancel(self, name: str) -> bool:
        """Stop the run of a store, or forget the request; False if there is neither."""
        store = self._opened().get(name)
        return store is not None and self.queue.cancel(_Scheduled(name, store, self._damage))

    def is_busy(self, store: BlobStore) -> bool:
        """Does a run of it go on or wait for its turn?"""
        return self.queue.is_busy(self._of(store))

    def request_due_runs(self) -> None:
        """Tell the queue what the triggers say."""
        opened = self._opened()
        logs = [_Scheduled(name, store, self._damage) for name, store in opened.items()]
        self.queue.observe(KIND, logs)

    def close(self) -> None:
        """Suspend the runs that are going on, forget the others, wait until nothing goes on."""
        self.queue.close()

    def _of(self, store: BlobStore) -> _Scheduled:
        names = (name for name, each in self._opened().items() if each is store)
        return _Scheduled(next(names, store.directory), store, self._damage)
