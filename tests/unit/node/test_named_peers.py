"""A node that is started with a peer of another cluster, or with one that is no member."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lithify.exit_codes import CONFLICT
from lithify.node.named_peers import PeerOfAnotherCluster
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port
from tests.unit.node.test_cluster import cluster_at, create, logged_waits, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_a_node_does_not_start_with_a_peer_of_another_cluster(
    tmp_path: Path, stack: ExitStack
) -> None:
    ports = {name: free_port() for name in ("n1", "n2")}
    first = cluster_at(tmp_path / "n1", node="n1", cluster_port=ports["n1"])
    stack.callback(first.close)
    first.start()
    other: dict[str, Any] = {"node": "n2", "cluster_port": ports["n2"]}
    alone = cluster_at(tmp_path / "n2", **other)
    alone.start()
    create(alone, "acme")
    alone.close()

    wrong = cluster_at(tmp_path / "n2", **other, peers=(f"n1=127.0.0.1:{ports['n1']}",))
    with pytest.raises(PeerOfAnotherCluster, match=r"belongs to cluster .* of n2") as refused:
        wrong.start()
    assert (refused.value.peer, refused.value.exit_code) == ("n1", CONFLICT)

    again = cluster_at(tmp_path / "n2", **other)
    stack.callback(again.close)
    again.start()
    assert create(again, "other") == 3


def test_a_peer_that_has_left_does_not_keep_a_node_from_starting(
    tmp_path: Path, stack: ExitStack
) -> None:
    port = free_port()
    for peers in ((), (f"n9=127.0.0.1:{free_port()}",)):
        cluster = cluster_at(tmp_path, node="n1", cluster_port=port, peers=peers)
        stack.callback(cluster.close)
        cluster.start()
        until(lambda cluster=cluster: cluster.is_alone)  # type: ignore[misc]
        cluster.close()


def test_a_new_node_beside_a_cluster_names_the_command_that_adds_it(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = {name: free_port() for name in ("n1", "n2")}
    first = cluster_at(tmp_path / "n1", node="n1", cluster_port=ports["n1"])
    stack.callback(first.close)
    first.start()
    first.opened()
    said = logged_waits(monkeypatch)
    at = f"127.0.0.1:{ports['n2']}"
    peers = (f"n1=127.0.0.1:{ports['n1']}",)
    second = cluster_at(tmp_path / "n2", node="n2", cluster_port=ports["n2"], peers=peers)
    stack.callback(second.close)
    starting = threading.Thread(target=second.start)
    starting.start()
    until(lambda: any(f"lithify cluster join n2 {at}" in each for each in said))
    joined = partial(first.node.requests.add_member, "n2", at, voter=True)
    first.call(joined).result(PROCESS_S_MAX)
    starting.join(PROCESS_S_MAX)
    assert not starting.is_alive()
