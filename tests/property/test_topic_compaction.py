"""Whatever a topic is sent and however it is compacted, its view is what a naive replay keeps."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem
from lithify.log.verify import verify_log
from lithify.topics.compaction import topic_compaction
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from tests.topic_life import Life

if TYPE_CHECKING:
    import random

    from lithify.log.reader import Snapshot
    from tests.oracle import Sent

SETTINGS = st.builds(
    TopicCompactionSettings,
    compaction_order=st.sampled_from(["publish", "event"]),
    keep_keyless=st.booleans(),
    tombstone_retention_ms=st.sampled_from([0, 0, 2000, 10**9]),
    key_ttl_ms=st.sampled_from([0, 0, 4000]),
    live_ratio_min=st.sampled_from([0.0, 0.7, 1.0]),
    rewrite_bytes_max=st.sampled_from([0, 1, 2000]),
    compaction_memory_bytes=st.sampled_from([2**28, 2**20]),
    compaction_lag_min_ms=st.sampled_from([0, 0, 2000]),
)
OFTEN = ["send"] * 4 + ["roll", "run"] * 2
SELDOM = ["wait", "wait a day", "trim", "reopen", "pin", "unpin", "lose index"]
LOSING = {"trim", "wait a day"}
"""Steps after which the log does not say what the runs knew."""
STEPS = st.lists(st.sampled_from(OFTEN + SELDOM), max_size=14)
RANDOM = st.randoms(use_true_random=False)


class Steps:
    """Leads a life step by step, with a reader that now and then stays at an old generation."""

    def __init__(self, rng: random.Random, chosen: TopicCompactionSettings) -> None:
        self._clock = ManualClock()
        self.life = Life(MemoryFileSystem(), rng, self._clock, chosen)
        self._pinned: list[tuple[Snapshot, list[Sent]]] = []
        self._pins = ExitStack()

    def go(self, steps: list[str]) -> Life:
        for step in steps:
            getattr(self, f"_{step.replace(' ', '_')}")()
        self._unpin()
        return self.life

    def _send(self) -> None:
        self.life.send(self.life.rng.choice((1, 3, 12)))

    def _roll(self) -> None:
        self.life.log.roll()

    def _run(self) -> None:
        life = self.life
        before = life.oracle.horizon
        life.compact()
        life.check()
        young_ms = life.clock.now_ms() - life.settings.compaction_lag_min_ms
        with life.log.snapshot() as snapshot:
            new = [e for e in snapshot.read() if before < e.position <= life.oracle.horizon]
        assert all(entry.time_ms <= young_ms for entry in new)

    def _wait(self) -> None:
        self._clock.advance(self.life.rng.choice((0.5, 2.5, 5.0)))

    def _wait_a_day(self) -> None:
        """Messages that were not finished until then are given up."""
        self._clock.advance(self.life.rng.choice((24, 25)) * 3600)

    def _trim(self) -> None:
        self.life.trim()
        self.life.check()

    def _reopen(self) -> None:
        self._unpin()
        life = self.life
        life.reopen()
        life.check()
        assert verify_log(life.fs, life.directory).damage is None

    def _pin(self) -> None:
        snapshot = self._pins.enter_context(self.life.log.snapshot("a slow reader"))
        self._pinned.append((snapshot, self.life.oracle.view()))

    def _unpin(self) -> None:
        for snapshot, view in self._pinned:
            self.life.check_snapshot(snapshot, view)
        self._pinned.clear()
        self._pins.close()

    def _lose_index(self) -> None:
        self.life.lose_index()


@given(RANDOM, SETTINGS, STEPS)
def test_the_view_is_what_a_naive_replay_keeps(
    rng: random.Random, chosen: TopicCompactionSettings, steps: list[str]
) -> None:
    Steps(rng, chosen).go([*steps, "send", "run", "reopen"])


@given(RANDOM, st.lists(SETTINGS, min_size=2, max_size=4), STEPS)
def test_changed_settings_revive_nothing(
    rng: random.Random, some: list[TopicCompactionSettings], steps: list[str]
) -> None:
    life = Steps(rng, some[0])
    for chosen in some:
        life.life.settings = chosen
        life.go([*steps, "send", "run"])


@given(RANDOM, SETTINGS, STEPS)
def test_targets_of_a_few_entries_hold_the_same(
    rng: random.Random, chosen: TopicCompactionSettings, steps: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_compaction, "TARGET_BYTES_MAX", 1500)
        Steps(rng, chosen).go([*steps, "send", "run", "reopen"])


@given(RANDOM, SETTINGS, STEPS)
def test_runs_that_follow_each_other_come_to_rest(
    rng: random.Random, chosen: TopicCompactionSettings, steps: list[str]
) -> None:
    life = Steps(rng, chosen).go([*steps, "send", "roll", "send", "run"])
    life.settle()
    manifest = life.log.manifest
    life.check()
    assert life.compact().result == "nothing to do"
    assert life.log.manifest == manifest
    life.reopen()
    assert life.compact().result == "nothing to do"
    life.check()


@given(RANDOM, SETTINGS, STEPS)
def test_runs_on_what_is_new_make_what_one_run_makes(
    rng: random.Random, chosen: TopicCompactionSettings, steps: list[str]
) -> None:
    """In the order of event times only as long as nothing expires: see `tombstone_retention_ms`."""
    if chosen.by_event_time:
        chosen = replace(chosen, tombstone_retention_ms=10**12, key_ttl_ms=0)
    life = Steps(rng, chosen).go([step for step in [*steps, "send", "run"] if step not in LOSING])
    kept = life.oracle.kept
    life.compaction.delete_view()
    with life.log.snapshot() as snapshot:
        assert [e.body for e in snapshot.read(compacted=True)] == list(life.bodies.values())
    judged = life.oracle.horizon >= 0
    assert life.compaction.run("test").result == ("done" if judged else "nothing to do")
    life.check()
    assert life.oracle.kept == kept
