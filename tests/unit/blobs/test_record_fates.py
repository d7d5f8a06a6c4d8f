"""The table, cell by cell; and the same over arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.blobs.record_fates import (
    HistoryRecord,
    RecordFate,
    ValidityTerms,
    judge_history,
    judge_rows,
)
from lithify.blobs.records import NEVER_MS, BlobRecordKind

NOW, CUT = 100, 50
TERMS = ValidityTerms(as_of_ms=NOW, deleted_before_ms=CUT)
LETTERS = {
    "P": BlobRecordKind.PUT,
    "D": BlobRecordKind.DELETE,
    "T": BlobRecordKind.TTL,
    "U": BlobRecordKind.UNDELETE,
}
FATES = {
    RecordFate.LIVE: "+",
    RecordFate.SUPERSEDED: "s",
    RecordFate.EXPIRED: "e",
    RecordFate.DELETED: "d",
    RecordFate.TOMBSTONE: "t",
}


def fates(text: str) -> str:
    """`P D40 U` is a put, a delete at 40, an undelete; `!99` is an expiry that holds from there."""
    history, expiry = [], NEVER_MS
    for word in text.split():
        what, _, given_expiry = word.partition("!")
        expiry = int(given_expiry) if given_expiry else expiry
        history.append(HistoryRecord(LETTERS[what[0]], int(what[1:] or 0), expiry))
    return "".join(FATES[fate] for fate in judge_history(history, TERMS))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        # The newest is a put.
        ("P", "+"),
        ("P!100", "+"),  # at the very instant it is not expired
        ("P!99", "e"),
        # A ttl: the newest expiry holds, earlier or later than the put's.
        ("P!99 T!101", "++"),
        ("P T!99", "ee"),
        ("P T!99 T!101", "+s+"),
        ("T", "e"),  # its put is gone
        # A delete.
        ("P D51", "++"),
        ("P D50", "++"),  # at the very instant the retention is not over
        ("P D49", "d+"),
        ("P!99 D51", "e+"),
        ("P T D49", "ds+"),
        ("P D20 D49", "ds+"),
        ("D51", "+"),
        ("D50", "+"),
        ("D49", "t"),
        ("D51!99", "t"),
        # An undelete.
        ("P D40 U", "+s+"),
        ("P!99 D40 U", "ese"),
        ("U", "e"),
        ("P D40 U D45", "dss+"),
        ("P D40 U D60 U", "+sss+"),
        ("P D40 U T!101", "+ss+"),
    ],
)
def test_the_table_of_validity(history: str, expected: str) -> None:
    assert fates(history) == expected


OPERATIONS = st.builds(
    HistoryRecord,
    st.sampled_from(
        [BlobRecordKind.PUT, BlobRecordKind.DELETE, BlobRecordKind.TTL, BlobRecordKind.UNDELETE]
    ),
    st.integers(CUT - 2, CUT + 2),
    st.sampled_from([NOW - 1, NOW, NOW + 1, NEVER_MS]),
)


@given(st.lists(st.tuples(st.integers(0, 5), OPERATIONS, st.booleans()), max_size=40))
def test_arrays_are_judged_as_histories_are(rows: list[tuple[int, HistoryRecord, bool]]) -> None:
    given_fates = [RecordFate.DEAD_BEFORE if dead else RecordFate.LIVE for _, _, dead in rows]
    found = np.array(given_fates, np.uint8)
    judge_rows(
        # Two blobs may have one half of their hashes in common.
        np.array([blob // 2 for blob, _, _ in rows], np.uint64),
        np.array([blob % 4 for blob, _, _ in rows], np.uint64),
        np.array([each.kind for _, each, _ in rows], np.uint16),
        np.array([each.time_ms for _, each, _ in rows], np.int64),
        np.array([each.expiry_ms for _, each, _ in rows], np.int64),
        found,
        TERMS,
    )
    expected = list(given_fates)
    for blob in range(6):
        mine = [n for n, (who, _, dead) in enumerate(rows) if who == blob and not dead]
        judged = judge_history([rows[n][1] for n in mine], TERMS)
        for number, fate in zip(mine, judged, strict=True):
            expected[number] = fate
    assert found.tolist() == expected
