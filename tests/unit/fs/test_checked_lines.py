"""Files of checked lines: what a crash may leave, and what is damage."""

from __future__ import annotations

import random

import pytest

from lithify.errors import DamagedFile, WriteFailed
from lithify.fs import MemoryFileSystem, read_file
from lithify.fs.checked_lines import append_line, encode_line, parse_lines, read_lines
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut

PATH = "/data/lines"
ONE, TWO, THREE = (encode_line(f'{{"line":{number}}}') for number in (1, 2, 3))

LONG = encode_line('{"line":"%s"}' % ("long" * 9))


def disk_with(*lines: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir("/data")
    for line in lines:
        append_line(fs, PATH, line)
    return fs


def write_raw(fs: MemoryFileSystem, data: bytes) -> None:
    with fs.open_append(PATH) as file:
        file.write(data)
        file.fsync()


def texts(fs: MemoryFileSystem) -> list[bytes]:
    return [text for _, text in read_lines(fs, PATH)[0]]


def test_a_line_is_a_crc_and_the_text_it_covers() -> None:
    assert encode_line('{"line":1}') == b'24aa5bfd {"line":1}\n'


def test_lines_are_read_with_their_offsets() -> None:
    fs = disk_with(ONE, TWO)
    assert read_file(fs, PATH) == ONE + TWO
    assert read_lines(fs, PATH) == (
        [(0, b'{"line":1}'), (len(ONE), b'{"line":2}')],
        len(ONE + TWO),
    )


def test_an_empty_file_has_no_lines() -> None:
    assert parse_lines(b"", PATH) == ([], 0)


def test_a_last_line_that_is_cut_anywhere_is_torn() -> None:
    for size in range(1, len(THREE) - 1):
        lines, end = parse_lines(ONE + TWO + THREE[:size], PATH)
        assert (len(lines), end) == (2, len(ONE + TWO)), size


def test_a_last_line_with_zeros_for_what_never_arrived_is_torn() -> None:
    for size in range(len(THREE) - 1):
        zeros = bytes(len(THREE) - 1 - size)
        for data in (THREE[:size] + zeros, THREE[:size] + zeros + b"\n"):
            lines, end = parse_lines(ONE + data, PATH)
            assert (len(lines), end) == (1, len(ONE)), size


def test_a_whole_last_line_without_its_newline_is_damage() -> None:
    with pytest.raises(DamagedFile, match="has no end"):
        parse_lines(ONE + TWO[:-1] + b"\x0b", PATH)


def test_a_flipped_bit_in_any_line_is_damage_at_its_offset() -> None:
    data = ONE + TWO
    for offset in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[offset] ^= 1 << bit
            with pytest.raises(DamagedFile, match=PATH) as raised:
                parse_lines(bytes(broken), PATH)
            assert raised.value.offset in (0, len(ONE))


def test_a_torn_line_is_cut_before_the_next_is_appended() -> None:
    fs = disk_with(ONE)
    write_raw(fs, TWO[:7])
    append_line(fs, PATH, THREE)
    assert read_file(fs, PATH) == ONE + THREE


def test_a_damaged_file_is_not_appended_to() -> None:
    fs = disk_with(ONE, TWO)
    fs.flip(PATH, 3)
    before = read_file(fs, PATH)
    with pytest.raises(DamagedFile):
        append_line(fs, PATH, THREE)
    assert read_file(fs, PATH) == before


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "SHORT"])
@pytest.mark.parametrize("operation", ["open_append", "write", "fsync", "rename", "sync_dir"])
@pytest.mark.parametrize("before", [(), (ONE,)])
def test_an_append_that_fails_leaves_the_lines_as_they_were(
    kind: str, operation: str, before: tuple[bytes, ...]
) -> None:
    disk = disk_with(*before)
    fs = FaultyFileSystem(disk, [Fault(operation, kind=kind)])
    if before and operation in {"rename", "sync_dir"}:
        append_line(fs, PATH, TWO)  # Only the first line takes these.
        assert read_file(disk, PATH) == ONE + TWO
        return
    with pytest.raises(WriteFailed, match=PATH):
        append_line(fs, PATH, TWO)
    if operation != "sync_dir":
        assert disk.exists(PATH) == bool(before)
        assert not before or read_file(disk, PATH) == ONE
    append_line(fs, PATH, THREE)
    # Of a line that was there before its directory was synced nothing is known; it may be there.
    kept = TWO if operation == "sync_dir" else b"".join(before)
    assert read_file(disk, PATH) == kept + THREE


def test_a_power_cut_at_any_operation_leaves_whole_lines() -> None:
    lives: list[list[bytes]] = [[], [ONE], [ONE, TWO[:9]], [ONE, bytes(5) + LONG[5:]]]
    for lines in lives:
        for nth in range(1, 10):
            disk = disk_with(*lines[:1])
            if lines[1:]:
                write_raw(disk, lines[1])
            fs = FaultyFileSystem(disk, [Fault("mutating", nth=nth, kind="CRASH")])
            try:
                append_line(fs, PATH, THREE)
            except PowerCut:
                acknowledged = False
            else:
                acknowledged = True
            for seed in range(20):
                left = disk.crash_clone(random.Random(seed))
                found = texts(left) if left.exists(PATH) else []
                assert found in (
                    [],
                    [b'{"line":1}'],
                    [b'{"line":3}'],
                    [b'{"line":1}', b'{"line":3}'],
                )
                assert len(found) >= len(lines[:1])
                assert not acknowledged or found[-1] == b'{"line":3}'


def test_a_line_that_failed_is_never_mixed_into_the_next() -> None:
    disk = disk_with(ONE)
    fs = FaultyFileSystem(disk, [Fault("fsync", nth=2, kind="EIO")])
    with pytest.raises(WriteFailed):
        append_line(fs, PATH, LONG)
    fs.add(Fault("fsync", nth=2, kind="CRASH"))
    with pytest.raises(PowerCut):
        append_line(fs, PATH, THREE)
    for seed in range(50):
        found = texts(disk.crash_clone(random.Random(seed)))
        assert found in ([b'{"line":1}'], [b'{"line":1}', b'{"line":3}'])
