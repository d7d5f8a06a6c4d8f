"""The settings of a node as a member of a cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from lithify.errors import InvalidSetting
from lithify.fs import LocalFileSystem
from lithify.node.raft_settings import make_raft_settings
from lithify.node.settings import NodeSettings
from lithify.raft.kv.machine import kv_machine
from lithify.raft.net.client_operations import Address
from lithify.raft.node.node import RaftNode

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.raft.node.settings import RaftNodeSettings

PEERS = ("n2=10.0.0.2:7001", "n3=10.0.0.3:7001")


def raft_of(directory: Path, **given: Any) -> RaftNodeSettings:
    settings = NodeSettings(str(directory), **given)
    return make_raft_settings(settings, LocalFileSystem(), f"{directory}/raft", "metastore")


def test_without_settings_a_node_is_alone_under_a_random_permanent_name(tmp_path: Path) -> None:
    found = raft_of(tmp_path)
    assert re.fullmatch("node-[0-9a-f]{4}", found.node)
    assert (found.listen, found.peers, found.secret) == (None, {}, None)
    assert (found.cluster, found.first_group) == ("lithify", "metastore")
    RaftNode(found, LocalFileSystem(), kv_machine).storage.close()
    assert {raft_of(tmp_path).node for _ in range(20)} == {found.node}


def test_all_nodes_may_have_the_same_list_of_peers(tmp_path: Path) -> None:
    found = raft_of(tmp_path, node="n2", cluster_port=7001, peers=PEERS)
    assert found.peers == {"n3": "10.0.0.3:7001"}
    assert found.first_members == ["n2", "n3"]


def test_a_member_has_an_address_and_its_peers(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of sixteen bytes or more\n")
    secret.chmod(0o600)
    found = raft_of(
        tmp_path,
        node="n1",
        cluster="prod",
        cluster_host="0.0.0.0",
        cluster_port=7001,
        peers=PEERS,
        advertised_host="one.example",
        cluster_secret_file=str(secret),
        tick_ms=50,
    )
    assert (found.node, found.cluster, found.tick_ms) == ("n1", "prod", 50)
    assert found.listen == Address("0.0.0.0", 7001)
    assert found.advertised_host == "one.example"
    assert found.peers == {"n2": "10.0.0.2:7001", "n3": "10.0.0.3:7001"}
    assert found.first_members == ["n1", "n2", "n3"]
    assert found.secret is not None


def test_a_secret_that_others_may_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of sixteen bytes or more")
    for mode, count in ((0o600, 0), (0o644, 1)):
        secret.chmod(mode)
        raft_of(tmp_path, cluster_port=0, cluster_secret_file=str(secret))
        assert caplog.text.count("other users may read the secret") == count


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "readable: No such file"), (b"short\n", "has 5 bytes, must have at least 16")],
)
def test_a_secret_that_cannot_be_used_is_refused(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    with pytest.raises(InvalidSetting, match=f"cluster_secret_file.*{why}"):
        raft_of(tmp_path, cluster_port=0, cluster_secret_file=str(secret))


TLS = {"tls_certificate_file": "c.pem", "tls_key_file": "k.pem"}
TOKENS = {"token_secret_file": "t"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"node": "a b"}, "node is 'a b', must be a valid name"),
        ({"cluster": ""}, "cluster is '', must be named"),
        ({"peers": PEERS}, "cluster_port is None, must be given with peers or join"),
        ({"join": True}, "cluster_port is None, must be given with peers or join"),
        ({"cluster_port": 70_000}, "cluster_port is 70000, must be from 0 to 65535"),
        ({"tick_ms": 0}, "tick_ms is 0, must be from 1"),
        ({"cluster_port": 1, "peers": PEERS}, "node is '', must be named"),
        (
            {"cluster_port": 1, "node": "n2", "peers": PEERS},
            "another node, or this one with its cluster_port 1",
        ),
        ({"cluster_port": 1, "node": "n1", "peers": ("n2",)}, "NAME=HOST:PORT, each name once"),
        ({"cluster_port": 1, "node": "n1", "peers": ("n2=h",)}, "NAME=HOST:PORT: address 'h'"),
        ({"cluster_port": 1, "node": "n1", "peers": PEERS * 2}, "each name once"),
        (
            {"cluster_port": 1, "node": "n0", "peers": tuple(f"n{n}=h:1" for n in range(1, 6))},
            "peers is 5, must be at most 4 other nodes",
        ),
        ({"cluster_port": 1, "cluster_host": "10.0.0.1"}, "cluster_host is '10.0.0.1', must be an"),
        ({"cluster_port": 1} | TOKENS, "because the other ports require tokens or TLS"),
        ({"cluster_port": 1} | TLS, "because the other ports require tokens or TLS"),
        ({"cluster_port": 1, "cluster_authority_file": "a"}, "given with tls_certificate_file"),
        (
            {"cluster_port": 1, "cluster_host": "0.0.0.0", "cluster_secret_file": "s"},
            "advertised_host is '', must be",
        ),
    ],
)
def test_settings_that_make_no_cluster_or_an_open_one_are_refused(
    given: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        NodeSettings(**given)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"join": True},
        {"cluster_host": "10.0.0.1", "allow_open": True},
        {"cluster_host": "10.0.0.1", "cluster_secret_file": "s"} | TOKENS,
        {"cluster_host": "10.0.0.1", "cluster_authority_file": "a"} | TLS,
        {"allow_open": True} | TOKENS,
    ],
)
def test_a_cluster_port_is_open_to_loopback_or_to_proofs(
    given: dict[str, Any],
) -> None:
    assert NodeSettings(cluster_port=7001, **given).clustering.cluster_port == 7001
