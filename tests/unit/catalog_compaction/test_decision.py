"""What keeps the catalog's history, by name: every restriction, reason to abort, and hold."""

from __future__ import annotations

from dataclasses import replace

from lithify.catalog.commands.indexes import (
    CreateIndex,
    DropIndex,
    MakeIndexAvailable,
    StartBuildingIndex,
)
from lithify.catalog.commands.removals import ConfirmRemoval
from lithify.catalog.commands.tables import DropTable
from lithify.catalog.commands.tenants_and_namespaces import CreateNamespace, CreateTenant
from lithify.catalog.commands.topics import CreateTopic, DropTopic
from lithify.catalog.commands.zones import AlterZone, CreateZone, DropZone
from lithify.catalog.objects import IndexDescriptor, Removal
from lithify.catalog_compaction.decision import Decision, decide
from lithify.catalog_compaction.facts import AbortKind, ClusterFacts, Floors, NodeTimes, Waits
from lithify.compaction.planning.horizon import Hold
from tests.unit.catalog_compaction.histories import Past, answer, table, time_of, without

NONE = Floors()
TOPIC = "persistent://acme/orders/incoming"


def past(tables: int = 3) -> Past:
    """Version 2 has the first table, version 3 the second one, and so on."""
    made = Past()
    for number in range(tables):
        made.execute(table(f"t{number}"))
    return made


def decided(made: Past, facts: ClusterFacts, floors: Floors = NONE) -> Decision:
    return decide(made.versions, facts, floors)


def kinds(decision: Decision) -> list[AbortKind]:
    return [each.kind for each in decision.aborts]


def blocking(decision: Decision) -> set[str]:
    return {hold.name for hold in decision.horizon.blocking}


def test_when_nothing_needs_more_only_the_newest_version_stays() -> None:
    made = past()
    decision = decided(made, made.facts())
    assert (decision.earliest, decision.wanted, decision.version) == (1, 4, 4)
    assert (decision.trims, decision.aborts, decision.left) == (True, (), ())


def test_the_version_at_the_smallest_low_watermark_stays() -> None:
    made = past()
    decision = decided(made, answer(made.facts(), "n2", low_watermark=time_of(3) + 5))
    assert decision.version == decision.wanted == 3
    assert [hold.owner for hold in decision.horizon.blocking] == ["n2"]


def test_the_version_at_the_smallest_published_time_stays() -> None:
    made = past()
    facts = made.facts()
    published = dict(facts.answers["n2"].published) | {(made.zone().id, 1): time_of(2)}
    decision = decided(made, answer(facts, "n2", published=published))
    assert decision.version == 2
    assert [hold.owner for hold in decision.horizon.blocking] == [
        f"n2, partition 1 of zone {made.zone().id}"
    ]


def test_active_transactions_count_when_they_are_published() -> None:
    made = past()
    facts = answer(made.facts(), "n1", minimum_begin=time_of(2))
    assert decided(made, facts).version == 4
    assert facts.minimum_begin == time_of(2)


def test_the_minimum_begin_time_is_unknown_without_the_answer_of_a_node() -> None:
    facts = past().facts()
    assert without(facts, "n2", in_topology=True).minimum_begin == 0
    assert without(facts, "n2").minimum_begin == time_of(4)


def test_a_time_before_the_earliest_version_trims_nothing() -> None:
    made = past()
    made.versions.replace(made.versions.at_version(3))
    decision = decided(made, made.facts(needs=2))
    assert (decision.version, decision.trims) == (3, False)


def test_a_node_that_does_not_answer_aborts() -> None:
    made = past()
    decision = decided(made, without(made.facts(), "n2", in_topology=True))
    assert (decision.version, decision.wanted) == (1, 0)
    assert [str(each.describe()) for each in decision.aborts] == ["no answer: node n2"]


def test_a_node_without_a_low_watermark_aborts() -> None:
    made = past()
    decision = decided(made, answer(made.facts(), "n3", low_watermark=0))
    assert kinds(decision) == [AbortKind.NO_LOW_WATERMARK]
    assert (decision.aborts[0].node, decision.trims) == ("n3", False)


def test_a_replica_that_has_not_published_aborts() -> None:
    made = past()
    partition = made.zone().id, 0
    decision = decided(made, answer(made.facts(), "n1", published={partition: 0}))
    assert kinds(decision) == [AbortKind.UNPUBLISHED]
    assert (decision.aborts[0].node, decision.aborts[0].partition) == ("n1", partition)
    assert not decision.trims


def test_a_node_with_a_replica_that_is_not_in_the_topology_aborts() -> None:
    made = past()
    decision = decided(made, without(made.facts(), "n1"))
    assert kinds(decision) == [AbortKind.MISSING_NODE]
    assert (decision.aborts[0].node, decision.aborts[0].object) == ("n1", "table t0")
    assert (decision.wanted, decision.version) == (4, 1)


def test_a_node_without_a_replica_that_it_is_assigned_aborts() -> None:
    made = past()
    decision = decided(made, answer(made.facts(), "n2", published={(made.zone().id, 0): 2**60}))
    assert set(kinds(decision)) == {AbortKind.MISSING_GROUP}
    assert decision.aborts[0].describe() == (
        f"version 4: missing group: node n2, partition 1 of zone {made.zone().id}, table t0"
    )
    assert not decision.trims


def test_more_replicas_and_nodes_than_required_do_no_harm() -> None:
    made = past()
    facts = answer(made.facts(), "n3", published={(made.zone().id, each): 2**60 for each in (0, 1)})
    more = NodeTimes("n4", 2**60, 2**60, {(4711, 0): 2**60})
    facts = replace(
        facts, topology=facts.topology | {"n4"}, answers=dict(facts.answers) | {"n4": more}
    )
    assert decided(made, facts).version == 4


def test_a_partition_without_nodes_aborts() -> None:
    made = past()
    facts = made.facts(assignments={})
    assert AbortKind.NO_ASSIGNMENT in kinds(decided(made, facts))
    assert not decided(made, facts).trims


def test_without_tables_no_replica_is_required() -> None:
    made = Past()
    made.execute(CreateTenant("acme"))
    times = {"n1": NodeTimes("n1", time_of(2), time_of(2))}
    facts = ClusterFacts(time_of(3), frozenset(times), times, {})
    assert decided(made, facts).version == 2


def test_a_node_that_is_away_and_has_no_replica_does_not_abort() -> None:
    made = past()
    facts = made.facts()
    only_two = {partition: frozenset({"n1", "n2"}) for partition in facts.assignments}
    for node in ("n1", "n2"):
        facts = answer(facts, node, published=dict.fromkeys(only_two, time_of(4)))
    facts = without(replace(facts, assignments=only_two), "n3")
    assert decided(made, facts).version == 4


def test_a_dropped_table_can_be_read_until_it_is_absent_at_all_low_watermarks() -> None:
    made = past(1)
    made.execute(DropTable("t0"))
    facts = answer(made.facts(), "n3", low_watermark=time_of(2))
    decision = decided(made, facts)
    assert kinds(decision) == [AbortKind.DROPPED_TABLE]
    assert (decision.wanted, decision.version) == (2, 1)
    assert decided(made, made.facts()).version == 3


def test_a_dropped_table_needs_no_replicas_when_it_is_absent_at_all_low_watermarks() -> None:
    made = past(1)
    made.execute(DropTable("t0"))
    made.execute(DropZone("z"), CreateZone("z"))
    facts = made.facts(assignments={})
    for node in facts.answers:
        facts = answer(facts, node, published={(4711, 0): time_of(2)})
    decision = decided(made, facts)
    assert (decision.version, decision.aborts) == (2, ())


def test_a_table_that_is_created_again_is_another_table() -> None:
    made = past(1)
    made.execute(DropTable("t0"))
    made.execute(table("t0"))
    facts = made.facts()
    for node, times in facts.answers.items():
        needed = dict.fromkeys(times.published, time_of(2))
        facts = answer(facts, node, low_watermark=time_of(3), published=needed)
    assert decided(made, facts).version == 2
    decision = decided(made, answer(facts, "n1", low_watermark=time_of(2)))
    assert (kinds(decision), decision.version) == ([AbortKind.DROPPED_TABLE], 1)


def index_of(made: Past) -> IndexDescriptor:
    """The last index of the first table: the first one is that of its key."""
    return [*made.latest.indexes_of(made.table("t0").id)][-1]


def test_an_index_that_is_being_built_keeps_the_version_in_which_it_was_registered() -> None:
    made = past()
    registered = made.execute(CreateIndex("t0", "i", ("v",)))
    made.execute(table("t9"))
    for building in (False, True):
        if building:
            made.execute(StartBuildingIndex(index_of(made).id))
        decision = decided(made, made.facts())
        assert decision.version == registered < decision.wanted
        assert kinds(decision) == [AbortKind.INDEX_BUILD]
        assert decision.aborts[0].object == "index t0.i"


def test_an_index_whose_build_has_ended_holds_until_the_wanted_version_has_it_so() -> None:
    made = past()
    registered = made.execute(CreateIndex("t0", "i", ("v",)))
    index = index_of(made)
    building = made.execute(StartBuildingIndex(index.id))
    available = made.execute(MakeIndexAvailable(index.id))
    assert decided(made, made.facts(needs=building)).version == registered
    assert decided(made, made.facts(needs=available)).version == available


def test_an_index_that_is_being_removed_holds_nothing() -> None:
    made = past()
    made.execute(CreateIndex("t0", "i", ("v",)))
    index = index_of(made)
    made.execute(StartBuildingIndex(index.id))
    made.execute(MakeIndexAvailable(index.id))
    made.execute(DropIndex("t0", "i"))
    assert decided(made, made.facts()).version == made.latest.version


def test_a_rebalance_keeps_the_version_whose_zone_it_follows() -> None:
    made = past()
    altered = made.execute(AlterZone("z", replicas=3))
    made.execute(table("t9"))
    decision = decided(made, made.facts(rebalances={(made.zone().id, 1): altered}))
    assert (decision.wanted, decision.version) == (6, altered)
    assert kinds(decision) == [AbortKind.REBALANCE]
    assert decision.aborts[0].object == f"partition 1 of zone {made.zone().id}"


def test_a_rebalance_that_follows_a_later_version_does_not_abort() -> None:
    made = past()
    decision = decided(made, made.facts(needs=3, rebalances={(made.zone().id, 1): 4}))
    assert (decision.version, decision.aborts) == (3, ())


def test_a_pin_keeps_its_version() -> None:
    made = past()
    decision = decided(made, made.facts(pins=(Hold("pin export", 2, "spark"),)))
    assert (decision.version, blocking(decision), decision.aborts) == (2, {"pin export"}, ())


def test_floors_keep_versions_by_number_and_by_age() -> None:
    made = past()
    assert decided(made, made.facts(), Floors(versions_min=3)).version == 2
    decision = decided(made, made.facts(), Floors(age_ms=15))
    assert (decision.version, blocking(decision)) == (2, {"age"})
    assert decided(made, made.facts(), Floors(versions_min=99)).version == 1


def removed() -> Past:
    """Version 2 has a topic, version 3 deletes it, version 4 and 5 follow."""
    made = Past()
    topic = CreateTopic("acme/orders", "incoming", owners=("n1",))
    made.execute(CreateTenant("acme"), CreateNamespace("acme/orders"), topic)
    made.execute(DropTopic("acme/orders", "incoming"))
    made.execute(CreateTenant("two"))
    made.execute(CreateTenant("three"))
    return made


def test_a_deletion_that_its_owner_has_not_carried_out_keeps_the_last_version_with_the_object() -> (
    None
):
    made = removed()
    decision = decided(made, made.facts())
    assert (decision.wanted, decision.version, blocking(decision)) == (5, 2, {"removal"})
    assert [hold.owner for hold in decision.horizon.blocking] == [f"topic {TOPIC}"]
    made.versions.replace(made.versions.at_version(2))
    assert not decided(made, made.facts()).trims


def test_a_deletion_that_is_carried_out_holds_nothing() -> None:
    made = removed()
    [removal] = made.latest.removals()
    made.execute(ConfirmRemoval(removal.id, "n1"))
    assert decided(made, made.facts()).version == 6


def test_a_deletion_holds_nothing_if_no_version_with_the_object_is_left() -> None:
    made = removed()
    made.versions.replace(made.versions.at_version(3))
    assert any(isinstance(each, Removal) for each in made.versions.earliest.objects.values())
    assert decided(made, made.facts()).version == 5


def test_a_dead_node_is_left_after_the_configured_time_if_a_majority_of_its_groups_lives() -> None:
    made = past()
    facts = made.facts()
    everywhere = dict.fromkeys(facts.assignments, frozenset({"n1", "n2", "n3"}))
    for node in facts.answers:
        facts = answer(facts, node, published=dict.fromkeys(everywhere, time_of(4)))
    facts = without(replace(facts, assignments=everywhere, away_ms={"n3": 1001}), "n3")
    assert not decide(made.versions, facts, NONE, Waits(1001)).trims
    assert not decide(made.versions, facts, NONE).trims
    decision = decide(made.versions, facts, NONE, Waits(1000))
    assert (decision.version, decision.left, decision.aborts) == (4, ("n3",), ())
    hung = replace(facts, topology=facts.topology | {"n3"})
    assert decide(made.versions, hung, NONE, Waits(1000)).left == ("n3",)
    two = answer(facts, "n2", published={})
    assert not decide(made.versions, two, NONE, Waits(1000)).trims
    assert decide(made.versions, two, NONE, Waits(1000)).left == ()


def test_a_replica_to_rebuild_is_not_counted_in_a_majority() -> None:
    made = past()
    facts = made.facts()
    everywhere = dict.fromkeys(facts.assignments, frozenset({"n1", "n2", "n3"}))
    for node in facts.answers:
        facts = answer(facts, node, published=dict.fromkeys(everywhere, time_of(4)))
    facts = without(replace(facts, assignments=everywhere, away_ms={"n3": 1001}), "n3")
    given_up = dict.fromkeys(everywhere, frozenset({"n2"}))
    decision = decide(made.versions, replace(facts, to_rebuild=given_up), NONE, Waits(1000))
    assert (decision.trims, decision.left) == (False, ())


def test_a_node_that_is_back_needs_no_replica_that_is_to_be_rebuilt() -> None:
    made = past()
    facts = made.facts()
    partition = next(each for each, nodes in facts.assignments.items() if "n3" in nodes)
    facts = answer(facts, "n3", published={})
    assert kinds(decided(made, facts))[0] is AbortKind.MISSING_GROUP
    facts = replace(facts, to_rebuild={partition: frozenset({"n3"})})
    assert decided(made, facts).version == 4


def test_no_node_is_left_while_something_else_holds_the_history() -> None:
    made = past()
    facts = made.facts()
    everywhere = dict.fromkeys(facts.assignments, frozenset({"n1", "n2", "n3"}))
    for node in facts.answers:
        facts = answer(facts, node, published=dict.fromkeys(everywhere, time_of(4)))
    facts = without(replace(facts, assignments=everywhere, away_ms={"n3": 1001}), "n3")
    pinned = replace(facts, pins=(Hold("pin export", 1),))
    decision = decide(made.versions, pinned, NONE, Waits(1000))
    assert (decision.version, decision.left) == (1, ())


def test_a_deletion_that_only_a_dead_node_has_left_open_holds_the_history_for_a_time() -> None:
    made = removed()
    facts = without(made.facts(assignments={}, away_ms={"n1": 1001}), "n1")
    assert "removal" in blocking(decide(made.versions, facts, NONE, Waits(1001)))
    decision = decide(made.versions, facts, NONE, Waits(1000))
    assert (decision.version, decision.left) == (made.latest.version, ("n1",))
