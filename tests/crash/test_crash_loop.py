"""The power is cut at every single operation of a log's life, and again while it recovers."""

from __future__ import annotations

import random
from contextlib import suppress
from copy import deepcopy

import pytest

from lithify.errors import LithifyError
from lithify.fs import MemoryFileSystem
from lithify.settings import Durability
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from tests.crash.story import Story


def operations_of(seed: int, length: int, durability: Durability) -> int:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    Story(seed, length, durability).play(fs)
    return sum(line.split()[0] in MUTATING for line in fs.trace)


def play_until(
    seed: int, length: int, durability: Durability, nth: int, kind: str
) -> tuple[Story, MemoryFileSystem]:
    disk = MemoryFileSystem()
    story = Story(seed, length, durability)
    with suppress(PowerCut):
        story.play(FaultyFileSystem(disk, [Fault("mutating", nth=nth, kind=kind)]))
    return story, disk


def cut_power(disk: MemoryFileSystem, rng: random.Random) -> MemoryFileSystem:
    """A power cut most of the time, a killed process sometimes."""
    return disk.kill_clone() if rng.random() < 0.2 else disk.crash_clone(rng)


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_the_power_is_cut_at_every_operation(kind: str) -> None:
    seed, length = 7, 30
    total = operations_of(seed, length, Durability.ALWAYS)
    assert total > 150
    for nth in range(1, total + 1):
        story, disk = play_until(seed, length, Durability.ALWAYS, nth, kind)
        for again in range(2):
            rng = random.Random(nth * 1000 + again)
            _check(story, cut_power(disk, rng), f"seed={seed} nth={nth} {kind} cut={again}")


def _check(story: Story, disk: MemoryFileSystem, label: str) -> None:
    try:
        deepcopy(story).check(disk, lossless=story.settings.durability is Durability.ALWAYS)
    except (AssertionError, LithifyError, OSError) as error:
        raise AssertionError(f"{label}: {error!r}") from error


@pytest.mark.parametrize("durability", list(Durability))
def test_the_power_is_cut_somewhere_in_many_random_lives(durability: Durability) -> None:
    for seed in range(100, 160):
        rng = random.Random(seed)
        nth = rng.randint(1, 500)
        story, disk = play_until(seed, 40, durability, nth, rng.choice(["CRASH", "CRASH_AFTER"]))
        _check(story, cut_power(disk, rng), f"seed={seed} nth={nth} {durability}")


def test_the_power_is_cut_again_at_every_operation_of_recovery() -> None:
    for seed in range(200, 208):
        rng = random.Random(seed)
        nth = rng.randint(60, 350)
        story, disk = play_until(seed, 40, Durability.ALWAYS, nth, "CRASH")
        left = cut_power(disk, rng)
        for second in range(1, 400):
            again = left.kill_clone()
            fs = FaultyFileSystem(again, [Fault("mutating", nth=second, kind="CRASH")])
            survivor = deepcopy(story)
            try:
                survivor.check(fs)
            except PowerCut:
                label = f"seed={seed} nth={nth} second={second}"
                _check(survivor, cut_power(again, rng), label)
            else:
                break
        else:
            pytest.fail("recovery never came to an end")
