"""The cluster in a process: Raft node, metastore, catalog and the nodes that are known."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.errors import InvalidInput, LogClosed
from lithify.fs import LocalFileSystem
from lithify.node.cluster import Cluster
from lithify.node.node_registry import NodeAddresses
from lithify.node.settings import NodeSettings
from lithify.raft.errors import MemberReadsOnly
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def ignore(_: BaseException) -> None:
    """The test ends before anything can fail."""


def cluster_at(
    directory: Path, failed: Callable[[BaseException], None] = ignore, **settings: Any
) -> Cluster:
    given = NodeSettings(data=str(directory), tick_ms=20, **settings)
    fs, clock = LocalFileSystem(), SystemClock()
    return Cluster(given, fs, str(directory), clock, failed, queue=RunQueue(clock))


def until(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + PROCESS_S_MAX
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def create(cluster: Cluster, tenant: str) -> int:
    """The version that the change has made."""
    created = partial(cluster.catalog.execute, [CreateTenant(tenant)])
    return cluster.call(created).result(PROCESS_S_MAX).version


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_a_node_alone_needs_no_port_and_keeps_its_name_and_its_catalog(tmp_path: Path) -> None:
    names = set()
    for version in (2, 3):
        cluster = cluster_at(tmp_path)
        cluster.start()
        names.add(cluster.name)
        assert (cluster.is_alone, cluster.address) == (True, "")
        assert list(cluster.nodes()) == [cluster.name]
        assert create(cluster, f"tenant-{version}") == version
        cluster.close()
        cluster.close()
        with pytest.raises(LogClosed):
            create(cluster, "late")
    assert len(names) == 1
    assert "lithify-cluster" not in {thread.name for thread in threading.enumerate()}


def test_a_node_alone_writes_its_addresses_only_when_they_change(
    tmp_path: Path, stack: ExitStack
) -> None:
    def registered(pulsar: str) -> int:
        cluster = cluster_at(tmp_path)
        cluster.start()
        try:
            cluster.announce(NodeAddresses(pulsar=pulsar))
            key = f"cluster/node/{cluster.name}".encode()

            def read() -> Any:
                return cluster.call(partial(cluster.metastore.get, key)).result(PROCESS_S_MAX)

            until(lambda: (row := read()) is not None and pulsar.encode() in row.value)
            assert cluster.nodes()[cluster.name].pulsar == pulsar
            return int(read().revision)
        finally:
            cluster.close()

    first = registered("pulsar://one:6650")
    assert registered("pulsar://one:6650") == first
    assert registered("pulsar://two:6650") > first


class Three:
    """Three clusters in this process, as three processes would have them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack
        self.ports = {f"n{number}": free_port() for number in (1, 2, 3)}
        self.failures: list[BaseException] = []

    def new(self, name: str) -> Cluster:
        others = ((other, port) for other, port in self.ports.items() if other != name)
        cluster = cluster_at(
            self.directory / name,
            self.failures.append,
            node=name,
            cluster_port=self.ports[name],
            peers=tuple(f"{other}=127.0.0.1:{port}" for other, port in others),
        )
        self.stack.callback(cluster.close)
        return cluster

    def start(self, *clusters: Cluster) -> None:
        threads = [threading.Thread(target=each.start) for each in clusters]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PROCESS_S_MAX)
            assert not thread.is_alive()


def test_three_nodes_know_each_other_and_each_others_definitions(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    nodes = {name: three.new(name) for name in three.ports}
    three.start(*nodes.values())
    for name, cluster in nodes.items():
        cluster.announce(NodeAddresses(pulsar=f"pulsar://{name}:6650"))
    for cluster in nodes.values():
        assert not cluster.is_alone
        until(
            lambda cluster=cluster: (
                [  # type: ignore[misc]
                    (name, each.pulsar, each.cluster, each.is_alive)
                    for name, each in sorted(cluster.nodes().items())
                ]
                == [
                    (name, f"pulsar://{name}:6650", f"127.0.0.1:{port}", True)
                    for name, port in three.ports.items()
                ]
            )
        )
    version = create(nodes["n2"], "acme")
    assert all(each.catalog.current.version == version for each in nodes.values())
    nodes["n3"].close()
    until(lambda: not nodes["n1"].nodes()["n3"].is_alive)
    assert nodes["n1"].nodes()["n3"].pulsar == "pulsar://n3:6650"
    again = three.new("n3")
    again.start()
    assert again.catalog.versions.latest.version == version
    until(lambda: nodes["n1"].nodes()["n3"].is_alive)
    assert three.failures == []


def test_the_directory_of_a_member_is_read_without_the_others(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    nodes = {name: three.new(name) for name in three.ports}
    three.start(*nodes.values())
    version = create(nodes["n1"], "acme")
    for cluster in nodes.values():
        cluster.close()
    alone = cluster_at(tmp_path / "n2")
    alone.start()
    stack.callback(alone.close)
    assert (alone.name, alone.is_alone) == ("n2", False)
    assert alone.catalog.current.version == version
    assert alone.catalog.current.tenant("acme") is not None
    assert {name: each.is_alive for name, each in alone.nodes().items()} == {
        "n1": False,
        "n2": True,
        "n3": False,
    }
    with pytest.raises(MemberReadsOnly, match="in a cluster with n1, n3"):
        create(alone, "more")
    with pytest.raises(MemberReadsOnly):
        alone.call(partial(alone.node.requests.remove_member, "n3")).result(PROCESS_S_MAX)
    alone.close()
    again = {name: three.new(name) for name in three.ports}
    three.start(*again.values())
    assert create(again["n2"], "more") == version + 1
    assert three.failures == []


def test_a_start_without_a_quorum_waits_and_can_be_interrupted(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("lithify.node.cluster.SAY_S", 0.05)
    log = SimpleNamespace(info=lambda what, waits_for: said.append(waits_for))
    monkeypatch.setattr("lithify.node.cluster.log", log)
    three = Three(tmp_path, stack)
    alone = three.new("n1")
    ended: list[BaseException] = []

    def start() -> None:
        try:
            alone.start()
        except BaseException as error:  # noqa: BLE001
            ended.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: bool(said))
    alone.close()
    thread.join(PROCESS_S_MAX)
    assert said == ["n2, n3"]
    assert len(ended) == 1


def test_a_directory_of_another_name_is_refused(tmp_path: Path) -> None:
    first = cluster_at(tmp_path, node="n1")
    first.start()
    first.close()
    with pytest.raises(InvalidInput, match="belongs to node n1"):
        cluster_at(tmp_path, node="n2").start()
