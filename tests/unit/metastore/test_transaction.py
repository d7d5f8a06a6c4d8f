"""Transactions are checked when they are created."""

from __future__ import annotations

import pytest

from lithify.errors import InvalidInput
from lithify.metastore.transaction import (
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Put,
    Transaction,
    prefix_range,
)


def test_a_key_a_value_and_a_number_of_parts_have_limits() -> None:
    long = bytes(KEY_BYTES_MAX + 1)
    for make in (
        lambda: Put(long, b""),
        lambda: Delete(long),
        lambda: DeleteRange(b"", long),
        lambda: Compare(long, Condition.ABSENT),
    ):
        with pytest.raises(InvalidInput, match="at most 4096"):
            make()
    with pytest.raises(InvalidInput, match="at most 1048576"):
        Put(b"", bytes(VALUE_BYTES_MAX + 1))
    with pytest.raises(InvalidInput, match="from 1 to 1024"):
        DeleteRange(b"", b"", OPERATIONS_MAX + 1)
    with pytest.raises(InvalidInput, match="1025 parts"):
        Transaction((), (Delete(b""),) * (OPERATIONS_MAX + 1))
    with pytest.raises(InvalidInput, match="at most 4194304"):
        Transaction((), tuple(Put(b"%d" % each, bytes(VALUE_BYTES_MAX)) for each in range(4)))
    with pytest.raises(InvalidInput, match="revision"):
        Compare(b"", Condition.REVISION, 2**63)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"a\xff", b"b"), (b"a\xff\x01", b"a\xff\x02"), (b"", b""), (b"\xff\xff", b"")],
)
def test_a_prefix_is_a_range(prefix: bytes, end: bytes) -> None:
    assert prefix_range(prefix) == (prefix, end)
