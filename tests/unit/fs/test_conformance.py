"""One suite for every file system: what `base.py` promises, and the errors it names."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lithify.errors import LogLocked
from lithify.fs import (
    FileSystem,
    LocalFileSystem,
    MemoryFileSystem,
    hold_directory,
    lock_owner,
    read_file,
    write_atomic,
)
from lithify.testing.faulty_fs import FaultyFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lithify.fs import File


class Uncached(LocalFileSystem):
    """Keeps nothing in memory of what it writes."""

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = True) -> File:
        return super().open_append(path, exclusive=exclusive, uncached=uncached)


@pytest.fixture(params=["local", "uncached", "memory", "faulty"])
def fs(request: pytest.FixtureRequest) -> FileSystem:
    makers: dict[str, Callable[[], FileSystem]] = {
        "local": LocalFileSystem,
        "uncached": Uncached,
        "memory": MemoryFileSystem,
        "faulty": lambda: FaultyFileSystem(MemoryFileSystem()),
    }
    return makers[request.param]()


@pytest.fixture
def root(fs: FileSystem, tmp_path: Path) -> str:
    path = str(tmp_path / "root")
    fs.mkdir(path)
    return path


def refused(code: int) -> AbstractContextManager[object]:
    return pytest.raises(OSError, match=rf"\[Errno {code}\]")


def put(fs: FileSystem, path: str, data: bytes) -> None:
    with fs.open_append(path) as file:
        file.write(data)


def test_all_are_file_systems(fs: FileSystem) -> None:
    assert isinstance(fs, FileSystem)


def test_appends_follow_each_other_and_are_read_back(fs: FileSystem, root: str) -> None:
    with fs.open_append(f"{root}/log") as file:
        file.write(b"abc")
        file.writev([b"de", bytearray(b"f"), b"", memoryview(b"-gh-")[1:3]])
        file.writev([])
        assert file.size() == 8
        assert file.pread(3, 2) == b"cde"
        assert file.path == f"{root}/log"
    with fs.open_append(f"{root}/log") as file:
        file.write(b"!")
    assert read_file(fs, f"{root}/log") == b"abcdefgh!"


def test_a_file_can_be_appended_to_while_it_is_synced(fs: FileSystem, root: str) -> None:
    with fs.open_append(f"{root}/log") as file:
        file.begin_sync()
        file.write(b"abc")
        file.begin_sync()
        file.write(b"de")
        file.fsync()
    assert read_file(fs, f"{root}/log") == b"abcde"


def test_reads_are_short_only_at_the_end(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/log", b"0123456789")
    with fs.open_read(f"{root}/log") as file:
        assert file.pread(100, 7) == b"789"
        assert file.pread(5, 10) == b""
        buffer = bytearray(b"......")
        assert file.readinto(memoryview(buffer)[1:4], 2) == 3
        assert buffer == b".234.."
        assert file.readinto(buffer, 8) == 2
        assert buffer == b"8934.."
        assert file.readinto(bytearray(), 0) == 0
        with suppress(BlockingIOError):
            # Only the error may differ: it says that the disk would have to be read.
            assert file.readinto_cached(memoryview(buffer)[1:4], 2) == 3
            assert file.readinto_cached(buffer, 8) == 2


def test_a_reader_sees_the_file_grow(fs: FileSystem, root: str) -> None:
    with fs.open_append(f"{root}/log") as writer, fs.open_read(f"{root}/log") as reader:
        assert reader.size() == 0
        writer.write(b"abc")
        assert reader.size() == 3
        assert reader.pread(9, 0) == b"abc"


def test_overwrite_replaces_bytes_and_moves_no_end(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/log", b"abcdefgh")
    with fs.open_append(f"{root}/log") as file, fs.open_read(f"{root}/log") as reader:
        file.overwrite(b"XY", 2)
        file.overwrite(memoryview(b"-Z-")[1:2], 7)
        file.overwrite(b"", 8)
        assert reader.pread(8, 0) == b"abXYefgZ"
        for data, offset in ((b"12", 7), (b"1", 8)):
            with refused(errno.EINVAL):
                file.overwrite(data, offset)
        file.write(b"!")
        file.fsync()
    assert read_file(fs, f"{root}/log") == b"abXYefgZ!"


def test_truncate_moves_the_end_at_which_writes_land(fs: FileSystem, root: str) -> None:
    with fs.open_append(f"{root}/log") as file:
        file.write(b"abcdef")
        file.truncate(2)
        assert file.size() == 2
        file.write(b"X")
        assert file.pread(9, 0) == b"abX"
        file.truncate(5)
        file.write(b"Y")
        file.fsync()
        file.fdatasync()
    assert read_file(fs, f"{root}/log") == b"abX\0\0Y"


def test_more_buffers_than_one_system_call_takes(fs: FileSystem, root: str) -> None:
    buffers = [bytes([number % 251]) * (number % 3) for number in range(2500)]
    with fs.open_append(f"{root}/log") as file:
        file.writev(buffers)
        assert file.size() == sum(map(len, buffers))
    assert read_file(fs, f"{root}/log") == b"".join(buffers)


def test_more_bytes_than_one_system_call_is_given(fs: FileSystem, root: str) -> None:
    data = random.Random(1).randbytes(7_500_000)
    sizes = [10, 1_500_000, 1_500_000, 1, 4_000_000, 5, 0]
    cuts = [0, *itertools.accumulate(sizes), len(data)]
    buffers = [data[first:stop] for first, stop in itertools.pairwise(cuts)]
    with fs.open_append(f"{root}/log") as file:
        file.write(data)
        file.writev(buffers)
        file.write(data[: 2**21])
        assert file.size() == 2 * len(data) + 2**21
    assert read_file(fs, f"{root}/log") == data + data + data[: 2**21]


def test_a_read_handle_does_not_write(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/log", b"abc")
    with fs.open_read(f"{root}/log") as file:
        with refused(errno.EBADF):
            file.write(b"x")
        with refused(errno.EBADF):
            file.writev([b"x"])
        with pytest.raises(OSError, match="Errno"):
            file.truncate(0)
    assert read_file(fs, f"{root}/log") == b"abc"


def test_a_closed_file_is_never_used_again(fs: FileSystem, root: str) -> None:
    file = fs.open_append(f"{root}/log")
    file.close()
    file.close()
    with fs.open_append(f"{root}/other") as other:
        for use in (lambda: file.write(b"x"), lambda: file.pread(1, 0), file.fsync):
            with refused(errno.EBADF):
                use()
        assert other.size() == 0


def test_exclusive_creation(fs: FileSystem, root: str) -> None:
    fs.open_append(f"{root}/log", exclusive=True).close()
    with pytest.raises(FileExistsError):
        fs.open_append(f"{root}/log", exclusive=True)
    fs.symlink("nowhere", f"{root}/dangling")
    with pytest.raises(FileExistsError):
        fs.open_append(f"{root}/dangling", exclusive=True)


def test_a_missing_path(fs: FileSystem, root: str) -> None:
    missing = f"{root}/missing"
    for use in (
        lambda: fs.open_read(missing),
        lambda: fs.open_append(f"{missing}/log"),
        lambda: fs.rename(missing, f"{root}/x"),
        lambda: fs.link(missing, f"{root}/x"),
        lambda: fs.remove(missing),
        lambda: fs.rmdir(missing),
        lambda: fs.list(missing),
        lambda: fs.stat(missing),
        lambda: fs.sync_dir(missing),
        lambda: fs.lock(f"{missing}/lock", "me"),
    ):
        with pytest.raises(FileNotFoundError):
            use()
    assert fs.list(root) == []
    assert not fs.exists(missing)
    assert not fs.exists(f"{missing}/log")


def test_files_where_directories_are_wanted_and_the_reverse(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/file", b"abc")
    fs.mkdir(f"{root}/dir")
    assert not fs.exists(f"{root}/file/x")
    for use in (
        lambda: fs.list(f"{root}/file"),
        lambda: fs.rmdir(f"{root}/file"),
        lambda: fs.sync_dir(f"{root}/file"),
        lambda: fs.open_read(f"{root}/file/x"),
        lambda: fs.rename(f"{root}/dir", f"{root}/file"),
    ):
        with pytest.raises(NotADirectoryError):
            use()
    for misuse in (
        lambda: fs.remove(f"{root}/dir"),
        lambda: fs.open_append(f"{root}/dir"),
        lambda: fs.rename(f"{root}/file", f"{root}/dir"),
        lambda: read_file(fs, f"{root}/dir"),
    ):
        with pytest.raises(IsADirectoryError):
            misuse()
    for path in (f"{root}/file", f"{root}/file/below"):
        with pytest.raises(FileExistsError):
            fs.mkdir(path)


def test_mkdir_makes_parents_and_accepts_what_is_there(fs: FileSystem, root: str) -> None:
    fs.mkdir(f"{root}/a/b/c/")
    fs.mkdir(f"{root}/a/b")
    assert fs.list(f"{root}/a") == ["b"]
    assert fs.stat(f"{root}/a/b/c").is_dir
    fs.mkdir(f"{root}/a/../d/./e")
    assert fs.list(root) == ["a", "d"]


def test_rmdir_takes_only_empty_directories(fs: FileSystem, root: str) -> None:
    fs.mkdir(f"{root}/a/b")
    with refused(errno.ENOTEMPTY):
        fs.rmdir(f"{root}/a")
    fs.rmdir(f"{root}/a/b")
    fs.rmdir(f"{root}/a")
    assert fs.list(root) == []


def test_rename_replaces_and_open_files_go_along(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/old", b"old")
    put(fs, f"{root}/new", b"new")
    with fs.open_append(f"{root}/new") as moving, fs.open_read(f"{root}/old") as replaced:
        fs.rename(f"{root}/new", f"{root}/old")
        moving.write(b"er")
        assert replaced.pread(9, 0) == b"old"
    assert fs.list(root) == ["old"]
    assert read_file(fs, f"{root}/old") == b"newer"


def test_rename_of_directories(fs: FileSystem, root: str) -> None:
    fs.mkdir(f"{root}/a/sub")
    fs.mkdir(f"{root}/empty")
    put(fs, f"{root}/a/sub/log", b"abc")
    fs.rename(f"{root}/a/sub", f"{root}/empty")
    assert read_file(fs, f"{root}/empty/log") == b"abc"
    with refused(errno.ENOTEMPTY):
        fs.rename(f"{root}/a", f"{root}/empty")
    assert fs.list(root) == ["a", "empty"]


def test_hard_links_are_one_file_under_two_names(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/a", b"abc")
    fs.link(f"{root}/a", f"{root}/b")
    assert fs.stat(f"{root}/a").inode == fs.stat(f"{root}/b").inode
    assert fs.stat(f"{root}/a").links == 2
    put(fs, f"{root}/b", b"d")
    assert read_file(fs, f"{root}/a") == b"abcd"
    with pytest.raises(FileExistsError):
        fs.link(f"{root}/a", f"{root}/b")
    with pytest.raises(PermissionError):
        fs.link(root, f"{root}/c")
    fs.rename(f"{root}/a", f"{root}/b")
    assert fs.list(root) == ["a", "b"]
    fs.remove(f"{root}/a")
    assert fs.stat(f"{root}/b").links == 1
    assert read_file(fs, f"{root}/b") == b"abcd"


def test_symbolic_links_are_followed_by_open_and_not_by_stat(fs: FileSystem, root: str) -> None:
    fs.mkdir(f"{root}/sub")
    put(fs, f"{root}/sub/log", b"abc")
    fs.symlink("sub/log", f"{root}/relative")
    fs.symlink(f"{root}/sub", f"{root}/absolute")
    fs.symlink("../relative", f"{root}/sub/back")
    assert read_file(fs, f"{root}/relative") == b"abc"
    assert read_file(fs, f"{root}/absolute/back") == b"abc"
    assert fs.list(f"{root}/absolute") == ["back", "log"]
    found = fs.stat(f"{root}/relative")
    assert found.is_symlink
    assert found.size == len("sub/log")
    with pytest.raises(FileExistsError):
        fs.symlink("x", f"{root}/relative")
    fs.remove(f"{root}/relative")
    assert fs.exists(f"{root}/sub/log")
    assert fs.exists(f"{root}/sub/back")
    with pytest.raises(FileNotFoundError):
        fs.open_read(f"{root}/sub/back")
    put(fs, f"{root}/sub/back", b"through the link")
    assert read_file(fs, f"{root}/relative") == b"through the link"


def test_symbolic_links_in_a_circle(fs: FileSystem, root: str) -> None:
    fs.symlink("b", f"{root}/a")
    fs.symlink("a", f"{root}/b")
    with refused(errno.ELOOP):
        fs.open_read(f"{root}/a")


def test_stat(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/log", b"abc")
    found = fs.stat(f"{root}/log")
    assert (found.size, found.links, found.is_dir, found.is_symlink) == (3, 1, False, False)
    assert found.device == fs.stat(root).device
    assert found.inode != fs.stat(root).inode
    assert found.mtime_ms > 1_000_000_000_000


def test_a_removed_file_stays_readable_while_it_is_open(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/log", b"abc")
    with fs.open_read(f"{root}/log") as file:
        fs.remove(f"{root}/log")
        assert not fs.exists(f"{root}/log")
        assert file.pread(3, 0) == b"abc"


def test_copy_range_appends(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/from", b"0123456789")
    with fs.open_read(f"{root}/from") as source, fs.open_append(f"{root}/to") as target:
        target.write(b"<")
        fs.copy_range(source, 2, target, 5)
        target.write(b">")
        fs.copy_range(source, 9, target, 1)
        fs.copy_range(source, 0, target, 0)
        assert target.size() == 8
        with refused(errno.EINVAL):
            fs.copy_range(source, 8, target, 3)
        target.truncate(8)
    assert read_file(fs, f"{root}/to") == b"<23456>9"


def test_copy_range_within_one_file(fs: FileSystem, root: str) -> None:
    with fs.open_append(f"{root}/log") as file:
        file.write(b"abc")
        fs.copy_range(file, 1, file, 2)
        assert file.pread(9, 0) == b"abcbc"


def test_a_lock_has_one_owner_and_names_it(fs: FileSystem, root: str) -> None:
    first = fs.lock(f"{root}/lock", "first, with a long name")
    assert first is not None
    assert fs.lock(f"{root}/lock", "second") is None
    assert read_file(fs, f"{root}/lock") == b"first, with a long name"
    first.release()
    first.release()
    third = fs.lock(f"{root}/lock", "third")
    assert third is not None
    first.release()
    assert fs.lock(f"{root}/lock", "fourth") is None
    assert read_file(fs, f"{root}/lock") == b"third"
    third.release()
    assert fs.exists(f"{root}/lock")


@pytest.mark.parametrize("removed", [False, True])
def test_the_lock_of_a_directory_outlives_its_file(
    fs: FileSystem, root: str, *, removed: bool
) -> None:
    first = fs.lock_directory(f"{root}/LOCK", "first")
    assert first is not None
    assert fs.lock(f"{root}/other", "another file in it") is not None
    if removed:
        fs.remove(f"{root}/LOCK")
    assert fs.lock_directory(f"{root}/LOCK", "second") is None
    assert fs.exists(f"{root}/LOCK") is not removed
    assert lock_owner(fs, f"{root}/LOCK") == (f"pid {os.getpid()}" if removed else "first")
    with pytest.raises(LogLocked, match=root):
        hold_directory(fs, f"{root}/LOCK", "third")
    first.release()
    assert fs.lock_holder(root) == ""
    # One that locks the file only, as older versions do.
    older = fs.lock(f"{root}/LOCK", "older")
    assert older is not None
    assert fs.lock_directory(f"{root}/LOCK", "fourth") is None
    older.release()
    hold_directory(fs, f"{root}/LOCK", "fifth").release()


def test_free_bytes_of_a_missing_path(fs: FileSystem, root: str) -> None:
    assert fs.free_bytes(f"{root}/not/yet") > 0


def test_write_atomic_replaces_the_whole(fs: FileSystem, root: str) -> None:
    put(fs, f"{root}/MANIFEST.tmp", b"left behind by a crash, and longer")
    write_atomic(fs, f"{root}/MANIFEST", b"one")
    write_atomic(fs, f"{root}/MANIFEST", b"two")
    assert read_file(fs, f"{root}/MANIFEST") == b"two"
    assert fs.list(root) == ["MANIFEST"]


def test_threads_with_files_of_their_own(fs: FileSystem, root: str) -> None:
    def work(name: str) -> None:
        for number in range(50):
            put(fs, f"{root}/{name}", bytes([number]))
            fs.rename(f"{root}/{name}", f"{root}/{name}.x")
            fs.rename(f"{root}/{name}.x", f"{root}/{name}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fs.list(root) == list("abcd")
    assert all(read_file(fs, f"{root}/{name}") == bytes(range(50)) for name in "abcd")
