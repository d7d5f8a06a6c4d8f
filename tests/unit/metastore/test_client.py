"""The metastore over the network has the requests of a node, and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.metastore import query_format
from lithify.metastore.client import MetastoreClient
from lithify.metastore.errors import (
    LeaseNotFound,
    MetastoreUnavailable,
    RevisionCompacted,
    RevisionNotReached,
)
from lithify.metastore.transaction import Compare, Condition, Put, Transaction
from lithify.raft.client.client import RaftClient
from tests.unit.metastore.nodes import HERE, alone, put, settings, three, told
from tests.unit.raft.node.test_node import client_of, running

if TYPE_CHECKING:
    from pathlib import Path


def test_requests_reach_the_leader_from_any_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as nodes, client_of(nodes[2].node, nodes[1].node) as raft:
            metastore = MetastoreClient(raft)
            began = await metastore.read_time()
            first = await put(metastore, b"a", b"1")
            second = await put(metastore, b"a", b"2")
            for local in (False, True):
                found = await metastore.get(b"a", local=local)
                assert found is not None
                assert (found.value, found.revision) == (b"2", second)
            assert [
                row.value for row in (await metastore.range(b"", b"", revision=first)).rows
            ] == [b"1"]
            refused = await metastore.transact(
                Transaction((Compare(b"a", Condition.ABSENT),), (Put(b"a", b"3"),))
            )
            assert (refused.succeeded, refused.changed, refused.revision) == (False, False, second)
            with pytest.raises(RevisionNotReached):
                await metastore.get(b"a", revision=second + 1)
            await metastore.compact(first)
            with pytest.raises(RevisionCompacted):
                await metastore.get(b"a", revision=first)
            assert (await metastore.status()).floor == first
            assert await metastore.read_time() > began

    told(story)


def test_leases_are_granted_kept_and_revoked(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path, listen=HERE) as node, client_of(node.node) as raft:
            metastore = MetastoreClient(raft)
            granted = [await metastore.grant_lease(1000 + n) for n in range(3)]
            assert await metastore.leases() == granted
            assert (await metastore.keep_lease(granted[0])).generation == 2
            await put(metastore, b"a", b"1", granted[1].id)
            await metastore.revoke_lease(granted[1].id)
            assert await metastore.get(b"a") is None
            await metastore.revoke_lease(granted[1].id)
            with pytest.raises(LeaseNotFound):
                await metastore.keep_lease(granted[1])
            with pytest.raises(LeaseNotFound):
                await put(metastore, b"a", b"1", granted[1].id)

    told(story)


def test_all_leases_are_listed_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_format, "PAGE_ROWS_MAX", 2)

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            for count in range(5):
                assert len(await metastore.leases()) == count
                await metastore.grant_lease(1000)

    told(story)


def test_without_a_metastore_it_is_unavailable(tmp_path: Path) -> None:
    async def story() -> None:
        given = settings(tmp_path, "n1", join=True, listen=HERE, clock=ManualClock())
        async with running(given) as node, client_of(node) as raft:
            with pytest.raises(MetastoreUnavailable, match="no group 'metastore'"):
                await MetastoreClient(raft).get(b"a")
            address = node.transport.address
        async with RaftClient([address], timeout_s=0.2) as raft:
            with pytest.raises(MetastoreUnavailable, match="propose got no answer within"):
                await put(MetastoreClient(raft), b"a", b"1")

    told(story)
