"""Answers reads by the machine, without blocking the thread that runs all groups.

    jobs = queries.start(due, applied_index, state)   # reads whose index is applied
    result = job()                                  # in a reader's thread
    queries.done(job, result, applied_index, state) # in the group's thread again

1. The machine is queried in the group's thread, where nothing changes meanwhile. So the answer is
   of one moment, at which everything is applied that the read must see. The machine returns the
   answer, or a `QueryRead`: commands to read, and a function that makes the answer from them.
2. A few bytes of commands that are in memory are passed at once: another thread would take longer.
   So are entries that were read from segments before (`storage/recent_entries.py`).
3. All other readings of a round are jobs of at most `JOB_BYTES`. Their threads read only the log,
   which any thread may read, and what the machine has copied.
4. An entry that was live at that moment may have been deleted when it is read: its key was written
   again, and a snapshot taken. Then the machine is queried again, at the current index, and its
   commands are read in the group's thread, where no live entry can be deleted. This is rare.

An answer has the index of its state. Every read is answered once; reads in flight when the group
closes get the error that it closes with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from lithify.errors import LithifyError
from lithify.raft.commands import CommandResult, unwrap_many
from lithify.raft.errors import EntryDeleted
from lithify.raft.machine import QueryRead
from lithify.raft.pending_work import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lithify.raft.commands import Done
    from lithify.raft.entry import Entry
    from lithify.raft.group.reads import Request
    from lithify.raft.machine import Machine
    from lithify.raft.storage.group_log import GroupLog, ReadPlan
    from lithify.raft.storage.recent_entries import RecentEntries

__all__ = ["MachineQueries"]

S = TypeVar("S")

AT_ONCE_BYTES = 256 * 2**10
"""Bytes of commands in memory that one query gets at once: 0.1 ms of copying."""
QUERY_COST = 2
"""Of a query, in entries that it reads; each takes some 6 µs."""
ROUND_COST = 1000
"""At which a round ends: after about 6 ms others have their turn."""
JOB_BYTES = 2**20
"""Bytes of commands that one job reads: its answers are sent together, in about 1 ms."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query that a reader's thread answers."""

    query: bytes
    done: Done
    index: int
    """The index of the state that is read."""
    reading: QueryRead
    plan: ReadPlan


class _Answer(NamedTuple):
    """What a reader's thread returns for a query."""

    reply: bytes | LithifyError
    read: list[Entry]
    """From segments."""


class MachineQueries(Generic[S]):
    """See the module."""

    def __init__(self, machine: Machine[S], log: GroupLog, recent: RecentEntries) -> None:
        self._machine = machine
        self._log = log
        self._recent = recent
        self._owner = object()
        """Of the entries in `recent`."""
        self._jobs: dict[Job, list[_Asked]] = {}

    def start(self, due: Iterable[Request], index: int, state: S) -> list[Job]:
        """Take and answer queries, up to the cost of a round; those that need files are jobs."""
        later: list[_Asked] = []
        cost = 0
        for query, done in due:
            cost += QUERY_COST
            try:
                reply = self._machine.query(state, query)
                if isinstance(reply, QueryRead):
                    reply, entries = self._from_memory(reply)
                    cost += entries
            except LithifyError as error:
                done(error)
            else:
                if isinstance(reply, QueryRead):
                    plan = self._plan(reply.indexes)
                    later.append(_Asked(query, done, index, reply, plan))
                else:
                    done(CommandResult(index, reply))
            if cost >= ROUND_COST:
                break
        return [self._job(asked) for asked in _portions(later)]

    def _job(self, asked: list[_Asked]) -> Job:
        job = Job(f"queries at {asked[0].index}", lambda: list(map(self._answer, asked)))
        self._jobs[job] = asked
        return job

    def _from_memory(self, reply: bytes | QueryRead) -> tuple[bytes | QueryRead, int]:
        """(the answer, or the reading that needs a file; entries that were looked up)."""
        room, entries = AT_ONCE_BYTES, 0
        while isinstance(reply, QueryRead) and reply.indexes:
            plan = self._plan(reply.indexes)
            entries += len(reply.indexes)
            room -= plan.payload_bytes
            if not plan.is_in_memory or room < 0:
                break
            reply = reply.then(_commands(plan.run()))
        return reply, entries

    def _plan(self, indexes: tuple[int, ...]) -> ReadPlan:
        """Where entries are; those that are in memory are in it."""
        plan = self._log.plan(indexes)
        if not plan.is_in_memory:
            for index in indexes:
                if index not in plan.entries and (found := self._recent.get(self._owner, index)):
                    plan.entries[index] = found
        return plan

    def _answer(self, asked: _Asked) -> _Answer:
        """Read everything the answer needs; in a reader's thread."""
        reading, plan = asked.reading, asked.plan
        read: list[Entry] = []
        try:
            while True:
                entries = plan.run()
                read += (entry for entry in entries if entry.index not in plan.entries)
                reply = reading.then(_commands(entries))
                if not isinstance(reply, QueryRead):
                    return _Answer(reply, read)
                reading, plan = reply, self._log.plan(reply.indexes)
        except LithifyError as error:
            return _Answer(error, read)

    def is_job(self, job: Job) -> bool:
        """Does the job belong to this?"""
        return job in self._jobs

    def done(self, job: Job, result: object, index: int, state: S) -> None:
        """Take the result of a job; `index` and `state` are for queries that must be repeated."""
        asked = self._jobs.pop(job)
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, list)
        for each, (reply, read) in zip(asked, result, strict=True):
            self._recent.put(self._owner, read)
            if isinstance(reply, EntryDeleted):
                self._ask_here(each, index, state)
            elif isinstance(reply, LithifyError):
                each.done(reply)
            else:
                each.done(CommandResult(each.index, reply))

    def _ask_here(self, asked: _Asked, index: int, state: S) -> None:
        try:
            reply = self._machine.query(state, asked.query)
            while isinstance(reply, QueryRead):
                reply = reply.then(_commands(self._log.plan(reply.indexes).run()))
        except LithifyError as error:
            asked.done(error)
        else:
            asked.done(CommandResult(index, reply))

    def close(self, error: LithifyError) -> None:
        """The group has closed: answer the reads of its jobs."""
        jobs, self._jobs = self._jobs, {}
        for asked in jobs.values():
            for each in asked:
                each.done(error)


def _portions(asked: list[_Asked]) -> Iterator[list[_Asked]]:
    """In their order, each portion of at most `JOB_BYTES`, or of one query."""
    portion: list[_Asked] = []
    room = JOB_BYTES
    for each in asked:
        room -= each.plan.payload_bytes
        if portion and room < 0:
            yield portion
            portion, room = [], JOB_BYTES - each.plan.payload_bytes
        portion.append(each)
    if portion:
        yield portion


def _commands(entries: list[Entry]) -> Sequence[bytes]:
    return unwrap_many([entry.payload for entry in entries])[1]
