"""The compaction of all blob stores of a node: runs on request and by themselves, a disk in turn.

    request_id = compactions.request(store, Trigger.ADMIN, policy)     # waits for its turn
    compactions.status("photos", request_id)             # how that one stands, or its report
    compactions.look()                                   # once in a while: what is due is requested
    compactions.cancel("photos"); compactions.status("photos"); compactions.close()

When a store is due, if its settings say so (`BlobSettings.triggers`):

| trigger | when |
|---|---|
| unfinished | a run was killed: found at the first look, taken up whatever the triggers are |
| periodic | as soon as the node looks, and then `every_ms` after the beginning of the last run |
| admin | whenever a person asks; without this trigger such a request is refused |

1. A trigger only asks. Whether a run is worth it its policy and settings decide; the report, which
   is in the status, says why not.
2. One run a disk at a time, disks side by side (`compaction/queue.py`).
3. A store whose run failed is left alone by triggers for a minute; a person need not wait. One of
   one segment, which cannot be compacted, is always left alone.

All methods may be called from any thread. A store that is closed suspends its run itself: the next
process goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.compaction.jobs import LocalJobs
from lithify.compaction.queue import Request, RunQueue
from lithify.compaction.record import WAITING, CompactionState, CompactionStatus
from lithify.compaction.schedule import Trigger
from lithify.damage import Damage
from lithify.errors import LithifyError, LogClosed, RunCancelled, RunRefused
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.blobs.store import BlobStore
    from lithify.clock import Clock
    from lithify.compaction.jobs import Jobs, Progress
    from lithify.compaction.report import Report

__all__ = ["BlobCompactions"]

REST_MS = 60_000

log = get_logger("lithify.compaction")


@dataclass(slots=True)
class _Due:
    """What is known of one store from one look to the next."""

    store: BlobStore
    looked: bool = False
    since_ms: int = 0
    """When the last run began that this node has asked for."""
    rest_until_ms: int = 0
    """Not before: the last run failed."""

    def trigger(self, now_ms: int) -> Trigger | None:
        """Why the store is to be compacted now; None if it is not."""
        # A clock that was set back must not make it wait for as long as it went back.
        self.since_ms = min(self.since_ms, now_ms)
        self.rest_until_ms = min(self.rest_until_ms, now_ms + REST_MS)
        settings, shape = self.store.settings, self.store.shape
        if now_ms < self.rest_until_ms or shape.capacity_bytes == shape.segment_bytes:
            return None
        if not self.looked:
            self.looked = True
            if self.store.compaction.runs.unfinished():
                return Trigger.UNFINISHED
        is_due = not self.since_ms or now_ms - self.since_ms >= settings.every_ms
        return Trigger.PERIODIC if is_due and Trigger.PERIODIC in settings.triggers else None

    def ended(self, trigger: str, started_ms: int, now_ms: int, *, failed: bool) -> None:
        """A run is over; what failed is due again when it has rested.

        One that was killed and is finished now was begun by another node: it is not the first here.
        """
        self.since_ms = 0 if failed or trigger == Trigger.UNFINISHED else started_ms
        self.rest_until_ms = now_ms + REST_MS if failed else 0
        self.looked = not failed


class BlobCompactions:
    """See the module."""

    def __init__(
        self,
        opened: Callable[[], Mapping[str, BlobStore]],
        clock: Clock,
        damage: Damage | None = None,
    ) -> None:
        """`opened` are the stores of the node that are open, by name.

        `damage` is told what runs come across.
        """
        self._opened = opened
        self._damage = damage or Damage()
        self._clock = clock
        self._due: dict[str, _Due] = {}
        self._queue = RunQueue(limit="store")
        self.jobs: Jobs = LocalJobs()
        """Who does the work of the runs to come."""

    def request(
        self, store: BlobStore, trigger: str = Trigger.ADMIN, policy: str | None = None
    ) -> str:
        """Have a store compacted as soon as its turn comes; raises if it cannot be.

        The id of the request: a person's is a run of its own, also while another one goes on.
        """
        store.compaction.check(policy)
        if trigger == Trigger.ADMIN and trigger not in store.settings.triggers:
            what = f"{store.directory} is not compacted on request, its settings say"
            raise RunRefused("triggers", what)

        def run(go_on: Progress) -> Report:
            return self._run(store, trigger, policy, go_on)

        compaction = store.compaction
        return self._queue.add(Request(compaction, store.directory, compaction.disk, trigger, run))

    def status(self, name: str, request_id: str | None = None) -> CompactionStatus:
        """That of a store, or of a request; a run that waits for its turn counts as running.

        Raises `RequestUnknown`.
        """
        store = self._store(name)
        if store is None:
            return CompactionStatus(CompactionState.NOT_RUN)
        if request_id is not None:
            return self._queue.status(request_id, store.compaction, store.directory)
        if self._queue.waits(store.compaction):
            return CompactionStatus(CompactionState.RUNNING, phase=WAITING)
        return store.compaction.status()

    def cancel(self, name: str) -> bool:
        """Stop the run of a store, or forget the request; False if there is neither."""
        store = self._store(name)
        return store is not None and self._queue.cancel(store.compaction)

    def look(self) -> None:
        """Request the runs that are due."""
        now_ms = self._clock.now_ms()
        opened = self._opened()
        for name, store in opened.items():
            due = self._due.get(name)
            if due is None or due.store is not store:
                due = self._due[name] = _Due(store)
            try:
                trigger = due.trigger(now_ms)
                if trigger is not None and not self._queue.is_busy(store.compaction):
                    due.since_ms = now_ms
                    self.request(store, trigger)
            except LogClosed:
                continue
            except LithifyError as error:
                log.warning("a store's need of compaction is unknown", store=name, why=str(error))
        for name in self._due.keys() - opened.keys():
            del self._due[name]

    def close(self) -> None:
        """Suspend the runs that are going on, forget the others, wait until nothing goes on."""
        self._queue.close()

    def _store(self, name: str) -> BlobStore | None:
        return self._opened().get(name)

    def _run(self, store: BlobStore, trigger: str, policy: str | None, go_on: Progress) -> Report:
        """One run, by the thread of its disk."""
        started_ms, failed, waits = self._clock.now_ms(), True, False
        try:
            report = store.compaction.run(trigger, policy, self.jobs, go_on)
            failed = False
        except (LogClosed, RunCancelled):
            failed = False
            raise
        except RunRefused as error:
            waits = error.limit == "disk"
            if not waits:
                log.warning("compaction is refused", store=store.directory, reason=str(error))
            raise
        except LithifyError as error:
            self._damage.note(error)
            log.warning("compaction failed", store=store.directory, reason=str(error))
            raise
        finally:
            for due in list(self._due.values()):
                if due.store is store and not waits:
                    due.ended(trigger, started_ms, self._clock.now_ms(), failed=failed)
        return report
