"""Whatever is done to a blob store, by whatever policy it is compacted: it is what its model is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.blobs.settings import BlobSettings
from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem
from lithify.log.file_names import key_index_name
from lithify.log.verify import verify_log
from tests.unit.blobs.life import DIRECTORY, RETENTION_MS, Life, Pickling

IDS = [f"blob {number}" for number in range(4)]
SIZES = [0, 1, 500, 500, 500, 20_000, 65_536, 65_537, 140_000]
TTLS_MS = [None, None, 0, 1000, 4000]
WAITS_S = [0.001, 1.0, (RETENTION_MS - 1) / 1000, RETENTION_MS / 1000, RETENTION_MS / 1000, 4.0]
OFTEN = ["put", "put", "delete", "delete", "ttl", "undelete", "wait", "roll", "compact"]
SELDOM = [
    "erase",
    "erase a bit",
    "compact and meddle",
    "come to rest",
    "replicas",
    "forecast",
    "reopen",
    "die",
    "lose power",
    "lose an index",
]
STEPS = OFTEN * 3 + SELDOM


class Steps:
    """Leads a life step by step; all chance comes from one source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.disk = MemoryFileSystem()
        worth_it = BlobSettings(
            deleted_retention_ms=RETENTION_MS,
            used_percent_min=rng.choice([0, 0, 0, 1]),
            reclaim_segments_min=rng.choice([0, 0, 0, 1]),
        )
        self.life = Life(self.disk, ManualClock(), worth_it)
        self.dropped: set[str] = set()
        """Causes, over all runs."""

    def go(self, steps: list[str]) -> None:
        for step in steps:
            getattr(self, f"_{step.replace(' ', '_')}")()
        self.life.check()
        self.life.store.close()
        assert verify_log(self.disk, DIRECTORY).damage is None

    def _put(self) -> None:
        rng = self.rng
        self.life.put(rng.choice(IDS), rng.choice(SIZES), rng.choice(TTLS_MS))

    def _delete(self) -> None:
        self.life.delete(self.rng.choice(IDS))

    def _ttl(self) -> None:
        self.life.ttl(self.rng.choice(IDS), self.rng.choice(TTLS_MS))

    def _undelete(self) -> None:
        self.life.undelete(self.rng.choice(IDS))

    def _wait(self) -> None:
        self.life.clock.advance(self.rng.choice(WAITS_S))

    def _roll(self) -> None:
        """What is written so far can be judged, however little it is."""
        self.life.roll()

    def _compact(self) -> None:
        self.life.check()
        report = self.life.compact(self.rng.choice(["all", "stats", "hybrid"]))
        self.dropped.update(report.dropped)
        self.life.check()

    def _compact_and_meddle(self) -> None:
        """Operations that come during a run, after it has checked what is there."""
        steps = self.rng.choices(["put", "delete", "ttl", "undelete", "wait", "roll"], k=8)

        def meddle() -> None:
            for step in steps:
                getattr(self, f"_{step}")()
            self.life.check()

        policy = self.rng.choice(["all", "stats", "hybrid"])
        self.dropped.update(self.life.compact_meanwhile(policy, meddle).dropped)
        self.life.check()

    def _erase(self) -> None:
        self.life.erase(self.rng.choice([1, 50_000, 10**9]))
        self.life.check()

    def _erase_a_bit(self) -> None:
        """A round is left in the middle; what of it is done is told by the answers."""
        self.life.store.erase.step(self.rng.choice([1, 50_000]))
        self.life.see_erased()
        self.life.check()

    def _replicas(self) -> None:
        """They have seen some more, or there are none."""
        last = self.life.store.log.last_position
        passed = self.life.passed if self.life.passed is not None else -1
        self.life.passed = self.rng.choice([None, self.rng.randint(passed, max(passed, last))])

    def _forecast(self) -> None:
        """What is said to be reclaimable later is what is dead then."""
        life = self.life
        found = life.store.statistics(Pickling(), buckets=5, span_ms=1000)
        sealed = [s for s in life.store.log.manifest.segments if s.sealed]
        before = sum(s.frame_bytes - s.live_bytes for s in sealed)
        for span in found.forecast():
            horizon = sealed[-1].last_position if sealed else -1
            doomed = life.doomed(span.stop_ms, horizon, life.held())
            dying = sum(r.frame_bytes for r in life.records if r.position in doomed)
            assert span.reclaimable_bytes == before + dying

    def _come_to_rest(self) -> None:
        results = [self.life.compact("all").result for _ in range(6)]
        assert results[-1] == "nothing to do"
        self.life.check()

    def _reopen(self) -> None:
        self.life.store.close()
        self.life.open()
        self.life.check()

    def _die(self) -> None:
        self.life.store.abandon()
        self.life.open()
        self.life.check()

    def _lose_power(self) -> None:
        self.life.store.abandon()
        self.disk = self.disk.crash_clone(self.rng)
        self.life.open(self.disk)
        self.life.check()

    def _lose_an_index(self) -> None:
        """It goes, or is damaged in its last byte; both while the store is closed."""
        self.life.store.close()
        sealed = [s for s in self.life.store.log.manifest.segments if s.sealed]
        for segment in sealed[:: self.rng.choice((1, 2, 3))]:
            path = f"{DIRECTORY}/{key_index_name(segment.name)}"
            if not self.disk.exists(path):
                continue
            if self.rng.random() < 0.5:
                self.disk.remove(path)
            else:
                self.disk.flip(path, self.disk.stat(path).size - 1)
        self.life.open()
        self.life.check()


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(STEPS), max_size=30))
def test_a_store_is_what_its_model_is(rng: random.Random, steps: list[str]) -> None:
    Steps(rng).go(steps)


@pytest.mark.parametrize("seed", range(12))
def test_a_long_life_is_what_its_model_is(seed: int) -> None:
    rng = random.Random(seed)
    life = Steps(rng)
    life.go(rng.choices(STEPS, k=250))
    settings = life.life.settings
    if not (settings.used_percent_min or settings.reclaim_segments_min):
        assert len(life.dropped) >= 3, "it was too quiet a life to show anything"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_long_histories(seed: int) -> None:
    rng = random.Random(seed)
    Steps(rng).go(rng.choices(STEPS, k=600))
