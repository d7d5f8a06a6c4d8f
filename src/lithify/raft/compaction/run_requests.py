"""What a node answers to those who ask about compaction: runs, dry runs, status, history, cancel.

All runs of phase 3 come from a queue of the node, those that people ask for and those that
triggers call for (`compaction/scheduling/run_queue.py`): in its order, one at a time on the disk. A
thread of the queue waits for the disk, hands the run to its group, and waits for the outcome:

    a client ── compact ──> queue ── its thread ──> group ── job ──> worker
    a tick   ── look ─────>   ^                                        │
                              └── report or error ── the group takes in what was done

The worker does one job at a time: snapshots and phase 1 of all groups come between, never a wait.

Rows are those that topics and blob stores have, with the node and the group in front. What reads
files is done by a reader, what may not meet a run by the worker: the event loop does neither.

Everything but runs is called in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.clock import SystemClock
from lithify.compaction.reports.status import report_row
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.compaction.scheduling.schedule import Trigger
from lithify.errors import InvalidInput, LithifyError, LogClosed, RunFailed, RunRefused
from lithify.raft.compaction.group_compaction import RunWanted
from lithify.raft.group.proposals_and_reads import CommandResult
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.compactor import DryRun
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.run.log_runs import LogRuns
    from lithify.compaction.scheduling.schedule import Observation
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.fs import FileSystem
    from lithify.raft.group.group import Group
    from lithify.raft.group.proposals_and_reads import Done
    from lithify.raft.storage.disk_threads import DiskThreads

__all__ = ["RunRequests"]

HISTORY_MAX = 1000


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """One group of the node; an implementation of `ScheduledLog`."""

    group: Group[Any]
    device: str
    node: RunRequests

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
        """The group has logged it, and shows it in its overview."""


class RunRequests:
    """See the module."""

    def __init__(
        self,
        node: str,
        fs: FileSystem,
        directory: str,
        disk: DiskThreads,
        mark: Callable[[Group[Any]], None],
    ) -> None:
        """`mark` has a group work soon."""
        self._node = node
        self._device = str(fs.stat(directory).device)
        self._disk = disk
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        clock = SystemClock()
        self.started_ms = clock.now_ms()
        """The first interval of each group begins then."""
        self._queue = RunQueue(clock)

    def begin(self, group: Group[Any], done: Done, *, waits: bool) -> None:
        """Have a group compacted as soon as its turn comes; the answer has the request's id.

        One that does not wait is refused if it would have to. Whether the disk is free is found
        out by a reader.
        """

        def run(_: Jobs, control: RunControl) -> Report:
            return self.run(group, Trigger.ADMIN, control)

        def request() -> dict[str, Any]:
            return {"request": self._queue.request(self._of(group), run, waits=waits)}

        if waits:
            done(_reply(request()))
        else:
            self._read(request, done)

    def observe(self, groups: Iterable[Group[Any]]) -> None:
        """Tell the queue what the triggers of all groups say."""
        self._queue.observe("group", [self._of(group) for group in groups])

    def _of(self, group: Group[Any]) -> _Scheduled:
        return _Scheduled(group, self._device, self)

    def ask(self, group: Group[Any], given: dict[str, Any], done: Done) -> None:
        """Answer one of the questions about compaction."""
        what, compaction = given.get("ask"), group.compaction
        if what == "plan":
            compaction.plan(lambda plan: done(self._plan_answer(group, plan)))
            self._mark(group)
        elif what == "status":
            request = str(given["request"]) if given.get("request") else None
            self._read(lambda: self._status_row(group, request), done)
        elif what == "history":
            limit = given.get("limit", HISTORY_MAX)
            if not isinstance(limit, int) or not 0 <= limit <= HISTORY_MAX:
                raise InvalidInput(f"limit is {limit!r}, must be from 0 to {HISTORY_MAX}")
            self._read(lambda: {"runs": self._history_rows(group, limit)}, done)
        elif what == "cancel":
            if not self._queue.cancel(self._of(group)):
                raise RunRefused("run", f"no run on {group_of(group.name)} is going on")
            done(_reply(self._row(group)))
        else:
            raise InvalidInput(f"cannot answer {what!r}, must be plan, status, history or cancel")

    async def close(self, groups: Iterable[Group[Any]]) -> None:
        """Stop what is going on; nobody waits any more when it returns."""
        for group in groups:
            group.compaction.close(LogClosed(f"node {self._node} stops"))
        await asyncio.to_thread(self._queue.close)

    def run(self, group: Group[Any], trigger: Trigger, control: RunControl) -> Report:
        """A run, for a thread of the queue."""
        ended: Future[Report] = Future()

        def tell(result: Report | LithifyError) -> None:
            if isinstance(result, LithifyError):
                ended.set_exception(result)
            else:
                ended.set_result(result)

        def begin() -> None:
            group.compaction.request(RunWanted(trigger, control, tell))
            self._mark(group)

        self._loop.call_soon_threadsafe(begin)
        return ended.result()

    # --- rows -----------------------------------------------------------------------------------

    def _read(self, work: Callable[[], dict[str, Any]], done: Done) -> None:
        """Have a reader find the answer."""

        def read(result: object) -> None:
            if isinstance(result, dict):
                done(_reply(result))
            elif isinstance(result, LithifyError):
                done(result)
            elif isinstance(result, OSError):
                done(RunFailed(self._node, result))
            else:
                done(InvalidInput(f"the answer cannot be given: {result!r}"))

        self._disk.read(work, read)

    def _row(self, group: Group[Any]) -> dict[str, Any]:
        return {"node": self._node, "group": group_of(group.name)}

    def _plan_answer(
        self, group: Group[Any], found: DryRun | LithifyError
    ) -> CommandResult | LithifyError:
        if isinstance(found, LithifyError):
            return found
        row = {
            **self._row(group),
            "text": found.explain(),
            "plan": found.plan.to_json(),
            "declined": found.declined_row(),
        }
        return _reply(row)

    def _status_row(self, group: Group[Any], request: str | None) -> dict[str, Any]:
        status = self._queue.status(self._of(group), request)
        return {**self._row(group), "request": request, **status.row()}

    def _history_rows(self, group: Group[Any], limit: int) -> list[dict[str, Any]]:
        reports = group.compaction.history.newest(limit)
        return [{**self._row(group), **report_row(report)} for report in reports]


def _reply(value: dict[str, Any]) -> CommandResult:
    return CommandResult(0, json.dumps(value).encode())
