"""What only the real file system does: short system calls, and other processes."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lithify.fs import LocalFileSystem, MemoryFileSystem, read_file
from lithify.fs.local import COPY_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from lithify.checksum import Buffer


@pytest.fixture
def fs() -> LocalFileSystem:
    return LocalFileSystem()


def refused(code: int) -> AbstractContextManager[object]:
    return pytest.raises(OSError, match=rf"\[Errno {code}\]")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel writes up to `size` bytes of a file and then refuses, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("buffers", [[b"x" * 150], [b"x" * 60] * 3])
def test_a_write_that_does_not_fit_leaves_a_prefix_and_the_true_end(
    fs: LocalFileSystem, tmp_path: Path, buffers: list[bytes]
) -> None:
    with fs.open_append(str(tmp_path / "log")) as file:
        file.write(b"acknowledged")
        with largest_file(100), refused(errno.EFBIG):
            file.write(buffers[0]) if len(buffers) == 1 else file.writev(buffers)
        assert file.size() == os.stat(tmp_path / "log").st_size == 100
        file.truncate(12)
        file.write(b"!")
    assert (tmp_path / "log").read_bytes() == b"acknowledged!"


PAGE = 4096


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.fs.uncached.STAGE_BYTES", PAGE)


def is_direct(path: Path) -> bool:
    """Does somebody here have the file open for writes past the page cache?"""
    found = [
        fcntl.fcntl(int(fd.name), fcntl.F_GETFL)
        for fd in Path("/proc/self/fd").iterdir()
        if os.path.realpath(fd) == str(path)
    ]
    return any(flags & os.O_DIRECT for flags in found)


@pytest.mark.usefixtures("staged")
def test_what_goes_past_the_cache_is_there_when_it_is_asked_for(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    data = random.Random(7).randbytes(3 * PAGE + 17)
    path = tmp_path / "segment"
    with fs.open_append(str(path), exclusive=True, uncached=True) as file:
        file.truncate(0)
        for first in range(0, len(data), 1000):
            file.write(data[first : first + 1000])
        assert file.size() == len(data)
        assert path.stat().st_size >= 2 * PAGE
        assert is_direct(path)
        file.begin_sync()
        assert is_direct(path)
        file.fsync()
        assert not is_direct(path)
        assert path.read_bytes() == data
        file.writev([b"and", b"more"])
        assert file.pread(7, len(data)) == b"andmore"


@pytest.mark.usefixtures("staged")
def test_a_disk_that_is_full_is_told_of_once_also_past_the_cache(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    with fs.open_append(str(tmp_path / "segment"), uncached=True) as file:
        file.write(b"x" * PAGE)
        with largest_file(PAGE + 100), refused(errno.EFBIG):
            file.write(b"y" * 3 * PAGE)
        assert file.size() == os.stat(tmp_path / "segment").st_size


@pytest.mark.usefixtures("staged")
def test_a_file_system_or_disk_that_cannot_bypass_the_cache_does_not_have_to(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, control = os.pwrite, fcntl.fcntl
    unfit = OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def with_large_sectors(fd: int, data: Buffer, offset: int) -> int:
        if control(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise unfit
        return pwrite(fd, data, offset)

    def without(fd: int, command: int, flags: int = 0) -> int:
        if flags & os.O_DIRECT:
            raise unfit
        return control(fd, command, flags)

    data = b"abc" * PAGE
    monkeypatch.setattr(os, "pwrite", with_large_sectors)
    with fs.open_append(str(tmp_path / "disk"), uncached=True) as file:
        file.write(data)
    monkeypatch.setattr(fcntl, "fcntl", without)
    with fs.open_append(str(tmp_path / "system"), uncached=True) as file:
        file.write(data)
    assert (tmp_path / "disk").read_bytes() == (tmp_path / "system").read_bytes() == data


def test_short_writes_and_reads_go_on_until_all_is_done(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pwritev, pread, preadv = os.pwrite, os.pwritev, os.pread, os.preadv

    def short_pwritev(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return pwritev(fd, [b"".join(buffers)[:4]], offset)

    def short_preadv(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return preadv(fd, [buffers[0][:3]], offset)

    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 3), at))
    monkeypatch.setattr(os, "preadv", short_preadv)
    with fs.open_append(str(tmp_path / "log")) as file:
        file.write(b"0123456789")
        file.writev([b"ab", b"cdefg", b"h"])
        assert file.size() == 18
        assert file.pread(99, 0) == b"0123456789abcdefgh"
        buffer = bytearray(10)
        assert file.readinto(buffer, 5) == 10
        assert buffer == b"56789abcde"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_copy_range_where_the_kernel_cannot(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    data = os.urandom(COPY_CHUNK_BYTES + 1000)
    (tmp_path / "from").write_bytes(data)
    with (
        fs.open_read(str(tmp_path / "from")) as source,
        fs.open_append(str(tmp_path / "to")) as target,
    ):
        fs.copy_range(source, 10, target, len(data) - 10)
    assert (tmp_path / "to").read_bytes() == data[10:]


def test_copy_range_in_pieces_and_errors_that_are_no_excuse(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.copy_file_range
    monkeypatch.setattr(
        os, "copy_file_range", lambda src, dst, n, at, to: real(src, dst, min(n, 3), at, to)
    )
    (tmp_path / "from").write_bytes(b"0123456789")
    with (
        fs.open_read(str(tmp_path / "from")) as source,
        fs.open_append(str(tmp_path / "to")) as target,
    ):
        fs.copy_range(source, 1, target, 8)
        assert target.pread(99, 0) == b"12345678"
        with largest_file(8), refused(errno.EFBIG):
            fs.copy_range(source, 0, target, 1)


def test_copy_range_from_another_file_system(fs: LocalFileSystem, tmp_path: Path) -> None:
    memory = MemoryFileSystem()
    with memory.open_append("from") as source, fs.open_append(str(tmp_path / "to")) as target:
        source.write(b"abcdef")
        fs.copy_range(source, 1, target, 4)
    assert (tmp_path / "to").read_bytes() == b"bcde"


def test_mkdir_syncs_every_directory_it_created_something_in(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    fs.mkdir(str(tmp_path / "a/b"))
    assert synced == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a")]
    synced.clear()
    fs.mkdir(str(tmp_path / "a/b"))
    assert synced == [str(tmp_path / "a")]


def test_relative_paths(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fs.mkdir("a")
    fs.sync_dir(".")
    assert fs.free_bytes("b/c") > 0
    assert (tmp_path / "a").is_dir()


def test_an_error_is_not_taken_for_a_missing_file(fs: LocalFileSystem, tmp_path: Path) -> None:
    with refused(errno.ENAMETOOLONG):
        fs.exists(str(tmp_path / ("x" * 300)))


def test_the_lock_of_a_killed_process_is_free_again(fs: LocalFileSystem, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    script = (
        "import sys; from lithify.fs import LocalFileSystem\n"
        "lock = LocalFileSystem().lock(sys.argv[1], 'the child')\n"
        "print(lock is not None, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"True\n"
        assert fs.lock(path, "us") is None
        assert read_file(fs, path) == b"the child"
        child.kill()
        child.wait()
        lock = fs.lock(path, "us")
        assert lock is not None
        assert read_file(fs, path) == b"us"
        lock.release()


def test_files_and_locks_are_not_inherited_by_programs_we_start(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    lock = fs.lock(str(tmp_path / "lock"), "us")
    assert lock is not None
    with fs.open_append(str(tmp_path / "log")):
        listing = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], capture_output=True, check=True, close_fds=False
        )
    lock.release()
    assert str(tmp_path).encode() not in listing.stdout


def test_a_lock_that_cannot_write_its_owner_is_not_held(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    path = str(tmp_path / "lock")
    with largest_file(0), refused(errno.EFBIG):
        fs.lock(path, "us")
    lock = fs.lock(path, "us")
    assert lock is not None
    lock.release()
