"""Schedules the compaction of all blob stores of a node: reports their triggers to the queue.

    request_id = compactions.request(store, policy)      # the run waits for its turn
    compactions.status("photos", request_id)             # progress of that run, or its report
    compactions.request_due_runs()                       # once per second: report the triggers
    compactions.cancel("photos"); compactions.status("photos"); compactions.close()

These triggers request a run on a store, if its settings have them (`BlobSettings.triggers`):

| trigger | when |
|---|---|
| unfinished | a run was killed: found by the first check, resumed regardless of the settings |
| periodic | at the first check of a node, then `every_ms` after the start of the last run |
| admin | on each request of a user; without this trigger such a request is refused |

A trigger only requests a run. The policy and the settings decide whether the run is worth its cost;
the report in the status has the reason if it is not. A store with one segment cannot be compacted
and is skipped. Order, fairness, back-off and disks are decided by the queue
(`compaction/scheduling/run_queue.py`).

Any thread may call any method. Closing a store suspends its run; the next process resumes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lithify.compaction.reports.status import CompactionState, CompactionStatus
from lithify.compaction.scheduling.triggers import NOTHING_DUE, Observation, Trigger
from lithify.damage import Damage
from lithify.errors import RunRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.blobs.compaction.store_compaction import BlobCompaction
    from lithify.blobs.settings import BlobSettings, StoreShape
    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.run.log_runs import LogRuns
    from lithify.compaction.scheduling.run_queue import RunQueue
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.errors import LithifyError

__all__ = ["BlobCompactions", "CompactedStore"]

KIND = "store"


class CompactedStore(Protocol):
    """What the compaction of stores uses of an open store."""

    settings: BlobSettings
    shape: StoreShape
    compaction: BlobCompaction

    @property
    def directory(self) -> str:
        """Where its files are."""


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """One open store; an implementation of `ScheduledLog`."""

    name: str
    store: CompactedStore
    damage: Damage

    @property
    def runs(self) -> LogRuns:
        return self.store.compaction.runs

    @property
    def device(self) -> str:
        return self.runs.device

    def began_ms(self) -> None:
        """None: the first periodic run after the start of a node is due at once."""

    def observe(self) -> Observation:
        settings, shape = self.store.settings, self.store.shape
        if shape.capacity_bytes == shape.segment_bytes or Trigger.PERIODIC not in settings.triggers:
            return NOTHING_DUE
        return Observation(period_ms=settings.every_ms)

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:
        return self.store.compaction.run(trigger, None, jobs, control)

    def failed(self, error: LithifyError) -> None:
        self.damage.record(error)


class BlobCompactions:
    """Requests, status and triggers of the runs on a node's stores; see the module."""

    def __init__(
        self,
        opened: Callable[[], Mapping[str, CompactedStore]],
        queue: RunQueue,
        damage: Damage | None = None,
    ) -> None:
        """`opened` returns the open stores of the node, by name.

        `damage` records the damage that runs find.
        """
        self._opened = opened
        self._damage = damage or Damage()
        self.queue = queue

    def request(
        self, store: CompactedStore, policy: str | None = None, *, waits: bool = True
    ) -> str:
        """Queue a run on a store and return the id of the request; raises if it cannot run.

        Each request is a separate run, also while another one is in progress. Without `waits` it is
        refused if it would have to wait.
        """
        compaction = store.compaction
        compaction.check(policy)
        if Trigger.ADMIN not in store.settings.triggers:
            what = f"those of {store.directory} do not include {Trigger.ADMIN}"
            raise RunRefused("triggers", what)

        def run(jobs: Jobs, control: RunControl) -> Report:
            return compaction.run(Trigger.ADMIN, policy, jobs, control)

        return self.queue.request(self._of(store), run, waits=waits)

    def status(self, name: str, request_id: str | None = None) -> CompactionStatus:
        """The status of a store, or of a request; a run that waits for its turn counts as running.

        Raises `RequestUnknown`.
        """
        store = self._opened().get(name)
        if store is None:
            return CompactionStatus(CompactionState.NOT_RUN)
        return self.queue.status(_Scheduled(name, store, self._damage), request_id)

    def cancel(self, name: str) -> bool:
        """Stop the run of a store, or remove its request; False if there is neither."""
        store = self._opened().get(name)
        return store is not None and self.queue.cancel(_Scheduled(name, store, self._damage))

    def is_busy(self, store: CompactedStore) -> bool:
        """Is a run on the store in progress, or waiting for its turn?"""
        return self.queue.is_busy(self._of(store))

    def request_due_runs(self) -> None:
        """Report the triggers of all open stores to the queue."""
        opened = self._opened()
        logs = [_Scheduled(name, store, self._damage) for name, store in opened.items()]
        self.queue.observe(KIND, logs)

    def close(self) -> None:
        """Suspend the runs in progress, remove the waiting ones, and wait until all stopped."""
        self.queue.close()

    def _of(self, store: CompactedStore) -> _Scheduled:
        names = (name for name, each in self._opened().items() if each is store)
        return _Scheduled(next(names, store.directory), store, self._damage)
