"""Answers the queries of the metastore's machine. Pure.

1. Keys and revisions are chosen from the state, and with them the places of the values.
2. A `QueryRead` has these places; its function makes the reply from their entries, in any thread.
   It uses only what was copied in step 1.

A query at or below the floor is refused, whatever is still retained there. If an entry is gone when
it is read, the query is repeated; so a read that the floor has passed meanwhile is refused then.

A page is bounded by the size of the reply, by the size of the entries to be read for it, and by the
keys or changes that were examined. It has at least one row, or one revision: never a part of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lithify.errors import ProtocolError
from lithify.metastore import query_format as wire
from lithify.metastore.command_format import NUMBER, values_of
from lithify.metastore.metastore import KeyValue, Lease
from lithify.metastore.purge import count_superfluous
from lithify.metastore.query_format import REPLY, MetastoreOutcome, QueryKind, StoreStatus
from lithify.raft.machine import QueryRead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.metastore.key_histories import KeyRow
    from lithify.metastore.state import MetastoreState

__all__ = ["answer", "has_no_news"]

EXAMINED_MAX = 10_000
"""Keys or changes for one page: about 10 ms of the thread that all groups share."""
NEWS_MAX = 64
"""Changed keys that a watch compares with its range without a query: about 10 µs."""
COUNTED_MAX = 2000
"""Changes for one page of a count: each of them searches a key's history."""
ENTRIES_BYTES_MAX = 8 * 2**20
"""Commands that are read for one page."""

Place = tuple[int, bool]
"""The index of an entry, and whether the values are in its second branch."""


def answer(state: MetastoreState, query: bytes) -> bytes | QueryRead:
    """The reply to a query, or what it needs."""
    kind = query[0] if query else 0
    if kind == QueryKind.GET:
        return _get(state, *wire.parse_asked_get(query))
    if kind == QueryKind.RANGE:
        return _range(state, wire.parse_asked_range(query))
    if kind == QueryKind.CHANGES:
        return _changes(state, wire.parse_asked_changes(query))
    if kind == QueryKind.AT_TIME:
        return _at_time(state, wire.parse_asked_time(query))
    return _head(state) + _numbers(state, kind, query)


def _numbers(state: MetastoreState, kind: int, query: bytes) -> bytes:
    if kind == QueryKind.LEASES:
        after = wire.parse_asked_leases(query)
        ids = sorted(each for each in state.leases if each > after)[: wire.PAGE_ROWS_MAX]
        stored = ((each, state.leases[each]) for each in ids)
        leases = (Lease(number, each.ttl_ms, each.generation) for number, each in stored)
        return wire.encode_lease_rows(leases)
    if kind == QueryKind.STATUS and len(query) == 1:
        return wire.encode_store_status(_status(state))
    if kind == QueryKind.SUPERFLUOUS:
        page = count_superfluous(state, *wire.parse_asked_superfluous(query), COUNTED_MAX)
        return wire.encode_superfluous(page)
    raise ProtocolError(f"a query of {len(query)} bytes has an unknown kind")


def _head(state: MetastoreState, number: int = 0) -> bytes:
    return REPLY.pack(MetastoreOutcome.DONE, 0, number or state.revision, state.time)


def _refused(state: MetastoreState, revision: int) -> bytes | None:
    """The refusal of a read at a revision; 0 is the newest."""
    if revision > state.revision:
        return REPLY.pack(MetastoreOutcome.NOT_REACHED, 0, state.revision, state.time)
    if revision and revision <= state.floor:
        return REPLY.pack(MetastoreOutcome.COMPACTED, 0, state.floor, state.time)
    return None


def _value_at(state: MetastoreState, key: bytes, revision: int) -> KeyRow | None:
    if revision:
        return state.keys.at(key, revision)
    return state.keys.last(key) if key in state.keys.newest else None


def _at_time(state: MetastoreState, time: int) -> bytes:
    """The revision at which a reader sees what was there at a time.

    Up to the time of the store, because no later revision has a timestamp up to that.
    """
    if time > state.time:
        return REPLY.pack(MetastoreOutcome.NOT_REACHED, 0, state.time, state.time)
    revision = state.revisions.newest_at(time)
    if state.floor and revision <= state.floor:
        return REPLY.pack(MetastoreOutcome.COMPACTED, 0, state.floor, state.time)
    return REPLY.pack(MetastoreOutcome.DONE, 0, revision, state.time)


# --- keys -----------------------------------------------------------------------------------


def _get(state: MetastoreState, revision: int, key: bytes) -> bytes | QueryRead:
    if refused := _refused(state, revision):
        return refused
    head, found = _head(state, revision), _value_at(state, key, revision)
    if found is None:
        return head
    columns = state.revisions
    row = columns.row(found.revision)
    otherwise, time = bool(columns.otherwise[row]), columns.times[row]

    def then(commands: Sequence[bytes]) -> bytes:
        value = values_of(commands[0], otherwise=otherwise)[key]
        return head + wire.encode_row(KeyValue(key, value, found.revision, time, found.lease))

    return QueryRead((columns.places[row],), then)


def _range(state: MetastoreState, asked: wire.AskedRange) -> bytes | QueryRead:
    if refused := _refused(state, asked.revision):
        return refused
    at = 0 if asked.revision == state.revision else asked.revision
    columns = state.revisions
    rows: list[tuple[KeyValue, Place]] = []
    places: set[int] = set()
    reply_bytes = entries_bytes = 0
    next_start = b""
    for examined, key in enumerate(state.keys.range(asked.start, asked.end)):
        is_full = reply_bytes >= wire.PAGE_BYTES_MAX or entries_bytes >= ENTRIES_BYTES_MAX
        if is_full or len(rows) == asked.rows_max or examined == EXAMINED_MAX:
            next_start = key
            break
        found = _value_at(state, key, at)
        if found is None:
            continue
        row = columns.row(found.revision)
        place = columns.places[row]
        if place not in places:
            places.add(place)
            entries_bytes += columns.entry_bytes[row]
        reply_bytes += len(key) + found.value_bytes
        without_value = KeyValue(key, b"", found.revision, columns.times[row], found.lease)
        rows.append((without_value, (place, bool(columns.otherwise[row]))))
    head = _head(state, asked.revision) + wire.encode_next_start(next_start)
    if not rows:
        return head
    indexes = tuple(sorted(places))
    return QueryRead(indexes, partial(_range_reply, head, rows, indexes))


def _range_reply(
    head: bytes,
    rows: list[tuple[KeyValue, Place]],
    indexes: tuple[int, ...],
    commands: Sequence[bytes],
) -> bytes:
    values = _Values(indexes, commands)
    parts = [head]
    for row, place in rows:
        value = values.of(place)[row.key]
        parts.append(
            wire.encode_row(KeyValue(row.key, value, row.revision, row.timestamp, row.lease))
        )
    return b"".join(parts)


class _Values:
    """The values in entries; each is parsed once."""

    def __init__(self, indexes: tuple[int, ...], commands: Sequence[bytes]) -> None:
        self._commands = dict(zip(indexes, commands, strict=True))
        self._parsed: dict[Place, dict[bytes, bytes]] = {}

    def of(self, place: Place) -> dict[bytes, bytes]:
        """The values of an entry, by key."""
        found = self._parsed.get(place)
        if found is None:
            found = self._parsed[place] = values_of(self._commands[place[0]], otherwise=place[1])
        return found


# --- changes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Changed:
    """A revision of a page, without the values."""

    revision: int
    time: int
    place: Place
    changes: list[tuple[bytes, int]]
    """Key, and 1 if it has a value."""


def has_no_news(state: MetastoreState, start: bytes, end: bytes, after: int) -> bool:
    """Do all revisions above `after` change only keys outside of a range?

    False if it is not known at once: they are compacted, or change more than a few keys.
    """
    columns = state.revisions
    row = columns.row_above(after)
    if after < state.floor or row == len(columns):
        return False
    first, _ = columns.change_bounds(row)
    if len(columns.keys) - first > NEWS_MAX:
        return False
    return not any(start <= key and (key < end or not end) for key in columns.keys[first:])


def _changes(state: MetastoreState, asked: wire.AskedChanges) -> bytes | QueryRead:
    if asked.after < state.floor:
        return REPLY.pack(MetastoreOutcome.COMPACTED, 0, state.floor, state.time)
    columns, start, end = state.revisions, asked.start, asked.end
    found: list[_Changed] = []
    places: set[int] = set()
    size = examined = 0
    through = max(asked.after, state.revision)
    for row in range(columns.row_above(asked.after), len(columns)):
        if len(found) == asked.revisions_max or size >= asked.bytes_max or examined >= EXAMINED_MAX:
            through = columns.numbers[row - 1]
            break
        first, stop = columns.change_bounds(row)
        examined += stop - first
        changes = [
            (key, has_value)
            for key, has_value in columns.changes(row)
            if key >= start and (key < end or not end)
        ]
        if not changes:
            continue
        size += sum(len(key) for key, _ in changes)
        place = columns.places[row]
        if any(has_value for _, has_value in changes):
            places.add(place)
            size += columns.entry_bytes[row]
        entry = place, bool(columns.otherwise[row])
        found.append(_Changed(columns.numbers[row], columns.times[row], entry, changes))
    head = _head(state) + NUMBER.pack(through)
    indexes = tuple(sorted(places))
    if not indexes:
        return _changes_reply(head, found, (), ())
    return QueryRead(indexes, partial(_changes_reply, head, found, indexes))


def _changes_reply(
    head: bytes, found: list[_Changed], indexes: tuple[int, ...], commands: Sequence[bytes]
) -> bytes:
    values = _Values(indexes, commands)
    parts = [head]
    for each in found:
        changes = [
            (key, values.of(each.place)[key] if has_value else None)
            for key, has_value in each.changes
        ]
        parts.append(wire.encode_revision(each.revision, each.time, changes))
    return b"".join(parts)


# --- numbers --------------------------------------------------------------------------------


def _status(state: MetastoreState) -> StoreStatus:
    columns = state.revisions
    unpurged = 0
    if state.purged_floor < state.floor:
        unpurged = columns.row_above(state.floor) - columns.row_above(state.purged)
    return StoreStatus(
        revision=state.revision,
        time=state.time,
        floor=state.floor,
        keys=len(state.keys.newest),
        revisions=len(columns),
        values=state.keys.row_count,
        leases=len(state.leases),
        unpurged=unpurged,
    )
