from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from lithify.compaction.limits.one_run_per_disk import DiskGate, find_gate_directory
from lithify.errors import RunRefused
from lithify.fs.local import LocalFileSystem
from lithify.fs.memory import MemoryFileSystem

if TYPE_CHECKING:
    from pathlib import Path


def test_one_run_per_disk_and_the_second_names_the_first(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    directory = f"{tmp_path}/gate"

    with DiskGate(fs, directory).enter(str(first), "pid 7 compacts orders"):
        refused = r"compaction refused \(disk\): pid 7 compacts orders"
        with pytest.raises(RunRefused, match=refused) as caught:
            DiskGate(fs, directory).enter(str(second), "run-2")
        assert caught.value.limit == "disk"
        assert fs.list(directory) == [f"disk-{os.stat(first).st_dev}.lock"]

    turn = DiskGate(fs, directory).enter(str(second), "run-2")
    turn.release()
    turn.release()
    DiskGate(fs, directory).enter(str(first), "run-3").release()


def test_a_linked_directory_counts_as_the_disk_it_leads_to(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    other_disk = "/dev/shm"
    if os.stat(other_disk).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("this machine has one disk only")
    (tmp_path / "link").symlink_to(other_disk)
    gate = DiskGate(fs, f"{tmp_path}/gate")

    with gate.enter(f"{tmp_path}/link", "run-1"), gate.enter(str(tmp_path), "run-2"):
        assert len(fs.list(f"{tmp_path}/gate")) == 2


def test_a_crash_opens_the_gate() -> None:
    fs = MemoryFileSystem()
    DiskGate(fs, "/gate").enter("/", "run-1")

    DiskGate(fs.kill_clone(), "/gate").enter("/", "run-2")


def test_a_missing_path_locks_nothing() -> None:
    fs = MemoryFileSystem()

    with pytest.raises(FileNotFoundError):
        DiskGate(fs, "/gate").enter("/nowhere", "run-1")

    assert not fs.exists("/gate")


def test_the_gate_is_in_the_users_runtime_directory_if_that_is_private(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(runtime)}
    assert find_gate_directory(fs, environ) == f"{runtime}/lithify"

    runtime.chmod(0o755)
    elsewhere = find_gate_directory(fs, environ)
    assert elsewhere == f"{tempfile.gettempdir()}/lithify-runs-{os.getuid()}"


def test_a_gate_that_another_user_can_reach_is_not_used(tmp_path: Path) -> None:
    """Neither a directory nor a link of its name makes a run overwrite a file, or wait."""
    fs = LocalFileSystem()
    device = os.stat(tmp_path).st_dev
    precious = tmp_path / "precious"
    precious.write_text("not to be lost")
    planted = tmp_path / "planted"
    planted.mkdir()
    planted.chmod(0o777)
    (planted / f"disk-{device}.lock").symlink_to(precious)
    (tmp_path / "linked").symlink_to(planted)
    (tmp_path / "file").touch()

    for name in ("planted", "linked", "file"):
        gate = DiskGate(fs, str(tmp_path / name))
        with (
            gate.enter(str(tmp_path), "run-1"),
            pytest.raises(RunRefused, match=r"\(disk\): run-1"),
        ):
            gate.enter(str(tmp_path), "run-2")
        gate.enter(str(tmp_path), "run-3").release()
    assert precious.read_text() == "not to be lost"


def test_a_link_in_a_private_gate_is_not_followed(tmp_path: Path) -> None:
    precious, gate = tmp_path / "precious", tmp_path / "gate"
    precious.write_text("not to be lost")
    gate.mkdir(mode=0o700)
    (gate / f"disk-{os.stat(tmp_path).st_dev}.lock").symlink_to(precious)

    with pytest.raises(OSError, match=rf"\[Errno {errno.ELOOP}\]"):
        DiskGate(LocalFileSystem(), str(gate)).enter(str(tmp_path), "run-1")
    assert precious.read_text() == "not to be lost"
