"""The cursor against sets: which positions exist, which are acknowledged, which messages remain.

Positions lie on both sides of a ledger's end, so that packed ones are crossed as well.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lithify.positions import POSITION_MAX, pack
from lithify.topics.subscriptions.cursor import Cursor, bits_from_words, words_from_bits
from lithify.topics.subscriptions.cursor_changes import (
    Acked,
    AckedBatch,
    AckedUpTo,
    CursorChange,
    Filled,
    Reset,
    change_from_bytes,
)

LOW = pack(7, 0) - 15
HIGH = LOW + 40
SIZE = 5
ALL = frozenset(range(SIZE))

POSITION = st.integers(LOW, HIGH)
INDEXES = st.sets(st.integers(0, SIZE - 1))


def bits(indexes: set[int]) -> int:
    return sum(1 << index for index in indexes)


class CursorMachine(RuleBasedStateMachine):
    """`done` are positions acknowledged, `absent` those that do not exist, `left` what remains."""

    def __init__(self) -> None:
        super().__init__()
        self.done: set[int] = set()
        self.absent: set[int] = set()
        self.left: dict[int, set[int]] = {}
        self.floor = LOW

    @initialize()
    def begin(self) -> None:
        self.cursor = Cursor(LOW - 1)

    def covered(self, position: int) -> bool:
        return position < self.floor or position in self.done or position in self.absent

    def first_hole(self, position: int) -> int:
        while self.covered(position):
            position += 1
        return position

    def cover(self, positions: set[int], kind: set[int]) -> None:
        kind |= {p for p in positions if not self.covered(p)}
        for position in positions:
            self.left.pop(position, None)

    # --- what happens -----------------------------------------------------------------------

    @rule(position=POSITION)
    def ack(self, position: int) -> None:
        self.cursor.ack(position)
        self.cover({position}, self.done)

    @rule(position=POSITION)
    def ack_cumulative(self, position: int) -> None:
        self.cursor.ack_cumulative(position)
        self.cover(set(range(LOW, position + 1)), self.done)

    @rule(position=POSITION, remaining=INDEXES, masked=INDEXES)
    def ack_batch(self, position: int, remaining: set[int], masked: set[int]) -> None:
        self.cursor.ack_batch(position, bits(remaining), SIZE, bits(masked))
        self.model_batch(position, remaining, masked)

    @rule(position=POSITION, remaining=INDEXES, masked=INDEXES)
    def ack_cumulative_batch(self, position: int, remaining: set[int], masked: set[int]) -> None:
        if position:
            self.cursor.ack_cumulative(position - 1)
        self.cursor.ack_batch(position, bits(remaining), SIZE, bits(masked))
        self.cover(set(range(LOW, position)), self.done)
        self.model_batch(position, remaining, masked)

    def model_batch(self, position: int, remaining: set[int], masked: set[int]) -> None:
        if self.covered(position):
            return
        left = self.left.get(position, set(ALL)) & remaining
        if left <= masked:
            self.cover({position}, self.done)
        elif left != ALL:
            self.left[position] = left

    @rule(position=POSITION)
    def reset(self, position: int) -> None:
        self.cursor.reset(position)
        self.done.clear()
        self.absent.clear()
        self.left.clear()
        self.floor = position

    @rule(start=POSITION, length=st.integers(0, 12))
    def fill(self, start: int, length: int) -> None:
        self.cursor.fill(start, start + length)
        self.cover(set(range(start, start + length)), self.absent)

    @rule(existing=st.sets(POSITION))
    def take_gaps(self, existing: set[int]) -> None:
        future = HIGH + 1
        self.cursor.take_gaps(
            lambda p: min((e for e in existing if e >= p), default=max(p, future))
        )
        hole = self.first_hole(LOW)
        while hole < future and hole not in existing:
            self.cover({hole}, self.absent)
            hole = self.first_hole(hole)

    @rule()
    def store_and_load(self) -> None:
        data = self.cursor.to_bytes()
        self.cursor = Cursor.from_bytes(data)
        assert self.cursor.to_bytes() == data

    # --- what must hold ---------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        cursor, mark = self.cursor, self.first_hole(LOW) - 1
        assert cursor.mark_delete == mark
        assert cursor.acked_entries == sum(p > mark for p in self.done)
        for position in range(LOW - 2, HIGH + 20):
            assert cursor.is_acked(position) == self.covered(position)
            assert cursor.first_unacked_from(position) == self.first_hole(position)
            left = self.left.get(position)
            assert cursor.remaining_of(position) == (None if left is None else bits(left))

    @invariant()
    def ranges_are_canonical(self) -> None:
        ranges = list(self.cursor.acked_ranges())
        covered = {p for p in range(self.cursor.mark_delete + 1, HIGH + 20) if self.covered(p)}
        assert {p for start, stop in ranges for p in range(start, stop)} == covered
        edges = [self.cursor.mark_delete + 1, *(edge for pair in ranges for edge in pair)]
        assert edges == sorted(set(edges))


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(words=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_ack_sets_keep_every_bit(words: list[int]) -> None:
    assert words_from_bits(bits_from_words(words), len(words) * 64) == words


ANYWHERE = st.integers(0, POSITION_MAX)


@st.composite
def batches(draw: st.DrawFn) -> AckedBatch:
    size = draw(st.integers(1, 70))
    bitset = st.integers(0, 2**size - 1)
    return AckedBatch(draw(ANYWHERE), draw(bitset), size, draw(bitset))


CHANGES = st.one_of(
    st.builds(Acked, ANYWHERE),
    st.builds(AckedUpTo, st.integers(-1, POSITION_MAX)),
    batches(),
    st.builds(Reset, ANYWHERE),
    st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)).map(lambda ends: Filled(*sorted(ends))),
)


@given(change=CHANGES)
def test_a_change_reads_back_as_it_was_written(change: CursorChange) -> None:
    assert change_from_bytes(change.kind, change.to_bytes()) == change


@given(changes=st.lists(CHANGES, max_size=20))
def test_changes_anywhere_in_position_space_survive_being_stored(
    changes: list[CursorChange],
) -> None:
    cursor = Cursor(-1)
    for change in changes:
        change.apply(cursor)
        again = Cursor.from_bytes(cursor.to_bytes())
        change.apply(again)

        assert again.to_bytes() == cursor.to_bytes()
