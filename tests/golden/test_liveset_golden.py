"""The bytes of live set version 1, as they were first written. They never change."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lithify.live_set import LiveSet

GOLDEN = Path(__file__).with_name("liveset_v1.bin")


def golden_set() -> LiveSet:
    """A block with narrow gaps, a second with wide ones, and both ends of position space."""
    dense = LiveSet.from_array(np.arange(4096, dtype=np.int64) * 3)
    starts = np.array([20_000, 2**17, 2**33, 2**41, 2**62, 2**63 - 2], np.uint64)
    lengths = np.array([1, 300, 1, 70_000, 2**33, 2], np.uint64)
    return dense | LiveSet.from_ranges(starts, starts + lengths)


def test_version_1_is_still_written() -> None:
    assert golden_set().to_bytes() == GOLDEN.read_bytes()


def test_version_1_is_still_read() -> None:
    assert LiveSet.from_bytes(GOLDEN.read_bytes(), str(GOLDEN)) == golden_set()
