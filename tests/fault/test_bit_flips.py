"""Flip every byte of every file of a log: no answer is ever wrong.

After each flip the log is verified, opened for writing and read in every way. Each answer must be
an error of the `Corrupt` family, or the very answer that the undamaged log gives. The one
exception is the last frame of the active segment, which may be torn: it may be cut, and then the
cut is reported and everything before it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lithify.cli.log import check_log
from lithify.compaction.reports.report import History
from lithify.compaction.run.journal import Journal
from lithify.errors import Corrupt, UnsupportedVersion
from lithify.events import TailCut
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.file_names import HISTORY, FileKind, parse_name
from lithify.log.read_only_log import find_manifest, read_active
from tests.small_log import ACTIVE, DIRECTORY, LAST, build, open_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.events import Event
    from lithify.log.reader import Snapshot
    from lithify.log.segments.frame import LogEntry
    from lithify.log.verify import Verification

EVERY_BIT_OF_EACH = 8
"""All bits of every such byte; of the others one."""

UNREAD = {FileKind.LOCK: "its text is only told to people", FileKind.PIN: "like the lock's"}


def whole() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    build(fs)
    return fs


WHOLE = whole()
FILES = WHOLE.list(DIRECTORY)


def masks(offset: int, byte: int) -> Iterator[int]:
    chosen = range(8) if offset % EVERY_BIT_OF_EACH == 0 else (offset % 8,)
    # Those that make a zero are tried below, for every byte that has one.
    yield from (1 << bit for bit in chosen if 1 << bit != byte)


def walks(snapshot: Snapshot) -> dict[str, object]:
    """Every way to read."""
    times = range(999, 1006)
    answers: dict[str, object] = {"last": snapshot.last_position}
    for compacted in (False, True):
        answers[f"forward {compacted}"] = list(snapshot.read(compacted=compacted))
        answers[f"backward {compacted}"] = list(snapshot.read_backward(compacted=compacted))
        answers[f"from the middle {compacted}"] = list(snapshot.read(6, compacted=compacted))
        answers[f"by time {compacted}"] = [
            snapshot.find_time(time, compacted=compacted) for time in times
        ]
    return answers


@dataclass(frozen=True)
class Seen:
    """All that a log tells, each part by itself; an error where it was refused."""

    log: dict[str, object] | Exception
    journal: object
    history: object
    events: tuple[Event, ...]


def ask(question: Callable[[], object]) -> object:
    try:
        return question()
    except (Corrupt, UnsupportedVersion) as error:
        return error


def look(fs: MemoryFileSystem) -> Seen:
    """Open for writing and read everything."""
    events: list[Event] = []

    def read() -> dict[str, object]:
        log = open_log(fs, events=events.append)
        try:
            with log.snapshot() as snapshot:
                return walks(snapshot)
        finally:
            log.abandon()

    journal = ask(Journal(fs, DIRECTORY).read)
    history = ask(lambda: History(fs, f"{DIRECTORY}/{HISTORY}").newest(9))
    answer = ask(read)
    assert isinstance(answer, dict | Exception)
    return Seen(answer, journal, history, tuple(events))


def without_last(answers: dict[str, object]) -> dict[str, object]:
    """What is left when the last frame of the active segment is cut."""
    left: dict[str, object] = {}
    for name, answer in answers.items():
        if isinstance(answer, list) and not name.startswith("by time"):
            entries: list[LogEntry] = answer
            left[name] = [entry for entry in entries if entry.position != LAST]
        else:
            left[name] = LAST - 1 if name == "last" else answer
    return left


UNDAMAGED = look(WHOLE.kill_clone())
LAST_FRAME = read_active(WHOLE, DIRECTORY, find_manifest(WHOLE, DIRECTORY)).writer.end - 32 - 8


def check_reading(seen: Seen, name: str, offset: int) -> None:
    cut = [event for event in seen.events if isinstance(event, TailCut)]
    expected = UNDAMAGED.log
    assert isinstance(expected, dict)
    if cut:
        assert (name, offset >= LAST_FRAME) == (ACTIVE, True), "a vouched frame was cut"
        assert [(event.offset, event.last_position) for event in cut] == [(LAST_FRAME, LAST - 1)]
        expected = without_last(expected)
    assert isinstance(seen.log, Exception) or seen.log == expected
    assert isinstance(seen.journal, Exception) or seen.journal == UNDAMAGED.journal
    assert isinstance(seen.history, Exception) or seen.history == UNDAMAGED.history


def check_verification(found: Verification, seen: Seen, name: str, offset: int) -> None:
    if name == ACTIVE and offset >= LAST_FRAME and found.damage is None:
        assert found.torn_bytes == 32 + 8
        return
    refused = any(isinstance(a, Exception) for a in (seen.log, seen.journal, seen.history))
    assert not refused or found.damage is not None, "a reader finds damage that verify does not"
    read = parse_name(name).kind not in UNREAD and name not in found.retired
    if read and parse_name(name).kind is not FileKind.KEY_INDEX:
        assert found.damage is not None, "every byte of this file is checked"
        assert getattr(found.damage, "path", "").endswith(name)


def test_the_log_has_one_of_everything() -> None:
    kinds = {parse_name(name).kind for name in FILES}
    assert kinds >= {
        FileKind.MANIFEST,
        FileKind.JOURNAL,
        FileKind.HISTORY,
        FileKind.SEGMENT,
        FileKind.REWRITTEN,
        FileKind.DEAD_SET,
        FileKind.LOCK,
    }
    assert isinstance(UNDAMAGED.log, dict)
    assert not isinstance(UNDAMAGED.journal, Exception)
    assert not isinstance(UNDAMAGED.history, Exception)
    assert UNDAMAGED.events == ()
    assert check_log(WHOLE, DIRECTORY, lambda _: None).damage is None


def check_flip(name: str, offset: int, mask: int) -> None:
    path = f"{DIRECTORY}/{name}"
    fs = WHOLE.kill_clone()
    fs.flip(path, offset, mask)
    damaged = read_file(fs, path)
    try:
        try:
            found = check_log(fs, DIRECTORY, lambda _: None)
        except UnsupportedVersion:
            # The bit was in the version, which no checksum covers where the rest may be newer.
            return
        assert (read_file(fs, path), fs.list(DIRECTORY)) == (damaged, FILES), "verify changed it"
        seen = look(fs)
        check_reading(seen, name, offset)
        check_verification(found, seen, name, offset)
    except BaseException as error:
        error.add_note(f"{name}, byte {offset}, mask {mask:#04x}")
        raise


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_gives_a_wrong_answer(name: str) -> None:
    for offset, byte in enumerate(read_file(WHOLE, f"{DIRECTORY}/{name}")):
        for mask in masks(offset, byte):
            check_flip(name, offset, mask)


@pytest.mark.parametrize("name", FILES)
def test_no_bit_flip_that_makes_a_zero_byte_is_read_as_a_torn_write(name: str) -> None:
    for offset, byte in enumerate(read_file(WHOLE, f"{DIRECTORY}/{name}")):
        if byte.bit_count() == 1:
            check_flip(name, offset, byte)
