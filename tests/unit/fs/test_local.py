"""What only the real file system does: short system calls, and other processes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import resource
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from lithify.fs import LocalFileSystem, MemoryFileSystem, read_file
from lithify.fs.local import COPY_CHUNK_BYTES, RWF_DONTCACHE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

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


@pytest.mark.parametrize("uncached", [False, True])
@pytest.mark.parametrize("buffers", [[b"x" * 150], [b"x" * 60] * 3])
def test_a_write_that_does_not_fit_leaves_a_prefix_and_the_true_end(
    fs: LocalFileSystem, tmp_path: Path, buffers: list[bytes], *, uncached: bool
) -> None:
    with fs.open_append(str(tmp_path / "log"), uncached=uncached) as file:
        file.write(b"acknowledged")
        with largest_file(100), refused(errno.EFBIG):
            file.write(buffers[0]) if len(buffers) == 1 else file.writev(buffers)
        assert file.size() == os.stat(tmp_path / "log").st_size == 100
        file.truncate(12)
        file.write(b"!")
    assert (tmp_path / "log").read_bytes() == b"acknowledged!"


def knows_uncached_writes(path: Path) -> bool:
    """Does the kernel here, on this file system?"""
    with path.open("wb") as file:
        try:
            return os.pwritev(file.fileno(), [b"x"], 0, RWF_DONTCACHE) == 1
        except OSError:
            return False


def cached_bytes(path: Path) -> int:
    """Of a file's pages, those in memory."""
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        found = (ctypes.c_ubyte * pages)()
        place = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(size), found) == 0
        return sum(each & 1 for each in found) * mmap.PAGESIZE


def test_an_uncached_file_leaves_nothing_in_the_page_cache(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    if not knows_uncached_writes(tmp_path / "try"):
        pytest.skip("this kernel keeps what is written")
    data = random.Random(7).randbytes(5 * 2**20 + 17)
    for uncached in (False, True):
        path = tmp_path / f"{uncached}"
        with fs.open_append(str(path), uncached=uncached) as file:
            file.write(data[:-7])
            file.writev([data[-7:], b"!"])
            file.fsync()
            assert file.size() == len(data) + 1
        kept = cached_bytes(path)
        assert kept < 2**20 if uncached else kept > 5 * 2**20
        assert path.read_bytes() == data + b"!"


def test_without_uncached_io_uncached_files_are_like_others(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "pwritev", unknown)
    with fs.open_append(str(tmp_path / "segment"), uncached=True) as file:
        file.write(b"abc" * 2**20)
    assert (tmp_path / "segment").read_bytes() == b"abc" * 2**20


def test_short_writes_and_reads_are_continued(
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


def test_an_error_is_not_read_as_a_missing_file(fs: LocalFileSystem, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_created_files_are_private(fs: LocalFileSystem, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        fs.mkdir(f"{tmp_path}/a/b")
        fs.open_append(f"{tmp_path}/a/b/file").close()
        fs.open_append(f"{tmp_path}/a/b/target", exclusive=True, uncached=True).close()
        lock = fs.lock(f"{tmp_path}/a/LOCK", "me")
        assert lock is not None
        lock.release()
    finally:
        os.umask(before)
    modes = {
        name: os.stat(tmp_path / name).st_mode & 0o777
        for name in ("a", "a/b", "a/b/file", "a/b/target", "a/LOCK")
    }
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/file": 0o600, "a/b/target": 0o600,
                     "a/LOCK": 0o600}  # fmt: skip
    assert fs.stat(f"{tmp_path}/a").is_private
    os.chmod(tmp_path / "a", 0o750)
    assert not fs.stat(f"{tmp_path}/a").is_private


def test_a_lock_does_not_follow_a_link(fs: LocalFileSystem, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("not to be lost")
    (tmp_path / "LOCK").symlink_to(tmp_path / "precious")
    with refused(errno.ELOOP):
        fs.lock(str(tmp_path / "LOCK"), "me")
    assert (tmp_path / "precious").read_text() == "not to be lost"


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP])
def test_a_read_of_uncached_bytes_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    flags = []

    def refuses(fd: int, buffers: object, offset: int, flag: int) -> int:
        flags.append(flag)
        raise OSError(code, os.strerror(code))

    with LocalFileSystem().open_append(str(tmp_path / "log")) as file:
        file.write(b"0123456789")
        buffer = bytearray(4)
        monkeypatch.setattr(os, "preadv", refuses)
        with pytest.raises(BlockingIOError):
            file.readinto_cached(buffer, 3)
        assert flags == [os.RWF_NOWAIT]
