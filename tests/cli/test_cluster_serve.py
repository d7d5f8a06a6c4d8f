"""Three `lithify serve` processes are one cluster, whichever comes first."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from lithify.metastore.client import MetastoreClient
from lithify.metastore.transaction import Put, Transaction
from lithify.raft.client.client import RaftClient
from lithify.raft.net.client_operations import Address
from lithify.raft.net.cluster_secret import ClusterSecret, ClusterSecretRefused
from tests.cli.cluster_members import SECRET, Member, members, start_all
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Member]]:
    with members(tmp_path, 3) as found:
        yield found


def test_three_processes_are_one_cluster(three: list[Member]) -> None:
    start_all(three)
    addresses = [Address("127.0.0.1", each.port) for each in three]

    async def put_and_get(number: int) -> None:
        async with RaftClient(
            addresses, secret=ClusterSecret(SECRET), timeout_s=PROCESS_S_MAX
        ) as client:
            store = MetastoreClient(client)
            await store.transact(Transaction(then=(Put(b"k%d" % number, b"v"),)))
            for n in range(number + 1):
                found = await store.get(b"k%d" % n)
                assert found is not None
                assert found.value == b"v"

    async def stranger() -> None:
        async with RaftClient(addresses) as client:
            await MetastoreClient(client).get(b"k")

    asyncio.run(put_and_get(0))
    with pytest.raises(ClusterSecretRefused):
        asyncio.run(stranger())
    killed, *others = three
    killed.end(signal.SIGKILL)
    asyncio.run(put_and_get(1))
    killed.start(others)
    killed.await_ready()
    asyncio.run(put_and_get(2))
    assert [each.end(signal.SIGTERM) for each in three] == [0, 0, 0]


def test_a_node_without_a_quorum_says_for_whom_it_waits_and_ends_well(three: list[Member]) -> None:
    first, *others = three
    for number in (signal.SIGTERM, signal.SIGINT):
        first.log.write_text("")
        first.start(others)
        first.await_logged('waits_for="n2, n3"')
        assert first.end(number) == 0
        assert "Traceback" not in first.log.read_text()
    first.start(others)
    others[0].start([first, others[1]])
    for each in (first, others[0]):
        each.await_ready()


def test_a_signal_that_does_not_wake_the_main_thread_ends_the_wait_for_a_quorum(
    three: list[Member],
) -> None:
    first, *others = three
    first.program = "tests.cli.interrupted_serve"
    first.start(others)
    assert first.process is not None
    first.process.communicate(timeout=PROCESS_S_MAX)
    assert first.process.returncode == 0
    assert "Traceback" not in first.log.read_text()
