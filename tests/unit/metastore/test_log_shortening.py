"""A quiet node keeps short what its next start reads; a busy one writes nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.metastore import log_shortening
from lithify.metastore.log_shortening import LogShortening, has_long_log
from lithify.metastore.maintenance import maintained
from tests.unit.metastore.nodes import alone, put, told
from tests.unit.raft.net.nodes import until

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.metastore.local_metastore import LocalMetastore

VALUE = bytes(1000)


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shortening, "LONG_BYTES", 10_000)
    monkeypatch.setattr(log_shortening, "QUIET_COMMANDS", 2)


def log_bytes(directory: Path) -> int:
    return sum(each.stat().st_size for each in (directory / "n1" / "wal").iterdir())


async def shorten(metastore: LocalMetastore, directory: Path) -> None:
    steps = LogShortening(metastore)

    def is_short() -> bool:
        steps.step()
        return log_bytes(directory) < log_shortening.LONG_BYTES

    await until(is_short)


def test_a_long_log_becomes_short_and_nothing_is_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            for number in range(20):
                await put(metastore, b"%d" % (number % 5), VALUE + b"%d" % number)
            assert log_bytes(tmp_path) > log_shortening.LONG_BYTES
            await shorten(metastore, tmp_path)
            assert metastore.group.overview()["snapshot_index"] == metastore.group.applied_index
        async with alone(tmp_path) as metastore:
            for number in range(15, 20):
                found = await metastore.get(b"%d" % (number % 5))
                assert found is not None
                assert found.value == VALUE + b"%d" % number

    told(story)


def test_a_log_that_an_earlier_process_has_written_becomes_short(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            for _ in range(20):
                await put(metastore, b"a", VALUE)
        async with alone(tmp_path) as metastore:
            assert metastore.node.storage.wal.unrolled_bytes > log_shortening.LONG_BYTES
            async with maintained(metastore, ManualClock()):
                await until(lambda: log_bytes(tmp_path) < log_shortening.LONG_BYTES)

    told(story)


def test_many_commands_in_a_short_log_are_followed_by_a_snapshot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shortening, "LONG_COMMANDS", 8)

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            for _ in range(10):
                await put(metastore, b"a", b"1")
            steps, before = LogShortening(metastore), log_bytes(tmp_path)

            def is_done() -> bool:
                steps.step()
                return not has_long_log(metastore)

            await until(is_done)
            assert metastore.group.overview()["snapshots_taken"] == 1
            assert not steps.step()
            assert log_bytes(tmp_path) >= before

    told(story)


def test_a_busy_node_takes_no_snapshot_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            steps = LogShortening(metastore)
            for _ in range(5):
                for _ in range(4):
                    await put(metastore, b"a", VALUE)
                assert not steps.step()
            assert log_bytes(tmp_path) > log_shortening.LONG_BYTES
            assert not metastore.group.overview()["snapshots_taken"]

    told(story)


def test_a_short_log_stays_as_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            steps = LogShortening(metastore)
            await put(metastore, b"a", VALUE)
            for _ in range(3):
                assert not steps.step()

    told(story)
