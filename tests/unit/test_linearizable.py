"""The checker itself: histories that are linearizable, and some that are not."""

from __future__ import annotations

from tests.linearizable import Op, is_linearizable


def put(value: bytes, called: float, returned: float | None = None) -> Op:
    op = Op("put", called, value)
    if returned is not None:
        op.returned, op.answer = returned, True
    return op


def get(value: bytes | None, called: float, returned: float) -> Op:
    return Op("get", called, returned=returned, answer=value)


def cas(expected: bytes | None, value: bytes, called: float, returned: float, done: bool) -> Op:
    return Op("cas", called, value, expected, returned, done)


def test_one_after_the_other() -> None:
    assert is_linearizable([get(None, 0, 1), put(b"a", 2, 3), get(b"a", 4, 5)])
    assert not is_linearizable([put(b"a", 0, 1), get(None, 2, 3)])


def test_overlapping_operations_have_one_order() -> None:
    writes = [put(b"a", 0, 10), put(b"b", 0, 10)]
    assert is_linearizable([*writes, get(b"a", 11, 12)])
    assert is_linearizable([*writes, get(b"b", 11, 12)])
    assert not is_linearizable([*writes, get(b"a", 11, 12), get(b"b", 13, 14)])


def test_a_value_that_was_read_stays_read() -> None:
    late = put(b"b", 0, 100)
    assert not is_linearizable([put(b"a", 0, 1), late, get(b"b", 2, 3), get(b"a", 4, 5)])


def test_an_operation_with_unknown_outcome_may_have_happened_or_not() -> None:
    unknown = put(b"b", 2)
    assert is_linearizable([put(b"a", 0, 1), unknown, get(b"a", 3, 4)])
    assert is_linearizable([put(b"a", 0, 1), unknown, get(b"a", 3, 4), get(b"b", 50, 51)])
    assert not is_linearizable([put(b"a", 0, 1), unknown, get(b"b", 3, 4), get(b"a", 5, 6)])
    assert not is_linearizable([get(b"b", 0, 1), put(b"b", 2)])


def test_dozens_of_operations_with_unknown_outcome_are_checked_quickly() -> None:
    """Clients whose leader dies again and again, on a machine that is busy, leave that many."""
    values = [b"%d" % number for number in range(40)]
    unknown = [put(value, 0) for value in values]
    gone = [Op("delete", 0) for _ in values]
    assert not is_linearizable([*unknown, *gone, get(b"never written", 1, 2)])
    seen = [get(value, 10 * place, 10 * place + 1) for place, value in enumerate(values, 1)]
    assert is_linearizable([*unknown, *gone, *seen])
    assert not is_linearizable([*unknown, *gone, *seen, get(values[0], 1000, 1001)])


def test_a_comparison_that_was_done_excludes_another() -> None:
    assert is_linearizable([cas(None, b"a", 0, 5, True), cas(None, b"b", 0, 5, False)])
    assert not is_linearizable([cas(None, b"a", 0, 5, True), cas(None, b"b", 0, 5, True)])
    gone = Op("delete", 6, returned=7, answer=True)
    assert is_linearizable([cas(None, b"a", 0, 5, True), gone, cas(None, b"b", 8, 9, True)])
    assert not is_linearizable([gone])
