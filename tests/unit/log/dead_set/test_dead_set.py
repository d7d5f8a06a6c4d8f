"""Dead sets with parts: which entries are dead, and which slots of the others are live."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, UnsupportedVersion
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import DeadSet, Parts

if TYPE_CHECKING:
    import random

Masks = dict[int, tuple[int, int]]
"""(mask of live slots, slots that it covers) by position."""


def parts_of(masks: Masks) -> Parts:
    rows = [
        (position, slot, slots)
        for position, (mask, slots) in sorted(masks.items())
        for slot in range(slots)
        if mask >> slot & 1
    ]
    positions, live, slots = zip(*rows, strict=True) if rows else ((), (), ())
    return Parts.of(
        np.array(positions, np.int64), np.array(live, np.int32), np.array(slots, np.uint32)
    )


@st.composite
def masks_values(draw: st.DrawFn) -> Masks:
    found = {}
    for position in draw(st.lists(st.integers(0, 2**62), unique=True, max_size=8)):
        slots = draw(st.integers(1, 200))
        found[position] = draw(st.integers(1, 2**slots - 1)), slots
    return found


@given(masks_values())
def test_every_mask_is_found_again_also_after_bytes_and_pickle(masks: Masks) -> None:
    parts = parts_of(masks)
    for same in (parts, Parts.from_bytes(parts.to_bytes()), pickle.loads(pickle.dumps(parts))):
        assert same == parts
        assert hash(same) == hash(parts)
        assert len(same) == len(masks)
        assert {at: same.find(at) for at in masks} == {at: mask for at, (mask, _) in masks.items()}
        assert same.find(2**62 + 1) is None
    assert parts.to_bytes() == parts_of(masks).to_bytes()


@given(masks_values(), st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_slice_has_the_entries_of_its_range(masks: Masks, start: int, stop: int) -> None:
    inside = {at: mask for at, mask in masks.items() if start <= at < stop}
    assert parts_of(masks).slice(start, stop) == parts_of(inside)
    assert Parts.from_bytes(parts_of(masks).slice(start, stop).to_bytes()) == parts_of(inside)


@given(masks_values())
def test_a_slot_is_dead_if_its_entry_is_here_and_its_bit_is_not(masks: Masks) -> None:
    asked = [(at, slot) for at, (_, slots) in masks.items() for slot in range(slots + 70)]
    asked += [(at + 1, slot) for at in masks if at + 1 not in masks for slot in (-1, 0, 3)]
    expected = [at in masks and not masks[at][0] >> slot & 1 for at, slot in asked]
    positions = np.array([at for at, _ in asked], np.int64)
    slots = np.array([slot for _, slot in asked], np.int32)
    assert parts_of(masks).dead_slots(positions, slots).tolist() == expected


@given(masks_values(), st.sets(st.integers(0, 2**62)), st.randoms())
def test_a_message_is_dead_with_its_entry_or_in_it(
    masks: Masks, gone: set[int], order: random.Random
) -> None:
    gone -= masks.keys()
    asked = [(at, slot) for at, (_, slots) in masks.items() for slot in range(-1, slots + 70)]
    asked += [(at + more, slot) for at in gone for more in (0, 1) for slot in (-1, 0, 3)]
    order.shuffle(asked)
    expected = [
        at in gone or (at in masks and slot >= 0 and not masks[at][0] >> slot & 1)
        for at, slot in asked
    ]
    dead = DeadSet(LiveSet.from_iterable(sorted(gone)), parts_of(masks))
    positions = np.array([at for at, _ in asked], np.int64)
    slots = np.array([slot for _, slot in asked], np.int32)
    assert dead.messages(positions, slots).tolist() == expected


def test_masks_are_given_for_many_positions_at_once() -> None:
    parts = parts_of({5: (0b1010, 4), 9: (1 << 70, 100)})
    assert parts.masks(np.array([4, 5, 6, 9, 10])) == [None, 0b1010, None, 1 << 70, None]
    assert Parts.empty().masks(np.array([4, 5])) == [None, None]


def test_a_slot_that_the_mask_does_not_cover_is_refused() -> None:
    with pytest.raises(InvalidInput, match="slot 4 of the entry at 7 cannot be live"):
        Parts.of(np.array([7]), np.array([4], np.int32), np.array([4], np.uint32))
    with pytest.raises(InvalidInput, match="slot -1"):
        Parts.of(np.array([7]), np.array([-1], np.int32), np.array([1], np.uint32))


# --- dead sets ------------------------------------------------------------------------------


def dead_set(dead: set[int], masks: Masks | None = None) -> DeadSet:
    return DeadSet(LiveSet.from_iterable(dead), parts_of(masks or {}))


def test_a_dead_set_without_parts_has_the_bytes_of_a_live_set() -> None:
    found = dead_set({1, 2, 9})
    assert found.to_bytes() == found.entries.to_bytes()
    assert DeadSet.from_bytes(found.to_bytes(), 0) == found


@given(st.sets(st.integers(0, 1000)), masks_values())
def test_a_dead_set_survives_its_bytes(dead: set[int], masks: Masks) -> None:
    found = dead_set(dead, masks)
    assert DeadSet.from_bytes(found.to_bytes(), len(masks)) == found


@pytest.mark.parametrize(
    ("after", "widens"),
    [
        (dead_set({1}, {5: (0b1010, 4)}), True),  # the same
        (dead_set({1, 2}, {5: (0b1000, 4), 6: (1, 2)}), True),  # more of everything
        (dead_set({1, 5}), True),  # the rest of the batch died
        (dead_set({1}, {5: (0b0010, 2)}), True),  # a shorter mask, because its last slot died
        (dead_set({2}, {5: (0b1010, 4)}), False),  # entry 1 is back
        (dead_set({1}), False),  # the whole batch is back
        (dead_set({1}, {5: (0b1011, 4)}), False),  # slot 0 is back
        (dead_set({1}, {5: (0b1010 | 1 << 80, 90)}), False),  # slot 80 is back
    ],
)
def test_dead_entries_stay_dead(after: DeadSet, *, widens: bool) -> None:
    before = dead_set({1}, {5: (0b1010, 4)})
    assert after.widens(before) is widens


def test_no_flipped_bit_goes_unnoticed() -> None:
    data = dead_set({1, 2}, {5: (0b1010, 4), 6: (1 << 64, 65)}).to_bytes()
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(DamagedFile):
            DeadSet.from_bytes(bytes(flipped), 2)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_manifest_says_how_many_parts_there_are(parts: int) -> None:
    data = dead_set({1}, {5: (1, 2), 6: (1, 2)}).to_bytes()
    with pytest.raises(DamagedFile, match=f"2 partly live entries, not {parts}"):
        DeadSet.from_bytes(data, parts, "x")
    with pytest.raises(DamagedFile):
        DeadSet.from_bytes(data, 0)
    with pytest.raises(DamagedFile):
        DeadSet.from_bytes(data[:20], 2)


def test_a_newer_version_is_distinguished_from_damage() -> None:
    data = bytearray(parts_of({5: (1, 2)}).to_bytes()[:-4])
    data[4] = 2
    with pytest.raises(UnsupportedVersion, match="version 2"):
        Parts.from_bytes(bytes(data) + crc32c(bytes(data)).to_bytes(4, "little"), "x")
