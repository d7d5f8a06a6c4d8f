"""The metastore as a replicated machine whose values stay in the log.

The state (`state.py`) has keys with their retained revisions, and no values. Each revision has a
place: the index of the entry that has its values. The places of revisions that still have a value
are the live indexes; other entries (deletions, transactions that changed nothing, leases, times)
are dead from the start.

- Every command that can be parsed advances the time: to the clock of the leader that received it,
  and at least by one. So timestamps ascend even if a clock goes back.
- A revision is the index of a command that changed a key.
- A transaction is checked as a whole, leases included, before it changes anything.
- COMPACT only raises the floor. Each member removes what is below it by `purge` at its own times,
  so members retain different revisions; answers and decisions depend on the floor alone.
- A snapshot depends on its index alone, because `live_indexes` completes the purge. A member that
  gets the snapshot of another one is sent live entries only above the index that it has applied: of
  those below, it must have all that the other one calls live.
- REWRITE moves a revision to the head of the log. Its values are compared with the digests of all
  values of the revision that can be read, so no client can change a value with it. A member that
  has not purged the other values yet keeps their rows, but nothing reads those.

Commands are in `command_format.py`, queries in `query_format.py` and `queries.py`. A command that
cannot be parsed changes nothing and is answered by INVALID, on every member alike. No command has
effects.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from lithify.errors import ProtocolError
from lithify.hybrid_time import timestamp
from lithify.metastore import command_format as wire
from lithify.metastore.command_format import CommandKind
from lithify.metastore.metastore import Lease
from lithify.metastore.purge import purge_state
from lithify.metastore.queries import answer
from lithify.metastore.query_format import CHANGED, HELD, REPLY, MetastoreOutcome, encode_lease_rows
from lithify.metastore.snapshot_format import load_state, save_state
from lithify.metastore.state import MetastoreState, StoredLease
from lithify.metastore.transaction import LEASE_KEYS_MAX, Condition
from lithify.raft.kv.format import digest_of
from lithify.raft.machine import CommandBatch
from lithify.raft.ordered_key_set import prefix_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lithify.live_set import LiveSet
    from lithify.metastore.command_format import ParsedCompare, ParsedOperation
    from lithify.metastore.purge import Purged
    from lithify.metastore.state import ChangesByKey
    from lithify.raft.machine import Effect, Meta, QueryRead

__all__ = ["CLOCK_MS_MAX", "GUARDS_MAX", "MetastoreMachine"]

CLOCK_MS_MAX = 2**46
"""A later clock counts as this one, the year 4199: half of all timestamps remain above it."""

GUARDS_MAX = 1024
"""Keys that one COMPACT_IF_UNCHANGED examines; with more it changes nothing."""
PURGED_AT_ONCE = 2**16
"""Changes that one step of a purge for a snapshot examines."""

# As plain numbers: comparing with a member of an `IntEnum` takes ten times as long.
_TRANSACTION = int(CommandKind.TRANSACTION)
_PRESENT = int(Condition.PRESENT)
_REVISION = int(Condition.REVISION)
_REVISION_AT_MOST = int(Condition.REVISION_AT_MOST)
_VALUE = int(Condition.VALUE)
_DONE = int(MetastoreOutcome.DONE)
_PUT = wire.PUT
_reply = REPLY.pack
_INVALID = _reply(MetastoreOutcome.INVALID, 0, 0, 0)


class MetastoreMachine:
    """See the module; a `Machine` of `MetastoreState`."""

    version = 1

    def __init__(self) -> None:
        self._others: dict[int, Callable[[MetastoreState, bytes, int, int], bytes]] = {
            int(CommandKind.GRANT): _grant,
            int(CommandKind.KEEP): _keep,
            int(CommandKind.REVOKE): _revoke,
            int(CommandKind.EXPIRE): _expire,
            int(CommandKind.TIME): _tick,
            int(CommandKind.COMPACT): _compact,
            int(CommandKind.REWRITE): _rewrite,
            int(CommandKind.COMPACT_IF_UNCHANGED): _compact_if_unchanged,
            int(CommandKind.TIME_REACHED): _time_reached,
        }

    def init(self) -> MetastoreState:
        """A state without keys."""
        return MetastoreState()

    # --- commands ---------------------------------------------------------------------------

    def apply(
        self, meta: Meta, command: bytes, state: MetastoreState
    ) -> tuple[MetastoreState, bytes, Sequence[Effect]]:
        """Apply a command of `command_format.py`."""
        batch = CommandBatch(meta.index, meta.term, [meta.time_ms], [command])
        return state, self.apply_many(batch, 0, state)[1][0], ()

    def apply_many(
        self, batch: CommandBatch, start: int, state: MetastoreState
    ) -> tuple[MetastoreState, list[bytes], Sequence[Effect]]:
        """Apply all commands."""
        replies: list[bytes] = []
        times_ms = batch.times_ms
        for place in range(start, len(batch.commands)):
            command = batch.commands[place]
            clock = timestamp(min(times_ms[place], CLOCK_MS_MAX))
            kind = command[0] if command else 0
            try:
                if kind == _TRANSACTION:
                    compares, then, otherwise = wire.parse_transaction(command)
                    state.time = max(state.time + 1, clock)
                    held = True
                    for compare in compares:
                        if not _holds(state, compare):
                            held = False
                            break
                    operations = then if held else otherwise
                    size, index = len(command), batch.index + place
                    replies.append(_execute(state, operations, index, size, held=held))
                else:
                    do = self._others.get(kind, _unknown)
                    replies.append(do(state, command, batch.index + place, clock))
            except ProtocolError:
                replies.append(_INVALID)
        return state, replies, ()

    # --- reading ----------------------------------------------------------------------------

    def query(self, state: MetastoreState, query: bytes) -> bytes | QueryRead:
        """Answer a query of `query_format.py`."""
        try:
            return answer(state, query)
        except ProtocolError:
            return _INVALID

    # --- the log ----------------------------------------------------------------------------

    def live_indexes(self, state: MetastoreState) -> LiveSet:
        """The places of all revisions that have a value which can be read.

        It completes the purge, which has little to do if each member purges all the time.
        """
        while not purge_state(state, PURGED_AT_ONCE).finished:
            pass
        return state.live.live_set()

    def rewrite_command(self, state: MetastoreState, index: int, command: bytes) -> bytes | None:
        """A REWRITE of the values at a place that can be read."""
        is_rewritten = command[0] == CommandKind.REWRITE
        revision = wire.parse_rewrite(command)[1] if is_rewritten else index
        row = state.revisions.row(revision)
        if row < 0 or state.revisions.places[row] != index:
            return None
        visible = state.visible_values(row)
        if not visible:
            # Nothing to move: the next purge removes them.
            return None
        values = wire.values_of(command, otherwise=bool(state.revisions.otherwise[row]))
        moved = [(key, values[key], kept[0]) for key, kept in visible.items()]
        return wire.encode_rewrite(index, revision, moved)

    def purge(self, state: MetastoreState, changes_max: int) -> Purged:
        """Remove revisions below the floor; examines this number of changes.

        It changes no answer. The group's thread calls it, when reads below the floor have ended.
        """
        return purge_state(state, changes_max)

    def audience(self, state: MetastoreState) -> Iterable[bytes]:  # noqa: ARG002  (the protocol)
        """Nothing is sent to clients: watches read."""
        return ()

    def farewell(self, name: bytes) -> bytes:  # noqa: ARG002  (the protocol's name)
        """There is no client to remove; the command only advances the time."""
        return wire.encode_time()

    def save(self, state: MetastoreState) -> Iterable[bytes]:
        """The state at this moment."""
        return save_state(state)

    def load(self, pieces: Iterable[bytes]) -> MetastoreState:
        """The state that `save` has written."""
        return load_state(pieces)


def _holds(state: MetastoreState, compare: ParsedCompare) -> bool:
    condition, key, operand = compare
    revision = state.keys.newest.get(key, 0)
    if condition == _REVISION:
        return revision == operand
    if condition <= _PRESENT:
        return (revision != 0) == (condition == _PRESENT)
    if condition == _REVISION_AT_MOST:
        assert isinstance(operand, int)
        return revision <= operand
    if condition == _VALUE:
        return revision != 0 and state.keys.last(key).digest == operand
    if isinstance(operand, tuple):
        return _is_unchanged(state, key, operand[1], operand[0])
    assert isinstance(operand, int)
    return state.time < operand


def _is_unchanged(state: MetastoreState, start: bytes, end: bytes, revision: int) -> bool:
    """Was no key of a range changed above a revision? Below the floor that is not known.

    The cost follows the changes since, which are few for a transaction that has just read.
    """
    columns = state.revisions
    row = columns.row_above(revision)
    first = columns.change_bounds(row)[0] if row < len(columns) else len(columns.keys)
    changed = (key >= start and (key < end or not end) for key in columns.keys[first:])
    return revision >= state.floor and not any(changed)


def _execute(
    state: MetastoreState, operations: list[ParsedOperation], index: int, size: int, *, held: bool
) -> bytes:
    """Execute a branch of a transaction."""
    changes: ChangesByKey = {}
    has_lease = False
    for kind, key, value, number in operations:
        if kind == _PUT:
            changes[key] = number, len(value), digest_of(value)
            if number:
                if number not in state.leases:
                    return _reply(MetastoreOutcome.LEASE_NOT_FOUND, 0, number, state.time)
                has_lease = True
        else:
            _delete(state, changes, (kind, key, value, number))
    if has_lease and (full := _full_lease(state, changes)):
        return _reply(MetastoreOutcome.LEASE_FULL, 0, full, state.time)
    if not changes:
        return _reply(_DONE, HELD if held else 0, state.revision, state.time)
    state.commit(index, size, changes, otherwise=not held)
    return _reply(_DONE, CHANGED | HELD if held else CHANGED, index, state.time)


def _delete(state: MetastoreState, changes: ChangesByKey, operation: ParsedOperation) -> None:
    kind, start, end, keys_max = operation
    if kind == wire.DELETE:
        chosen = [start]
    else:
        stored = (key for key in state.keys.present(start, end) if changes.get(key, ()) is not None)
        chosen = list(islice(stored, keys_max))
        if changes:
            put = (key for key, change in changes.items() if change is not None)
            found = {key for key in put if key >= start and (key < end or not end)}
            chosen = sorted(found.union(chosen))[:keys_max]
    for key in chosen:
        if key in state.keys.newest:
            changes[key] = None
        else:
            changes.pop(key, None)


def _full_lease(state: MetastoreState, changes: ChangesByKey) -> int:
    """A lease that the changes would give too many keys, 0 if there is none."""
    added: dict[int, int] = {}
    for key, change in changes.items():
        lease = change[0] if change is not None else 0
        if lease and key not in state.leases[lease].keys:
            added[lease] = added.get(lease, 0) + 1
            if len(state.leases[lease].keys) + added[lease] > LEASE_KEYS_MAX:
                return lease
    return 0


def _advance(state: MetastoreState, clock: int) -> None:
    state.time = max(state.time + 1, clock)


def _unknown(_state: MetastoreState, command: bytes, _index: int, _clock: int) -> bytes:
    raise ProtocolError(f"a command of {len(command)} bytes has an unknown kind")


def _grant(state: MetastoreState, command: bytes, index: int, clock: int) -> bytes:
    (ttl_ms,) = wire.parse_numbers(wire.KIND_AND_NUMBER, command)
    if not 1 <= ttl_ms <= wire.TTL_MS_MAX:
        raise ProtocolError(f"a time to live of {ttl_ms} ms")
    _advance(state, clock)
    state.leases[index] = StoredLease(ttl_ms)
    return _lease_reply(state, index)


def _keep(state: MetastoreState, command: bytes, _index: int, clock: int) -> bytes:
    (lease,) = wire.parse_numbers(wire.KIND_AND_NUMBER, command)
    _advance(state, clock)
    stored = state.leases.get(lease)
    if stored is None:
        return _reply(MetastoreOutcome.LEASE_NOT_FOUND, 0, lease, state.time)
    stored.generation += 1
    return _lease_reply(state, lease)


def _lease_reply(state: MetastoreState, lease: int) -> bytes:
    stored = state.leases[lease]
    rest = encode_lease_rows((Lease(lease, stored.ttl_ms, stored.generation),))
    return _reply(_DONE, HELD, state.revision, state.time) + rest


def _revoke(state: MetastoreState, command: bytes, index: int, clock: int) -> bytes:
    (lease,) = wire.parse_numbers(wire.KIND_AND_NUMBER, command)
    _advance(state, clock)
    return _end_lease(state, lease, index, command, held=lease in state.leases)


def _expire(state: MetastoreState, command: bytes, index: int, clock: int) -> bytes:
    lease, generation = wire.parse_numbers(wire.EXPIRE, command)
    _advance(state, clock)
    stored = state.leases.get(lease)
    held = stored is not None and stored.generation == generation
    return _end_lease(state, lease, index, command, held=held)


def _end_lease(
    state: MetastoreState, lease: int, index: int, command: bytes, *, held: bool
) -> bytes:
    changed = held and state.end_lease(lease, index, len(command))
    flags = (HELD if held else 0) | (CHANGED if changed else 0)
    return _reply(_DONE, flags, state.revision, state.time)


def _tick(state: MetastoreState, command: bytes, _index: int, clock: int) -> bytes:
    if len(command) != 1:
        raise ProtocolError(f"a TIME of {len(command)} bytes")
    _advance(state, clock)
    return _reply(_DONE, HELD, state.revision, state.time)


def _time_reached(state: MetastoreState, command: bytes, _index: int, clock: int) -> bytes:
    (time,) = wire.parse_numbers(wire.KIND_AND_NUMBER, command)
    _advance(state, max(clock, min(time, timestamp(CLOCK_MS_MAX))))
    return _reply(_DONE, HELD, state.revision, state.time)


def _compact(state: MetastoreState, command: bytes, _index: int, clock: int) -> bytes:
    (revision,) = wire.parse_numbers(wire.KIND_AND_NUMBER, command)
    _advance(state, clock)
    return _raise_floor(state, revision)


def _compact_if_unchanged(state: MetastoreState, command: bytes, _index: int, clock: int) -> bytes:
    revision, since, prefix = wire.parse_compact_if_unchanged(command)
    _advance(state, clock)
    present = state.keys.present(prefix, prefix_end(prefix))
    guards = list(islice(present, GUARDS_MAX + 1))
    if len(guards) > GUARDS_MAX or any(state.keys.newest[key] > since for key in guards):
        return _reply(_DONE, 0, state.floor, state.time)
    return _raise_floor(state, revision)


def _raise_floor(state: MetastoreState, revision: int) -> bytes:
    if revision > state.revision:
        return _reply(MetastoreOutcome.NOT_REACHED, 0, state.revision, state.time)
    if revision > state.floor:
        state.raise_floor(revision)
    return _reply(_DONE, HELD, state.floor, state.time)


def _rewrite(state: MetastoreState, command: bytes, index: int, clock: int) -> bytes:
    place, revision, operations = wire.parse_rewrite(command)
    _advance(state, clock)
    columns = state.revisions
    row = columns.row(revision)
    visible = {} if row < 0 or columns.places[row] != place else state.visible_values(row)
    digests = {key: digest_of(value) for _, key, value, _ in operations}
    if not visible or any(digests.get(key) != kept[2] for key, kept in visible.items()):
        return _reply(_DONE, 0, state.revision, state.time)
    columns.places[row], columns.entry_bytes[row] = index, len(command)
    state.live.remove(place)
    state.live.add(index)
    return _reply(_DONE, HELD, state.revision, state.time)
