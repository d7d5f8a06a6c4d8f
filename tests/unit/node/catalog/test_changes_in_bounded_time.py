"""Changes of the catalog while the disk refuses to write."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.errors import WriteFailed, is_outcome_unknown
from lithify.fs import LocalFileSystem
from lithify.http.cluster.overview import find_problems
from lithify.node.catalog.changes_in_bounded_time import ChangeUnknown
from lithify.node.cluster import Cluster
from lithify.node.settings import NodeSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def alone(directory: Path, fs: FaultyFileSystem) -> Iterator[Cluster]:
    settings = NodeSettings(data=str(directory), tick_ms=20)
    clock = SystemClock()
    queue = RunQueue(clock)
    cluster = Cluster(settings, fs, str(directory), clock, lambda _: None, queue=queue)
    cluster.start()
    cluster.opened()
    try:
        yield cluster
    finally:
        fs.clear()
        cluster.close()
        assert cluster.failure is None


def create(cluster: Cluster, tenant: str) -> int:
    return cluster.ask(partial(cluster.execute, [CreateTenant(tenant)])).version


def problems(cluster: Cluster) -> list[str]:
    async def find() -> list[str]:
        return find_problems(cluster)

    return cluster.ask(find)


@pytest.mark.parametrize("kind", ["EIO", "EROFS", "ENOSPC"])
def test_a_change_is_refused_before_it_is_proposed_if_the_disk_cannot_be_written(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.node.catalog.changes_in_bounded_time.WRITTEN_S", 0)
    fs = FaultyFileSystem(LocalFileSystem())
    with alone(tmp_path, fs) as cluster:
        first = create(cluster, "first")
        fs.add(Fault("mutating", count=None, kind=kind))
        for _ in range(2):
            with pytest.raises(WriteFailed) as refused:
                create(cluster, "refused")
            assert not is_outcome_unknown(refused.value)
        fs.clear()
        assert create(cluster, "second") == first + 1
        assert cluster.catalog.current.tenant("refused") is None


@pytest.mark.parametrize("operation", ["write", "fdatasync"])
def test_a_change_that_the_log_does_not_write_is_unknown_and_made_when_it_does(
    tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.node.catalog.changes_in_bounded_time.REFUSED_S", 0.5)
    fs = FaultyFileSystem(LocalFileSystem())
    with alone(tmp_path, fs) as cluster:
        first = create(cluster, "first")
        fs.add(Fault(operation, "*/raft/wal/*", count=None))
        if operation == "fdatasync":
            fs.add(Fault("fsync", "*/raft/wal/*", count=None))
        with pytest.raises(ChangeUnknown, match=r"the disk refuses to write it: .*Input/output"):
            create(cluster, "late")
        assert cluster.catalog.versions.latest.version == first
        assert ["Input/output" in each for each in problems(cluster)] == [True]
        fs.clear()
        wait_until(lambda: cluster.catalog.versions.latest.version == first + 1)
        wait_until(lambda: problems(cluster) == [])
        assert create(cluster, "after") == first + 2
    with alone(tmp_path, fs) as cluster:
        for tenant in ("first", "late", "after"):
            assert cluster.catalog.current.tenant(tenant) is not None


def test_changes_at_the_same_time_share_one_check_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.node.catalog.changes_in_bounded_time.WRITTEN_S", 0)
    fs = FaultyFileSystem(LocalFileSystem(), record=True)
    with alone(tmp_path, fs) as cluster:
        before = len(fs.trace)

        async def all_of_them() -> list[int]:
            changes = [cluster.execute([CreateTenant(f"tenant-{each}")]) for each in range(20)]
            return [each.version for each in await asyncio.gather(*changes)]

        versions = cluster.call(all_of_them).result(PROCESS_S_MAX)
        assert len(set(versions)) == 20
        probes = [line for line in fs.trace[before:] if "fsync" in line and "PROBE" in line]
        assert len(probes) == 1
