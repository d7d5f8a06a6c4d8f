"""Rows in columns and changes on top are what a dict would be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lithify.raft.kv.rows import ROW, KvRows, RowTable

KEYS = st.binary(max_size=3)
ROWS = st.builds(ROW.pack, st.integers(0, 2**63), st.integers(0, 2**63), st.just(bytes(16)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, ROWS),
        st.tuples(st.just("pop"), KEYS, st.just(b"")),
        st.tuples(st.just("load"), st.just(b""), st.just(b"")),
    ),
    max_size=60,
)


@given(st.dictionaries(KEYS, ROWS, max_size=40), STEPS)
def test_rows_are_a_dict(first: dict[bytes, bytes], steps: list[tuple[str, bytes, bytes]]) -> None:
    expected = dict(first)
    rows = KvRows()
    rows.changed.update(first)
    for what, key, row in [("load", b"", b""), *steps]:
        if what == "set":
            assert (rows.changed.get(key) or rows.strike(key)) == expected.get(key)
            rows.changed[key] = expected[key] = row
        elif what == "pop":
            assert rows.pop(key) == expected.pop(key, None)
        else:
            rows = KvRows(RowTable(rows.pieces()))
        assert len(rows) == len(expected)
        assert dict(rows.items()) == expected
        assert rows.get(key) == expected.get(key)
        assert (key in rows) == (key in expected)


@given(st.dictionaries(KEYS, ROWS, min_size=1, max_size=20), st.data())
def test_saved_rows_do_not_change(first: dict[bytes, bytes], data: st.DataObject) -> None:
    rows = KvRows()
    rows.changed.update(first)
    rows = KvRows(RowTable(rows.pieces()))
    key = data.draw(st.sampled_from(sorted(first)))
    rows.changed[key] = rows.pop(key) or b""
    aside = rows.pieces()
    rows.pop(key)
    rows.pop(min(first))
    rows.changed[b"new"] = bytes(ROW.size)
    assert dict(KvRows(RowTable(aside)).items()) == first


def test_many_keys_are_all_found() -> None:
    rows = KvRows()
    for number in range(20_000):
        rows.changed[b"key %d" % number] = ROW.pack(number, number, bytes(16))
    loaded = KvRows(RowTable(rows.pieces()))
    assert all(loaded[key] == row for key, row in rows.items())
    assert loaded.get(b"key 20000") is None
