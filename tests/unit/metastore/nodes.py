"""Metastores on nodes in this process, for unit tests: one without a port, or three on loopback."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lithify.clock import SystemClock
from lithify.metastore.local_metastore import GROUP, LocalMetastore
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.transaction import Operation, Put, Transaction
from lithify.raft.group.settings import GroupSettings
from lithify.raft.net.client_operations import Address
from lithify.raft.node.settings import RaftNodeSettings
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from lithify.clock import Clock
    from lithify.metastore.metastore import Outcome

HERE = Address("127.0.0.1", 0)


def told(story: Callable[[], Awaitable[None]]) -> None:
    """Run a story, which must end."""

    async def limited() -> None:
        async with asyncio.timeout(PROCESS_S_MAX):
            await story()

    asyncio.run(limited())


def settings(
    directory: Path, name: str, clock: Clock, listen: Address | None, *, join: bool = False
) -> RaftNodeSettings:
    return RaftNodeSettings(
        name,
        str(directory / name),
        listen,
        first_group=GROUP,
        join=join,
        tick_ms=20,
        group=GroupSettings(clock=clock),
    )


@asynccontextmanager
async def alone(
    directory: Path, clock: Clock | None = None, *, listen: Address | None = None
) -> AsyncIterator[LocalMetastore]:
    """A cluster of one, which leads."""
    clock = clock or SystemClock()
    async with running(settings(directory, "n1", clock, listen), MetastoreMachine) as node:
        metastore = LocalMetastore(node, clock)
        await until(lambda: metastore.leading_term)
        yield metastore


@asynccontextmanager
async def three(directory: Path, clock: Clock | None = None) -> AsyncIterator[list[LocalMetastore]]:
    """A cluster of three, of which the first one leads."""
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(alone(directory, clock, listen=HERE))
        found = [one]
        for name in ("n2", "n3"):
            given = settings(directory, name, clock, HERE, join=True)
            node = await stack.enter_async_context(running(given, MetastoreMachine))
            await one.node.requests.add_member(name, str(node.transport.address), voter=True)
            found.append(LocalMetastore(node, clock))
            await found[-1].wait_present()
            await until(partial(knows_leader, found[-1]))
        yield found


def knows_leader(metastore: LocalMetastore) -> str:
    return metastore.group.leader


class Transacts(Protocol):
    async def transact(self, transaction: Transaction) -> Outcome: ...


async def do(metastore: Transacts, *operations: Operation) -> Outcome:
    return await metastore.transact(Transaction((), operations))


async def put(metastore: Transacts, key: bytes, value: bytes, lease: int = 0) -> int:
    return (await do(metastore, Put(key, value, lease))).revision
