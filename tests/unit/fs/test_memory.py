"""What a power cut, a kill, a full disk and a flipped bit leave in the in-memory file system."""

from __future__ import annotations

import errno
import random
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem, read_file, replace_file, sync_replaced, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(400)


def outcomes(fs: MemoryFileSystem, look: Callable[[MemoryFileSystem], object]) -> set[object]:
    """What `look` sees after each of many power cuts."""
    return {look(fs.crash_clone(random.Random(seed))) for seed in SEEDS}


def content(path: str) -> Callable[[MemoryFileSystem], bytes | None]:
    return lambda fs: read_file(fs, path) if fs.exists(path) else None


def names(fs: MemoryFileSystem) -> tuple[str, ...]:
    return tuple(fs.list("/"))


def put(fs: MemoryFileSystem, path: str, data: bytes, *, durable: bool) -> None:
    with fs.open_append(path) as file:
        file.write(data)
        if durable:
            file.fsync()
    if durable:
        fs.sync_dir("/")


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem()


# Bytes


def test_synced_bytes_stay_and_a_later_write_stays_vanishes_or_is_torn(
    fs: MemoryFileSystem,
) -> None:
    put(fs, "log", b"kept", durable=True)
    put(fs, "log", b"abc", durable=False)
    assert outcomes(fs, content("log")) == {b"kept", b"kepta", b"keptab", b"keptabc"}


def test_fdatasync_is_enough_for_bytes(fs: MemoryFileSystem) -> None:
    with fs.open_append("log") as file:
        file.write(b"abc")
        file.fdatasync()
    fs.sync_dir("/")
    assert outcomes(fs, content("log")) == {b"abc"}


def test_writes_survive_out_of_order_with_zeros_in_the_hole(fs: MemoryFileSystem) -> None:
    put(fs, "log", b"", durable=True)
    with fs.open_append("log") as file:
        file.write(b"a")
        file.write(b"b")
    assert outcomes(fs, content("log")) == {b"", b"a", b"ab", b"\0b"}


def test_an_overwrite_stays_vanishes_or_is_torn(fs: MemoryFileSystem) -> None:
    put(fs, "log", b"abcd", durable=True)
    with fs.open_append("log") as file:
        file.overwrite(b"XY", 1)
    assert outcomes(fs, content("log")) == {b"abcd", b"aXcd", b"aXYd"}


def test_a_truncation_may_not_have_happened(fs: MemoryFileSystem) -> None:
    put(fs, "log", b"old", durable=True)
    with fs.open_append("log") as file:
        file.truncate(1)
    assert outcomes(fs, content("log")) == {b"old", b"o"}
    with fs.open_append("log") as file:
        file.write(b"N")
    assert outcomes(fs, content("log")) == {b"old", b"o", b"oN", b"oNd"}


def test_without_a_synced_name_there_is_perhaps_no_file(fs: MemoryFileSystem) -> None:
    with fs.open_append("log") as file:
        file.write(b"abc")
        file.fsync()
    assert outcomes(fs, content("log")) == {None, b"abc"}


# Names


def test_a_rename_shows_the_old_file_or_the_new_and_never_none(fs: MemoryFileSystem) -> None:
    put(fs, "file", b"old", durable=True)
    put(fs, "file.tmp", b"new", durable=True)
    fs.rename("file.tmp", "file")
    seen = outcomes(fs, lambda crashed: (names(crashed), content("file")(crashed)))
    assert seen == {(("file", "file.tmp"), b"old"), (("file",), b"new")}
    fs.sync_dir("/")
    assert outcomes(fs, content("file")) == {b"new"}


def test_a_rename_of_bytes_that_were_not_synced_loses_them(fs: MemoryFileSystem) -> None:
    put(fs, "file", b"old", durable=True)
    put(fs, "file.tmp", b"new", durable=False)
    fs.rename("file.tmp", "file")
    fs.sync_dir("/")
    assert outcomes(fs, content("file")) == {b"", b"n", b"ne", b"new"}


def test_a_rename_between_directories_is_never_half(fs: MemoryFileSystem) -> None:
    fs.mkdir("a")
    fs.mkdir("b")
    put(fs, "a/x", b"", durable=False)
    fs.rename("a/x", "b/y")

    def where(crashed: MemoryFileSystem) -> tuple[bool, bool]:
        return crashed.exists("a/x"), crashed.exists("b/y")

    assert outcomes(fs, where) == {(False, False), (True, False), (False, True)}
    fs.sync_dir("b")
    assert outcomes(fs, where) == {(False, True)}


def test_a_chain_of_renames_leaves_one_name(fs: MemoryFileSystem) -> None:
    put(fs, "a", b"", durable=True)
    fs.rename("a", "b")
    fs.rename("b", "c")
    assert outcomes(fs, names) == {("a",), ("b",), ("c",)}


def test_each_pending_name_change_happens_or_does_not(fs: MemoryFileSystem) -> None:
    put(fs, "a", b"", durable=True)
    fs.link("a", "b")
    fs.symlink("a", "c")
    fs.remove("a")
    every_subset = {some for count in range(4) for some in combinations("abc", count)}
    assert outcomes(fs, names) == every_subset
    fs.sync_dir("/")
    assert outcomes(fs, names) == {("b", "c")}


def test_syncing_one_directory_says_nothing_about_another(fs: MemoryFileSystem) -> None:
    fs.mkdir("a")
    fs.mkdir("b")
    put(fs, "a/x", b"", durable=False)
    put(fs, "b/y", b"", durable=False)
    fs.sync_dir("a")
    assert outcomes(fs, lambda crashed: crashed.exists("a/x")) == {True}
    assert outcomes(fs, lambda crashed: crashed.exists("b/y")) == {True, False}


def test_hard_links_stay_one_file_and_are_recounted(fs: MemoryFileSystem) -> None:
    fs.mkdir("sub")
    put(fs, "a", b"abc", durable=True)
    fs.link("a", "sub/b")
    fs.sync_dir("sub")
    fs.remove("a")

    def shared(crashed: MemoryFileSystem) -> tuple[bool, int]:
        if crashed.exists("a"):
            put(crashed, "a", b"d", durable=False)
        return read_file(crashed, "sub/b") == b"abcd", crashed.stat("sub/b").links

    assert outcomes(fs, shared) == {(True, 2), (False, 1)}


def test_made_directories_are_durable_and_removed_ones_perhaps_gone(fs: MemoryFileSystem) -> None:
    fs.mkdir("a/b")
    assert outcomes(fs, lambda crashed: crashed.exists("a/b")) == {True}
    fs.rmdir("a/b")
    assert outcomes(fs, lambda crashed: crashed.exists("a/b")) == {True, False}


def test_the_root_can_neither_move_nor_go(fs: MemoryFileSystem) -> None:
    with pytest.raises(OSError, match=f"Errno {errno.EBUSY}"):
        fs.rmdir("/")
    with pytest.raises(OSError, match=f"Errno {errno.EBUSY}"):
        fs.rename("/", "/x")


# Clones


def test_a_seed_is_a_crash_that_can_be_played_again(fs: MemoryFileSystem) -> None:
    for number in range(20):
        put(fs, f"file{number}", bytes([number]) * 50, durable=False)

    def whole(crashed: MemoryFileSystem) -> list[tuple[str, bytes]]:
        return [(name, read_file(crashed, name)) for name in crashed.list("/")]

    crashes = [whole(fs.crash_clone(random.Random(seed))) for seed in range(20)]
    assert crashes == [whole(fs.crash_clone(random.Random(seed))) for seed in range(20)]
    assert len({str(crash) for crash in crashes}) > 5


def test_clones_and_the_original_go_their_own_ways(fs: MemoryFileSystem) -> None:
    put(fs, "log", b"abc", durable=True)
    with fs.open_append("log") as file:
        for clone in (fs.crash_clone(random.Random(1)), fs.kill_clone()):
            file.write(b"!")
            put(clone, "log", b"?", durable=True)
            clone.remove("log")
    assert read_file(fs, "log") == b"abc!!"


def test_bytes_that_survived_a_crash_survive_the_next(fs: MemoryFileSystem) -> None:
    put(fs, "log", b"abcdef", durable=False)
    for seed in range(10):
        crashed = fs.crash_clone(random.Random(seed))
        assert outcomes(crashed, content("log")) == {content("log")(crashed)}


def test_a_kill_loses_nothing_but_makes_nothing_durable(fs: MemoryFileSystem) -> None:
    put(fs, "log", b"ab", durable=True)
    put(fs, "log", b"c", durable=False)
    fs.rename("log", "renamed")
    killed = fs.kill_clone()
    assert names(killed) == ("renamed",)
    assert read_file(killed, "renamed") == b"abc"
    assert outcomes(killed, names) == {("log",), ("renamed",)}
    seen = outcomes(killed, lambda crashed: read_file(crashed, crashed.list("/")[0]))
    assert seen == {b"ab", b"abc"}


def test_no_locks_are_held_in_clones(fs: MemoryFileSystem) -> None:
    assert fs.lock("lock", "first") is not None
    fs.sync_dir("/")
    for clone in (fs.kill_clone(), fs.crash_clone(random.Random(1))):
        lock = clone.lock("lock", "second")
        assert lock is not None
        assert fs.lock("lock", "third") is None
        lock.release()


def test_new_files_in_a_clone_have_new_inode_numbers(fs: MemoryFileSystem) -> None:
    put(fs, "a", b"", durable=True)
    clone = fs.crash_clone(random.Random(1))
    put(clone, "b", b"", durable=False)
    assert clone.stat("b").inode > clone.stat("a").inode


# Space, time and damage


def test_a_full_disk_takes_what_fits() -> None:
    fs = MemoryFileSystem(capacity_bytes=10)
    with fs.open_append("log") as file:
        file.write(b"1234567")
        assert fs.free_bytes("log") == 3
        with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
            file.write(b"abcdef")
        assert file.size() == 10
        assert fs.free_bytes("/") == 0
        with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
            file.truncate(11)
        file.truncate(7)
        file.writev([b"a", b"b"])
        assert file.pread(99, 0) == b"1234567ab"
    assert fs.free_bytes("/") == 1


def test_space_is_freed_with_the_last_name_and_the_last_reader() -> None:
    fs = MemoryFileSystem(capacity_bytes=10)
    put(fs, "a", b"1234", durable=True)
    fs.link("a", "b")
    reader = fs.open_read("a")
    fs.remove("a")
    assert fs.free_bytes("/") == 6
    put(fs, "c", b"", durable=False)
    fs.rename("c", "b")
    assert fs.free_bytes("/") == 6
    assert fs.kill_clone().free_bytes("/") == 10
    reader.close()
    reader.close()
    assert fs.free_bytes("/") == 10


def test_a_clone_has_the_space_its_files_leave() -> None:
    fs = MemoryFileSystem(capacity_bytes=10)
    put(fs, "a", b"1234", durable=True)
    put(fs, "a", b"5678", durable=False)
    for seed in range(50):
        crashed = fs.crash_clone(random.Random(seed))
        assert crashed.free_bytes("/") == 10 - crashed.stat("a").size


def test_times_come_from_the_clock() -> None:
    clock = ManualClock(start_ms=5000)
    fs = MemoryFileSystem(clock=clock)
    put(fs, "a", b"x", durable=False)
    clock.advance(1)
    put(fs, "a", b"x", durable=False)
    put(fs, "b", b"", durable=False)
    clock.advance(1)
    fs.remove("b")
    assert (fs.stat("a").mtime_ms, fs.stat("/").mtime_ms) == (6000, 7000)


def test_a_flipped_bit_is_read_and_survives_a_crash(fs: MemoryFileSystem) -> None:
    put(fs, "log", b"abc", durable=True)
    fs.flip("log", 1)
    assert read_file(fs, "log") == b"acc"
    fs.flip("log", 0, mask=0xFF)
    assert outcomes(fs, content("log")) == {b"\x9ecc"}
    with pytest.raises(IndexError):
        fs.flip("log", 3)


# Any script


@settings(deadline=None)
@given(
    script=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.binary(min_size=1, max_size=20)),
            st.tuples(st.just("fsync"), st.just(b"")),
        ),
        max_size=20,
    ),
    seed=st.integers(0, 2**32),
)
def test_every_synced_prefix_is_intact_and_nothing_is_invented(
    script: list[tuple[str, bytes]], seed: int
) -> None:
    fs = MemoryFileSystem()
    put(fs, "log", b"", durable=True)
    written = b""
    synced = 0
    with fs.open_append("log") as file:
        for step, data in script:
            if step == "write":
                file.write(data)
                written += data
            else:
                file.fsync()
                synced = len(written)
    survived = read_file(fs.crash_clone(random.Random(seed)), "log")
    assert survived[:synced] == written[:synced]
    assert synced <= len(survived) <= len(written)
    assert all(byte in (0, written[at]) for at, byte in enumerate(survived))
    assert read_file(fs.kill_clone(), "log") == written


PATHS = ("a/x", "a/y", "b/x", "b/y")
NAMES = st.sampled_from(PATHS)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["create", "remove", "rename", "link"]), NAMES, NAMES),
    st.tuples(st.just("sync_dir"), st.sampled_from(["a", "b"]), st.just("")),
)


def take(fs: MemoryFileSystem, step: str, first: str, second: str, number: int) -> None:
    """One step of a script; those that make no sense in this state do nothing."""
    if step == "create" and not fs.exists(first):
        with fs.open_append(first) as file:
            file.write(b"%d" % number)
            file.fsync()
    elif step == "remove" and fs.exists(first):
        fs.remove(first)
    elif step == "rename" and fs.exists(first):
        fs.rename(first, second)
    elif step == "link" and fs.exists(first) and not fs.exists(second):
        fs.link(first, second)
    elif step == "sync_dir":
        fs.sync_dir(first)


def look(fs: MemoryFileSystem) -> dict[str, bytes]:
    return {path: read_file(fs, path) for path in PATHS if fs.exists(path)}


@settings(deadline=None)
@given(script=st.lists(STEPS, max_size=25), seed=st.integers(0, 2**32))
def test_names_are_those_of_the_last_sync_or_of_a_moment_after_it(
    script: list[tuple[str, str, str]], seed: int
) -> None:
    fs = MemoryFileSystem()
    fs.mkdir("a")
    fs.mkdir("b")
    possible: dict[str, set[bytes | None]] = {path: {None} for path in PATHS}
    for number, (step, first, second) in enumerate(script):
        take(fs, step, first, second, number)
        for path, seen in possible.items():
            if step == "sync_dir" and path.startswith(first):
                seen.clear()
            seen.add(content(path)(fs))
    crashed = fs.crash_clone(random.Random(seed))
    assert all(content(path)(crashed) in seen for path, seen in possible.items())
    for path in look(crashed):
        same = [
            other for other in look(crashed) if read_file(crashed, other) == look(crashed)[path]
        ]
        assert crashed.stat(path).links == len(same)
    assert look(fs.kill_clone()) == look(fs)


@settings(deadline=None)
@given(
    versions=st.lists(st.binary(max_size=30), min_size=1, max_size=5),
    lost_sync=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_write_atomic_leaves_the_old_file_or_the_new(
    versions: list[bytes], lost_sync: bool, seed: int
) -> None:
    fs = MemoryFileSystem()
    for version in versions:
        write_atomic(fs, "file", version)
    with fs.open_append("file.tmp") as file:
        file.write(b"the next version")
        file.fsync()
    fs.rename("file.tmp", "file")
    if not lost_sync:
        fs.sync_dir("/")
    survived = read_file(fs.crash_clone(random.Random(seed)), "file")
    assert survived in ({versions[-1], b"the next version"} if lost_sync else {b"the next version"})


def test_a_replaced_file_is_new_for_readers_and_durable_when_it_was_synced() -> None:
    fs = MemoryFileSystem()
    write_atomic(fs, "file", b"one")
    replace_file(fs, "file", b"two")
    assert read_file(fs, "file") == b"two"
    sync_replaced(fs, "file")
    for seed in range(20):
        assert read_file(fs.crash_clone(random.Random(seed)), "file") == b"two"
