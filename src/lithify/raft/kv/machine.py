"""A key-value store as a replicated machine whose values stay in the log.

The state has a row of 32 bytes for each key, and no values:

    0     8  place      the index of the entry that has the value
    8     8  revision   the index of the command that set the value; differs from the place once the
                        entry was moved to the head of the log
   16    16  digest     of the value, for comparing

The places of all rows are the live indexes. Overwriting or deleting a key makes its entry dead;
other entries (deletions, failed comparisons, watches) are dead from the start.

Watchers are part of the state, so a new leader continues where the last one stopped. A watcher gets
the changes of its keys, each with the revision of the change before, so that it detects a loss. A
watcher that starts from an older revision gets the newest change of each key above it. Deletions
leave no trace: if there was one since, or more than `_CATCH_UP_ROWS` changes, the watcher is told
to read everything, and gets the changes from then on.

The state and its snapshots are in `state.py`, the bytes of commands in `format.py`. A command
that cannot be parsed changes nothing and is answered by `KvOutcome.INVALID`, on every member alike.
"""

from __future__ import annotations

import struct
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from lithify.errors import ProtocolError
from lithify.raft.kv import format as wire
from lithify.raft.kv.format import Compared, KvKind, KvOutcome, KvRow, Reply, WatchEvent
from lithify.raft.kv.rows import ROW
from lithify.raft.kv.state import KvState, Watcher, load_state, save_state
from lithify.raft.machine import CommandBatch, QueryRead, ReadEntries, Send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lithify.live_set import LiveSet
    from lithify.raft.machine import Effect, Meta

    _Done = tuple[bytes, Sequence[Effect]]
    """A reply, and the effects."""

__all__ = ["KvMachine", "kv_machine"]

_PUT = int(KvKind.PUT)
_HEAD_BYTES = wire.HEAD.size
_DONE = int(KvOutcome.DONE)
_reply = wire.REPLY.pack
_INVALID = _reply(KvOutcome.INVALID, 0)
_SCAN_ROWS_FIRST = 16
"""Values that a scan reads before it knows how large they are."""
_CATCH_UP_ROWS = 1000
"""Values that are read for a watcher that starts late; above that, the watcher reads them."""


class KvMachine:
    """See the module; a `Machine` of `KvState`."""

    version = 1

    def __init__(self) -> None:
        # By plain numbers: an `IntEnum` is compared ten times slower, for every command.
        self._commands: dict[int, Callable[[KvState, bytes, bytes, int, int], _Done]] = {
            int(KvKind.PUT): self._put,
            int(KvKind.DELETE): self._delete,
            int(KvKind.CAS): self._compare,
            int(KvKind.REWRITE): self._rewrite,
            int(KvKind.WATCH): self._watch,
            int(KvKind.UNWATCH): self._unwatch,
        }

    def init(self) -> KvState:
        """A state without keys."""
        return KvState()

    # --- commands ---------------------------------------------------------------------------

    def apply(
        self, meta: Meta, command: bytes, state: KvState
    ) -> tuple[KvState, bytes, Sequence[Effect]]:
        """Apply a command of `format.py`."""
        batch = CommandBatch(meta.index, meta.term, [meta.time_ms], [command])
        _, replies, effects = self.apply_many(batch, 0, state)
        return state, replies[0], effects

    def apply_many(
        self, batch: CommandBatch, start: int, state: KvState
    ) -> tuple[KvState, list[bytes], Sequence[Effect]]:
        """Apply commands, up to the first one that has effects."""
        replies: list[bytes] = []
        effects: Sequence[Effect] = ()
        watchers, put = state.watchers, state.set
        parse, digest_of = wire.HEAD.unpack_from, wire.digest_of
        for index, command in enumerate(batch.commands[start:], batch.index + start):
            if len(command) >= _HEAD_BYTES and not watchers:
                kind, length = parse(command)
                end = _HEAD_BYTES + length
                if kind == _PUT and end <= len(command):
                    # Nearly all commands are PUTs, so they skip the calls of the others.
                    put(command[_HEAD_BYTES:end], index, index, digest_of(command[end:]))
                    replies.append(_reply(_DONE, index))
                    continue
            reply, effects = self._do(state, command, index)
            replies.append(reply)
            if effects:
                break
        return state, replies, effects

    def _do(self, state: KvState, command: bytes, index: int) -> _Done:
        try:
            kind, key, at = wire.parse_key(command)
            do = self._commands.get(kind)
            return (_INVALID, ()) if do is None else do(state, key, command, at, index)
        except (ProtocolError, struct.error):
            return _INVALID, ()

    def _put(self, state: KvState, key: bytes, command: bytes, at: int, index: int) -> _Done:
        value = command[at:]
        state.set(key, index, index, wire.digest_of(value))
        return _reply(_DONE, index), _told(state, key, value, index) if state.watchers else ()

    def _delete(self, state: KvState, key: bytes, _command: bytes, _at: int, index: int) -> _Done:
        revision = state.remove(key, index)
        if not revision:
            return _reply(KvOutcome.ABSENT, 0), ()
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
            return _reply(KvOutcome.MISMATCH, revision), ()
        return self._put(state, key, command, at + wire.EXPECTED.size, index)

    def _rewrite(self, state: KvState, key: bytes, command: bytes, at: int, index: int) -> _Done:
        (old,) = wire.INDEX.unpack_from(command, at)
        row = state.rows.get(key)
        if row is None or ROW.unpack(row)[0] != old:
            return _reply(KvOutcome.MISMATCH, 0), ()
        _, revision, digest = ROW.unpack(row)
        if wire.digest_of(command[at + wire.INDEX.size :]) != digest:
            # Any client can propose a REWRITE: it must not change a value under its revision.
            return _reply(KvOutcome.MISMATCH, revision), ()
        state.set(key, index, revision, digest)
        return _reply(_DONE, revision), ()

    def _watch(self, state: KvState, prefix: bytes, command: bytes, at: int, index: int) -> _Done:
        (known,) = wire.INDEX.unpack_from(command, at)
        name = command[at + wire.INDEX.size :]
        if len(name) > wire.KEY_BYTES_MAX:
            raise ProtocolError(f"a watcher's name of {len(name)} bytes")
        known = min(known, index)
        missed = [] if known < state.deleted else _missed(state, prefix, known)
        if known < state.deleted or len(missed) > _CATCH_UP_ROWS:
            state.watchers[name] = Watcher(prefix, index)
            return _reply(KvOutcome.RESET, index), ()
        state.watchers[name] = Watcher(prefix, missed[-1][0] if missed else known)
        return _reply(_DONE, index), _catch_up(name, known, missed)

    def _unwatch(self, state: KvState, name: bytes, _command: bytes, _at: int, index: int) -> _Done:
        found = state.watchers.pop(name, None)
        return _reply(KvOutcome.ABSENT if found is None else _DONE, index), ()

    # --- reading ----------------------------------------------------------------------------

    def query(self, state: KvState, query: bytes) -> bytes | QueryRead:
        """Answer a GET or a SCAN."""
        kind = query[0] if query else 0
        if kind == KvKind.GET:
            row = state.rows.get(query[1:])
            if row is None:
                return Reply(KvOutcome.ABSENT, 0).encode()
            place, revision, _ = ROW.unpack(row)
            return QueryRead((place,), partial(_value_reply, revision))
        if kind == KvKind.SCAN:
            try:
                return self._scan(state, query)
            except ProtocolError:
                return _INVALID
        return _INVALID

    def _scan(self, state: KvState, query: bytes) -> bytes | QueryRead:
        rows_max, prefix, after = wire.parse_scan(query)
        keys = islice(state.keys(prefix, after), rows_max)
        return _Page([(key, *ROW.unpack(state.rows[key])[:2]) for key in keys]).read_on()

    # --- the log ----------------------------------------------------------------------------

    def live_indexes(self, state: KvState) -> LiveSet:
        """The places of all values."""
        return state.live.live_set()

    def rewrite_command(self, state: KvState, index: int, command: bytes) -> bytes | None:
        """A command that writes a value again, if its key still has it at this index."""
        _, key, _ = wire.parse_key(command)
        row = state.rows.get(key)
        if row is None or ROW.unpack(row)[0] != index:
            return None
        return wire.rewrite(key, index, wire.value_at(command))

    def audience(self, state: KvState) -> Iterable[bytes]:
        """The watchers."""
        return list(state.watchers)

    def farewell(self, name: bytes) -> bytes:
        """A command that removes a watcher."""
        return wire.unwatch(name)

    def save(self, state: KvState) -> Iterable[bytes]:
        """The rows and the watchers at this moment."""
        return save_state(state)

    def load(self, pieces: Iterable[bytes]) -> KvState:
        """The state that `save` has written."""
        return load_state(pieces)


def kv_machine(_: str) -> KvMachine:
    """The machine of a group, on a node whose groups are all key-value stores."""
    return KvMachine()


def _value_reply(revision: int, commands: Sequence[bytes]) -> bytes:
    return Reply(KvOutcome.DONE, revision, wire.value_at(commands[0])).encode()


class _Page:
    """The answer to a scan, built from saved rows, a few values at a time."""

    def __init__(self, rows: list[tuple[bytes, int, int]]) -> None:
        """Of rows of key, place and revision."""
        self._rows = rows
        self._found: list[bytes] = []
        self._size = 0

    def read_on(self) -> bytes | QueryRead:
        """The answer, if it is complete or large enough; otherwise the values to read next."""
        at = len(self._found)
        if at == len(self._rows) or self._size >= wire.SCAN_BYTES_MAX:
            return Reply(KvOutcome.DONE, 0, b"".join(self._found)).encode()
        # As many as fit if their size is the average so far.
        room = wire.SCAN_BYTES_MAX - self._size
        count = max(1, room * at // self._size) if at else _SCAN_ROWS_FIRST
        some = self._rows[at : at + count]
        places = tuple(sorted(place for _, place, _ in some))
        return QueryRead(places, partial(self._add, some, places))

    def _add(
        self, some: list[tuple[bytes, int, int]], places: tuple[int, ...], commands: Sequence[bytes]
    ) -> bytes | QueryRead:
        values = dict(zip(places, map(wire.value_at, commands), strict=True))
        for key, place, revision in some:
            if self._size < wire.SCAN_BYTES_MAX:
                self._found.append(wire.encode_row(KvRow(key, values[place], revision)))
                self._size += len(self._found[-1])
        return self.read_on()


def _told(state: KvState, key: bytes, value: bytes | None, index: int) -> Sequence[Effect]:
    """The messages to the watchers of a key about its change."""
    if not state.watchers:
        return ()
    effects: list[Effect] = []
    for name, watcher in state.watchers.items():
        if key.startswith(watcher.prefix):
            event = WatchEvent(key, value, index, watcher.last)
            effects.append(Send(name, wire.encode_event(event)))
            watcher.last = index
    return effects


def _missed(state: KvState, prefix: bytes, known: int) -> list[tuple[int, int, bytes]]:
    """(revision, place, key) of each change above a revision, in order."""
    missed = []
    for key in state.keys(prefix, b""):
        place, revision, _ = ROW.unpack(state.rows[key])
        if revision > known:
            missed.append((revision, place, key))
    return sorted(missed)


def _catch_up(name: bytes, previous: int, missed: list[tuple[int, int, bytes]]) -> Sequence[Effect]:
    """Read the values that a watcher has missed, and send them."""
    if not missed:
        return ()
    places = sorted(place for _, place, _ in missed)

    def then(commands: list[bytes]) -> Sequence[Effect]:
        values = dict(zip(places, map(wire.value_at, commands), strict=True))
        effects: list[Effect] = []
        before = previous
        for revision, place, key in missed:
            event = WatchEvent(key, values[place], revision, before)
            effects.append(Send(name, wire.encode_event(event)))
            before = revision
        return effects

    return (ReadEntries(tuple(places), then),)
