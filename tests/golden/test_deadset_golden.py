"""The bytes of a dead set with parts, version 1, as they were first written. They never change."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import DeadSet, Parts

GOLDEN = Path(__file__).with_name("deadset_v1.bin")

DEAD = DeadSet(
    LiveSet.from_iterable([0, 1, 2, 40, 2**62]),
    Parts.of(
        np.array([7, 7, 9 << 32, 9 << 32, 9 << 32]),
        np.array([0, 3, 1, 64, 129], np.int32),
        np.array([4, 4, 130, 130, 130], np.uint32),
    ),
)


def test_version_1_is_still_written() -> None:
    assert DEAD.to_bytes() == GOLDEN.read_bytes()


def test_version_1_is_still_read() -> None:
    found = DeadSet.from_bytes(GOLDEN.read_bytes(), 2)
    assert found == DEAD
    assert found.parts.find(7) == 0b1001
    assert found.parts.find(9 << 32) == 1 << 1 | 1 << 64 | 1 << 129
