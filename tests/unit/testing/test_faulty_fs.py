"""Rules as text, faults where the rules say, and processes that stay dead."""

from __future__ import annotations

import errno
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.errors import InvalidInput
from lithify.fs import File, FileSystem, MemoryFileSystem, read_file, write_atomic
from lithify.testing.faulty_fs import KINDS, MUTATING, Fault, FaultyFileSystem, PowerCut

FULL = f"Errno {errno.ENOSPC}"
BROKEN = f"Errno {errno.EIO}"


def faulty(*rules: str) -> FaultyFileSystem:
    return FaultyFileSystem(MemoryFileSystem(), [Fault.parse(rule) for rule in rules])


# Rules


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("write *.seg nth=3 ENOSPC", Fault("write", "*.seg", nth=3, kind="ENOSPC")),
        ("fsync * nth=1 count=* EIO", Fault("fsync", count=None)),
        ("* a/b nth=2 count=5 CRASH", Fault("*", "a/b", nth=2, count=5, kind="CRASH")),
        ("pread * nth=1 seconds=0.5 SLOW", Fault("pread", kind="SLOW", seconds=0.5)),
    ],
)
def test_a_rule_prints_and_reads_back(text: str, fault: Fault) -> None:
    assert str(fault) == text
    assert Fault.parse(text) == fault


def test_a_short_rule_means_the_first_match() -> None:
    assert Fault.parse("rename * CRASH") == Fault("rename", kind="CRASH")


@settings(deadline=None)
@given(
    st.builds(
        Fault,
        operation=st.sampled_from(["*", "write", "f*sync", "mutating"]),
        path=st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1),
        nth=st.integers(1, 10**6),
        count=st.none() | st.integers(1, 10**6),
        kind=st.sampled_from(sorted(KINDS)),
        seconds=st.floats(0, 1e9),
    )
)
def test_every_rule_reads_back(fault: Fault) -> None:
    assert Fault.parse(str(fault)) == fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "write EIO",
        "write * EBADF",
        "write * nth=0 EIO",
        "write * nth=x EIO",
        "write * count=0 EIO",
        "write * seconds=-1 SLOW",
        "write * often=1 EIO",
        "write * nth EIO",
    ],
)
def test_an_invalid_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Fault.parse(text)


def test_a_pattern_with_a_space_is_refused() -> None:
    with pytest.raises(InvalidInput, match="without spaces"):
        Fault("write", "a b")


# Errors


def test_the_nth_match_fails_and_nothing_is_done() -> None:
    fs = faulty("write *.seg nth=2 ENOSPC")
    with fs.open_append("1.seg") as segment, fs.open_append("other") as other:
        segment.write(b"a")
        other.write(b"not counted by the rule")
        with pytest.raises(OSError, match=FULL):
            segment.write(b"b")
        segment.write(b"c")
        assert segment.pread(9, 0) == b"ac"


def test_count_matches_fail_and_then_it_works_again() -> None:
    fs = faulty("fsync * nth=2 count=2 EIO")
    with fs.open_append("log") as file:
        file.fsync()
        for _ in range(2):
            with pytest.raises(OSError, match=BROKEN):
                file.fsync()
        file.fsync()


def test_for_ever_means_until_the_rules_are_cleared() -> None:
    fs = faulty("list * count=* EIO")
    for _ in range(5):
        with pytest.raises(OSError, match=BROKEN):
            fs.list("/")
    fs.clear()
    assert fs.list("/") == []


def test_a_rule_added_later_counts_from_then() -> None:
    fs = faulty()
    fs.list("/")
    fs.add(Fault("list", nth=2))
    fs.list("/")
    with pytest.raises(OSError, match=BROKEN):
        fs.list("/")


def test_a_rename_is_matched_by_either_path() -> None:
    fs = faulty("rename old EIO", "rename new nth=2 EIO")
    fs.open_append("old").close()
    with pytest.raises(OSError, match=BROKEN):
        fs.rename("old", "x")
    fs.rename("old", "new")
    with pytest.raises(OSError, match=BROKEN):
        fs.rename("x", "new")


def test_short_lands_half_and_then_the_disk_is_full() -> None:
    fs = faulty("write * nth=2 SHORT", "writev * SHORT", "copy_range * SHORT", "fsync * SHORT")
    with fs.open_append("log") as file:
        file.write(b"abcd")
        with pytest.raises(OSError, match=FULL):
            file.write(b"efgh")
        with pytest.raises(OSError, match=FULL):
            file.writev([b"i", b"jk", b"l"])
        with pytest.raises(OSError, match=FULL):
            fs.copy_range(file, 0, file, 4)
        with pytest.raises(OSError, match=FULL):
            file.fsync()
        assert file.pread(99, 0) == b"abcdefijab"


def test_slow_takes_time_and_then_works() -> None:
    clock = ManualClock()
    rule = Fault("write", kind="SLOW", seconds=1.5, count=2)
    fs = FaultyFileSystem(MemoryFileSystem(), [rule], clock)
    start_s = clock.monotonic_s()
    with fs.open_append("log") as file:
        for _ in range(3):
            file.write(b"x")
    assert clock.monotonic_s() - start_s == pytest.approx(3)
    assert read_file(fs, "log") == b"xxx"


# Power cuts


def test_no_handler_of_errors_survives_a_power_cut() -> None:
    assert not issubclass(PowerCut, Exception)


def test_a_crash_happens_before_the_operation_and_is_final() -> None:
    fs = faulty("write * CRASH")
    file = fs.open_append("log")
    lock = fs.lock("lock", "us")
    assert lock is not None
    with pytest.raises(PowerCut, match="operation 3: write log"):
        file.write(b"abc")
    fs.clear()
    for use in (lambda: fs.list("/"), file.size, lambda: fs.exists("log")):
        with pytest.raises(PowerCut, match="operation 3: write log"):
            use()
    file.close()
    lock.release()
    assert fs.operations == 3
    assert read_file(fs.inner, "log") == b""


def test_crash_after_comes_when_the_operation_is_done() -> None:
    fs = faulty("write * CRASH_AFTER")
    with fs.open_append("log") as file, pytest.raises(PowerCut):
        file.write(b"abc")
    assert read_file(fs.inner, "log") == b"abc"


def test_crash_after_an_operation_that_failed_is_a_crash_as_well() -> None:
    fs = faulty("remove missing CRASH_AFTER")
    with pytest.raises(PowerCut):
        fs.remove("missing")


def publish(fs: FileSystem) -> None:
    write_atomic(fs, "MANIFEST", b"one")
    write_atomic(fs, "MANIFEST", b"two")


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
@pytest.mark.parametrize("operation", ["*", "mutating"])
def test_write_atomic_survives_a_crash_at_every_operation(operation: str, kind: str) -> None:
    seen = []
    for nth in range(1, 100):
        memory = MemoryFileSystem()
        fs = FaultyFileSystem(memory, [Fault(operation, nth=nth, kind=kind)])
        try:
            publish(fs)
        except PowerCut:
            clones = [memory.crash_clone(random.Random(seed)) for seed in range(30)]
            seen.append({read_file(c, "MANIFEST") for c in clones if c.exists("MANIFEST")})
        else:
            break
    assert len(seen) == 12
    assert set().union(*seen) == {b"one", b"two"}
    assert all(found <= {b"one", b"two"} for found in seen)


# Counting


def every_operation(fs: FileSystem) -> None:
    fs.mkdir("d")
    file = fs.open_append("f")
    file.write(b"abc")
    file.writev([b"def"])
    file.overwrite(b"x", 0)
    file.truncate(5)
    file.fsync()
    file.fdatasync()
    file.size()
    file.pread(1, 0)
    file.readinto(bytearray(1), 0)
    copy: File = fs.open_append("b")
    fs.copy_range(file, 0, copy, 2)
    copy.close()
    file.close()
    fs.open_read("f").close()
    fs.rename("b", "c")
    fs.link("f", "l")
    fs.symlink("f", "s")
    fs.remove("s")
    fs.rmdir("d")
    fs.list("/")
    fs.stat("f")
    fs.exists("f")
    fs.free_bytes("/")
    fs.sync_dir("/")
    lock = fs.lock("k", "us")
    assert lock is not None
    lock.release()


EVERY_OPERATION = """\
mkdir d
open_append f
write f
writev f
overwrite f
truncate f
fsync f
fdatasync f
size f
pread f
readinto f
open_append b
copy_range f b
open_read f
rename b c
link f l
symlink f s
remove s
rmdir d
list /
stat f
exists f
free_bytes /
sync_dir /
lock k
"""


def test_every_operation_is_counted_and_recorded() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    every_operation(fs)
    assert fs.trace == EVERY_OPERATION.splitlines()
    assert fs.operations == len(fs.trace)


@pytest.mark.parametrize("nth", range(1, len(EVERY_OPERATION.splitlines()) + 1))
def test_every_operation_can_fail(nth: int) -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), [Fault("*", nth=nth)])
    with pytest.raises(OSError, match=BROKEN):
        every_operation(fs)
    assert fs.operations == nth


def test_mutating_names_exactly_the_operations_that_change_the_disk() -> None:
    names = [line.split()[0] for line in EVERY_OPERATION.splitlines()]
    reading = {"size", "pread", "readinto", "open_read", "list", "stat", "exists", "free_bytes"}
    assert set(names) - reading == MUTATING
    last = sum(name in MUTATING for name in names)
    fs = FaultyFileSystem(MemoryFileSystem(), [Fault("mutating", nth=last, kind="CRASH")])
    with pytest.raises(PowerCut, match="lock k"):
        every_operation(fs)


def test_nothing_is_recorded_by_default() -> None:
    fs = faulty()
    every_operation(fs)
    assert fs.trace == []


def test_threads_are_counted_exactly() -> None:
    fs = faulty("exists * nth=4000 CRASH")

    def work() -> None:
        for _ in range(999):
            fs.exists("x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fs.operations == 3996
    for _ in range(3):
        fs.exists("x")
    with pytest.raises(PowerCut):
        fs.exists("x")
