"""Replicas of partitions on three nodes in this process: those of a node that was away too long."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from lithify.catalog.commands.zones import CreateZone
from tests.unit.tables.test_tables import ORDERS, Member, Three, order, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lithify.raft.group.group import Group

PARTITIONS = 2


def groups(member: Member) -> dict[str, Group[Any]]:
    found = member.cluster.node.groups
    return {name: group for name, group in found.items() if name.startswith("zone-")}


def are_voters(member: Member, *names: str) -> bool:
    """Are these the voters of all partitions, as a node knows them?"""
    found = groups(member).values()
    return len(found) == PARTITIONS and all(each.config.voters == set(names) for each in found)


def gives_up(member: Member, name: str) -> bool:
    assignments = member.tables.hosting.assignments
    return bool(member.run(lambda: assignments.give_up([name], ())))


def to_rebuild(member: Member) -> set[str]:
    known = member.tables.hosting.assignments.known.values()
    return {node for each in known for node in each.assignment.to_rebuild}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    """Three nodes with rows, each with a replica of each partition."""
    with ExitStack() as stack:
        found = Three(tmp_path, stack)
        found.members["n1"].execute(CreateZone("z", PARTITIONS, 3), ORDERS)
        for customer in range(6):
            found.members["n1"].do("put", "orders", order(customer, 1))
        for each in found.members.values():
            until(lambda each=each: are_voters(each, "n1", "n2", "n3"))  # type: ignore[misc]
        yield found


def memberships(member: Member) -> list[int]:
    """How often this node was removed from each partition."""
    left = member.cluster.node.identity.left
    return [each.times for key, each in left.items() if key.startswith("zone-")]


def test_replicas_that_are_marked_while_their_node_is_away_are_rebuilt(three: Three) -> None:
    one, two, away = three.members.values()
    away.cluster.close()
    assert gives_up(one, "n3")
    until(lambda: are_voters(one, "n1", "n2"))
    one.do("put", "orders", order(3, 1, "without n3"))
    assert to_rebuild(one) == {"n3"}
    again = three.new("n3")
    again.cluster.start()
    until(lambda: are_voters(one, "n1", "n2", "n3"))
    assert (to_rebuild(one), memberships(again)) == (set(), [1] * PARTITIONS)
    until(lambda: are_voters(again, "n1", "n2", "n3"))
    one.cluster.close()
    expected = [order(customer, 1) for customer in range(6)]
    expected[3] = order(3, 1, "without n3")
    # A rebuilt replica and one other are a majority.
    assert two.rows({}) == again.rows({}) == expected


def test_replicas_that_are_marked_while_their_node_runs_are_rebuilt(three: Three) -> None:
    members = list(three.members.values())
    assert gives_up(members[0], "n2")
    until(lambda: memberships(members[1]) == [1] * PARTITIONS)
    for each in members:
        until(lambda each=each: are_voters(each, "n1", "n2", "n3"))  # type: ignore[misc]
    assert to_rebuild(members[0]) == set()
    for each in members:
        assert each.rows({}) == [order(customer, 1) for customer in range(6)]


def test_replicas_of_a_node_that_starts_again_take_part(three: Three) -> None:
    one, two, three_again = three.members.values()
    three_again.cluster.close()
    again = three.new("n3")
    again.cluster.start()
    until(lambda: are_voters(again, "n1", "n2", "n3"))
    one.cluster.close()
    two.do("put", "orders", order(7, 1))
    assert memberships(again) == []
