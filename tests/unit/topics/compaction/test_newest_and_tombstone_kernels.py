"""Which row wins a key: rows of one bucket, in the order of their positions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from lithify.compaction.live_set_rules.by_key import plan_ranges
from lithify.topics.compaction import newest_and_tombstone_kernels as kernels
from lithify.topics.compaction.key_index_flags import (
    CHUNK_LAST,
    CHUNK_PART,
    KEYLESS,
    OPAQUE,
    TOMBSTONE,
)
from lithify.topics.compaction.newest_and_tombstone_kernels import (
    DEAD_BEFORE,
    EXPIRED,
    KEYLESS_DROPPED,
    LIVE,
    SUPERSEDED,
    TOMBSTONE_DROPPED,
    WAITING,
)


@dataclass(frozen=True, slots=True)
class Row:
    key: int
    flags: int = 0
    published_ms: int = 1
    event_ms: int = 0
    group: int = 0
    dead: bool = False


def judge(
    *segments: list[Row],
    by_event_time: bool = False,
    keep_keyless: bool = True,
    tombstones_until_ms: int = 2**62,
    keys_until_ms: int = -1,
) -> list[int]:
    rows = [row for segment in segments for row in segment]
    ends = np.cumsum([0, *map(len, segments)])
    liveness = np.array([DEAD_BEFORE if row.dead else LIVE for row in rows], np.uint8)
    kernels.judge_buckets(
        np.array([row.key for row in rows], np.uint64),
        np.array([row.key * 16 for row in rows], np.uint64),  # all at one place of the table
        np.array([row.flags for row in rows], np.uint16),
        np.array([row.published_ms for row in rows], np.int64),
        np.array([row.event_ms for row in rows], np.int64),
        np.array([row.group for row in rows], np.uint64),
        np.stack([ends[:-1], ends[1:]], axis=1),
        by_event_time,
        keep_keyless,
        tombstones_until_ms,
        keys_until_ms,
        liveness,
    )
    return [int(verdict) for verdict in liveness]


def test_the_last_published_wins() -> None:
    assert judge([Row(1), Row(2)], [Row(1)], [Row(1)]) == [SUPERSEDED, LIVE, SUPERSEDED, LIVE]


def test_the_greatest_event_time_wins_and_the_later_of_equal_ones() -> None:
    rows = [Row(1, event_ms=5), Row(1, event_ms=9)], [Row(1, event_ms=9), Row(1, event_ms=7)]
    assert judge(*rows, by_event_time=True) == [SUPERSEDED, SUPERSEDED, LIVE, SUPERSEDED]


def test_a_tombstone_deletes_its_key() -> None:
    assert judge([Row(1)], [Row(1, TOMBSTONE)]) == [SUPERSEDED, TOMBSTONE_DROPPED]


def test_a_tombstone_stays_as_long_as_it_is_retained() -> None:
    rows = [Row(1, TOMBSTONE, published_ms=10), Row(2, TOMBSTONE, published_ms=11)]
    assert judge(rows, tombstones_until_ms=10) == [TOMBSTONE_DROPPED, LIVE]


def test_an_older_event_does_not_bring_back_what_a_retained_tombstone_deleted() -> None:
    rows = [Row(1, TOMBSTONE, event_ms=9)], [Row(1, event_ms=5)]
    assert judge(*rows, by_event_time=True, tombstones_until_ms=0) == [LIVE, SUPERSEDED]


def test_a_dead_row_neither_wins_nor_becomes_live() -> None:
    assert judge([Row(1)], [Row(1, dead=True)]) == [LIVE, DEAD_BEFORE]


def test_a_key_without_new_messages_expires() -> None:
    rows = [Row(1, published_ms=3), Row(2, published_ms=4)]
    assert judge(rows, keys_until_ms=3) == [EXPIRED, LIVE]


@pytest.mark.parametrize(("keep", "verdict"), [(True, LIVE), (False, KEYLESS_DROPPED)])
def test_rows_without_a_key_follow_the_settings_of_the_topic(keep: bool, verdict: int) -> None:
    rows = [Row(1, KEYLESS), Row(1, KEYLESS), Row(1, OPAQUE)]
    assert judge(rows, keep_keyless=keep) == [verdict, verdict, LIVE]


def test_chunks_share_the_fate_of_the_last_one() -> None:
    first = [Row(1, CHUNK_PART, group=7), Row(1, CHUNK_PART, group=8)]
    second = [Row(1, CHUNK_LAST, group=7), Row(1, CHUNK_LAST, group=8)]
    assert judge(first, second) == [SUPERSEDED, LIVE, SUPERSEDED, LIVE]


def test_chunks_of_a_deleted_message_go_with_it() -> None:
    rows = [Row(1, CHUNK_PART, group=7), Row(1, CHUNK_LAST, group=7), Row(1, TOMBSTONE)]
    assert judge(rows) == [SUPERSEDED, SUPERSEDED, TOMBSTONE_DROPPED]


def test_chunks_whose_message_is_not_whole_yet_wait() -> None:
    assert judge([Row(1, CHUNK_PART, group=7)], [Row(1)]) == [WAITING, LIVE]


def test_a_uuid_that_is_used_again_belongs_to_the_next_last_chunk() -> None:
    message = [Row(1, CHUNK_PART, group=7), Row(1, CHUNK_LAST, group=7)]
    assert judge(message, message) == [SUPERSEDED, SUPERSEDED, LIVE, LIVE]


def test_ranges_of_buckets_keep_to_the_memory() -> None:
    assert plan_ranges(1000, 2, 2**28, 80) == [(0, 128), (128, 256)]
    many = plan_ranges(50_000_000, 2, 2**28, 80)
    assert len(many) > 20
    assert many[0][0] == 0
    assert many[-1][1] == 256
    assert all(left[1] == right[0] for left, right in pairwise(many))
