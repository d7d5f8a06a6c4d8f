"""A peer with a wrong certificate, or none, is refused with a reason and leaves nothing behind."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.net import transport as transport_module
from lithify.raft.net.client_operations import Address, NoAnswer
from lithify.raft.net.transport import Tls
from lithify.raft.node.settings import RaftNodeSettings
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.authority import Authority
from tests.unit.raft.node.test_node import refusal
from tests.unit.raft.node.test_node import running as running_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lithify.raft.node.node import RaftNode


@asynccontextmanager
async def running(directory: Path, tls: Tls, name: str = "n1") -> AsyncIterator[RaftNode]:
    listen = Address("127.0.0.1", 0)
    given = RaftNodeSettings(name, str(directory / name), listen, tls=tls, tick_ms=20)
    async with running_with(given) as node:
        yield node


async def put(client: RaftClient) -> None:
    await KvClient(client, "default").put(b"key", b"value")


NOT_TAKEN = "perhaps it does not take the certificate"
"""The node hangs up, and sends no reason: the client may be any program."""


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("another authority", "CERTIFICATE_VERIFY_FAILED"),
        ("another authority, but trusts ours", NOT_TAKEN),
        ("expired", NOT_TAKEN),
        ("not valid yet", NOT_TAKEN),
        ("no certificate", "the connection was closed"),
    ],
)
def test_a_client_with_the_wrong_certificate_gets_the_reason(
    tmp_path: Path, who: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "HELLO_S", 1.0)
    monkeypatch.setattr(transport_module, "HANDSHAKE_S", 0.5)
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    stranger = theirs.tls("client")
    shown: dict[str, Tls | None] = {
        "another authority": stranger,
        "another authority, but trusts ours": Tls(
            str(ours.file), stranger.certificate_file, stranger.key_file
        ),
        "expired": ours.tls("client", age_days=3),
        "not valid yet": ours.tls("client", age_days=-1),
        "no certificate": None,
    }

    async def story() -> None:
        async with running(tmp_path, ours.tls("n1")) as node:
            assert why in await refusal(node, NoAnswer, put, shown[who])
            known, at = ours.tls("any name"), node.transport.address
            async with RaftClient([at], tls=known, timeout_s=PROCESS_S_MAX) as client:
                await put(client)
            assert node.groups["default"].applied_index == 2, "only one of them was heard"
            async with asyncio.timeout(PROCESS_S_MAX):
                # Attempts that came to nothing do not count as connections for ever.
                while node.transport.channels:
                    await asyncio.sleep(0.02)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": "n9"}, "says it is node n1, but its certificate is for ['n9']"),
        ({"name": "n1", "age_days": 3}, "certificate has expired"),
        ({"name": "n1", "age_days": -1}, "certificate is not yet valid"),
    ],
)
def test_a_client_refuses_a_node_with_the_wrong_certificate(
    tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    ours = Authority(tmp_path, "ours")

    async def story() -> None:
        async with running(tmp_path, ours.tls(**given)) as node:
            assert why in await refusal(node, NoAnswer, put, ours.tls("client"))
            assert node.groups["default"].applied_index <= 1

    asyncio.run(story())


@pytest.mark.parametrize("who", ["expired", "another name", "another authority"])
def test_a_node_with_the_wrong_certificate_is_refused(tmp_path: Path, who: str) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    shown = {
        "expired": ours.tls("n2", age_days=3),
        "another name": ours.tls("n3"),
        "another authority": theirs.tls("n2"),
    }

    async def story() -> None:
        async with (
            running(tmp_path, ours.tls("n1")) as node,
            running(tmp_path, shown[who], "n2") as other,
        ):
            at = {"n1": str(node.transport.address)}
            other.transport.learn(at)
            link = other.transport.links["n1"]
            async with asyncio.timeout(PROCESS_S_MAX):
                while not link.reason:
                    await asyncio.sleep(0.01)
            assert node.identity.book == {}
            assert other.transport.connected == node.transport.connected == []

    asyncio.run(story())
