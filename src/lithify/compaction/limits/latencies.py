"""A histogram of latencies of fixed size, cheap enough for every operation.

A latency is counted in microseconds, in four buckets per power of two, so a percentile is at most a
quarter too high:

    0 1 2 3 | 4 5 6 7 | 8 10 12 14 | 16 20 24 28 | 32 …      lower bounds of the buckets

Counts only grow. To measure a period, take the counts at its beginning and subtract them. Threads
add without a lock: two concurrent additions may count as one, which hardly affects a percentile.
"""

from __future__ import annotations

__all__ = ["Latencies"]

_BITS_MAX = 32
_STEPS = 4 * (_BITS_MAX - 1)
"""Up to 2^32 µs, more than an hour; longer latencies count in the last bucket."""


class Latencies:
    """The latencies of one kind of operation; see the module."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * _STEPS

    def add(self, seconds: float) -> None:
        """Count one latency."""
        micros = int(seconds * 1e6)
        if micros >= 4:
            bits = min(micros.bit_length(), _BITS_MAX)
            micros = 4 * (bits - 2) + (micros >> (bits - 3) & 3)
        self._counts[max(micros, 0)] += 1

    def counts(self) -> tuple[int, ...]:
        """The counts so far, by bucket."""
        return tuple(self._counts)

    def p95_ms(self, since: tuple[int, ...] = ()) -> float | None:
        """The 95th percentile since `since` was taken; None without a latency since then."""
        before = since or (0,) * _STEPS
        counts = [now - then for now, then in zip(self._counts, before, strict=True)]
        left = -(-sum(counts) * 19 // 20)
        for step, count in enumerate(counts):
            left -= count
            if left <= 0 and count:
                return _end_micros(step) / 1000
        return None


def _end_micros(step: int) -> int:
    """Upper bound of a bucket."""
    return step + 1 if step < 4 else (5 + step % 4) << (step // 4 - 1)
