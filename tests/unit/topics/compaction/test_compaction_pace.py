"""Runs on a topic slow down while its consumers wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.errors import InvalidSetting
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.disk_steps import run_here
from tests.hooked_jobs import HookedJobs
from tests.unit.topics.compaction.test_compacted import Compacted

if TYPE_CHECKING:
    from lithify.compaction.tasks.jobs import Check


class Slow(HookedJobs):
    """While it works, consumers wait for this long: the clock moves by itself."""

    def __init__(self, bench: Compacted, waits_s: list[float]) -> None:
        self._bench, self._waits_s = bench, iter(waits_s)
        self.rates: list[int | None] = []

    def before(self, name: str, check: Check) -> None:
        for wait_s in self._waits_s:
            for _ in range(100):
                self._bench.topic.compaction.latencies.add(wait_s)
            self._bench.clock.advance(0.5)
            check()
            self.rates.append(self._bench.topic.compaction.rate.read())


def test_a_run_slows_down_while_consumers_wait_and_recovers() -> None:
    bench = Compacted()
    bench.put("a", "b", "a")
    jobs = Slow(bench, [0.5] * 20 + [0.001] * 40)
    compaction = bench.topic.compaction
    compaction.settings = lambda: TopicCompactionSettings(
        compaction_pace_bytes_per_s_min=2**20, compaction_pace_bytes_per_s_max=2**26
    )
    assert compaction.run("test", jobs).result == "done"
    slow, fast = jobs.rates[:20], jobs.rates[20:]
    assert slow == [max(2**26 >> n, 2**20) for n in range(1, 21)]
    assert fast == [min(2**20 + n * 2**21, 2**26) for n in range(1, 41)]
    assert not bench.fs.exists(compaction.rate.path), "and nothing is left of it"


def test_reads_for_consumers_are_measured() -> None:
    bench = Compacted()
    bench.put("a", "b")
    before = bench.topic.compaction.latencies.counts()
    assert run_here(bench.topic.reads.loading(0)).entries
    assert bench.topic.compaction.latencies.counts() != before


@pytest.mark.parametrize(
    "settings", [{"bytes_per_s_min": 2**40}, {"p95_ms_max": 0.1}, {"p95_rise_max": 0.5}]
)
def test_the_pace_has_limits(settings: dict[str, float]) -> None:
    name, value = next((f"compaction_pace_{name}", value) for name, value in settings.items())
    with pytest.raises(InvalidSetting, match=name):
        TopicCompactionSettings(**{name: value})  # type: ignore[arg-type]
