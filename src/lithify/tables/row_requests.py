"""Answers the requests for single rows of the client protocol, in runs.

    requests = RowRequests(tables, node, catalog)
    node.questions.of_clients = requests.answer

Each request is a transaction of its own, with the results that `Tables` would give. Most of them go
to the Raft group of their partition without a task or a transaction in between:

- A **put** or **delete** needs to read nothing if its table has no indexes. So it is one command,
  which demands only that its time is below the limit up to which the table is known to be as it is
  here (`commit_limits.py`). All of a run for one partition are proposed together.
- A **get** is a query of the group. The reads of a run share one question to the leader.

All others go through `Tables`, a task each: the partition is led by another node, or is being
created; the table has indexes; the limit is not known, or has passed; nothing was done, because
leadership is changing.

A run that takes more than a few milliseconds is divided into portions, each in a turn of the loop.

While writes of a run are in progress it is registered as one transaction, so no version of the
catalog that they use goes. One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.catalog.objects import ZoneDescriptor
from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import OUTCOME_UNKNOWN, UNREACHABLE
from lithify.metastore.command_format import encode_delete_below, encode_put_below
from lithify.metastore.query_format import HELD, REPLY, MetastoreOutcome, encode_get, parse_value
from lithify.raft.commands import CommandResult, CommandResults
from lithify.raft.core.errors import Dropped
from lithify.raft.net.client_operations import MayHaveHappened, NoAnswer
from lithify.tables.assignments import group_name
from lithify.tables.errors import RowNotFound, SchemaChanged
from lithify.tables.keys import partition_of, row_key
from lithify.tables.reads import decode_checked, table_named
from lithify.tables.row_request_format import (
    RowRequestKind,
    decode_object,
    encode_object,
    parse_request,
)
from lithify.tables.rows import check_key, check_row, encode_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.manager.manager import CatalogManager
    from lithify.catalog.objects import TableDescriptor
    from lithify.raft.commands import Result, RunDone
    from lithify.raft.group.group import Group
    from lithify.raft.node.node import RaftNode
    from lithify.tables.active_transactions import OpenTransaction
    from lithify.tables.tables import Tables

__all__ = ["RowRequests"]

PORTION = 128
"""Requests that are started in one turn of the loop: each takes some 20 µs."""
PORTION_BYTES = 2**19
"""The JSON of a mebibyte takes some milliseconds."""

# As plain numbers: comparing with a member of an `IntEnum` takes ten times as long.
_PUT, _DELETE, _GET = map(int, RowRequestKind)
_DONE = int(MetastoreOutcome.DONE)
_NOTHING = b""


@dataclass(slots=True)
class _Writes:
    """The writes of a run in one partition."""

    group: Group[Any]
    places: list[int] = field(default_factory=list)
    """In the run."""
    commands: list[bytes] = field(default_factory=list)
    answered: int = 0


@dataclass(slots=True)
class _Run:
    """A run of requests, and what its requests share."""

    bodies: Sequence[bytes]
    done: RunDone
    opened: OpenTransaction
    writes: dict[str, _Writes] = field(default_factory=dict)
    """By group."""
    limits: dict[int, int] = field(default_factory=dict)
    """By table, as `CommitLimits.known_limit` says; 0 also if the table has indexes."""
    in_progress: int = 0
    """Partitions whose writes were not all answered."""

    @property
    def catalog(self) -> Catalog:
        return self.opened.catalog

    def answer(self, place: int, reply: bytes) -> None:
        self.done(slice(place, place + 1), CommandResults(0, [reply]))

    def refuse(self, place: int, error: LithifyError) -> None:
        self.done(slice(place, place + 1), error)


class RowRequests:
    """See the module."""

    def __init__(
        self, tables: Tables, node: RaftNode, catalog: CatalogManager, life_ms: int
    ) -> None:
        """`life_ms` is the longest life of a transaction."""
        self._tables = tables
        self._node = node
        self._catalog = catalog
        self._life_s = life_ms / 1000
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """The node stops: end the requests that are tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._tables.limits.close()

    def answer(self, bodies: Sequence[bytes], done: RunDone) -> None:
        """Answer a run of requests, in any order."""
        stop, size = 0, 0
        while stop < len(bodies) and stop < PORTION and size < PORTION_BYTES:
            size += len(bodies[stop])
            stop += 1
        if stop == len(bodies):
            self._answer(bodies, done)
            return

        def done_later(stretch: slice, result: CommandResults | LithifyError) -> None:
            done(slice(stretch.start + stop, stretch.stop + stop), result)

        self._answer(bodies[:stop], done)
        asyncio.get_running_loop().call_soon(self.answer, bodies[stop:], done_later)

    def _answer(self, bodies: Sequence[bytes], done: RunDone) -> None:
        opened = self._tables.active.begin(self._catalog.versions.at_time, self._life_s)
        opened.is_committing = True
        run = _Run(bodies, done, opened)
        try:
            for place, body in enumerate(bodies):
                try:
                    self._begin(run, place, body)
                except LithifyError as error:
                    run.refuse(place, error)
        except BaseException:
            # The client is disconnected; the versions that it used are not held for ever.
            self._tables.active.end(opened)
            raise
        run.in_progress = len(run.writes)
        if not run.writes:
            self._tables.active.end(opened)
        for writes in run.writes.values():
            writes.group.propose_many(writes.commands, partial(self._written, run, writes))
            self._node.mark(writes.group)

    def _begin(self, run: _Run, place: int, body: bytes) -> None:
        kind, name, text = parse_request(body)
        if kind not in (_PUT, _DELETE, _GET):
            raise InvalidInput(f"a request for a row of table {name} has kind {kind}, not 1 to 3")
        given = decode_object("a row" if kind == _PUT else "key", text)
        table = table_named(run.catalog, name)
        checked = check_row(table, given) if kind == _PUT else check_key(table, given)
        group = self._group_of(run.catalog, table, checked)
        if group is None:
            self._do_later(run, place, kind, name, given)
        elif kind == _GET:
            query = encode_get(row_key(table, checked))
            group.read(query, partial(self._read, run, place, table))
            self._node.mark(group)
        elif (limit := self._limit_of(run, table)) and group.leading_term:
            key = row_key(table, checked)
            writes = run.writes.get(group.name)
            if writes is None:
                writes = run.writes[group.name] = _Writes(group)
            writes.places.append(place)
            writes.commands.append(
                encode_put_below(limit, key, encode_row(table, checked))
                if kind == _PUT
                else encode_delete_below(limit, key)
            )
        else:
            self._do_later(run, place, kind, name, given)

    def _group_of(
        self, catalog: Catalog, table: TableDescriptor, row: Mapping[str, Any]
    ) -> Group[Any] | None:
        """The group of a row's partition, if it has a member here and takes commands."""
        zone = catalog.get(ZoneDescriptor, table.zone_id)
        partition = zone.id, partition_of(table, row, zone.partitions)
        if not self._tables.hosting.takes_commands(partition):
            return None
        return self._node.groups.get(group_name(partition))

    def _limit_of(self, run: _Run, table: TableDescriptor) -> int:
        """See `_Run.limits`."""
        found = run.limits.get(table.id)
        if found is None:
            found = 0
            if not run.catalog.alive_indexes_of(table.id):
                found = self._tables.limits.known_limit(run.catalog, (table.id,))
            run.limits[table.id] = found
        return found

    # --- results ----------------------------------------------------------------------------

    def _written(
        self, run: _Run, writes: _Writes, stretch: slice, result: CommandResults | LithifyError
    ) -> None:
        places = writes.places[stretch]
        if isinstance(result, CommandResults):
            self._committed(run, places, result)
        elif isinstance(result, Dropped):
            # Nothing was done.
            for place in places:
                self._repeat(run, place)
        else:
            for place in places:
                run.refuse(place, result)
        writes.answered += len(places)
        if writes.answered == len(writes.commands):
            run.in_progress -= 1
            if not run.in_progress:
                self._tables.active.end(run.opened)

    def _committed(self, run: _Run, places: list[int], result: CommandResults) -> None:
        missed: list[int] = []
        time = 0
        for place, reply in zip(places, result.replies, strict=True):
            outcome, flags, _, time = REPLY.unpack_from(reply)
            if outcome != _DONE or not flags & HELD:
                missed.append(place)
        # What begins here from now on sees them.
        self._catalog.observe(time)
        count = len(places)
        if not missed and places[-1] - places[0] == count - 1:
            answers = CommandResults(result.index, [_NOTHING] * count)
            run.done(slice(places[0], places[-1] + 1), answers)
            return
        for place in places:
            if place in missed:
                # The limit has passed: clocks differ, or the table changes.
                self._repeat(run, place)
            else:
                run.answer(place, _NOTHING)

    def _read(self, run: _Run, place: int, table: TableDescriptor, result: Result) -> None:
        if isinstance(result, CommandResult):
            try:
                value = parse_value(result.reply)
                row = None if value is None else decode_checked(table, value)
            except SchemaChanged:
                self._repeat(run, place)
            except LithifyError as error:
                run.refuse(place, error)
            else:
                run.answer(place, _NOTHING if row is None else encode_object(row))
        elif isinstance(result, Dropped):
            self._repeat(run, place)
        else:
            run.refuse(place, result)

    # --- others -----------------------------------------------------------------------------

    def _repeat(self, run: _Run, place: int) -> None:
        kind, name, text = parse_request(run.bodies[place])
        self._do_later(run, place, kind, name, decode_object("a row", text))

    def _do_later(self, run: _Run, place: int, kind: int, name: str, given: dict[str, Any]) -> None:
        work = self._do(run, place, kind, name, given)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, run: _Run, place: int, kind: int, name: str, given: dict[str, Any]) -> None:
        try:
            reply = await self._done_by_tables(kind, name, given)
        except LithifyError as error:
            run.refuse(place, _outcome(error))
        else:
            run.answer(place, reply)

    async def _done_by_tables(self, kind: int, name: str, given: dict[str, Any]) -> bytes:
        if kind == _PUT:
            await self._tables.put(name, given)
        elif kind == _DELETE:
            await self._tables.delete(name, given)
        else:
            try:
                return encode_object(await self._tables.get(name, given))
            except RowNotFound:
                pass
        return _NOTHING


def _outcome(error: LithifyError) -> LithifyError:
    """The error of the client protocol that says whether the client may try again."""
    if error.exit_code == OUTCOME_UNKNOWN:
        return MayHaveHappened(str(error))
    if error.exit_code == UNREACHABLE:
        return NoAnswer(str(error))
    return error
