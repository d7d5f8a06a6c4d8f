"""Serves a node's clients: runs of compaction, dry runs, status, history, cancel.

The queue of the process starts all runs of phase 3, for clients and for triggers
(`compaction/scheduling/run_queue.py`): in its order, one run at a time per disk. In a node that
serves it is also that of topics, blob stores and the metastore. A thread of the queue waits for the
disk, hands the run to its group, and waits for the outcome:

    a client ── compact ──> queue ── its thread ──> group ── job ──> worker
    a tick   ── observe ──>   ^                                        │
                              └── report or error ── group applies the result

The worker runs one job at a time: snapshots and phase 1 of all groups run between runs, and it
never waits for a disk.

Rows have the columns that topics and blob stores have, after the node and the group. A reader
thread does what reads files or takes as long as there are logs in the queue, and the worker what
must not overlap a run: the event loop does neither.

Called in the event loop's thread, except `run`.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lithify.clock import SystemClock
from lithify.compaction.reports.status import report_row
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.compaction.scheduling.triggers import Trigger
from lithify.errors import InvalidInput, LithifyError, LogClosed, RunFailed, RunRefused
from lithify.logger import get_logger
from lithify.raft.commands import CommandResult
from lithify.raft.compaction.group_compaction import RunWanted
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.compactor import DryRun
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.run.log_runs import LogRuns
    from lithify.compaction.scheduling.triggers import Observation
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.fs import FileSystem
    from lithify.raft.commands import Done
    from lithify.raft.compaction.group_compaction import GroupCompaction
    from lithify.raft.storage.disk_threads import DiskThreads

__all__ = ["CompactedGroup", "RunRequests"]

HISTORY_MAX = 1000

log = get_logger("lithify.raft")


class CompactedGroup(Protocol):
    """What runs use of a group."""

    name: str

    @property
    def compaction(self) -> GroupCompaction:
        """The runs of the group."""


G = TypeVar("G", bound=CompactedGroup)


@dataclass(frozen=True, slots=True)
class _Scheduled(Generic[G]):
    """One group of the node; an implementation of `ScheduledLog`."""

    group: G
    device: str
    node: RunRequests[G]

    @property
    def runs(self) -> LogRuns:
        return self.group.compaction.runs

    @property
    def name(self) -> str:
        return group_of(self.group.name)

    def began_ms(self) -> int:
        return self.node.started_ms

    def observe(self) -> Observation:
        return self.group.compaction.observe()

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:  # noqa: ARG002
        return self.node.run(self.group, trigger, control)

    def failed(self, error: LithifyError) -> None:
        """No operation: the group has logged the failure, and its overview shows it."""


class RunRequests(Generic[G]):
    """See the module."""

    def __init__(
        self,
        node: str,
        fs: FileSystem,
        directory: str,
        disk: DiskThreads,
        mark: Callable[[G], None],
        queue: RunQueue | None = None,
    ) -> None:
        """`mark` schedules a group's work. `queue` is that of the process, if it has one."""
        self._node = node
        self._device = str(fs.stat(directory).device)
        self._disk = disk
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        self._queue = queue or RunQueue(SystemClock())
        self._observing = False
        self._changed: set[str] = set()
        """Groups whose triggers the queue may not know."""
        self.started_ms = self._queue.clock.now_ms()
        """When the first interval of each group begins."""

    def begin(self, group: G, done: Done, *, waits: bool) -> None:
        """Request a run on a group; the answer contains the request's id.

        Without `waits` the run is refused if it cannot begin at once. A reader thread checks
        whether the disk is free.
        """

        def run(_: Jobs, control: RunControl) -> Report:
            return self.run(group, Trigger.ADMIN, control)

        def request() -> dict[str, Any]:
            return {"request": self._queue.request(self._scheduled(group), run, waits=waits)}

        if waits:
            done(_reply(request()))
        else:
            self._read(request, done)

    def observe(self, groups: Mapping[str, G], changed: Iterable[str]) -> None:
        """Pass the triggers of groups to the queue: of those that have worked since."""
        self._changed.update(changed)
        if self._observing:
            # The disk is slow; the readers are for clients too.
            return
        self._observing = True
        changed, self._changed = self._changed, set()
        scheduled = [self._scheduled(groups[name]) for name in changed if name in groups]
        names = list(groups)

        def observed(result: object) -> None:
            self._observing = False
            if isinstance(result, Exception):
                self._changed.update(changed)
                log.error("triggers cannot be evaluated", reason=repr(result))
            else:
                assert isinstance(result, list)
                self._changed.update(each.name for each in result)

        self._disk.read(lambda: self._queue.observe("group", scheduled, names), observed)

    def _scheduled(self, group: G) -> _Scheduled[G]:
        return _Scheduled(group, self._device, self)

    def ask(self, group: G, given: dict[str, Any], done: Done) -> None:
        """Answer an operation: plan, status, history or cancel."""
        operation, compaction = given.get("ask"), group.compaction
        if operation == "plan":
            compaction.plan(lambda plan: done(self._plan_answer(group, plan)))
            self._mark(group)
        elif operation == "status":
            request = str(given["request"]) if given.get("request") else None
            self._read(lambda: self._status_row(group, request), done)
        elif operation == "history":
            limit = given.get("limit", HISTORY_MAX)
            if not isinstance(limit, int) or not 0 <= limit <= HISTORY_MAX:
                raise InvalidInput(f"limit is {limit!r}, must be from 0 to {HISTORY_MAX}")
            self._read(lambda: {"runs": self._history_rows(group, limit)}, done)
        elif operation == "cancel":
            if not self._queue.cancel(self._scheduled(group)):
                raise RunRefused("run", f"no run on {group_of(group.name)} is in progress")
            done(_reply(self._row(group)))
        else:
            raise InvalidInput(f"ask is {operation!r}, must be plan, status, history or cancel")

    async def close(self, groups: Iterable[G]) -> None:
        """Stop all runs, and the queue; when this returns, no request waits.

        A process whose Raft node stops does no other work either.
        """
        for group in groups:
            group.compaction.close(LogClosed(f"node {self._node} stops"))
        await asyncio.to_thread(self._queue.close)

    def run(self, group: G, trigger: Trigger, control: RunControl) -> Report:
        """Run on a group and wait for the outcome. Called by a thread of the queue."""
        ended: Future[Report] = Future()

        def set_outcome(result: Report | LithifyError) -> None:
            if isinstance(result, LithifyError):
                ended.set_exception(result)
            else:
                ended.set_result(result)

        def begin() -> None:
            group.compaction.request(RunWanted(trigger, control, set_outcome))
            self._mark(group)

        self._loop.call_soon_threadsafe(begin)
        return ended.result()

    # --- rows -----------------------------------------------------------------------------------

    def _read(self, work: Callable[[], dict[str, Any]], done: Done) -> None:
        """Answer with the row that a reader thread reads."""

        def reply(result: object) -> None:
            if isinstance(result, dict):
                done(_reply(result))
            elif isinstance(result, LithifyError):
                done(result)
            elif isinstance(result, OSError):
                done(RunFailed(self._node, result))
            else:
                done(InvalidInput(f"the operation failed: {result!r}"))

        self._disk.read(work, reply)

    def _row(self, group: G) -> dict[str, Any]:
        return {"node": self._node, "group": group_of(group.name)}

    def _plan_answer(self, group: G, plan: DryRun | LithifyError) -> CommandResult | LithifyError:
        if isinstance(plan, LithifyError):
            return plan
        row = {
            **self._row(group),
            "text": plan.explain(),
            "plan": plan.plan.to_json(),
            "declined": plan.declined_row(),
        }
        return _reply(row)

    def _status_row(self, group: G, request: str | None) -> dict[str, Any]:
        status = self._queue.status(self._scheduled(group), request)
        return {**self._row(group), "request": request, **status.row()}

    def _history_rows(self, group: G, limit: int) -> list[dict[str, Any]]:
        reports = group.compaction.history.newest(limit)
        return [{**self._row(group), **report_row(report)} for report in reports]


def _reply(value: dict[str, Any]) -> CommandResult:
    return CommandResult(0, json.dumps(value).encode())
