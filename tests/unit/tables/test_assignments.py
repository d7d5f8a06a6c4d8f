"""Which nodes have a partition, and what the metastore says about it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from lithify.catalog.objects import ZoneDescriptor
from lithify.clock import ManualClock
from lithify.metastore.transaction import Compare, Condition, Put, Transaction
from lithify.tables.assignments import (
    Assignment,
    Assignments,
    choose_nodes,
    group_name,
    new_assignments,
    parse_group,
)
from lithify.testing.memory_metastore import MemoryMetastoreCluster

MEMBERS = ("n1", "n2", "n3", "n4")


def test_the_name_of_a_group_says_which_partition_it_has() -> None:
    assert parse_group(group_name((7, 12))) == (7, 12)
    assert parse_group("metastore") is None
    assert parse_group("zone-7-x") is None


def test_partitions_are_spread_evenly_and_have_different_nodes() -> None:
    chosen = [choose_nodes((1, number), 2, MEMBERS) for number in range(1000)]
    assert all(len(set(nodes)) == 2 for nodes in chosen)
    firsts = Counter(nodes[0] for nodes in chosen)
    assert set(firsts) == set(MEMBERS)
    assert max(firsts.values()) < 1.3 * min(firsts.values())


def test_a_node_that_is_added_moves_only_what_it_gets() -> None:
    for number in range(200):
        before = choose_nodes((1, number), 2, MEMBERS)
        after = choose_nodes((1, number), 2, (*MEMBERS, "n5"))
        assert set(after) <= {*before, "n5"}


def test_a_partition_has_at_most_as_many_nodes_as_the_cluster() -> None:
    assert choose_nodes((1, 0), 3, ["n1"]) == ("n1",)


def test_only_partitions_without_an_assignment_get_one() -> None:
    zone = ZoneDescriptor(5, "z", partitions=3, replicas=1)
    found = new_assignments(zone, 9, ["n1"], ["n1"], {(5, 1)})
    assert found == {(5, 0): Assignment(("n1",), 9), (5, 2): Assignment(("n1",), 9)}


def test_the_first_node_of_a_new_assignment_is_alive() -> None:
    zone = ZoneDescriptor(5, "z", partitions=50, replicas=3)
    found = new_assignments(zone, 9, MEMBERS, ["n2", "n4"], ())
    assert {each.stable[0] for each in found.values()} == {"n2", "n4"}
    assert all(
        set(each.stable) == set(choose_nodes(partition, 3, MEMBERS))
        for partition, each in found.items()
    )


def test_of_two_nodes_that_create_or_change_an_assignment_one_succeeds() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        one, two = Assignments(cluster.node()), Assignments(cluster.node())
        await one.create({(5, 0): Assignment(("n1",), 3)})
        await two.create({(5, 0): Assignment(("n2",), 3)})
        for each in (one, two):
            await each.load()
            assert each.known[5, 0].assignment.stable == ("n1",)
        formed = Assignment(("n1",), 3, formed=True)
        assert await one.replace((5, 0), one.known[5, 0], formed)
        assert not await two.replace((5, 0), two.known[5, 0], None)
        await two.load()
        assert two.known[5, 0].assignment == formed
        assert await two.replace((5, 0), two.known[5, 0], None)
        await two.load()
        assert two.known == {}

    asyncio.run(story())


def test_a_node_follows_the_assignments_that_others_change() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        one, two = Assignments(cluster.node()), Assignments(cluster.node())
        seen: asyncio.Queue[int] = asyncio.Queue()
        following = asyncio.create_task(two.follow(lambda: seen.put_nowait(len(two.known))))
        assert await seen.get() == 0
        await one.create({(5, number): Assignment(("n1",), 3) for number in range(3)})
        assert await seen.get() == 3
        await one.load()
        await one.replace((5, 1), one.known[5, 1], None)
        assert await seen.get() == 2
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following

    asyncio.run(story())


def test_replicas_are_marked_for_a_rebuild_only_while_the_demands_hold() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        metastore = cluster.node()
        assignments = Assignments(metastore)
        there = Assignment(("n1", "n2", "n3"), 3, formed=True)
        elsewhere = Assignment(("n1", "n2"), 3, formed=True)
        await assignments.create({(5, number): there for number in range(300)})
        await assignments.create({(6, 0): elsewhere})
        fence = Compare(b"coordinator", Condition.REVISION, 0)
        assert await assignments.give_up(["n3"], (fence,))
        await assignments.load()
        known = {each: found.assignment for each, found in assignments.known.items()}
        assert known.pop((6, 0)) == elsewhere
        assert set(known.values()) == {replace(there, to_rebuild=("n3",))}
        await metastore.transact(Transaction(then=(Put(b"coordinator", b"other"),)))
        assert not await assignments.give_up(["n2"], (fence,))
        before, _ = await assignments.read()
        assert before == assignments.known

    asyncio.run(story())


def test_an_assignment_of_an_earlier_release_has_no_replica_to_rebuild() -> None:
    old = b'{"stable":["n1"],"version":3,"pending":[],"formed":true,"ending":false}'
    assert Assignment.parse(old) == Assignment(("n1",), 3, formed=True)
    new = Assignment(("n1", "n2"), 3, to_rebuild=("n2",))
    assert Assignment.parse(new.encode()) == new
