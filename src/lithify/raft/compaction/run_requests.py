"""What a node answers to those who ask about compaction: runs, dry runs, status, history, cancel.

Runs that people ask for wait in a queue of the node, one at a time on its disk
(`compaction/queue.py`). A thread of the queue hands a run to its group and waits for the outcome:

    a client ── compact ──> queue ── its thread ──> group ── job ──> worker
    the queue <── report or error ── the group takes in what was done <──┘

Runs that a group begins by itself do not wait in the queue. They meet the others at the worker,
which does one job at a time, and those of other processes at the disk's gate.

Rows are those that topics and blob stores have, with the node and the group in front. What reads
files is done by a reader, what may not meet a run by the worker: the event loop does neither.

Everything but `_run` is called in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from lithify.compaction.queue import Request, RunQueue
from lithify.compaction.record import WAITING, CompactionState, CompactionStatus, report_row
from lithify.compaction.schedule import Trigger
from lithify.errors import InvalidInput, LithifyError, LogClosed, RunFailed, RunRefused
from lithify.raft.compaction.group_compaction import RunWanted
from lithify.raft.names import group_of
from lithify.raft.requests import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.compaction.jobs import Progress
    from lithify.compaction.report import Report
    from lithify.compaction.run import DryRun
    from lithify.fs import FileSystem
    from lithify.raft.compaction.group_compaction import GroupCompaction
    from lithify.raft.disk import Disk
    from lithify.raft.group import Group
    from lithify.raft.requests import Done

__all__ = ["RunRequests"]

HISTORY_MAX = 1000


class RunRequests:
    """See the module."""

    def __init__(
        self,
        node: str,
        fs: FileSystem,
        directory: str,
        disk: Disk,
        mark: Callable[[Group[Any]], None],
    ) -> None:
        """`mark` has a group work soon."""
        self._node = node
        self._device = str(fs.stat(directory).device)
        self._disk = disk
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        self._queue = RunQueue(limit="group")

    def compact(self, group: Group[Any]) -> str:
        """Have a group compacted as soon as its turn comes; the id of the request."""

        def run(go_on: Progress) -> Report:
            return self._run(group, go_on)

        name = group_of(group.name)
        wanted = Request(group.compaction, name, self._device, Trigger.ADMIN, run)
        return self._queue.add(wanted)

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
            forgotten = compaction.forget()
            if not self._queue.cancel(compaction) and not forgotten:
                raise RunRefused("run", f"no run on {group_of(group.name)} is going on")
            done(_reply(self._row(group)))
        else:
            raise InvalidInput(f"cannot answer {what!r}, must be plan, status, history or cancel")

    async def close(self, groups: Iterable[Group[Any]]) -> None:
        """Stop what is going on; nobody waits any more when it returns."""
        for group in groups:
            group.compaction.close(LogClosed(f"node {self._node} stops"))
        await asyncio.to_thread(self._queue.close)

    def _run(self, group: Group[Any], go_on: Progress) -> Report:
        """A run, for a thread of the queue."""
        ended: Future[Report] = Future()

        def tell(result: Report | LithifyError) -> None:
            if isinstance(result, LithifyError):
                ended.set_exception(result)
            else:
                ended.set_result(result)

        def begin() -> None:
            group.compaction.request(RunWanted(go_on, tell))
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
    ) -> Answer | LithifyError:
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
        compaction = group.compaction
        if request is not None:
            status = self._queue.status(request, compaction, group_of(group.name))
        else:
            status = self._status(compaction)
        return {**self._row(group), "request": request, **status.row()}

    def _status(self, compaction: GroupCompaction) -> CompactionStatus:
        if self._queue.waits(compaction):
            return CompactionStatus(CompactionState.RUNNING, phase=WAITING)
        return compaction.status()

    def _history_rows(self, group: Group[Any], limit: int) -> list[dict[str, Any]]:
        reports = group.compaction.history.newest(limit)
        return [{**self._row(group), **report_row(report)} for report in reports]


def _reply(value: dict[str, Any]) -> Answer:
    return Answer(0, json.dumps(value).encode())
