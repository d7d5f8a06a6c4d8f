from __future__ import annotations

import errno
import os
import tempfile
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.limits.budget import (
    Allowance,
    Budget,
    DiskGate,
    TokenBucket,
    find_gate_directory,
    reserve_scratch,
)
from lithify.compaction.run.control import RunControl
from lithify.errors import InvalidInput, InvalidSetting, PlanStale, RunCancelled, RunRefused
from lithify.fs.local import LocalFileSystem
from lithify.fs.memory import MemoryFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class SteppingClock(ManualClock):
    """Calls `when_asleep` in each sleep, which is where other threads would act."""

    def __init__(self) -> None:
        super().__init__(start_ms=0)
        self.when_asleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.when_asleep()


def test_a_full_bucket_lets_its_burst_pass_and_then_the_rate_holds() -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(1_000, clock, burst_bytes=500)

    assert bucket.take(500) == 0
    assert bucket.take(100) == pytest.approx(0.1)
    clock.advance(0.3)
    assert bucket.take(300) == pytest.approx(0, abs=0.001)
    assert clock.monotonic_s() == pytest.approx(0.4, abs=0.001)


def test_a_pause_saves_no_more_than_the_burst() -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(1_000, clock, burst_bytes=500)
    clock.advance(3_600)

    assert bucket.take(1_500) == pytest.approx(1.0, abs=0.001)


def test_a_take_above_the_burst_waits_in_proportion() -> None:
    bucket = TokenBucket(1_000, ManualClock(start_ms=0), burst_bytes=10)

    assert bucket.take(10_000) == pytest.approx(9.99, abs=0.001)


def test_without_a_rate_nothing_waits() -> None:
    bucket = TokenBucket(None, ManualClock())

    assert bucket.take(1 << 49) == 0


def test_the_default_burst_is_a_tenth_of_a_second() -> None:
    assert TokenBucket(5_000, ManualClock()).burst_bytes == 500
    assert TokenBucket(3, ManualClock()).burst_bytes == 1


def test_a_sleeping_taker_notices_a_new_rate() -> None:
    clock = SteppingClock()
    bucket = TokenBucket(1_000, clock, burst_bytes=1)
    clock.when_asleep = lambda: bucket.set_rate(1_000_000)

    assert bucket.take(1_000_000) < 1.2

    bucket.set_rate(1)
    clock.when_asleep = lambda: bucket.set_rate(None)
    assert bucket.take(1_000_000) == pytest.approx(0.1)


def test_a_limit_set_on_an_unlimited_bucket_begins_with_nothing_saved() -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(None, clock, burst_bytes=500)
    bucket.take(10_000)
    clock.advance(10)

    bucket.set_rate(1_000)

    assert bucket.take(500) == pytest.approx(0.5)


def test_takers_on_many_threads_share_one_rate() -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(1_000, clock, burst_bytes=1)

    threads = [
        threading.Thread(target=lambda: [bucket.take(10) for _ in range(100)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert clock.monotonic_s() >= 4 * 100 * 10 / 1_000 - 0.002


@pytest.mark.parametrize("rate", [0, -1, 1 << 60])
def test_a_rate_outside_its_limits_is_refused(rate: int) -> None:
    with pytest.raises(InvalidSetting, match="bytes_per_s"):
        TokenBucket(rate, ManualClock())
    bucket = TokenBucket(7, ManualClock())
    with pytest.raises(InvalidSetting, match="bytes_per_s"):
        bucket.set_rate(rate)
    assert bucket.bytes_per_s == 7


def test_taking_less_than_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="-1 bytes"):
        TokenBucket(None, ManualClock()).take(-1)


@pytest.mark.parametrize(
    "settings",
    [
        {"read_bytes_per_s": 0},
        {"read_bytes_per_s": 1023},
        {"write_bytes_per_s": -5},
        {"memory_bytes": 1000},
        {"memory_bytes": 1 << 60},
        {"scratch_bytes": -1},
    ],
)
def test_a_budget_names_the_setting_it_refuses(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(settings))):
        Budget(**settings)


def test_an_allowance_counts_what_passes_and_what_was_waited_for() -> None:
    clock = ManualClock(start_ms=0)
    allowance = Allowance(Budget(read_bytes_per_s=10_000, write_bytes_per_s=20_000), clock)

    allowance.read(6_000)
    allowance.write(22_000)

    assert (allowance.bytes_read, allowance.bytes_written) == (6_000, 22_000)
    assert allowance.waited_s == pytest.approx(0.6 + 1.0, abs=0.001)


def test_tasks_side_by_side_share_a_budget() -> None:
    budget = Budget(
        read_bytes_per_s=100 << 10, memory_bytes=256 << 20, scratch_bytes=7, delete_bytes_per_s=None
    )
    assert budget.share(4) == replace(budget, read_bytes_per_s=25 << 10, memory_bytes=64 << 20)
    assert budget.share(1) == budget.share(0) == budget
    assert budget.share(10_000) == replace(budget, read_bytes_per_s=1 << 10, memory_bytes=1 << 20)


def test_many_short_tasks_keep_to_the_rate_together() -> None:
    clock = ManualClock(start_ms=0)
    budget = Budget(read_bytes_per_s=10_240)
    for _ in range(100):
        Allowance(budget, clock).read(1024)
    assert clock.monotonic_s() == pytest.approx(10, rel=0.01)


def test_a_task_can_be_stopped_by_its_check() -> None:
    def stop() -> None:
        raise PlanStale("not any more")

    allowance = Allowance(Budget(), ManualClock(), stop)
    for stopped in (allowance.check, lambda: allowance.read(1), lambda: allowance.write(0)):
        with pytest.raises(PlanStale, match="not any more"):
            stopped()


def test_a_cancelled_run_stops_at_its_next_call() -> None:
    control = RunControl()
    allowance = Allowance(Budget(), ManualClock(), control.check)
    allowance.check()
    allowance.read(100)

    control.cancel()

    for stopped in (allowance.check, lambda: allowance.read(1), lambda: allowance.write(0)):
        with pytest.raises(RunCancelled, match="the run was cancelled"):
            stopped()


def test_a_run_that_sleeps_for_its_rate_can_be_cancelled() -> None:
    clock = SteppingClock()
    control = RunControl()
    allowance = Allowance(Budget(write_bytes_per_s=1024), clock, control.check)
    clock.when_asleep = control.cancel

    with pytest.raises(RunCancelled):
        allowance.write(1 << 30)

    assert clock.monotonic_s() < 0.2
    assert allowance.bytes_written == 0


def test_scratch_space_that_cannot_suffice_is_refused_with_all_numbers() -> None:
    fs = MemoryFileSystem(capacity_bytes=1_000)
    reserve_scratch(fs, "/", needed_bytes=1_000, scratch_bytes=None)
    reserve_scratch(fs, "/", needed_bytes=600, scratch_bytes=600)

    with pytest.raises(RunRefused) as caught:
        reserve_scratch(fs, "/", needed_bytes=601, scratch_bytes=600)
    assert caught.value.limit == "scratch space"
    assert caught.value.detail == (
        "needs 601 bytes on the disk of /, available 1000 bytes, limit 600 bytes"
    )

    with pytest.raises(RunRefused, match=r"needs 1001 bytes .* available 1000 bytes, limit none"):
        reserve_scratch(fs, "/", needed_bytes=1_001, scratch_bytes=None)


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
