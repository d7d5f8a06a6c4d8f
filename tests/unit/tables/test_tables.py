"""Tables on a node alone, and on three nodes."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lithify.catalog.commands.indexes import CreateIndex, DropIndex
from lithify.catalog.commands.tables import (
    AddColumns,
    ColumnDefinition,
    CreateTable,
    DropTable,
)
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.errors import ObjectNotFound
from lithify.catalog.objects import IndexStatus
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.errors import InvalidInput
from lithify.fs import LocalFileSystem
from lithify.node.cluster import Cluster
from lithify.node.settings import NodeSettings
from lithify.ownership import NotOwner
from lithify.tables.errors import (
    IndexNotAvailable,
    RowNotFound,
    SchemaChanged,
    TransactionConflict,
    TransactionEnded,
    TransactionExpired,
    UniqueViolation,
    WrongTransaction,
)
from lithify.tables.low_watermark import TimeTooOld
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lithify.tables.tables import Tables

COLUMNS = (
    ColumnDefinition("customer", "int32"),
    ColumnDefinition("id", "int32"),
    ColumnDefinition("note", "string", nullable=True),
)
ORDERS = CreateTable("orders", COLUMNS, ("customer", "id"), ("customer",), zone="z")


def ignore(_: BaseException) -> None:
    """The test ends before anything can fail."""


def until(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + PROCESS_S_MAX
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.02)


class Member:
    """A cluster, and its tables from this thread."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        given = NodeSettings(data=str(directory), tick_ms=20, **settings)
        fs, clock = LocalFileSystem(), SystemClock()
        queue = RunQueue(clock)
        self.cluster = Cluster(given, fs, str(directory), clock, ignore, queue=queue)

    @property
    def tables(self) -> Tables:
        assert self.cluster.tables is not None
        return self.cluster.tables

    def do(self, name: str, *given: Any, **more: Any) -> Any:
        """Call a method of the tables."""
        return self.run(partial(getattr(self.tables, name), *given, **more))

    def run(self, function: Callable[[], Any]) -> Any:
        return self.cluster.call(function).result(PROCESS_S_MAX)

    def begin(self) -> str:
        async def begun() -> str:
            return self.tables.begin()

        handle: str = self.run(begun)
        return handle

    def execute(self, *commands: Any) -> None:
        self.do("execute", commands)

    def rows(self, prefix: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        """All rows of a scan of orders, page by page."""
        found: list[dict[str, Any]] = []
        after, at = None, more.pop("at", 0)
        while True:
            page, at = self.do("scan", "orders", prefix, **{"limit": 3, **more}, after=after, at=at)
            found += page.rows
            after = page.next
            if after is None:
                return sorted(found, key=lambda row: (row["customer"], row["id"]))

    def index_status(self, name: str) -> IndexStatus | None:
        catalog = self.cluster.catalog.current
        table = catalog.table("orders")
        assert table is not None
        index = catalog.index(table.id, name)
        return None if index is None else index.status


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def alone(tmp_path: Path, stack: ExitStack) -> Member:
    member = opened(tmp_path, stack)
    member.execute(CreateZone("z", 4, 1), ORDERS)
    return member


def opened(directory: Path, stack: ExitStack, **settings: Any) -> Member:
    member = Member(directory, **settings)
    stack.callback(member.cluster.close)
    member.cluster.start()
    return member


def order(customer: int, number: int, note: str | None = None) -> dict[str, Any]:
    return {"customer": customer, "id": number, "note": note}


def key(customer: int, number: int) -> dict[str, Any]:
    return {"customer": customer, "id": number}


def test_rows_are_read_as_they_were_put_and_are_there_after_a_restart(
    tmp_path: Path, stack: ExitStack
) -> None:
    first = opened(tmp_path, stack)
    first.execute(CreateZone("z", 4, 1), ORDERS)
    expected = [order(customer, 1, f"c{customer}") for customer in range(10)]
    for row in expected:
        first.do("put", "orders", row)
    first.do("put", "orders", order(3, 1, "changed"))
    expected[3]["note"] = "changed"
    first.do("delete", "orders", key(4, 1))
    del expected[4]
    first.cluster.close()
    second = opened(tmp_path, stack)
    assert second.rows({}) == expected
    assert second.do("get", "orders", key(3, 1))["note"] == "changed"
    with pytest.raises(RowNotFound):
        second.do("get", "orders", key(4, 1))


def test_a_scan_by_the_partition_key_has_the_rows_of_that_key(alone: Member) -> None:
    for customer in range(3):
        for number in range(7):
            alone.do("put", "orders", order(customer, number))
    assert alone.rows({"customer": 1}) == [order(1, number) for number in range(7)]
    assert alone.rows(key(2, 5)) == [order(2, 5)]
    assert len(alone.rows({})) == 21
    with pytest.raises(InvalidInput, match="first columns"):
        alone.rows({"id": 1})


def test_a_read_at_a_time_sees_the_rows_of_that_time(alone: Member) -> None:
    alone.do("put", "orders", order(1, 1, "old"))
    handle, at = alone.do("begin_read")
    assert alone.rows({}, at=at) == [order(1, 1, "old")]
    alone.do("put", "orders", order(1, 1, "new"))
    alone.do("put", "orders", order(1, 2))
    assert alone.rows({}, at=at) == [order(1, 1, "old")]
    assert alone.do("get", "orders", key(1, 1), at=at)["note"] == "old"
    assert alone.do("get", "orders", key(1, 1), handle)["note"] == "old"
    with pytest.raises(RowNotFound):
        alone.do("get", "orders", key(1, 2), handle)
    with pytest.raises(WrongTransaction):
        alone.do("put", "orders", order(1, 1), handle)
    alone.do("commit", handle)
    with pytest.raises(TransactionEnded):
        alone.do("get", "orders", key(1, 1), handle)
    assert alone.do("get", "orders", key(1, 1))["note"] == "new"
    with pytest.raises(InvalidInput, match="future"):
        alone.do("get", "orders", key(1, 1), at=at + (10**6 << 16))


def test_a_transaction_sees_its_writes_and_others_see_them_after_the_commit(alone: Member) -> None:
    handle = alone.begin()
    alone.do("put", "orders", order(1, 1, "mine"), handle)
    assert alone.do("get", "orders", key(1, 1), handle)["note"] == "mine"
    assert alone.rows({}) == []
    alone.do("commit", handle)
    assert alone.rows({}) == [order(1, 1, "mine")]
    other = alone.begin()
    alone.do("delete", "orders", key(1, 1), other)
    alone.do("roll_back", other)
    assert alone.rows({}) == [order(1, 1, "mine")]


def test_of_two_transactions_that_change_what_they_read_one_commits(alone: Member) -> None:
    alone.do("put", "orders", order(1, 1, "0"))
    handles = [alone.begin() for _ in range(2)]
    for handle in handles:
        row = alone.do("get", "orders", key(1, 1), handle)
        alone.do("put", "orders", {**row, "note": handle}, handle)
    alone.do("commit", handles[1])
    with pytest.raises(TransactionConflict):
        alone.do("commit", handles[0])
    assert alone.do("get", "orders", key(1, 1))["note"] == handles[1]


def test_a_transaction_ends_with_its_life_and_is_not_one_of_another_node(
    tmp_path: Path, stack: ExitStack
) -> None:
    member = opened(tmp_path, stack, table_transaction_life_ms=100)
    member.execute(CreateZone("z", 1, 1), ORDERS)
    handle = member.begin()
    until(lambda: not member.tables.active.versions())
    with pytest.raises((TransactionExpired, TransactionEnded)):
        member.do("commit", handle)
    with pytest.raises(NotOwner):
        member.do("commit", "other.0123")
    with pytest.raises(TransactionEnded):
        member.do("commit", "nothing")


def test_a_transaction_from_before_a_change_of_its_table_is_refused(alone: Member) -> None:
    handle = alone.begin()
    alone.do("put", "orders", order(1, 1), handle)
    alone.execute(AddColumns("orders", (ColumnDefinition("more", "int8", default=7),)))
    with pytest.raises(SchemaChanged):
        alone.do("commit", handle)
    alone.do("put", "orders", order(1, 1))
    assert alone.do("get", "orders", key(1, 1))["more"] == 7


def test_an_index_is_built_over_existing_rows_and_follows_new_ones(alone: Member) -> None:
    for customer in range(40):
        alone.do("put", "orders", order(customer, 1, f"n{customer % 3}"))
    alone.execute(CreateIndex("orders", "by_note", ("note",)))
    with pytest.raises(IndexNotAvailable):
        alone.rows({"note": "n1"}, index="by_note")
    alone.do("put", "orders", order(50, 1, "n1"))
    until(lambda: alone.index_status("by_note") is IndexStatus.AVAILABLE)
    expected = [order(each, 1, "n1") for each in (*range(1, 40, 3), 50)]
    assert alone.rows({"note": "n1"}, index="by_note") == expected
    alone.do("put", "orders", order(50, 1, None))
    alone.do("delete", "orders", key(1, 1))
    assert alone.rows({"note": "n1"}, index="by_note") == expected[1:-1]
    assert alone.rows({"note": None}, index="by_note") == [order(50, 1)]
    alone.execute(DropIndex("orders", "by_note"))
    with pytest.raises(ObjectNotFound):
        alone.rows({"note": "n1"}, index="by_note")
    table = alone.cluster.catalog.current.table("orders")
    assert table is not None
    until(lambda: not alone.cluster.catalog.current.indexes_of(table.id))


def test_a_unique_index_refuses_a_second_row_and_is_dropped_if_there_are_two(
    alone: Member,
) -> None:
    for number in (1, 2):
        alone.do("put", "orders", order(1, number, "same"))
    alone.execute(CreateIndex("orders", "alone", ("customer", "note"), unique=True))
    until(lambda: alone.index_status("alone") is None)
    alone.do("delete", "orders", key(1, 2))
    alone.execute(CreateIndex("orders", "alone", ("customer", "note"), unique=True))
    until(lambda: alone.index_status("alone") is IndexStatus.AVAILABLE)
    with pytest.raises(UniqueViolation):
        alone.do("put", "orders", order(1, 2, "same"))
    assert alone.rows({"customer": 1, "note": "same"}, index="alone") == [order(1, 1, "same")]


def test_rows_and_tables_older_than_the_low_watermark_are_removed(
    tmp_path: Path, stack: ExitStack
) -> None:
    member = opened(tmp_path, stack, table_availability_ms=1000)
    member.execute(CreateZone("z", 1, 1), ORDERS)
    member.do("put", "orders", order(1, 1, "old"))
    at = member.do("scan", "orders", {}, limit=1)[1]
    member.do("put", "orders", order(1, 1, "new"))
    [(partition, store)] = member.tables.hosted().items()
    assert partition[1] == 0
    until(lambda: store.state.keys.row_count == 1 and store.state.floor > 0)
    assert member.rows({}) == [order(1, 1, "new")]
    with pytest.raises(TimeTooOld):
        member.do("get", "orders", key(1, 1), at=at)
    other = CreateTable("other", COLUMNS, ("customer", "id"), zone="z")
    member.execute(other)
    member.do("put", "other", order(1, 1))
    member.execute(DropTable("orders"))
    until(lambda: len(list(store.state.keys.present(b"", b""))) == 1)
    assert member.do("get", "other", key(1, 1)) == order(1, 1)
    member.execute(DropTable("other"))
    until(lambda: not member.tables.hosted())
    until(lambda: not member.tables.hosting.assignments.known)
    member.execute(ORDERS)
    assert member.rows({}) == []


def test_a_group_without_an_assignment_is_dropped(alone: Member) -> None:
    node = alone.cluster.node
    alone.run(partial(node.requests.create_group, "zone-999-0", [alone.cluster.name]))
    until(lambda: "zone-999-0" not in node.groups)


class Three:
    """Three nodes in this process."""

    def __init__(self, directory: Path, stack: ExitStack, **settings: Any) -> None:
        self.directory, self.stack, self.settings = directory, stack, settings
        self.ports = {f"n{number}": free_port() for number in (1, 2, 3)}
        self.members = {name: self.new(name) for name in self.ports}
        self.start(*self.members.values())

    def new(self, name: str) -> Member:
        others = ((other, port) for other, port in self.ports.items() if other != name)
        member = Member(
            self.directory / name,
            node=name,
            cluster_port=self.ports[name],
            peers=tuple(f"{other}=127.0.0.1:{port}" for other, port in others),
            **self.settings,
        )
        self.stack.callback(member.cluster.close)
        return member

    def start(self, *members: Member) -> None:
        threads = [threading.Thread(target=each.cluster.start) for each in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PROCESS_S_MAX)
            assert not thread.is_alive()


def test_any_of_three_nodes_answers_and_a_stopped_one_is_not_missed(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    nodes = list(three.members.values())
    nodes[0].execute(CreateZone("z", 4, 3), ORDERS)
    expected = [order(customer, 1) for customer in range(12)]
    for row in expected:
        nodes[row["customer"] % 3].do("put", "orders", row)
    for node in nodes:
        assert node.rows({}) == expected
        assert node.do("get", "orders", key(5, 1)) == expected[5]
        until(lambda node=node: len(node.tables.hosted()) == 4)  # type: ignore[misc]
    handle = nodes[1].begin()
    nodes[1].do("put", "orders", order(5, 1, "tx"), handle)
    nodes[1].do("commit", handle)
    nodes[2].execute(CreateIndex("orders", "by_note", ("note",)))
    until(lambda: nodes[0].index_status("by_note") is IndexStatus.AVAILABLE)
    assert nodes[0].rows({"note": "tx"}, index="by_note") == [order(5, 1, "tx")]
    nodes[2].cluster.close()
    expected[5] = order(5, 1, "tx")
    expected[6] = order(6, 1, "without n3")
    nodes[0].do("put", "orders", expected[6])
    assert nodes[1].rows({}) == expected
    three.members["n3"] = again = three.new("n3")
    again.cluster.start()
    assert again.rows({}) == expected


def test_a_partition_with_one_replica_is_used_through_every_node(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    nodes = list(three.members.values())
    nodes[0].execute(CreateZone("z", 6, 1), ORDERS)
    for customer in range(12):
        nodes[customer % 3].do("put", "orders", order(customer, 1))
    for node in nodes:
        assert len(node.rows({})) == 12
    assert sum(len(node.tables.hosted()) for node in nodes) == 6


def test_partitions_are_created_without_a_stopped_node_and_get_it_later(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    three.members["n3"].cluster.close()
    first = three.members["n1"]
    first.execute(CreateZone("z", 3, 3), ORDERS)

    def is_formed_of(nodes: int) -> bool:
        groups = first.cluster.node.groups
        found = [groups[name].config.voters for name in groups if name.startswith("zone-")]
        return [len(voters) for voters in found] == [nodes] * 3

    until(lambda: is_formed_of(2))
    first.do("put", "orders", order(1, 1))
    three.members["n3"] = again = three.new("n3")
    again.cluster.start()
    until(lambda: is_formed_of(3))
    assert again.rows({}) == [order(1, 1)]


def test_a_reader_on_one_node_holds_the_floors_that_others_raise(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack, table_availability_ms=1500)
    nodes = list(three.members.values())
    nodes[0].execute(CreateZone("z", 1, 3), ORDERS)
    nodes[0].do("put", "orders", order(1, 1, "old"))
    until(lambda: any(node.tables.hosting.led() for node in nodes))
    leader = next(node for node in nodes if node.tables.hosting.led())
    reader, other = (node for node in nodes if node is not leader)
    handle, at = reader.do("begin_read")
    assert reader.do("get", "orders", key(1, 1), handle)["note"] == "old"
    other.do("put", "orders", order(1, 1, "new"))
    later = at + (1500 << 16)
    until(lambda: all(each.tables.low_watermark.value > later for each in (leader, other)))
    assert reader.do("get", "orders", key(1, 1), handle)["note"] == "old"
    reader.do("commit", handle)
    [store] = leader.tables.hosted().values()
    until(lambda: store.state.floor > 0)
    # One version of each key; the published time of the catalog may be another key by now.
    until(lambda: store.state.keys.row_count == len(store.state.keys.newest))
    with pytest.raises(TimeTooOld):
        reader.do("get", "orders", key(1, 1), at=at)


def test_the_durable_snapshot_of_a_partition_is_known(tmp_path: Path, stack: ExitStack) -> None:
    member = opened(tmp_path, stack)
    member.execute(CreateZone("z", 1, 1), ORDERS)
    member.do("put", "orders", order(1, 1))
    [store] = member.tables.hosted().values()
    assert store.snapshot_index == 0

    async def take() -> None:
        store.group.take_snapshot()
        store.node.mark(store.group)

    member.run(take)
    until(lambda: store.snapshot_index >= store.state.revision)


def test_versions_below_the_low_watermark_are_not_live_in_the_log(
    tmp_path: Path, stack: ExitStack
) -> None:
    member = opened(tmp_path, stack, table_availability_ms=1000)
    member.execute(CreateZone("z", 1, 1), ORDERS)

    async def overwrite() -> None:
        for number in range(3000):
            await member.tables.put("orders", order(number % 3, 1, f"{number}"))

    member.run(overwrite)
    [store] = member.tables.hosted().values()
    # The rest goes with a later snapshot.
    until(lambda: store.state.keys.row_count == 3)
    overview = store.group.overview
    until(lambda: overview()["snapshot_index"] > 0 and overview()["live_entries"] < 2000)
    assert [row["note"] for row in member.rows({})] == ["2997", "2998", "2999"]
