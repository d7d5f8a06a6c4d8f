"""What the next steps of a rebalance are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from immutables import Map

from lithify.catalog.catalog import Catalog
from lithify.catalog.objects import ZoneDescriptor
from lithify.raft.core import Config
from lithify.tables.assignments import Assigned, Assignment, choose_nodes
from lithify.tables.rebalance import MoveAction, MoveStep, finished, next_steps, targets

ALL = ("n1", "n2", "n3", "n4", "n5")
PARTITION = (5, 0)


def config(voters: str, learners: str = "") -> Config:
    return Config(frozenset(voters.split()), learners=frozenset(learners.split()))


@pytest.mark.parametrize(
    ("own", "voters", "learners", "goal", "connected", "steps"),
    [
        ("n1", "n1 n2 n3", "", "n1 n2 n3", ALL, [("finish", "")]),
        ("n1", "n1 n2 n3", "", "n1 n2 n4", ALL, [("learn", "n4")]),
        ("n1", "n1 n2 n3", "", "n1 n2 n4", ("n1", "n2", "n3"), []),
        ("n1", "n1 n2 n3", "n4", "n1 n2 n4", ALL, [("promote", "n4")]),
        ("n1", "n1 n2 n3", "n4", "n1 n2 n4", ("n1", "n2"), []),
        ("n1", "n1 n2 n3 n4", "", "n1 n2 n4", ALL, [("remove", "n3")]),
        ("n3", "n1 n2 n3 n4", "", "n1 n4", ("n3", "n4"), [("transfer", "n4")]),
        ("n1", "n1", "", "n1 n2 n3", ALL, [("learn", "n2"), ("learn", "n3")]),
        ("n1", "n1", "n2", "n1 n2 n3", ALL, [("promote", "n2"), ("learn", "n3")]),
        ("n1", "n1 n2 n3 n4", "n5", "n1", ALL, [("remove", "n2 n3 n4 n5")]),
        ("n1", "n1", "", "n2", ALL, [("learn", "n2")]),
        ("n1", "n1 n2", "", "n2", ALL, [("transfer", "n2")]),
        ("n2", "n1 n2", "", "n2", ALL, [("remove", "n1")]),
    ],
)
def test_a_group_is_brought_to_its_goal_step_by_step(
    own: str,
    voters: str,
    learners: str,
    goal: str,
    connected: tuple[str, ...],
    steps: list[tuple[str, str]],
) -> None:
    found = next_steps(own, config(voters, learners), goal.split(), connected)
    assert found == tuple(MoveStep(MoveAction(what), tuple(nodes.split())) for what, nodes in steps)


def test_a_leader_waits_while_a_change_of_members_is_in_progress() -> None:
    joint = replace(config("n1 n2"), outgoing=frozenset(("n1", "n3")))
    assert next_steps("n1", joint, ("n1", "n2"), ALL) == ()


def moved(
    old: Assignment, replicas: int, members: tuple[str, ...], alive: tuple[str, ...] = ALL
) -> Assignment | None:
    """The new assignment of partition 0 of a zone, by version 9 of the catalog."""
    zone = ZoneDescriptor(5, "z", partitions=1, replicas=replicas)
    catalog = Catalog(version=9, objects=Map({5: zone}))
    found = targets(catalog, members, alive, {PARTITION: Assigned(old, 100)})
    assert found.keys() <= {PARTITION}
    return found.get(PARTITION)


def formed(*nodes: str, pending: tuple[str, ...] = ()) -> Assignment:
    return Assignment(nodes, 3, pending, formed=True)


RANKED = choose_nodes(PARTITION, 5, ALL)
"""All nodes, that which the partition is placed on first at the front."""


def test_a_partition_stays_as_long_as_its_nodes_are_the_chosen_ones() -> None:
    assert moved(formed(*RANKED[:3]), 3, ALL) is None
    assert moved(formed(*reversed(RANKED[:3])), 3, ALL) is None
    others = RANKED[:3] + RANKED[4:]
    assert moved(formed(*RANKED[:3]), 3, others) is None


def test_a_partition_moves_to_a_node_that_joins_if_it_is_chosen() -> None:
    old = formed(*choose_nodes(PARTITION, 3, RANKED[1:]))
    new = replace(old, pending=RANKED[:3], version=9)
    assert moved(old, 3, ALL) == new
    assert moved(new, 3, ALL) is None


def test_a_partition_moves_away_from_a_node_that_leaves() -> None:
    new = moved(formed(*RANKED[:3]), 3, RANKED[1:])
    assert new is not None
    assert (new.stable, set(new.pending)) == (RANKED[:3], set(RANKED[1:4]))


def test_a_zone_with_other_replicas_moves_its_partitions() -> None:
    more = moved(formed(*RANKED[:1]), 3, ALL)
    assert more is not None
    assert more.pending == RANKED[:3]
    less = moved(formed(*RANKED[:3]), 1, ALL)
    assert less is not None
    assert less.pending == RANKED[:1]


def test_a_goal_that_was_not_reached_is_replaced_and_its_nodes_are_remembered() -> None:
    old = formed(*RANKED[:2], pending=RANKED[2:4])
    new = moved(old, 1, ALL)
    earlier = tuple(sorted(RANKED[2:4]))
    assert new == Assignment(RANKED[:2], 9, RANKED[:1], formed=True, earlier=earlier)
    assert new.nodes == set(RANKED[:4])
    back = moved(new, 2, ALL)
    assert back is not None
    # The group may have learners of the first goal: only its leader knows that they are gone.
    assert (back.pending, set(back.earlier)) == (RANKED[:2], set(RANKED[2:4]))
    assert finished(back) == Assignment(RANKED[:2], 9, formed=True)


def test_a_partition_that_is_not_formed_gets_another_first_node_if_that_one_leaves() -> None:
    old = Assignment(RANKED[:3], 3)
    assert moved(old, 5, ALL) is None
    new = moved(old, 3, RANKED[1:], alive=RANKED[2:3])
    assert new == Assignment((RANKED[2], RANKED[1], RANKED[3]), 9, earlier=RANKED[:1])


def test_partitions_that_end_or_that_no_node_can_have_stay() -> None:
    assert moved(replace(formed("n1"), ending=True), 3, ALL) is None
    assert moved(formed("n1"), 3, ()) is None
