"""The state of a cursor after each acknowledgement."""

from __future__ import annotations

import struct
import time

import pytest

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, PositionOutOfRange, UnsupportedVersion
from lithify.positions import POSITION_MAX, pack
from lithify.topics.messages.entry_flags import BATCH_MESSAGES_MAX
from lithify.topics.subscriptions.cursor import Cursor, bits_from_words, words_from_bits
from lithify.topics.subscriptions.cursor_changes import AckedBatch, AckedUpTo, change_from_bytes


def ranges(cursor: Cursor) -> list[tuple[int, int]]:
    return list(cursor.acked_ranges())


# --- whole entries --------------------------------------------------------------------------


def test_acknowledged_in_order_only_mark_delete_moves() -> None:
    cursor = Cursor(9)
    for position in range(10, 20):
        cursor.ack(position)

    assert cursor.mark_delete == 19
    assert ranges(cursor) == []
    assert cursor.acked_entries == 0


def test_out_of_order_acknowledgements_wait_until_the_hole_is_filled() -> None:
    cursor = Cursor(-1)
    for position in (2, 5, 3, 1):
        cursor.ack(position)
    assert cursor.mark_delete == -1
    assert ranges(cursor) == [(1, 4), (5, 6)]
    assert cursor.acked_entries == 4

    cursor.ack(0)
    assert cursor.mark_delete == 3
    assert ranges(cursor) == [(5, 6)]
    assert cursor.acked_entries == 1


def test_an_entry_counts_once_however_often_it_is_acknowledged() -> None:
    cursor = Cursor(-1)
    for position in (4, 4, 5, 4, 5):
        cursor.ack(position)

    assert cursor.acked_entries == 2


def test_a_cumulative_acknowledgement_merges_adjacent_ranges() -> None:
    cursor = Cursor(-1)
    for position in (3, 11, 12, 20):
        cursor.ack(position)

    cursor.ack_cumulative(10)
    assert cursor.mark_delete == 12
    assert ranges(cursor) == [(20, 21)]

    cursor.ack_cumulative(5)
    assert cursor.mark_delete == 12


def test_a_cumulative_acknowledgement_inside_the_first_batch_acknowledges_nothing() -> None:
    cursor = Cursor(-1)
    cursor.ack_cumulative(-1)
    assert cursor.mark_delete == -1

    ledger_4 = Cursor(pack(4, 0) - 1)
    ledger_4.ack_cumulative(pack(4, 0) - 1)
    assert ledger_4.mark_delete == pack(4, 0) - 1


def test_reading_resumes_after_the_acknowledged_positions() -> None:
    cursor = Cursor(4)
    for position in (7, 8, 10):
        cursor.ack(position)

    asked = [cursor.first_unacked_from(position) for position in (0, 5, 6, 7, 8, 9, 10, 11)]
    assert asked == [5, 5, 6, 9, 9, 9, 11, 11]
    assert [p for p in range(12) if not cursor.is_acked(p)] == [5, 6, 9, 11]


def test_a_seek_clears_acknowledgements_above() -> None:
    cursor = Cursor(50)
    cursor.ack(60)
    cursor.ack_batch(61, 0b01, 2)

    cursor.reset(20)
    assert cursor.mark_delete == 19
    assert ranges(cursor) == []
    assert cursor.acked_entries == 0
    assert cursor.remaining_of(61) is None

    cursor.reset(70)
    assert cursor.mark_delete == 69


# --- batches --------------------------------------------------------------------------------


def test_a_batch_is_done_when_its_last_message_is() -> None:
    cursor = Cursor(-1)
    cursor.ack_batch(0, 0b1101, 4)
    assert cursor.remaining_of(0) == 0b1101
    assert not cursor.is_acked(0)

    # Another consumer has had its own messages of it.
    cursor.ack_batch(0, 0b0111, 4)
    assert cursor.remaining_of(0) == 0b0101

    cursor.ack_batch(0, 0b1010, 4)
    assert cursor.mark_delete == 0
    assert cursor.remaining_of(0) is None


def test_a_batch_of_which_everything_remains_is_untouched() -> None:
    cursor = Cursor(-1)
    cursor.ack_batch(3, 0b111, 3)

    assert cursor.remaining_of(3) is None
    assert not cursor.is_acked(3)


def test_a_batch_acknowledged_whole_is_not_opened_again() -> None:
    cursor = Cursor(-1)
    cursor.ack(3)
    cursor.ack_batch(3, 0b110, 3)

    assert cursor.is_acked(3)
    assert cursor.remaining_of(3) is None


def test_messages_that_were_never_delivered_hold_nothing_up() -> None:
    removed = 0b1100
    cursor = Cursor(-1)
    cursor.ack_batch(0, 0b1110, 4, masked=removed)
    assert cursor.remaining_of(0) == 0b1110, "a reader of the log is still to get what is masked"

    cursor.ack_batch(0, 0b1101, 4, masked=removed)
    assert cursor.mark_delete == 0


def test_a_cumulative_acknowledgement_stops_inside_a_batch() -> None:
    cursor = Cursor(-1)
    cursor.ack_batch(2, 0b01, 2)
    cursor.ack_cumulative(6)
    cursor.ack_batch(7, 0b1100, 4)
    assert cursor.mark_delete == 6
    assert cursor.remaining_of(2) is None
    assert cursor.remaining_of(7) == 0b1100

    cursor.ack_batch(7, 0b1000, 4, masked=0b1000)
    assert cursor.mark_delete == 7


def test_an_ack_set_is_words_of_64_bits_with_a_sign() -> None:
    assert bits_from_words([2]) == 0b10
    assert bits_from_words([-1, 1]) == 2**65 - 1
    assert words_from_bits(2**65 - 1, 65) == [-1, 1]
    assert words_from_bits(0b10, 70) == [2, 0]
    assert words_from_bits(2**63, 64) == [-(2**63)]
    assert bits_from_words([]) == 0


# --- positions that do not exist ------------------------------------------------------------


def test_mark_delete_moves_over_the_end_of_a_ledger() -> None:
    cursor = Cursor(pack(1, 98))
    cursor.ack(pack(2, 0))
    cursor.fill(pack(1, 100), pack(2, 0))
    assert cursor.mark_delete == pack(1, 98)
    assert cursor.acked_entries == 1, "what does not exist was not acknowledged"

    cursor.ack(pack(1, 99))
    assert cursor.mark_delete == pack(2, 0)


def test_a_hole_that_turns_out_not_to_exist_is_passed() -> None:
    cursor = Cursor(4)
    cursor.ack(8)
    cursor.ack_batch(6, 0b01, 2)
    cursor.fill(2, 8)

    assert cursor.mark_delete == 8
    assert cursor.remaining_of(6) is None
    cursor.fill(3, 3)
    assert cursor.mark_delete == 8


def test_gaps_are_acknowledged_up_to_the_first_unacknowledged_entry() -> None:
    existing = [10, 11, 20, 30]
    asked: list[int] = []

    def following(position: int) -> int:
        asked.append(position)
        return min((e for e in existing if e >= position), default=max(position, 31))

    cursor = Cursor(-1)
    cursor.ack(11)
    cursor.ack(20)
    cursor.take_gaps(following)
    assert cursor.mark_delete == 9
    assert asked == [0]

    cursor.ack(10)
    cursor.take_gaps(following)
    assert cursor.mark_delete == 29
    assert asked == [0, 12, 21]

    cursor.ack(30)
    cursor.take_gaps(following)
    assert cursor.mark_delete == 30, "the next position may still come"


# --- limits ---------------------------------------------------------------------------------


def test_positions_outside_position_space_are_refused_and_change_nothing() -> None:
    cursor = Cursor(5)
    before = cursor.to_bytes()
    for call in (cursor.ack, cursor.reset):
        with pytest.raises(PositionOutOfRange):
            call(-1)
        with pytest.raises(PositionOutOfRange):
            call(POSITION_MAX + 1)
    with pytest.raises(PositionOutOfRange):
        cursor.ack_cumulative(-2)
    with pytest.raises(InvalidInput, match=r"range 9 … 8"):
        cursor.fill(9, 8)
    with pytest.raises(PositionOutOfRange):
        Cursor(-2)

    assert cursor.to_bytes() == before


@pytest.mark.parametrize(
    ("remaining", "size", "masked", "text"),
    [
        (0b100, 2, 0, "remaining 0x4 or masked 0x0 is outside a batch of 2"),
        (-1, 2, 0, "remaining -0x1"),
        (0b01, 2, 0b100, "masked 0x4"),
        (0, 0, 0, "batch of 0 messages"),
        (0, BATCH_MESSAGES_MAX + 1, 0, "1 … 1048576"),
    ],
)
def test_bits_outside_the_batch_are_refused_and_change_nothing(
    remaining: int, size: int, masked: int, text: str
) -> None:
    cursor = Cursor(5)
    before = cursor.to_bytes()
    with pytest.raises(InvalidInput, match=text):
        cursor.ack_batch(8, remaining, size, masked)
    with pytest.raises(InvalidInput, match=text):
        AckedBatch(8, remaining, size, masked)

    assert cursor.to_bytes() == before


def test_words_that_no_int64_holds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="ack set of 1 words"):
        bits_from_words([2**63])


def test_the_last_position_can_be_acknowledged() -> None:
    cursor = Cursor(POSITION_MAX - 3)
    cursor.ack(POSITION_MAX)
    assert ranges(Cursor.from_bytes(cursor.to_bytes())) == [(POSITION_MAX, 2**63)]

    cursor.ack_cumulative(POSITION_MAX - 1)
    assert cursor.mark_delete == POSITION_MAX


def test_many_holes_are_filled_from_the_front_in_no_time() -> None:
    # Each fill takes the first of 200 000 ranges away. Moving up the others each time would move
    # up to 3 lists × 8 bytes × 200 000 = 4.8 MB, as often.
    cursor = Cursor(-1)
    for position in range(1, 400_000, 2):
        cursor.ack(position)
    started_s = time.process_time()
    for position in range(0, 400_000, 2):
        cursor.ack(position)

    assert cursor.mark_delete == 399_999
    assert time.process_time() - started_s < 5


def test_ranges_that_mark_delete_has_passed_do_not_pile_up() -> None:
    cursor = Cursor(-1)
    cursor.ack(50_000)
    for position in range(0, 2000, 2):
        cursor.ack(position + 1)
        cursor.ack(position)

    assert cursor.mark_delete == 1999
    assert len(list(cursor.acked_ranges())) == 1


# --- bytes ----------------------------------------------------------------------------------


def one_of_everything() -> Cursor:
    cursor = Cursor(pack(3, 17))
    for entry in (20, 21, 25):
        cursor.ack(pack(3, entry))
    cursor.fill(pack(3, 26), pack(4, 0))
    cursor.ack_batch(pack(3, 19), 0b101, 3)
    cursor.ack_batch(pack(4, 1), 1 << 8, 9)
    return cursor


VERSION_1 = (
    "4c4355520100000011000000030000002f00000001000000020000004c534554"
    "010000000200000000000000e9ffffff00000000140000000300000001040201"
    "000000e6ffffffc6199237010000000100000000000000130000000300000001"
    "000000050100000004000000020000000001c316efea"
)


def test_version_1_is_still_written_and_read() -> None:
    assert one_of_everything().to_bytes().hex() == VERSION_1

    cursor = Cursor.from_bytes(bytes.fromhex(VERSION_1))
    assert cursor.mark_delete == pack(3, 17)
    assert ranges(cursor) == [(pack(3, 20), pack(3, 22)), (pack(3, 25), pack(4, 0))]
    assert cursor.acked_entries == 3
    assert cursor.remaining_of(pack(3, 19)) == 0b101
    assert cursor.remaining_of(pack(4, 1)) == 1 << 8


def test_a_cursor_without_holes_is_32_bytes() -> None:
    assert len(Cursor(pack(900, 12_345)).to_bytes()) == 32


def test_no_byte_can_be_damaged_or_cut_off_unnoticed() -> None:
    data = one_of_everything().to_bytes()
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= 0x10
        with pytest.raises(DamagedFile, match="topic/cursors"):
            Cursor.from_bytes(damaged, "topic/cursors")
        with pytest.raises(DamagedFile):
            Cursor.from_bytes(data[:offset])


def sealed(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


def header(
    mark_delete: int, ranges_bytes: int = 0, gaps: int = 0, batches: int = 0, zero: int = 0
) -> bytes:
    return struct.pack("<4sHHqIII", b"LCUR", 1, zero, mark_delete, ranges_bytes, gaps, batches)


def batch(position: int, remaining: bytes) -> bytes:
    return struct.pack("<QI", position, len(remaining)) + remaining


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (header(-2), "position -2 is out of range"),
        (header(5, zero=1), "zero is 1"),
        (header(5, ranges_bytes=1), "ranges end at byte 29"),
        (header(5, gaps=1), "1 gaps end at byte 40"),
        (header(5, gaps=1) + struct.pack("<IQ", 0, 1), "gap in range 0, there are 0"),
        (header(5, batches=1) + batch(5, b"\1"), "batch at 5"),
        (header(5, batches=1) + batch(6, b"\0"), "batch at 6"),
        (header(5, batches=2) + batch(6, b"\1") * 2, "batch at 6"),
        (header(5, batches=1) + batch(2**63, b"\1"), "out of range"),
        (header(5, batches=1) + batch(6, b"\1\1")[:-1], "1 batches end at byte 42"),
        (header(5, batches=1), "unpack_from"),
        (header(5) + b"more", "0 batches end at byte 28"),
    ],
)
def test_bytes_that_no_cursor_can_have_are_damage(data: bytes, text: str) -> None:
    with pytest.raises(DamagedFile, match=text):
        Cursor.from_bytes(sealed(data))


def test_ranges_that_no_cursor_can_have_are_damage() -> None:
    cursor = Cursor(5)
    cursor.ack(9)
    good = cursor.to_bytes()[:-4]
    Cursor.from_bytes(sealed(good))

    with pytest.raises(DamagedFile, match="touches mark-delete 8"):
        Cursor.from_bytes(sealed(header(8, len(good) - 28) + good[28:]))
    too_many = header(5, len(good) - 28, gaps=1) + good[28:] + struct.pack("<IQ", 0, 2)
    with pytest.raises(DamagedFile, match="2 entries in the range 9 … 10"):
        Cursor.from_bytes(sealed(too_many))


def test_a_newer_version_is_named() -> None:
    data = bytearray(Cursor(5).to_bytes()[:-4])
    data[4] = 2
    with pytest.raises(UnsupportedVersion, match="version 2"):
        Cursor.from_bytes(sealed(bytes(data)))


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (2, b"", "unknown kind 2"),
        (3, b"1234567", "kind 3"),
        (7, b"12345678", "kind 7"),
        (5, AckedBatch(1, 1, 9).to_bytes()[:-1], "batch of 9 messages in 13 bytes"),
        (3, AckedUpTo(-1).to_bytes(), "position -1 is out of range"),
    ],
)
def test_bytes_that_no_change_can_have_are_refused(kind: int, body: bytes, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        change_from_bytes(kind, body)
