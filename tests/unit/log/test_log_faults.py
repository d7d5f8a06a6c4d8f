"""Full disks, failing fsyncs and half-made renames: an error, no loss, and the log continues."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest

from lithify.errors import WriteFailed
from lithify.events import Event, WriteRefused
from lithify.fs import MemoryFileSystem
from lithify.log.segments.frame import NewEntry
from lithify.settings import Durability, LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.unit.log.helpers import DIRECTORY, LAZY, SMALL, contents, fill, open_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import File

ACTIVE = f"{DIRECTORY}/000000000001.seg"
FULL = "No space left on device"


def faulty(*rules: str) -> tuple[FaultyFileSystem, MemoryFileSystem]:
    disk = MemoryFileSystem()
    return FaultyFileSystem(disk, [Fault.parse(rule) for rule in rules]), disk


def check_after_crashes(disk: MemoryFileSystem, acknowledged: dict[int, bytes]) -> None:
    """Whatever a power cut leaves, what was acknowledged is there and the log continues."""
    for seed in range(60):
        left = disk.crash_clone(random.Random(seed))
        with open_log(left) as log:
            found = contents(log)
            assert acknowledged.items() <= found.items(), f"seed {seed}"
            position = log.append(b"continues").result()
            assert position not in found
            log.roll()


# A full disk


@pytest.mark.parametrize("settings", [SMALL, LAZY])
def test_a_disk_that_is_full_loses_nothing_and_works_again(settings: LogSettings) -> None:
    disk = MemoryFileSystem(capacity_bytes=5000)
    log = open_log(disk, settings)
    with disk.open_append("/ballast") as ballast:
        ballast.write(bytes(2000))
    written: dict[int, bytes] = {}

    def append_for_ever() -> None:
        while True:
            body = b"%d" % log.next_position * 30
            written[log.append(body).result()] = body

    with pytest.raises(WriteFailed, match=FULL) as refused:
        append_for_ever()
    assert refused.value.cause.errno == errno.ENOSPC
    assert contents(log) == written
    with pytest.raises(WriteFailed, match=FULL):
        log.append(bytes(4000))
    disk.remove("/ballast")
    written[log.append(b"space again").result()] = b"space again"
    log.roll()
    written[log.append(b"and again").result()] = b"and again"
    assert contents(log) == written
    log.close()
    with open_log(disk) as log:
        assert contents(log) == written


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_batch_that_does_not_fit_is_not_acknowledged(nth: int) -> None:
    fs, disk = faulty()
    log = open_log(fs)
    fill(log, 3)
    acknowledged = contents(log)
    bodies = [b"%d" % n * 60 for n in range(10, 35)]
    fs.add(Fault("write", "*.seg", nth=nth, kind="SHORT"))
    with pytest.raises(WriteFailed, match=FULL):
        log.append_many(bodies)
    fs.clear()
    again = log.append_many(bodies).result()
    found = contents(log)
    assert acknowledged.items() <= found.items()
    assert [found[p] for p in range(again - 24, again + 1)] == bodies
    check_after_crashes(disk, found)


@pytest.mark.parametrize(
    "rule",
    [
        "writev *1.seg SHORT",
        "fsync *1.seg EIO",
        "open_append *2.seg ENOSPC",
        "write *2.seg SHORT",
        "fsync *2.seg EIO",
        "write *MANIFEST.tmp SHORT",
        "fsync *MANIFEST.tmp EIO",
        "rename * EIO",
        "sync_dir * EIO",
        "sync_dir * nth=2 EIO",
        "sync_dir * nth=2 count=2 EIO",
    ],
)
@pytest.mark.parametrize("settings", [SMALL, LAZY])
def test_a_roll_that_fails_anywhere_is_repeated(rule: str, settings: LogSettings) -> None:
    fs, disk = faulty()
    log = open_log(fs, settings)
    fill(log, 5)
    acknowledged = contents(log)
    waiting = log.append(b"waits")
    fs.add(Fault.parse(rule))
    with pytest.raises(WriteFailed):
        log.roll()
    check_after_crashes(disk, acknowledged)
    fs.clear()
    try:
        acknowledged[waiting.result()] = b"waits"
    except WriteFailed:
        assert settings is SMALL
    acknowledged[log.append(b"next").result()] = b"next"
    log.sync()
    assert acknowledged.items() <= contents(log).items()
    log.roll()
    acknowledged[log.append(b"last").result()] = b"last"
    log.sync()
    assert acknowledged == {p: b for p, b in contents(log).items() if p in acknowledged}
    check_after_crashes(disk, acknowledged)
    log.close()
    opens = [disk.file(f"{DIRECTORY}/{s.name}").opens for s in log.manifest.segments]
    assert sum(opens) == 0, "no file is left open by the failure"
    check_after_crashes(disk, acknowledged)


def test_a_roll_whose_file_cannot_be_made_durable_leaves_no_file_open() -> None:
    fs, disk = faulty("fsync *2.seg count=5 EIO")
    log = open_log(fs)
    fill(log, 3)
    for _ in range(5):
        with pytest.raises(WriteFailed):
            log.roll()
    assert disk.file(f"{DIRECTORY}/000000000002.seg").opens == 0


def test_a_generation_that_is_not_durable_yet_takes_no_entries() -> None:
    fs, disk = faulty()
    log = open_log(fs)
    fill(log, 5)
    acknowledged = contents(log)
    fs.add(Fault("sync_dir", nth=2, count=None))
    with pytest.raises(WriteFailed, match="/log/MANIFEST: Input/output error"):
        log.roll()
    assert len(log.manifest.segments) == 2, "the rename was made"
    for _ in range(2):
        with pytest.raises(WriteFailed):
            log.append(b"refused")
        with pytest.raises(WriteFailed):
            log.publish(lambda m: m, "refused")
    assert contents(log) == acknowledged, "reading continues"
    check_after_crashes(disk, acknowledged)
    fs.clear()
    acknowledged[log.append(b"taken").result()] = b"taken"
    assert contents(log) == acknowledged
    check_after_crashes(disk, acknowledged)


# Failing fsyncs


def test_without_durability_a_failed_fsync_fails_the_explicit_sync_only() -> None:
    fs, _ = faulty("fdatasync * EIO")
    events: list[Event] = []
    log = open_log(fs, LAZY, events=events.append)
    assert log.append(b"x").result() == 0
    with pytest.raises(WriteFailed, match="Input/output error"):
        log.sync()
    assert [type(event) for event in events] == [WriteRefused]
    assert contents(log) == {0: b"x"}
    log.sync()
    assert log.append(b"y").result() == 1


def test_closing_raises_if_not_everything_is_durable() -> None:
    fs, disk = faulty("fdatasync * EIO")
    log = open_log(fs)
    log.append(b"x")
    with pytest.raises(WriteFailed):
        log.close()
    assert log.closed
    open_log(disk).close()


def test_a_failed_write_names_its_file() -> None:
    fs, _ = faulty("writev *.seg SHORT")
    events: list[Event] = []
    log = open_log(fs, events=events.append)
    with pytest.raises(WriteFailed, match=r"^/log/000000000001\.seg: No space left on device"):
        log.append(b"x")
    assert events == [WriteRefused(DIRECTORY, ACTIVE, f"[Errno {errno.ENOSPC}] {FULL}: '{ACTIVE}'")]
    assert log.append(b"y").result() == 1, "the position may come back with a power cut"
    assert contents(log) == {1: b"y"}


@pytest.mark.parametrize("durability", Durability)
def test_torn_bytes_are_cut_before_the_next_write_though_cutting_failed_at_first(
    durability: Durability,
) -> None:
    fs, disk = faulty()
    settings = LogSettings(segment_bytes_max=1024, durability=durability)
    log = open_log(fs, settings)
    fill(log, 2)
    fs.add(Fault("writev", kind="SHORT"))
    fs.add(Fault("truncate", count=2))
    with pytest.raises(WriteFailed, match=FULL):
        log.append(b"torn" * 20)
    with pytest.raises(WriteFailed, match="Input/output error"):
        log.append(b"refused")
    fs.clear()
    log.append(b"whole").result()
    log.sync()
    assert list(contents(log).values())[2:] == [b"whole"]
    log.abandon()
    with open_log(disk) as log:
        assert list(contents(log).values())[2:] == [b"whole"]


def test_a_failed_open_releases_the_lock() -> None:
    for nth in range(1, 40):
        fs, disk = faulty()
        with open_log(fs) as log:
            fill(log, 9)
        with disk.open_append(f"{DIRECTORY}/000000000002.seg") as file:
            file.write(b"torn")
        fs.add(Fault("mutating", nth=nth))
        try:
            log = open_log(fs)
        except (OSError, WriteFailed):
            fs.clear()
            log = open_log(fs)
        else:
            if nth > 30:
                return
        fs.clear()
        assert list(contents(log)) == list(range(9))
        assert log.append(b"x").result() == 9
        log.close()


# Interrupts


@pytest.mark.parametrize("settings", [SMALL, LAZY])
@pytest.mark.parametrize("call", ["writev", "write", "fsync"])
def test_an_interrupt_behind_a_write_leaves_nothing_that_is_not_counted(
    call: str, settings: LogSettings
) -> None:
    """The bytes have landed, but their writer ended before it could acknowledge them."""
    disk = MemoryFileSystem()
    log = open_log(disk, settings)
    log.append(b"before").result()
    steps: dict[str, Callable[[], object]] = {
        "writev": lambda: log.append(bytes(300)),
        "write": lambda: log.append_many([bytes(100)] * 3),
        "fsync": log.roll,
    }
    with disk.open_read(ACTIVE) as opened:
        file = type(opened)
    real = getattr(file, call)

    def interrupted(self: File, *args: object) -> None:
        real(self, *args)
        if self.path == ACTIVE:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            steps[call]()
    position = log.append(b"after").result()
    assert position == {"writev": 2, "write": 4, "fsync": 1}[call]
    expected = {0: b"before", position: b"after"}
    log.roll()
    assert contents(log) == expected
    check_after_crashes(disk, expected)
    log.close()
    with open_log(disk, settings) as log:
        assert contents(log) == expected


# Appends that must follow each other


def test_an_append_after_a_failed_one_fails() -> None:
    fs, disk = faulty("fdatasync * nth=1 EIO")
    log = open_log(fs)
    first = log.append(b"first")
    with pytest.raises(WriteFailed):
        first.result()
    with pytest.raises(WriteFailed):
        log.append_together([NewEntry(b"second", time_ms=1)], after=first)
    assert contents(log) == {}
    again = log.append(b"again")
    parts = NewEntry(b"in two ", time_ms=1, more=b"pieces")
    behind = log.append_together([parts, NewEntry(b"beside", time_ms=2)], after=again)
    last = behind.result()
    assert contents(log) == {last - 2: b"again", last - 1: b"in two pieces", last: b"beside"}
    check_after_crashes(disk, contents(log))
