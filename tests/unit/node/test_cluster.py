"""The cluster in a process: Raft node, metastore, catalog and the nodes that are known."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant
from lithify.catalog.manager.errors import CatalogFailed
from lithify.catalog.update_log.format import TAG_BYTES, VERSION_KEY, encode_version, update_key
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.errors import InvalidInput, LithifyError, LogClosed, RunRefused
from lithify.fs import LocalFileSystem
from lithify.metastore.transaction import Put, Transaction
from lithify.node.cluster import Cluster
from lithify.node.node_registry import NodeAddresses
from lithify.node.settings import NodeSettings
from lithify.raft.client.client import RaftClient
from lithify.raft.errors import MemberReadsOnly
from lithify.raft.node.process_requests import ProcessRequests
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.tasks.jobs import Jobs


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


def logged_waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What starts log from now on about what they wait for."""
    said: list[str] = []
    log = SimpleNamespace(info=lambda what, waits_for: said.append(waits_for))
    monkeypatch.setattr("lithify.node.cluster.SAY_S", 0.05)
    monkeypatch.setattr("lithify.node.cluster.log", log)
    return said


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
    said = logged_waits(monkeypatch)
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


def test_a_cluster_that_stops_ends_the_runs_of_the_process(tmp_path: Path) -> None:
    cluster = cluster_at(tmp_path)
    cluster.start()
    history, began = cluster.history, threading.Event()
    assert history is not None

    def wait_for_ever(_: Jobs, control: RunControl) -> Report:
        began.set()
        control.wait(lambda: RunRefused("test", "it waits"))
        raise AssertionError

    request = cluster.queue.request(history, wait_for_ever)
    assert began.wait(PROCESS_S_MAX)
    cluster.close()
    assert "cancelled" in cluster.queue.status(history, request).error
    with pytest.raises(RunRefused, match="it is stopping"):
        cluster.queue.request(history, wait_for_ever)


def test_a_catalog_that_cannot_be_followed_stops_the_node(tmp_path: Path, stack: ExitStack) -> None:
    failures: list[BaseException] = []
    cluster = cluster_at(tmp_path, failures.append)
    cluster.start()
    stack.callback(cluster.close)
    version = create(cluster, "acme") + 1
    unreadable = Put(update_key(version), bytes(TAG_BYTES) + b"not an update")
    puts = (unreadable, Put(VERSION_KEY, encode_version(version)))
    cluster.ask(partial(cluster.metastore.transact, Transaction(then=puts)))
    until(lambda: bool(failures))
    assert isinstance(failures[0], CatalogFailed)
    assert cluster.failure is failures[0]
    with pytest.raises(CatalogFailed):
        create(cluster, "more")
    assert len(failures) == 1


def test_requests_of_a_start_wait_for_a_quorum(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = logged_waits(monkeypatch)
    monkeypatch.setattr(ProcessRequests.ask, "__defaults__", (0.5,))
    defaults = RaftClient.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", 0.5)
    three = Three(tmp_path, stack)
    nodes = {name: three.new(name) for name in three.ports}
    three.start(*nodes.values())
    n1 = nodes["n1"]
    for name in ("n2", "n3"):
        nodes[name].close()
    versions: list[int] = []

    def change() -> None:
        command = CreateTenant("acme", if_not_exists=True)
        versions.append(n1.ask(partial(n1.execute, [command])).version)

    thread = threading.Thread(target=change)
    thread.start()
    until(lambda: "n2, n3" in said)
    three.start(three.new("n2"))
    thread.join(PROCESS_S_MAX)
    assert versions == [n1.catalog.versions.latest.version]
    assert n1.catalog.versions.latest.tenant("acme") is not None
    n1.opened()
    said.clear()
    create(n1, "more")
    assert said == []


def test_a_node_that_has_left_does_not_end_at_the_next_change(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    nodes = {name: three.new(name) for name in three.ports}
    three.start(*nodes.values())
    n1, n3 = nodes["n1"], nodes["n3"]
    n1.call(partial(n1.node.requests.remove_member, "n3")).result(PROCESS_S_MAX)
    until(lambda: "metastore" not in n3.node.groups)
    n3.opened()
    # Others may still do it.
    with suppress(LithifyError):
        create(n3, "acme")
    assert not n3.is_alone
    assert n3.failure is None


def test_a_node_that_was_not_added_waits_for_it(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = logged_waits(monkeypatch)
    three = Three(tmp_path, stack)
    nodes = {name: three.new(name) for name in three.ports}
    three.start(*nodes.values())
    version = create(nodes["n1"], "acme")
    port = three.ports["n4"] = free_port()
    fourth = three.new("n4")
    thread = threading.Thread(target=fourth.start)
    thread.start()
    until(lambda: any(f"lithify cluster join n4 127.0.0.1:{port}" in each for each in said))
    assert thread.is_alive()
    n1 = nodes["n1"]
    added = partial(n1.node.requests.add_member, "n4", f"127.0.0.1:{port}", voter=False)
    n1.call(added).result(PROCESS_S_MAX)
    thread.join(PROCESS_S_MAX)
    assert not thread.is_alive()
    assert fourth.catalog.versions.latest.version == version
