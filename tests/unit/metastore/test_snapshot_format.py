"""A saved state is loaded as it was, whatever happens to the first one meanwhile."""

from __future__ import annotations

import pytest

from lithify.errors import ProtocolError
from lithify.metastore import command_format as commands
from lithify.metastore.transaction import Delete, Put
from lithify.raft.storage.snapshots.snapshot_file import PIECE_BYTES
from tests.unit.metastore.store import Store


def lived() -> Store:
    store = Store()
    store.time_ms = 1000
    store.do(commands.encode_grant(500))
    store.do(commands.encode_keep(1))
    store.run(Put(b"a", b"1", 1), Put(b"b", b"1"), Put(b"gone", b""))
    store.run(Delete(b"gone"), Put(b"a", b"2", 1), Put(b"c", b"2", 1))
    store.put(b"b", b"3")
    store.delete(b"c")
    store.rewrite(4)
    return store


def test_a_loaded_state_answers_and_continues_like_the_saved_one() -> None:
    store = lived()
    store.compact(4)
    store.purge()
    before = store.state, store.range(), store.changes(4)
    store.state = store.machine.load(list(store.machine.save(store.state)))
    assert (store.range(), store.changes(4)) == before[1:]
    loaded, saved = store.state, before[0]
    assert loaded.keys.rows == saved.keys.rows
    assert loaded.keys.newest == saved.keys.newest
    assert (loaded.revision, loaded.time, loaded.floor) == (saved.revision, saved.time, 4)
    assert (loaded.purged, loaded.purged_floor) == (saved.purged, 4)
    assert loaded.leases == saved.leases
    assert loaded.lease_of == saved.lease_of == {b"a": 1}
    assert list(loaded.live.live_set()) == list(saved.live.live_set())
    store.do(commands.encode_expire(1, 2))
    assert store.keys() == [b"b"]


def test_saved_pieces_do_not_change_with_the_state() -> None:
    store = lived()
    expected = b"".join(store.machine.save(store.state))
    pieces = store.machine.save(store.state)
    store.put(b"a", b"new")
    store.delete(b"b")
    store.do(commands.encode_revoke(1))
    store.compact(store.state.revision)
    store.purge()
    assert b"".join(pieces) == expected


def test_an_empty_state_is_saved_too() -> None:
    store = Store()
    store.state = store.machine.load(list(store.machine.save(store.state)))
    assert store.put(b"a", b"") == 1
    assert store.keys() == [b"a"]


def test_pieces_are_of_bounded_size_and_can_be_cut_anywhere() -> None:
    store = Store()
    for number in range(40_000):
        store.put(b"key %d" % number, b"")
    first, *rest = store.machine.save(store.state)
    assert len(rest) > 3
    assert max(map(len, rest)) <= PIECE_BYTES
    joined = b"".join(rest)
    for size in (999_983, len(joined)):
        cut = [joined[at : at + size] for at in range(0, len(joined), size)]
        assert store.machine.load([first, *cut]).keys.newest == store.state.keys.newest


def test_a_change_of_a_key_that_is_gone_is_saved() -> None:
    store = Store()
    store.run(Put(b"a", b""), Put(b"b", b""))
    store.delete(b"a")
    store.compact(2)
    store.purge()
    store.state = store.machine.load(list(store.machine.save(store.state)))
    assert store.state.keys.rows.keys() == {b"b"}
    assert list(store.state.keys.range(b"", b"")) == [b"b"]
    assert store.rewrite(1)
    assert store.put(b"a", b"again") == 5
    assert store.keys() == [b"a", b"b"]


def test_a_state_of_a_later_version_is_refused() -> None:
    first, *rest = Store().machine.save(Store().state)
    with pytest.raises(ProtocolError, match="version 2, this program reads 1"):
        Store().machine.load([b"\2" + first[1:], *rest])
