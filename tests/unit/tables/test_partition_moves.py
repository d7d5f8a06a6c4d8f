"""Partitions move between real nodes while rows are written and read."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lithify.catalog.commands.tables import CreateTable
from lithify.catalog.commands.zones import AlterZone, CreateZone
from lithify.errors import LithifyError
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port
from tests.unit.tables.test_tables import COLUMNS, ORDERS, Member, Three, order, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lithify.tables.assignments import Assignment


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def assignments(node: Member) -> list[Assignment]:
    return [each.assignment for each in node.tables.hosting.assignments.known.values()]


def is_on(node: Member, *names: str) -> bool:
    """Are all partitions in place, together on exactly these nodes?"""
    found = assignments(node)
    in_place = all(each.formed and not each.pending for each in found)
    return in_place and {name for each in found for name in each.stable} == set(names)


def groups_of(node: Member) -> set[str]:
    return {name for name in node.cluster.node.groups if name.startswith("zone-")}


def join(three: Three, stack: ExitStack, name: str) -> Member:
    """Start a node and add it to the cluster."""
    port = three.ports[name] = free_port()
    member = Member(three.directory / name, node=name, cluster_port=port, join=True)
    stack.callback(member.cluster.close)
    starting = threading.Thread(target=member.cluster.start)
    starting.start()
    first = three.members["n1"]
    add = partial(first.cluster.node.requests.add_member, name, f"127.0.0.1:{port}", voter=False)
    until(lambda: succeeded(partial(first.run, add)))
    starting.join(PROCESS_S_MAX)
    assert not starting.is_alive()
    three.members[name] = member
    return member


def succeeded(function: Any) -> bool:
    try:
        function()
    except LithifyError:
        return False
    return True


def move_away(node: Member, name: str) -> tuple[str, ...] | None:
    """What a node that leaves waits for; None if that is not known."""
    move = partial(node.tables.leaving.move_away, name, 0.5, lambda: ["n1", "n2"])
    try:
        found: tuple[str, ...] = node.run(move)
    except LithifyError:
        return None
    return found


def leave(node: Member, name: str) -> None:
    """Have a node leave the cluster, as the route does."""
    until(lambda: move_away(node, name) == ())
    remove = partial(node.cluster.node.requests.remove_member, name)

    def has_left() -> bool:
        succeeded(partial(node.run, remove))
        return name not in node.cluster.metastore.group.config.members

    until(has_left)


class Writers:
    """Count in several partitions, through several nodes, until they are stopped."""

    def __init__(self, nodes: list[Member], customers: int) -> None:
        self.nodes = nodes
        self.stopping = threading.Event()
        self.written: dict[int, list[int]] = {each: [] for each in range(customers)}
        self.threads = [threading.Thread(target=self.write, args=(each,)) for each in self.written]
        for thread in self.threads:
            thread.start()

    def write(self, customer: int) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            node = self.nodes[number % len(self.nodes)]
            try:
                node.run(partial(self.count, node, customer, number))
            except LithifyError:
                # An election: it may have been done, or not.
                continue
            else:
                self.written[customer].append(number)

    async def count(self, node: Member, customer: int, number: int) -> None:
        """One more, and a row that says which one, in one transaction."""
        tables = node.tables
        handle = tables.begin()
        rows, _ = await tables.scan("orders", {"customer": customer}, limit=10**6, handle=handle)
        counts = [int(row["note"]) for row in rows.rows if row["id"] == 0]
        await tables.put("orders", order(customer, 0, str(sum(counts) + 1)), handle)
        await tables.put("orders", order(customer, number), handle)
        await tables.commit(handle)

    def wait(self, more: int) -> None:
        """Return when each has written some more rows."""
        limits = {each: len(done) + more for each, done in self.written.items()}
        until(lambda: all(len(self.written[each]) >= limit for each, limit in limits.items()))

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(PROCESS_S_MAX)
            assert not thread.is_alive()

    def check(self, node: Member) -> None:
        """Every row that was acknowledged is there, and each was counted once."""
        for customer, written in self.written.items():
            page, _ = node.do("scan", "orders", {"customer": customer}, limit=10**6)
            rows = {row["id"]: row["note"] for row in page.rows}
            assert set(written) <= rows.keys()
            assert int(rows[0]) == len(rows) - 1


def test_partitions_move_to_a_node_that_joins_and_from_one_that_leaves_under_writes(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    first, second, third = three.members.values()
    first.execute(CreateZone("z", 6, 2), ORDERS)
    until(lambda: is_on(first, "n1", "n2", "n3"))
    writers = Writers([first, third], customers=6)
    stack.callback(writers.stopping.set)
    writers.wait(3)
    fourth = join(three, stack, "n4")
    until(lambda: is_on(first, "n1", "n2", "n3", "n4"))
    until(lambda: len(groups_of(fourth)) > 0)
    writers.wait(3)
    leave(first, "n2")
    until(lambda: all("n2" not in each.nodes for each in assignments(first)))
    until(lambda: not groups_of(second))
    writers.wait(3)
    writers.stop()
    for node in (first, third, fourth):
        writers.check(node)
    files = (tmp_path / "n2" / "raft" / "groups").iterdir()
    until(lambda: not [each for each in files if each.name.startswith("zone-")])


def test_a_zone_that_is_altered_has_its_partitions_on_more_or_fewer_nodes(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    nodes = list(three.members.values())
    first = nodes[0]
    first.execute(CreateZone("z", 4, 1), ORDERS)
    for customer in range(8):
        first.do("put", "orders", order(customer, 1))
    for replicas in (3, 2, 1):
        first.execute(AlterZone("z", replicas=replicas))
        version = first.cluster.catalog.current.version
        until(lambda version=version: all(each.version == version for each in assignments(first)))  # type: ignore[misc]
        until(lambda: not any(each.pending for each in assignments(first)))
        assert {len(each.stable) for each in assignments(first)} == {replicas}
        until(
            lambda replicas=replicas: sum(len(groups_of(each)) for each in nodes) == 4 * replicas  # type: ignore[misc]
        )
        assert all(len(node.rows({})) == 8 for node in nodes)


def test_a_node_with_the_only_replica_of_a_partition_leaves_when_it_is_moved(
    tmp_path: Path, stack: ExitStack
) -> None:
    three = Three(tmp_path, stack)
    first = three.members["n1"]
    first.execute(CreateZone("z", 6, 1), ORDERS, CreateTable("other", COLUMNS, ("id",), zone="z"))
    for customer in range(12):
        first.do("put", "orders", order(customer, 1))
    three.members["n3"].cluster.close()
    waits: list[str] = []

    def waits_for_n3() -> bool:
        waits.extend(move_away(first, "n3") or ())
        return bool(waits)

    until(waits_for_n3)
    assert all("n3" in line and "silent: n3" in line for line in waits)
    three.members["n3"] = three.new("n3")
    three.members["n3"].cluster.start()
    leave(first, "n3")
    until(lambda: is_on(first, "n1", "n2"))
    assert len(first.rows({})) == 12
