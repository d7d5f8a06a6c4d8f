"""Slots of a key_shared subscription against a row of stretches that is searched from its start."""

from __future__ import annotations

import random
import time

import pytest

from lithify.errors import InvalidInput
from lithify.topics.subscriptions.key_shared_hash import HASH_SLOTS
from lithify.topics.subscriptions.key_shared_slots import KeySharedSlots


class Row:
    """Stretches (start, end, owner), ascending."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, str]] = []

    def deal(self, owner: str) -> None:
        if not self.rows:
            self.rows = [(0, HASH_SLOTS, owner)]
            return
        sizes = [end - start for start, end, _ in self.rows]
        at = sizes.index(max(sizes))
        start, end, before = self.rows[at]
        middle = start + (end - start) // 2
        self.rows[at : at + 1] = [(start, middle, owner), (middle, end, before)]

    def leave(self, owner: str) -> None:
        at = [whose for _, _, whose in self.rows].index(owner)
        start, end, _ = self.rows.pop(at)
        if at < len(self.rows):
            _, above_end, above = self.rows[at]
            self.rows[at] = start, above_end, above
        elif self.rows:
            below_start, _, below = self.rows[-1]
            self.rows[-1] = below_start, end, below

    def stretches(self, owner: str) -> list[tuple[int, int]]:
        return [(start, end) for start, end, whose in self.rows if whose == owner]


@pytest.mark.parametrize("seed", range(10))
def test_slots_are_dealt_out_as_in_a_row(seed: int) -> None:
    rng, slots, row = random.Random(seed), KeySharedSlots[str](), Row()
    members: list[str] = []
    for number in range(600):
        if members and rng.random() < (0.3 if number < 300 else 0.7):
            gone = members.pop(rng.randrange(len(members)))
            slots.remove(gone)
            row.leave(gone)
        else:
            members.append(f"c{number}")
            slots.add(members[-1])
            row.deal(members[-1])
        for start, end, owner in rng.sample(row.rows, min(5, len(row.rows))):
            assert slots.owner(start) == slots.owner(end - 1) == owner
            assert slots.stretches(owner) == [(start, end)]
    assert len(slots._longest) <= 4 * len(members) + 65


@pytest.mark.parametrize("seed", range(10))
def test_requested_ranges(seed: int) -> None:
    rng, slots = random.Random(seed), KeySharedSlots[str]()
    taken: dict[int, str] = {}
    for number in range(300):
        owner = f"c{number}"
        ranges = []
        for _ in range(rng.randint(1, 3)):
            low = rng.randrange(1000)
            ranges.append((low, min(999, low + rng.randrange(20))))
        wanted = [slot for low, high in ranges for slot in range(low, high + 1)]
        free = len(set(wanted)) == len(wanted) and not any(slot in taken for slot in wanted)
        if free:
            slots.add(owner, ranges)
            taken.update(dict.fromkeys(wanted, owner))
        else:
            with pytest.raises(InvalidInput, match="overlaps"):
                slots.add(owner, ranges)
        if taken and rng.random() < 0.4:
            gone = rng.choice(list(taken.values()))
            slots.remove(gone)
            taken = {slot: whose for slot, whose in taken.items() if whose != gone}
        assert [slots.owner(slot) for slot in range(1000)] == [taken.get(s) for s in range(1000)]


@pytest.mark.parametrize("sticky", [False, True])
def test_a_join_costs_the_same_however_many_there_are(sticky: bool) -> None:
    def took_s(count: int) -> float:
        slots = KeySharedSlots[int]()
        begun_s = time.thread_time()
        for number in range(count):
            slots.add(number, [(number, number)] if sticky else ())
        for number in range(count):
            slots.remove(number)
        return time.thread_time() - begun_s

    few = min(took_s(1000) for _ in range(3))
    assert min(took_s(4000) for _ in range(3)) < 10 * few
