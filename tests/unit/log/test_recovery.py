"""Opening a log after a crash, a mistake or damage."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from lithify.checksum import crc32c
from lithify.errors import (
    DamagedFile,
    DamagedFrame,
    InvalidInput,
    MissingFile,
    NotASegment,
    UnsupportedVersion,
)
from lithify.events import Event, OrphanRemoved, Published, SetAside, TailCut
from lithify.fs import FileSystem, MemoryFileSystem, read_file
from lithify.log.log import Log
from lithify.log.manifest import read_manifest, write_manifest
from lithify.log.segments.frame import LogEntry
from lithify.log.segments.segment_file import SegmentFooter
from lithify.log.verify import verify_log
from lithify.positions import PACKED, pack
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from tests.unit.log.helpers import DIRECTORY, LAZY, contents, fill, open_log

LARGE = LogSettings()
ACTIVE = f"{DIRECTORY}/000000000001.seg"
FRAME = 132


def killed(fs: MemoryFileSystem, *bodies: bytes) -> MemoryFileSystem:
    """The disk of a process that was killed after it acknowledged these entries."""
    log = open_log(fs, LARGE)
    for body in bodies:
        log.append(body).result()
    return fs.kill_clone()


def listing(fs: FileSystem) -> dict[str, bytes]:
    return {name: read_file(fs, f"{DIRECTORY}/{name}") for name in fs.list(DIRECTORY)}


def overwrite(fs: FileSystem, path: str, data: bytes) -> None:
    with fs.open_append(path) as file:
        file.truncate(0)
        file.write(data)


def fails_and_changes_nothing(fs: FileSystem, error: type[Exception], text: str) -> None:
    before = listing(fs)
    with pytest.raises(error, match=text):
        open_log(fs)
    after = listing(fs)
    before["LOCK"] = after["LOCK"] = b""
    assert after == before
    # The lock was released: it fails again for the same reason.
    with pytest.raises(error, match=text):
        open_log(fs)


# The tail of the active segment


@pytest.mark.parametrize("left", [1, 20, 31, 32, 33, 36])
def test_a_torn_tail_is_cut_where_the_last_good_frame_ends(left: int) -> None:
    fs = killed(MemoryFileSystem(), b"one", b"two", b"third")
    end = 64 + 35 + 35
    with fs.open_append(ACTIVE) as file:
        file.truncate(end + left)
    events: list[Event] = []
    log = open_log(fs, LARGE, events=events.append)
    assert events[0] == TailCut(DIRECTORY, "000000000001.seg", end, left, 1)
    assert contents(log) == {0: b"one", 1: b"two"}
    assert log.append(b"next").result() == 2
    assert contents(log) == {0: b"one", 1: b"two", 2: b"next"}


def test_the_cut_is_durable_before_anything_is_appended() -> None:
    fs = killed(MemoryFileSystem(), b"one", b"two")
    with fs.open_append(ACTIVE) as file:
        file.write(b"torn")
    log = open_log(fs, LARGE)
    log.append(b"three")
    assert [s.sealed for s in log.manifest.segments] == [True, False]
    assert log.manifest.segments[0].last_position == 1


def test_after_a_cut_a_packed_log_continues_in_another_segment() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, LARGE, rule=PACKED)
    assert log.append(b"one").result() == pack(1, 0)
    fs = fs.kill_clone()
    with fs.open_append(ACTIVE) as file:
        file.write(b"torn")
    log = open_log(fs, LARGE, rule=PACKED)
    assert log.append(b"two").result() == pack(2, 0), "a reader may have seen what was cut"


def test_damage_before_an_intact_frame_is_reported_not_cut() -> None:
    fs = killed(MemoryFileSystem(), b"one", b"two", b"three", b"four")
    fs.flip(ACTIVE, 64 + 35 + 34)
    fails_and_changes_nothing(
        fs,
        DamagedFrame,
        rf"{ACTIVE} at byte 99: CRC-32C does not match .*; its writer knew the first 171 bytes to "
        r"be durable \(after position 0\)",
    )


def test_damage_within_the_durable_size_of_the_manifest_is_reported_not_cut() -> None:
    fs = MemoryFileSystem()
    with open_log(fs, LARGE) as log:
        log.append(b"one").result()
    fs.flip(ACTIVE, 70)
    fails_and_changes_nothing(fs, DamagedFrame, "its writer knew the first 99 bytes to be durable")


def test_a_tail_within_the_durable_size_of_the_manifest_may_not_be_missing() -> None:
    fs = MemoryFileSystem()
    with open_log(fs, LARGE) as log:
        log.append(b"one").result()
    with fs.open_append(ACTIVE) as file:
        file.truncate(64)
    fails_and_changes_nothing(fs, DamagedFrame, "at byte 64: file has only 64 bytes; its writer")


def test_damage_to_what_was_never_durable_is_a_torn_tail() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, replace(LAZY, segment_bytes_max=2**20))
    log.append_many([b"one", b"two", b"three"])
    fs = fs.kill_clone()
    fs.flip(ACTIVE, 64 + 35 + 34)
    assert contents(open_log(fs)) == {0: b"one"}


def test_a_footer_that_no_manifest_knows_of_is_removed() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, LARGE)
    fill(log, 3)
    log._writes.current.active.writer.seal()
    fs = fs.kill_clone()
    events: list[Event] = []
    log = open_log(fs, LARGE, events=events.append)
    assert list(contents(log)) == [0, 1, 2]
    assert log.append(b"x").result() == 3
    assert events == [], "nothing was lost"
    assert fs.stat(ACTIVE).size == 64 + 3 * FRAME + 33


def test_a_footer_inside_a_body_is_no_footer() -> None:
    """A client that may append could otherwise wipe the segment with the next restart."""
    fs = MemoryFileSystem()
    log = open_log(fs, LARGE)
    fill(log, 3)
    body_at = 64 + 3 * FRAME + 32
    padding = bytes(-(body_at - 64) % 24)
    rows = (body_at + len(padding) - 64) // 24
    evil = SegmentFooter(1, 0, -1, -1, 0, 0, frames_end=64, rows=rows, rows_crc=0)
    log.append(padding + evil.to_bytes()).result()
    fs = fs.kill_clone()
    assert fs.stat(ACTIVE).size == evil.file_bytes
    assert list(contents(open_log(fs))) == [0, 1, 2, 3]


def test_a_torn_frame_longer_than_the_file_is_cut() -> None:
    fs = killed(MemoryFileSystem(), b"one")
    with fs.open_append(ACTIVE) as file:
        file.write(b"\xff" * 4 + (2**29).to_bytes(4, "little") + bytes(3_000_000))
    assert contents(open_log(fs)) == {0: b"one"}


def test_bytes_of_a_killed_process_in_the_cache_are_made_durable() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, LAZY)
    log.append(b"not synced").result()
    fs = fs.kill_clone()
    open_log(fs)
    assert fs.file(ACTIVE).durable == fs.file(ACTIVE).content


# Files that are missing, foreign or left over


@pytest.mark.parametrize("which", [0, -1])
def test_a_file_that_the_manifest_names_may_not_be_missing(which: int) -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        fill(log, 14)
        name = log.manifest.segments[which].name
    fs.remove(f"{DIRECTORY}/{name}")
    text = f"{DIRECTORY}/{name} at byte 0: missing, but {DIRECTORY}/MANIFEST names it"
    fails_and_changes_nothing(fs, MissingFile, re.escape(text))


@pytest.mark.parametrize("count", [1, 14])
def test_a_lost_manifest_is_a_loss_not_a_new_log(count: int) -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        fill(log, count)
    fs.remove(f"{DIRECTORY}/MANIFEST")
    text = "/log/MANIFEST at byte 0: missing, but /log/000000000001.seg names it"
    fails_and_changes_nothing(fs, MissingFile, re.escape(text))


@pytest.mark.parametrize("left", [b"", b"LITHSEG", bytes(64)])
def test_an_interrupted_creation_starts_again(left: bytes) -> None:
    fs = MemoryFileSystem()
    fs.mkdir(DIRECTORY)
    overwrite(fs, ACTIVE, left)
    overwrite(fs, f"{DIRECTORY}/MANIFEST.tmp", b"lithify mani")
    log = open_log(fs)
    assert log.append(b"x").result() == 0
    assert contents(log) == {0: b"x"}


def test_files_of_no_generation_are_removed_and_foreign_ones_stay() -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        fill(log, 14)
    mine = set(fs.list(DIRECTORY))
    orphans = [
        "000000000001-5f3a.dead",
        "000000000003.seg",
        "000000000009-5f3a.keys",
        "000000000009-5f3a.seg",
        "MANIFEST.tmp",
    ]
    kept = ["000000000001.keys", "HISTORY", "README", "core.1234"]
    for name in [*orphans, *kept]:
        overwrite(fs, f"{DIRECTORY}/{name}", b"")
    events: list[Event] = []
    open_log(fs, events=events.append)
    assert events == [OrphanRemoved(DIRECTORY, name) for name in orphans]
    assert set(fs.list(DIRECTORY)) == mine | set(kept)


def test_segments_that_an_older_manifest_does_not_name_are_set_aside() -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        fill(log, 4)
    older = read_file(fs, f"{DIRECTORY}/MANIFEST")
    with open_log(fs) as log:
        log.roll()
        fill(log, 4)
        log.roll()
        fill(log, 4)
    later = [name for name in fs.list(DIRECTORY) if name.endswith(".seg")][-2:]
    before = [read_file(fs, f"{DIRECTORY}/{name}") for name in later]
    for turn in ("", "1"):
        # A second time the names are taken again.
        overwrite(fs, f"{DIRECTORY}/MANIFEST", older)
        events: list[Event] = []
        with open_log(fs, events=events.append) as log:
            assert SetAside(DIRECTORY, later[0]) in events
            fill(log, 4)
            log.roll()
            fill(log, 4)
        aside = f"{DIRECTORY}/{later[0]}.aside{turn}"
        assert fs.exists(aside)
    assert [read_file(fs, f"{DIRECTORY}/{name}.aside") for name in later] == before
    warnings = verify_log(fs, DIRECTORY).warnings
    assert f"{later[0]}.aside is a segment set aside" in " ".join(warnings)
    assert f"{later[0]}.aside1 is a segment set aside" in " ".join(warnings)
    assert "no file of Lithify" not in " ".join(warnings)


def test_a_journal_keeps_what_a_run_has_written_so_far() -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        fill(log, 14)
    kept = ["000000000001-5f3a.dead", "000000000009-5f3a.keys", "000000000009-5f3a.seg"]
    for name in [*kept, "JOURNAL", "000000000010.seg"]:
        overwrite(fs, f"{DIRECTORY}/{name}", b"")
    open_log(fs)
    assert set(kept) | {"JOURNAL"} <= set(fs.list(DIRECTORY))
    assert not fs.exists(f"{DIRECTORY}/000000000010.seg")


def test_retired_files_outlive_a_restart() -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        fill(log, 14)
        log.drop_head(7)
    with open_log(fs) as log:
        assert fs.exists(ACTIVE)
        assert log.reclaim().files == 1
    assert not fs.exists(ACTIVE)


# Files that are not what their name says


def test_a_newer_manifest_is_refused() -> None:
    fs = killed(MemoryFileSystem(), b"one")
    data = read_file(fs, f"{DIRECTORY}/MANIFEST")
    overwrite(fs, f"{DIRECTORY}/MANIFEST", data.replace(b"manifest 1 ", b"manifest 3 "))
    text = "/log/MANIFEST has format version 3, this build reads up to 1"
    fails_and_changes_nothing(fs, UnsupportedVersion, text)


def test_a_damaged_manifest_is_refused() -> None:
    fs = killed(MemoryFileSystem(), b"one")
    fs.flip(f"{DIRECTORY}/MANIFEST", 60)
    fails_and_changes_nothing(fs, DamagedFile, "/log/MANIFEST at byte 0: CRC-32C does not match")


def test_a_newer_segment_is_refused() -> None:
    fs = killed(MemoryFileSystem(), b"one")
    data = bytearray(read_file(fs, ACTIVE))
    data[8] = 9
    data[60:64] = crc32c(data[:60]).to_bytes(4, "little")
    overwrite(fs, ACTIVE, bytes(data))
    fails_and_changes_nothing(fs, UnsupportedVersion, "has format version 9")


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"hello", "is shorter than a segment header"), (b"PNG" * 50, "begins with b'PNGPNGPN'")],
)
def test_a_foreign_file_in_the_place_of_the_active_segment_is_refused(
    data: bytes, text: str
) -> None:
    fs = killed(MemoryFileSystem(), b"one")
    overwrite(fs, ACTIVE, data)
    fails_and_changes_nothing(fs, NotASegment, text)


def test_a_segment_of_another_log_is_refused() -> None:
    fs = killed(MemoryFileSystem(), b"one")
    other = Log.open(fs, "/other", kind="test", random_bytes=lambda count: b"x" * count)
    other.append(b"not yours").result()
    overwrite(fs, ACTIVE, read_file(fs, "/other/000000000001.seg"))
    fails_and_changes_nothing(fs, DamagedFile, "is not segment 1 of this log")


def test_a_log_of_another_kind_is_refused() -> None:
    fs = killed(MemoryFileSystem(), b"one")
    with pytest.raises(InvalidInput, match="/log is a log of kind 'test', not 'blob'"):
        Log.open(fs, DIRECTORY, kind="blob")
    assert contents(open_log(fs)) == {0: b"one"}


# Positions


def test_the_last_position_is_known_when_all_entries_were_dropped() -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        fill(log, 10)
        log.roll()
        log.drop_head(10)
        log.reclaim()
        assert (log.last_position, log.next_position) == (9, 10)
    with open_log(fs) as log:
        assert (log.last_position, log.next_position) == (9, 10)
        assert contents(log) == {}


def test_a_manifest_from_before_the_last_entries_is_a_lower_bound() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, LARGE)
    fill(log, 3)
    manifest = read_manifest(fs, DIRECTORY)
    assert manifest.last_position == -1
    fs = fs.kill_clone()
    log = open_log(fs, LARGE)
    assert (log.last_position, log.next_position) == (2, 3)


def test_a_clean_close_records_the_durable_size() -> None:
    fs = MemoryFileSystem()
    events: list[Event] = []
    with open_log(fs, LARGE, events=events.append) as log:
        fill(log, 3)
    assert events == [Published(DIRECTORY, 2, "close")]
    manifest = read_manifest(fs, DIRECTORY)
    assert (manifest.synced_bytes, manifest.last_position) == (fs.stat(ACTIVE).size, 2)
    with open_log(fs, LARGE) as log:
        assert log.manifest == manifest
    assert read_manifest(fs, DIRECTORY) == manifest, "nothing new, nothing published"


def test_a_manifest_that_promises_more_than_there_is_is_refused() -> None:
    fs = killed(MemoryFileSystem(), b"one")
    manifest = read_manifest(fs, DIRECTORY)
    write_manifest(fs, DIRECTORY, replace(manifest, synced_bytes=5000))
    fails_and_changes_nothing(fs, DamagedFrame, "its writer knew the first 5000 bytes")


def test_a_recovered_segment_is_sealed_as_if_it_had_never_been_left() -> None:
    plain, broken = MemoryFileSystem(), MemoryFileSystem()
    times = [LogEntry(i, 1000 - i, bytes(30_000)) for i in range(8)]
    for fs in (plain, broken):
        log = open_log(fs, LARGE)
        for entry in times:
            log.append(entry.body, time_ms=entry.time_ms).result()
        if fs is broken:
            log.abandon()
            log = open_log(fs, LARGE)
        log.roll()
        log.close()
    assert read_file(plain, ACTIVE) == read_file(broken, ACTIVE)


# What opening costs


def test_a_log_that_is_only_opened_and_read_costs_a_lock_and_no_fsync() -> None:
    memory = MemoryFileSystem()
    with open_log(memory) as log:
        fill(log, 20)
    fs = FaultyFileSystem(memory, record=True)
    with open_log(fs) as log:
        assert len(contents(log)) == 20
        log.maintain()
    changes = [line.split()[0] for line in fs.trace if line.split()[0] in MUTATING]
    assert changes == ["lock", "open_append"]


def killed_before_the_names_are_durable() -> MemoryFileSystem:
    """The disk of a process that was killed between the rename of a manifest and its fsync."""
    memory = MemoryFileSystem()
    fs = FaultyFileSystem(memory)
    log = open_log(fs, LARGE)
    fill(log, 3)
    fs.add(Fault("rename", kind="CRASH_AFTER"))
    with pytest.raises(PowerCut):
        log.roll()
    return memory.kill_clone()


def test_nothing_is_acknowledged_in_a_generation_that_a_power_cut_could_undo() -> None:
    for seed in range(20):
        fs = killed_before_the_names_are_durable()
        log = open_log(fs, LARGE)
        assert log.manifest.generation == 2
        assert log.append(b"acknowledged").result() == 3
        log = open_log(fs.crash_clone(random.Random(seed)), LARGE)
        assert contents(log)[3] == b"acknowledged"


def test_no_file_is_removed_in_a_generation_that_a_power_cut_could_undo() -> None:
    fs = FaultyFileSystem(killed_before_the_names_are_durable(), record=True)
    overwrite(fs, f"{DIRECTORY}/000000000099.seg", b"of no manifest")
    fs.trace.clear()
    open_log(fs, LARGE)
    order = [line.split()[0] for line in fs.trace if line.startswith(("sync_dir", "remove"))]
    assert order == ["sync_dir", "remove", "sync_dir"]


def test_a_log_that_is_opened_and_left_may_still_go_back_a_generation() -> None:
    seen = set()
    for seed in range(20):
        fs = killed_before_the_names_are_durable()
        open_log(fs, LARGE).close()
        log = open_log(fs.crash_clone(random.Random(seed)), LARGE)
        seen.add(log.manifest.generation)
        assert len(contents(log)) == 3
    assert seen == {1, 2}
