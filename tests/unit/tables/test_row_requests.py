"""Single rows over the client protocol, on a node alone and on three nodes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from lithify.catalog.commands.indexes import CreateIndex
from lithify.catalog.commands.tables import AddColumns, ColumnDefinition
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.objects import IndexStatus
from lithify.raft.client.client import RaftClient
from lithify.raft.net.client_operations import Address, ClientOperation, OperationRefused
from lithify.tables import row_requests
from lithify.tables.client import TableClient
from lithify.tables.errors import RowNotFound
from tests.ports import free_port
from tests.unit.tables.test_tables import ORDERS, Member, Three, key, order, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


class Served:
    """A node alone that has a cluster port, with the table `orders`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.address = Address("127.0.0.1", free_port())
        self.member = Member(directory, node="n1", cluster_port=self.address.port)
        stack.callback(self.member.cluster.close)
        self.member.cluster.start()
        self.member.execute(CreateZone("z", 4, 1), ORDERS)
        hosting = self.member.tables.hosting
        # Until then requests wait in tasks.
        until(lambda: sum(map(hosting.takes_commands, hosting.led())) == 4)

    def ask(self, body: bytes) -> bytes:
        """The answer to any bytes."""

        async def asked() -> bytes:
            async with RaftClient([self.address]) as client:
                return (await client.ask("", ClientOperation.PROCESS, body))[1]

        return asyncio.run(asked())


@pytest.fixture
def served(tmp_path: Path, stack: ExitStack) -> Served:
    return Served(tmp_path, stack)


def with_client(address: Address, work: Callable[[TableClient], Awaitable[Any]]) -> Any:
    """What some work with a client returns."""

    async def done() -> Any:
        async with RaftClient([address]) as client:
            return await work(TableClient(client))

    return asyncio.run(done())


def test_a_row_is_put_read_replaced_and_deleted(served: Served) -> None:
    async def work(client: TableClient) -> None:
        assert await client.get("orders", key(1, 1)) is None
        await client.put("orders", order(1, 1, "é"))
        assert await client.get("orders", key(1, 1)) == order(1, 1, "é")
        await client.put("orders", order(1, 1))
        assert await client.get("orders", key(1, 1)) == order(1, 1)
        await client.delete("orders", key(1, 1))
        await client.delete("orders", key(1, 1))
        assert await client.get("orders", key(1, 1)) is None

    with_client(served.address, work)


@pytest.mark.parametrize("portion", [128, 16])
def test_requests_that_come_together_are_answered_each_by_itself(
    served: Served, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    monkeypatch.setattr(row_requests, "PORTION", portion)
    wrong = {"customer": "x", "id": 1}

    async def work(client: TableClient) -> Any:
        puts = [client.put("orders", order(each, 1)) for each in range(100)]
        puts[50:50] = [client.put("orders", wrong), client.delete("absent", key(1, 1))]
        return await asyncio.gather(*puts, return_exceptions=True)

    results = with_client(served.address, work)
    assert "column customer: 'x' is no int32" in str(results[50])
    assert "absent" in str(results[51])
    assert [each for each in results if each is not None] == results[50:52]
    assert served.member.rows({}, limit=100) == [order(each, 1) for each in range(100)]

    async def gets(client: TableClient) -> Any:
        return await asyncio.gather(*(client.get("orders", key(each, 1)) for each in range(101)))

    assert not served.member.tables.active.versions(), "no run holds a version of the catalog"
    assert with_client(served.address, gets) == [*(order(each, 1) for each in range(100)), None]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "a request of 0 bytes is none for a row"),
        (b"\x01", "a request of 1 bytes is none for a row"),
        (b"\x01\xff{}", "a request of 4 bytes is none for a row"),
        (b"\x01\x01\xff{}", "no UTF-8"),
        (b"\x07\x06orders{}", "kind 7, not 1 to 3"),
        (b"\x01\x06orders", "a row is no JSON"),
        (b"\x01\x06orders[]", "a row must be a JSON object"),
        (b"\x01\x06orders\xff", "a row is no JSON"),
        (b"\x01\x06orders" + b"[" * 10_000, "a row is no JSON"),
        (b"\x01\x06orders" + b"[" * 100_000, "has 100000 values or more, at most 5000 fit"),
        (b"\x01\x06orders" + b'"' + b"x" * 2**21, "2097161 bytes, at most 1052672 fit"),
        (b'\x01\x06orders{"id":' + b"9" * 5000 + b"}", "a row is no JSON"),
        (b'\x01\x06orders{"customer":NaN,"id":1}', "column customer: nan is no int32"),
        (b'\x01\x06orders{"customer":1,"id":1,"note":"\\ud800"}', "column note"),
        (b'\x02\x06orders{"customer":1}', "column id of the key is missing"),
        (b'\x03\x06orders{"customer":1,"id":2147483648}', "column id: 2147483648 is no int32"),
        (b'\x03\x00{"customer":1}', "table"),
    ],
)
def test_bytes_that_are_no_request_are_refused_by_name(
    served: Served, body: bytes, named: str
) -> None:
    with pytest.raises(OperationRefused, match=named):
        served.ask(body)


def test_a_row_of_a_table_without_indexes_needs_no_task(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(row_requests.RowRequests, "_do_later")

    async def work(client: TableClient) -> None:
        rows = [order(each, 1) for each in range(50)]
        await asyncio.gather(*(client.put("orders", row) for row in rows))
        await asyncio.gather(*(client.delete("orders", key(each, 1)) for each in range(25)))
        gets = (client.get("orders", key(each, 1)) for each in range(50))
        assert await asyncio.gather(*gets) == [None] * 25 + rows[25:]

    with_client(served.address, work)


def test_a_row_that_is_too_large_is_refused(served: Served) -> None:
    large = order(1, 1, "x" * 2**20)
    with pytest.raises(OperationRefused, match="at most 1048576 fit"):
        with_client(served.address, lambda client: client.put("orders", large))


def test_a_put_writes_the_indexes_of_its_table(served: Served) -> None:
    member = served.member
    member.execute(CreateIndex("orders", "by_note", ("note",)))
    with_client(served.address, lambda client: client.put("orders", order(1, 1, "a")))
    until(lambda: member.index_status("by_note") is IndexStatus.AVAILABLE)
    with_client(served.address, lambda client: client.put("orders", order(2, 1, "a")))
    found = member.rows({"note": "a"}, index="by_note")
    assert found == [order(1, 1, "a"), order(2, 1, "a")]


def test_any_of_three_nodes_does_it_while_the_table_changes(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    nodes = list(three.members.values())
    nodes[0].execute(CreateZone("z", 3, 3), ORDERS)
    addresses = [Address("127.0.0.1", port) for port in three.ports.values()]

    async def put(place: int, note: str, **more: Any) -> None:
        async with RaftClient([addresses[place]]) as client:
            rows = (order(each, 1, note) | more for each in range(place, 60, 3))
            puts = (TableClient(client).put("orders", row) for row in rows)
            await asyncio.gather(*puts)

    async def put_by_all(note: str, **more: Any) -> None:
        await asyncio.gather(*(put(place, note, **more) for place in range(3)))

    asyncio.run(put_by_all("a"))
    for node in nodes:
        assert node.rows({}, limit=100) == [order(each, 1, "a") for each in range(60)]
    added = ColumnDefinition("more", "int8", nullable=True)
    nodes[1].execute(AddColumns("orders", (added,)))
    asyncio.run(put_by_all("b", more=3))

    async def get(place: int) -> Any:
        async with RaftClient([addresses[place]]) as client:
            return await TableClient(client).get("orders", key(5, 1))

    for place in range(3):
        assert asyncio.run(get(place)) == order(5, 1, "b") | {"more": 3}
    with pytest.raises(RowNotFound):
        nodes[0].do("get", "orders", key(99, 1))
