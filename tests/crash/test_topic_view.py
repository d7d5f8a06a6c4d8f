"""The power is cut at every operation of a topic's compaction, from the roll to the reclaim.

What is left has the old view or the new one, never anything between, and every entry of the log.
The next run resumes it or rolls it back and makes what the oracle says.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from lithify.fs import MemoryFileSystem
from lithify.log.verify import verify_log
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from tests.topic_life import Life, grown

if TYPE_CHECKING:
    from lithify.fs import FileSystem

REWRITES = TopicCompactionSettings(live_ratio_min=1.0)
KEEPS = TopicCompactionSettings(live_ratio_min=0.0)
"""Segments stay, with dead sets."""


def prepared(seed: int, settings: TopicCompactionSettings) -> tuple[MemoryFileSystem, Life]:
    disk = MemoryFileSystem()
    life = grown(disk, seed, settings)
    life.log.close()
    return disk, life


def run_on(disk: MemoryFileSystem, life: Life, *faults: Fault) -> FaultyFileSystem:
    """A run and a reclaim that die at the fault; the rest of the process dies with them."""
    fs = FaultyFileSystem(disk, record=True)
    dying = life.reborn(fs)
    fs.trace.clear()
    for fault in faults:
        fs.add(fault)
    try:
        dying.compaction.run("test")
    except PowerCut:
        pass
    else:
        dying.log.close()
    return fs


def survives(disk: FileSystem, life: Life, label: str) -> None:
    """What a crash has left is one of two views, and continues as if nothing had happened."""
    left = life.reborn(disk)
    before, now_ms = life.oracle.horizon, life.clock.now_ms()
    try:
        if left.log.manifest.horizon != before:
            left.judged(now_ms)
            assert not left.oracle.waiting
        left.check()
        left.compact()
        left.check()
        left.send(4)
        left.compact()
        left.check()
        assert not left.strays()
        assert not left.log.manifest.retired
        assert len({report.run_id for report in left.compaction.history.newest(99)}) > 2
        left.log.close()
        assert verify_log(disk, left.directory).damage is None
    except BaseException as error:
        raise AssertionError(label) from error


def cut_everywhere(settings: TopicCompactionSettings, kind: str) -> None:
    start, life = prepared(11, settings)
    whole = run_on(start.kill_clone(), life)
    total = sum(line.split()[0] in MUTATING for line in whole.trace)
    assert total > 50
    for nth in range(1, total + 1):
        disk = start.kill_clone()
        run_on(disk, life, Fault("mutating", nth=nth, kind=kind))
        left = disk.crash_clone(random.Random(nth)) if nth % 3 else disk.kill_clone()
        survives(left, life, f"{nth=} {kind}")


@pytest.mark.parametrize("settings", [REWRITES, KEEPS], ids=["rewrites", "keeps"])
def test_the_power_is_cut_at_every_operation_of_a_run(settings: TopicCompactionSettings) -> None:
    cut_everywhere(settings, "CRASH")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["publish", "event"])
@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_the_power_is_cut_at_every_operation_of_runs_of_other_kinds(kind: str, order: str) -> None:
    cut_everywhere(TopicCompactionSettings(compaction_order=order), kind)
    cut_everywhere(TopicCompactionSettings(compaction_order=order, live_ratio_min=0.0), kind)
    cut_everywhere(TopicCompactionSettings(compaction_order=order, rewrite_bytes_max=1), kind)


def test_the_power_is_cut_again_while_the_run_is_resumed() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        start, life = prepared(seed, REWRITES)
        disk = start
        cuts = [rng.randint(1, 70) for _ in range(3)]
        for nth in cuts:
            run_on(disk, life, Fault("mutating", nth=nth, kind="CRASH"))
            disk = disk.crash_clone(rng)
        survives(disk, life, f"{seed=} {cuts=}")
