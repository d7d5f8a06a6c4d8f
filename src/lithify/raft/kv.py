"""A key-value store as a replicated machine whose values stay in the log.

The state has a row of 32 bytes for each key, and no values:

    0     8  place      the index of the entry that has the value
    8     8  revision   the index of the command that gave the key this value; the two differ once
                        the entry was moved to the head of the log
   16    16  digest     of the value, for comparing

The places of all rows are the live indexes. A key that is written again or deleted makes its entry
dead; what else is in the log (deletions, comparisons that failed, watches) is dead from the start.

Watchers are part of the state, so that every leader goes on where the last one stopped. Each is
sent the changes of its keys with the revision of the change before, so that it sees a loss. One
that comes late is sent the newest change of each key above the revision that it knows. Deletions
leave no trace: if there was one since, it is sent all there is, and told so.

A snapshot is pieces of rows, in columns, so that a million are read without a loop over fields:

    first piece   4  watchers   8  index of the last deletion
                  of each watcher: 8 last revision sent, 2 and 2 lengths, prefix, name
    others        4  rows, n    32 n  rows    2 n  lengths of keys    keys

What commands look like is in `kv_format.py`. A command that nobody understands changes nothing and
is answered by `Outcome.INVALID`, on every member alike.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import ProtocolError
from lithify.raft import kv_format as wire
from lithify.raft.kv_format import Compared, Kind, Outcome, Reply, Row, WatchEvent
from lithify.raft.live_indexes import LiveIndexes
from lithify.raft.machine import ReadEntries, Send
from lithify.raft.snapshot_file import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lithify.liveset import LiveSet
    from lithify.raft.machine import Effect, Meta, ReadCommands

    _Done = tuple[bytes, Sequence[Effect]]
    """A reply, and what is to be done besides."""

__all__ = ["KvMachine", "KvState"]

ROW = struct.Struct("<QQ16s")
_COUNT = struct.Struct("<I")
_FIRST = struct.Struct("<IQ")
_WATCHER = struct.Struct("<QHH")
_PIECE_ROWS = 16_384
"""Rows of a piece at most: 560 KB, and the keys, which are no more than about `PIECE_BYTES`."""
_DONE = int(Outcome.DONE)
_reply = wire.REPLY.pack
_INVALID = _reply(Outcome.INVALID, 0)
_CATCH_UP_ROWS = 1000
"""Values that are read at a time for a watcher that comes late."""


@dataclass(slots=True)
class Watcher:
    """Who is told of changes."""

    prefix: bytes
    last: int
    """The revision of what it was sent last."""


@dataclass(slots=True)
class KvState:
    """Keys and where their values are; only the machine changes it."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    live: LiveIndexes = field(default_factory=LiveIndexes)
    watchers: dict[bytes, Watcher] = field(default_factory=dict)
    deleted: int = 0
    """The index of the last deletion."""
    ordered: list[bytes] = field(default_factory=list)
    """The keys that a scan has put in order, some of them gone since."""
    added: set[bytes] = field(default_factory=set)
    """Those that came since."""

    def set(self, key: bytes, place: int, revision: int, digest: bytes) -> None:
        """Let a key's value stand at a place; all places before it are lower."""
        before = self.rows.get(key)
        if before is None:
            self.added.add(key)
        else:
            self.live.remove(ROW.unpack(before)[0])
        self.rows[key] = ROW.pack(place, revision, digest)
        self.live.add(place)

    def remove(self, key: bytes, index: int) -> int:
        """Forget a key; the revision that it had, 0 if there was none."""
        row = self.rows.pop(key, None)
        if row is None:
            return 0
        place, revision, _ = ROW.unpack(row)
        self.live.remove(place)
        self.added.discard(key)
        self.deleted = index
        return int(revision)

    def keys(self, prefix: bytes, after: bytes) -> Iterator[bytes]:
        """The keys with a prefix that are above another key, ascending."""
        if self.added or len(self.ordered) > 2 * len(self.rows):
            kept = [key for key in self.ordered if key in self.rows and key not in self.added]
            # Two sorted runs: joining them is a pass, not a sort.
            self.ordered = sorted([*kept, *sorted(self.added)])
            self.added = set()
        ordered, rows = self.ordered, self.rows
        for at in range(bisect_left(ordered, max(prefix, after)), len(ordered)):
            key = ordered[at]
            if not key.startswith(prefix):
                return
            if key in rows and (key > after or not after):
                yield key


class KvMachine:
    """See the module; a `Machine` of `KvState`."""

    version = 1

    def __init__(self) -> None:
        # By plain numbers: an `IntEnum` is compared ten times slower, for every command.
        self._commands: dict[int, Callable[[KvState, bytes, bytes, int, int], _Done]] = {
            int(Kind.PUT): self._put,
            int(Kind.DELETE): self._delete,
            int(Kind.CAS): self._compare,
            int(Kind.REWRITE): self._rewrite,
            int(Kind.WATCH): self._watch,
            int(Kind.UNWATCH): self._unwatch,
        }

    def init(self) -> KvState:
        """No keys."""
        return KvState()

    # --- commands ---------------------------------------------------------------------------

    def apply(
        self, meta: Meta, command: bytes, state: KvState
    ) -> tuple[KvState, bytes, Sequence[Effect]]:
        """Do a command of `kv_format.py`."""
        try:
            kind, key, at = wire.parse_key(command)
            do = self._commands.get(kind)
            if do is None:
                return state, _INVALID, ()
            reply, effects = do(state, key, command, at, meta.index)
        except (ProtocolError, struct.error):
            return state, _INVALID, ()
        return state, reply, effects

    def _put(self, state: KvState, key: bytes, command: bytes, at: int, index: int) -> _Done:
        value = command[at:]
        state.set(key, index, index, wire.digest_of(value))
        return _reply(_DONE, index), _told(state, key, value, index) if state.watchers else ()

    def _delete(self, state: KvState, key: bytes, _command: bytes, _at: int, index: int) -> _Done:
        revision = state.remove(key, index)
        if not revision:
            return _reply(Outcome.ABSENT, 0), ()
        return _reply(_DONE, revision), _told(state, key, None, index)

    def _compare(self, state: KvState, key: bytes, command: bytes, at: int, index: int) -> _Done:
        compared, expected = wire.EXPECTED.unpack_from(command, at)
        row = state.rows.get(key)
        revision, digest = (0, b"") if row is None else ROW.unpack(row)[1:]
        if compared == Compared.ABSENT:
            same = row is None
        elif compared == Compared.REVISION:
            same = row is not None and wire.INDEX.unpack_from(expected)[0] == revision
        else:
            same = digest == expected
        if not same:
            return _reply(Outcome.MISMATCH, revision), ()
        return self._put(state, key, command, at + wire.EXPECTED.size, index)

    def _rewrite(self, state: KvState, key: bytes, command: bytes, at: int, index: int) -> _Done:
        (old,) = wire.INDEX.unpack_from(command, at)
        row = state.rows.get(key)
        if row is None or ROW.unpack(row)[0] != old:
            return _reply(Outcome.MISMATCH, 0), ()
        _, revision, digest = ROW.unpack(row)
        state.set(key, index, revision, digest)
        return _reply(_DONE, revision), ()

    def _watch(self, state: KvState, prefix: bytes, command: bytes, at: int, index: int) -> _Done:
        (known,) = wire.INDEX.unpack_from(command, at)
        name = command[at + wire.INDEX.size :]
        if len(name) > wire.KEY_BYTES_MAX:
            raise ProtocolError(f"a watcher's name of {len(name)} bytes")
        outcome = Outcome.DONE
        if known < state.deleted:
            known, outcome = 0, Outcome.RESET
        missed = []
        for key in state.keys(prefix, b""):
            place, revision, _ = ROW.unpack(state.rows[key])
            if revision > known:
                missed.append((revision, place, key))
        missed.sort()
        state.watchers[name] = Watcher(prefix, missed[-1][0] if missed else known)
        return _reply(outcome, index), _catch_up(name, known, missed)

    def _unwatch(self, state: KvState, name: bytes, _command: bytes, _at: int, index: int) -> _Done:
        found = state.watchers.pop(name, None)
        return _reply(Outcome.ABSENT if found is None else _DONE, index), ()

    # --- reading ----------------------------------------------------------------------------

    def query(self, state: KvState, query: bytes, read_entries: ReadCommands) -> bytes:
        """Answer a GET or a SCAN."""
        kind = query[0] if query else 0
        if kind == Kind.GET:
            row = state.rows.get(query[1:])
            if row is None:
                return Reply(Outcome.ABSENT, 0).encode()
            place, revision, _ = ROW.unpack(row)
            value = wire.value_at(read_entries([place])[0])
            return Reply(Outcome.DONE, revision, value).encode()
        if kind == Kind.SCAN:
            return self._scan(state, query, read_entries)
        return Reply(Outcome.INVALID, 0).encode()

    def _scan(self, state: KvState, query: bytes, read_entries: ReadCommands) -> bytes:
        rows_max, prefix, after = wire.parse_scan(query)
        keys = list(islice(state.keys(prefix, after), rows_max))
        rows = [ROW.unpack(state.rows[key])[:2] for key in keys]
        places = sorted(place for place, _ in rows)
        values = dict(zip(places, map(wire.value_at, read_entries(places)), strict=True))
        found = (
            wire.encode_row(Row(key, values[place], revision))
            for key, (place, revision) in zip(keys, rows, strict=True)
        )
        return Reply(Outcome.DONE, 0, b"".join(found)).encode()

    # --- the log ----------------------------------------------------------------------------

    def live_indexes(self, state: KvState) -> LiveSet:
        """The places of all values."""
        return state.live.live_set()

    def rewrite_command(self, state: KvState, index: int, command: bytes) -> bytes | None:
        """Write a value again, if its key still has it there."""
        _, key, _ = wire.parse_key(command)
        row = state.rows.get(key)
        if row is None or ROW.unpack(row)[0] != index:
            return None
        return wire.rewrite(key, index, wire.value_at(command))

    def save(self, state: KvState) -> Iterable[bytes]:
        """The rows and the watchers as they are now."""
        first = _FIRST.pack(len(state.watchers), state.deleted) + b"".join(
            _WATCHER.pack(each.last, len(each.prefix), len(name)) + each.prefix + name
            for name, each in state.watchers.items()
        )
        return _pieces(first, state.rows.copy())

    def load(self, pieces: Iterable[bytes]) -> KvState:
        """Read back."""
        state = KvState()
        arrays = [np.empty(0, np.uint64)]
        for number, piece in enumerate(pieces):
            if not number:
                _load_watchers(state, piece)
                continue
            (count,) = _COUNT.unpack_from(piece)
            end = _COUNT.size + ROW.size * count
            rows = np.frombuffer(piece, np.uint64, ROW.size // 8 * count, _COUNT.size)
            arrays.append(rows[:: ROW.size // 8])
            lengths = np.frombuffer(piece, np.uint16, count, end).astype(np.int64)
            stops = np.cumsum(lengths) + end + 2 * count
            spans = zip((stops - lengths).tolist(), stops.tolist(), strict=True)
            keys = [piece[start:stop] for start, stop in spans]
            values = (piece[at : at + ROW.size] for at in range(_COUNT.size, end, ROW.size))
            state.rows.update(zip(keys, values, strict=True))
        state.live = LiveIndexes(np.sort(np.concatenate(arrays)).astype(np.int64))
        state.added = set(state.rows)
        return state


def _told(state: KvState, key: bytes, value: bytes | None, index: int) -> Sequence[Effect]:
    """What the watchers of a key are sent about its change."""
    if not state.watchers:
        return ()
    effects: list[Effect] = []
    for name, watcher in state.watchers.items():
        if key.startswith(watcher.prefix):
            event = WatchEvent(key, value, index, watcher.last)
            effects.append(Send(name, wire.encode_event(event)))
            watcher.last = index
    return effects


def _catch_up(name: bytes, previous: int, missed: list[tuple[int, int, bytes]]) -> Sequence[Effect]:
    """Have the values read that a watcher has missed, a few at a time, and sent."""
    if not missed:
        return ()
    now, later = missed[:_CATCH_UP_ROWS], missed[_CATCH_UP_ROWS:]

    def then(commands: list[bytes]) -> Sequence[Effect]:
        values = dict(zip(places, map(wire.value_at, commands), strict=True))
        effects: list[Effect] = []
        before = previous
        for revision, place, key in now:
            event = WatchEvent(key, values[place], revision, before)
            effects.append(Send(name, wire.encode_event(event)))
            before = revision
        return [*effects, *_catch_up(name, before, later)]

    places = sorted(place for _, place, _ in now)
    return (ReadEntries(tuple(places), then),)


def _pieces(first: bytes, rows: dict[bytes, bytes]) -> Iterator[bytes]:
    yield first
    all_keys, all_values = iter(rows.keys()), iter(rows.values())
    while keys := list(islice(all_keys, _PIECE_ROWS)):
        values = list(islice(all_values, len(keys)))
        lengths = np.array([len(key) for key in keys], np.uint16)
        # Long keys make more pieces, of about the same size.
        fitting = len(keys) * PIECE_BYTES // max(1, int(lengths.sum(dtype=np.int64)))
        count = max(1, min(len(keys), fitting))
        for at in range(0, len(keys), count):
            some = slice(at, at + count)
            head = _COUNT.pack(len(keys[some]))
            yield b"".join((head, *values[some], lengths[some].tobytes(), *keys[some]))


def _load_watchers(state: KvState, piece: bytes) -> None:
    count, state.deleted = _FIRST.unpack_from(piece)
    at = _FIRST.size
    for _ in range(count):
        last, prefix_bytes, name_bytes = _WATCHER.unpack_from(piece, at)
        at += _WATCHER.size
        prefix = piece[at : at + prefix_bytes]
        at += prefix_bytes
        state.watchers[piece[at : at + name_bytes]] = Watcher(prefix, last)
        at += name_bytes
