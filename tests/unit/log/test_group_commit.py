"""Group commit: many callers share one fsync, and every wait ends."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lithify.errors import DamagedFile, LogClosed, WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.unit.log.helpers import LAZY, PATIENCE_S, Gate, Hook, contents, open_log

if TYPE_CHECKING:
    from lithify.log.log import Log

LARGE = LogSettings()
CROWD = 64


def fsyncs(fs: FaultyFileSystem) -> int:
    return sum(line.startswith("fdatasync") for line in fs.trace)


def stopped_fsync() -> tuple[FaultyFileSystem, Gate]:
    """A file system whose first fsync of a segment stops at a gate."""
    gate = Gate()
    rules = [Fault("fdatasync", kind="SLOW")]
    return FaultyFileSystem(MemoryFileSystem(), rules, Hook(gate.stop), record=True), gate


def test_threads_that_come_during_an_fsync_share_the_next() -> None:
    fs, gate = stopped_fsync()
    log = open_log(fs, LARGE)
    appended = threading.Semaphore(0)

    def put(number: int) -> tuple[int, int]:
        pending = log.append(b"%d" % number)
        appended.release()
        return number, pending.result()

    with ThreadPoolExecutor(CROWD) as pool:
        first = pool.submit(put, 0)
        gate.wait_until_reached()
        others = [pool.submit(put, number) for number in range(1, CROWD)]
        for _ in range(CROWD):
            assert appended.acquire(timeout=PATIENCE_S)
        gate.open()
        results = [future.result(PATIENCE_S) for future in [first, *others]]
    assert fsyncs(fs) == 2
    assert contents(log) == {position: b"%d" % number for number, position in results}
    assert len(contents(log)) == CROWD


def test_tasks_of_one_round_share_an_fsync() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    log = open_log(fs, LARGE)
    rounds = 5

    async def put() -> list[int]:
        return [await log.append(b"x") for _ in range(rounds)]

    async def everybody() -> list[list[int]]:
        return await asyncio.gather(*(put() for _ in range(CROWD)))

    positions = asyncio.run(everybody())
    assert sorted(p for mine in positions for p in mine) == list(range(CROWD * rounds))
    assert fsyncs(fs) == rounds


def test_nothing_is_waited_for_where_nothing_was_promised() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    log = open_log(fs, LAZY)
    pending = log.append(b"x")
    assert pending.done()
    assert pending.result() == 0
    assert asyncio.run(as_coroutine(log)) == 1
    assert fsyncs(fs) == 0


async def as_coroutine(log: Log) -> int:
    return await log.append(b"y")


def test_a_cancelled_task_does_not_disturb_the_others() -> None:
    fs, gate = stopped_fsync()
    log = open_log(fs, LARGE)

    async def everybody() -> list[object]:
        tasks = [asyncio.ensure_future(as_coroutine(log)) for _ in range(CROWD)]
        await asyncio.to_thread(gate.wait_until_reached)
        tasks[7].cancel()
        gate.open()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    results = asyncio.run(everybody())
    assert isinstance(results.pop(7), asyncio.CancelledError)
    assert results == [p for p in range(CROWD) if p != 7]
    assert list(contents(log)) == list(range(CROWD)), "to cancel is to stop waiting"
    assert fsyncs(fs) == 1


def test_an_fsync_may_outlive_the_loop_that_waits_for_it() -> None:
    fs, gate = stopped_fsync()
    log = open_log(fs, LARGE)
    pending = log.append(b"x")

    async def begin_to_wait() -> None:
        next(pending.__await__())
        await asyncio.to_thread(gate.wait_until_reached)

    asyncio.run(begin_to_wait())
    gate.open()
    assert pending.result() == 0
    assert asyncio.run(as_coroutine(log)) == 1


def test_a_loop_that_closes_before_its_turn_does_not_stop_the_next() -> None:
    log = open_log(MemoryFileSystem(), LARGE)
    pending = log.append(b"x")
    loop = asyncio.new_event_loop()

    def begin_to_wait() -> None:
        next(pending.__await__())
        loop.stop()

    loop.call_soon(begin_to_wait)
    loop.run_forever()
    loop.close()
    assert not pending.done()
    assert asyncio.run(asyncio.wait_for(as_coroutine(log), PATIENCE_S)) == 1
    assert pending.done()


def test_two_loops_wait_for_the_same_fsync() -> None:
    fs, gate = stopped_fsync()
    log = open_log(fs, LARGE)
    pending = log.append(b"x")

    async def wait() -> int:
        return await pending

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(asyncio.run, wait()) for _ in range(2)]
        gate.wait_until_reached()
        gate.open()
        assert [future.result(PATIENCE_S) for future in waiting] == [0, 0]
    assert fsyncs(fs) == 1


def test_waiting_threads_fail_when_the_log_is_closed() -> None:
    log = open_log(MemoryFileSystem(), LARGE)
    pending = log.append(b"x")
    log.abandon()
    with pytest.raises(LogClosed, match="/log is closed"):
        pending.result()

    async def wait() -> int:
        return await pending

    with pytest.raises(LogClosed, match="/log is closed"):
        asyncio.run(asyncio.wait_for(wait(), PATIENCE_S))


def test_a_waiting_task_fails_when_the_log_is_closed() -> None:
    log = open_log(MemoryFileSystem(), LARGE)

    async def wait() -> int:
        pending = log.append(b"x")
        asyncio.get_running_loop().call_soon(log.abandon)
        return await pending

    with pytest.raises(LogClosed, match="/log is closed"):
        asyncio.run(asyncio.wait_for(wait(), PATIENCE_S))


def test_a_failed_fsync_fails_all_waiting_and_no_later_request() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    log = open_log(fs, LARGE)
    log.append(b"before").result()

    async def everybody() -> list[object]:
        tasks = [as_coroutine(log) for _ in range(CROWD)]
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    fs.add(Fault("fdatasync"))
    failed = asyncio.run(everybody())
    assert {type(result) for result in failed} == {WriteFailed}
    assert {str(result) for result in failed} == {
        "/log/000000000001.seg: Input/output error (errno 5)"
    }
    assert contents(log) == {0: b"before"}
    assert asyncio.run(as_coroutine(log)) == CROWD + 1, "positions are not given out twice"
    assert contents(log) == {0: b"before", CROWD + 1: b"y"}


def test_appends_made_during_an_fsync_that_fails_fail_with_it() -> None:
    fs, gate = stopped_fsync()
    fs.add(Fault("fdatasync"))
    log = open_log(fs, LARGE)
    with ThreadPoolExecutor(1) as pool:
        early = log.append(b"early")
        waiting = pool.submit(early.result)
        gate.wait_until_reached()
        late = log.append(b"late")
        gate.open()
        with pytest.raises(WriteFailed):
            waiting.result(PATIENCE_S)
    assert late.done()
    with pytest.raises(WriteFailed, match="errno 5"):
        late.result()
    assert log.append(b"next").result() == 2
    assert contents(log) == {2: b"next"}


def test_a_task_fails_when_the_repair_is_refused() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    log = open_log(fs, LARGE)

    async def wait() -> int:
        pending = log.append(b"waits")
        fs.add(Fault("writev", kind="SHORT"))
        fs.add(Fault("truncate", count=None))
        with pytest.raises(WriteFailed, match="No space left"):
            log.append(b"torn")
        return await pending

    with pytest.raises(WriteFailed, match="errno 5"):
        asyncio.run(asyncio.wait_for(wait(), PATIENCE_S))
    with pytest.raises(WriteFailed, match="errno 5"):
        log.append(b"not yet")
    fs.clear()
    position = log.append(b"next").result()
    assert contents(log) == {position: b"next"}


def test_a_task_fails_when_the_current_manifest_is_unknown() -> None:
    """A publish of unknown outcome, and then the manifest is damaged."""
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk)
    log = open_log(fs, LARGE)

    async def wait() -> int:
        pending = log.append(b"waits")
        fs.add(Fault("rename", "*MANIFEST*"))
        fs.add(Fault("open_read", "*MANIFEST"))
        with pytest.raises(WriteFailed, match="errno 5"):
            log.publish(lambda manifest: manifest, "test")
        with disk.open_append("/log/MANIFEST") as file:
            file.overwrite(b"?", 0)
        return await pending

    with pytest.raises(DamagedFile, match="MANIFEST"):
        asyncio.run(asyncio.wait_for(wait(), PATIENCE_S))
