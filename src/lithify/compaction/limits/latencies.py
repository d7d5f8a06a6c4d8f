"""How long a log's users wait: a histogram of fixed size, cheap enough for every operation.

A latency is counted in microseconds, four steps to each doubling, so that what is read from it is
at most a quarter too high:

    0 1 2 3 | 4 5 6 7 | 8 10 12 14 | 16 20 24 28 | 32 …      where each step begins

Counts only grow. Who wants those of a span of time takes them at its beginning and subtracts.
Threads add without a lock: two at the same instant may count as one, which a percentile survives.
"""

from __future__ import annotations

__all__ = ["Latencies"]

_BITS_MAX = 32
_STEPS = 4 * (_BITS_MAX - 1)
"""Up to 2^32 µs, more than an hour; what is longer counts as that."""


class Latencies:
    """See the module."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * _STEPS

    def add(self, seconds: float) -> None:
        """Somebody has waited so long."""
        micros = int(seconds * 1e6)
        if micros >= 4:
            bits = min(micros.bit_length(), _BITS_MAX)
            micros = 4 * (bits - 2) + (micros >> (bits - 3) & 3)
        self._counts[max(micros, 0)] += 1

    def counts(self) -> tuple[int, ...]:
        """So far, by step."""
        return tuple(self._counts)

    def p95_ms(self, since: tuple[int, ...] = ()) -> float | None:
        """What 95 in 100 waited at most since those counts were taken; None: nobody waited."""
        before = since or (0,) * _STEPS
        counts = [now - then for now, then in zip(self._counts, before, strict=True)]
        left = -(-sum(counts) * 19 // 20)
        for step, count in enumerate(counts):
            left -= count
            if left <= 0 and count:
                return _end_micros(step) / 1000
        return None


def _end_micros(step: int) -> int:
    """Where the next step begins."""
    return step + 1 if step < 4 else (5 + step % 4) << (step // 4 - 1)
