"""The power is cut at every operation of a cursor store's life, and again while it is opened."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.log.verify import verify_log
from lithify.positions import pack
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.subscriptions.cursor_changes import Acked, AckedBatch, AckedUpTo, Filled, Reset
from lithify.topics.subscriptions.cursor_store import CursorStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem

DIRECTORY = "/data/orders/cursors"

State = dict[str, tuple[dict[str, str], bytes]]


def open_store(fs: FileSystem) -> CursorStore:
    return CursorStore.open(fs, DIRECTORY, clock=ManualClock(), events=ignore_events)


def state(store: CursorStore) -> State:
    return {name: (store.properties(name), store.get(name).to_bytes()) for name in store.names()}


class Story:
    """A life in steps: which state came after each, and up to which step all is durable."""

    STEPS: tuple[tuple[str, Callable[[CursorStore], object]], ...] = (
        ("durable", lambda s: s.create("audit", Cursor(-1), {"team": "risk"})),
        ("", lambda s: s.ack("audit", Acked(0))),
        ("", lambda s: s.ack("audit", Acked(2))),
        ("durable", lambda s: s.create("mail", Cursor(pack(1, 4)), {})),
        ("", lambda s: s.ack("mail", AckedBatch(pack(1, 5), 0b110, 3))),
        ("durable", lambda s: s.sync()),
        ("", lambda s: s.ack("mail", AckedBatch(pack(1, 5), 0b010, 3))),
        ("", lambda s: s.ack("audit", AckedUpTo(4))),
        ("durable", lambda s: s.checkpoint()),
        ("", lambda s: s.ack("audit", Acked(7))),
        ("", lambda s: s.ack("mail", Filled(pack(1, 6), pack(2, 0)))),
        ("durable", lambda s: s.delete("audit")),
        ("", lambda s: s.ack("mail", Reset(pack(1, 2)))),
        ("reopen", lambda s: s.close()),
        ("", lambda s: s.ack("mail", Acked(pack(1, 3)))),
        ("durable", lambda s: s.create("audit", Cursor(9), {})),
        ("", lambda s: s.ack("audit", Acked(10))),
        ("durable", lambda s: s.checkpoint()),
        ("", lambda s: s.ack("audit", Acked(11))),
        ("reopen", lambda s: s.close()),
    )

    def __init__(self) -> None:
        self.states: list[State] = [{}]
        self.durable = 0

    def play(self, fs: FileSystem) -> None:
        store = open_store(fs)
        for mark, step in self.STEPS:
            step(store)
            if mark == "reopen":
                store = open_store(fs)
            self.states.append(state(store))
            if mark:
                self.durable = len(self.states) - 1


@cache
def untroubled() -> tuple[list[State], int]:
    """All states of a life without faults, and the number of operations it takes."""
    fs, story = FaultyFileSystem(MemoryFileSystem(), record=True), Story()
    story.play(fs)
    return story.states, sum(line.split()[0] in MUTATING for line in fs.trace)


def check(disk: MemoryFileSystem, first: int, last: int, label: str) -> None:
    """What is found is a state between two steps, and the store continues from there."""
    store = open_store(disk)
    found = state(store)
    assert found in untroubled()[0][first : last + 1], label
    store.create("bills", Cursor(3), {})
    store.ack("bills", Acked(4))
    store.checkpoint()
    expected = state(store)
    store.close()
    store = open_store(disk)
    assert state(store) == expected, label
    store.close()
    assert expected == found | {"bills": ({}, Cursor(4).to_bytes())}, label
    assert verify_log(disk, DIRECTORY).damage is None, label
    assert len([name for name in disk.list(DIRECTORY) if name.endswith(".seg")]) == 1, label


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_the_power_is_cut_at_every_operation(kind: str) -> None:
    operations = untroubled()[1]
    assert operations > 60
    for nth in range(1, operations + 1):
        disk, story = MemoryFileSystem(), Story()
        with pytest.raises(PowerCut):
            story.play(FaultyFileSystem(disk, [Fault("mutating", nth=nth, kind=kind)]))
        done = len(story.states) - 1
        check(disk.kill_clone(), done, done + 1, f"nth={nth} {kind} killed")
        for seed in range(2):
            cut = disk.crash_clone(random.Random(nth * 10 + seed))
            check(cut, story.durable, done + 1, f"nth={nth} {kind} power cut, seed={seed}")


def test_the_power_is_cut_again_while_the_store_is_opened() -> None:
    for nth in range(3, untroubled()[1] + 1, 7):
        disk, story = MemoryFileSystem(), Story()
        with pytest.raises(PowerCut):
            story.play(FaultyFileSystem(disk, [Fault("mutating", nth=nth, kind="CRASH")]))
        done = len(story.states) - 1
        left = disk.crash_clone(random.Random(nth))
        for second in range(1, 100):
            again = left.kill_clone()
            fs = FaultyFileSystem(again, [Fault("mutating", nth=second, kind="CRASH")])
            try:
                open_store(fs)
            except PowerCut:
                rng = random.Random(second)
                check(again.crash_clone(rng), story.durable, done + 1, f"nth={nth} {second=}")
            else:
                break
        else:
            pytest.fail("opening never came to an end")
