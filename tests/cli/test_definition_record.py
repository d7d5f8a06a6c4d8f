"""The checker of changes of definitions finds what it is for."""

from __future__ import annotations

from typing import Any

from tests.cli.definition_record import (
    Change,
    Effect,
    History,
    Outcome,
    Record,
    added,
    changed,
    now_ms,
    removed,
)

T = "persistent://public/default/t"
U = "persistent://public/default/u"


def asked(record: Record, outcome: Outcome, *effects: Effect, version: int = 0) -> Change:
    """A change that took two seconds."""
    change = record.begin(f"{effects}", effects)
    record.end(change, outcome, version=version)
    change.called_ms -= 3000
    change.returned_ms = change.called_ms + 2000
    return change


def row(change: str, name: str, number: int, kind: str = "topic", **after: Any) -> dict[str, Any]:
    fields = {each: {"before": None, "after": value} for each, value in after.items()}
    found = {"change": change, "kind": kind, "id": number, "name": name, "fields": fields}
    return {**found, "text": repr(found)}


def versions(*found: list[dict[str, Any]], first: int = 2) -> History:
    """Versions a millisecond apart, a second and a half after the calls; then a late empty one."""
    history = History()
    ms = now_ms() - 1500
    for number, rows in enumerate(found, first):
        history.add("n1", number, (ms + number) << 16, rows)
    history.add("n1", first + len(found), (ms + 2000) << 16, [])
    return history


def test_changes_that_fit_the_versions_are_explained() -> None:
    record = Record()
    asked(record, Outcome.MADE, added("topic", T), version=2)
    asked(record, Outcome.UNKNOWN, changed("topic", T, "7"))
    asked(record, Outcome.UNKNOWN, added("topic", U))
    asked(record, Outcome.REFUSED, added("topic", T))
    history = versions([row("added", T, 5)], [row("changed", T, 5, settings={"retention_ms": 7})])
    assert history.explain(record) == []


def test_an_acknowledged_change_that_is_no_version_is_found() -> None:
    record = Record()
    asked(record, Outcome.MADE, added("topic", T))
    asked(record, Outcome.MADE, added("topic", T))
    [problem] = versions([row("added", T, 5)]).explain(record)
    assert problem.startswith("no version for")


def test_a_refused_change_that_is_a_version_is_found() -> None:
    record = Record()
    asked(record, Outcome.REFUSED, added("topic", T))
    asked(record, Outcome.UNCHANGED, added("topic", T))
    [problem] = versions([row("added", T, 5)]).explain(record)
    assert problem.startswith("no change explains")


def test_one_change_in_two_versions_is_found() -> None:
    record = Record()
    asked(record, Outcome.UNKNOWN, added("topic", T))
    asked(record, Outcome.MADE, removed("topic", T))
    gone = [row("removed", T, 5), row("added", T, 5, "removal")]
    history = versions([row("added", T, 5)], gone, [row("added", T, 6)])
    [problem] = history.explain(record)
    assert problem.startswith("no change explains")


def test_half_of_a_batch_is_found() -> None:
    record = Record()
    asked(record, Outcome.UNKNOWN, added("topic", T), added("topic", U))
    [problem] = versions([row("added", T, 5)]).explain(record)
    assert problem.startswith("no change explains")


def test_an_answer_with_another_version_or_before_the_activation_is_found() -> None:
    record = Record()
    asked(record, Outcome.MADE, added("topic", T), version=3)
    early = asked(record, Outcome.MADE, added("topic", U))
    early.returned_ms = early.called_ms + 10
    history = versions([row("added", T, 5)], [row("added", U, 6)])
    assert len(history.explain(record)) == 4


def test_a_version_older_than_its_change_is_found() -> None:
    record = Record()
    change = record.begin("late", [added("topic", T)])
    record.end(change, Outcome.UNKNOWN)
    [problem] = versions([row("added", T, 5)]).explain(record)
    assert problem.startswith("no change explains")


def test_gaps_and_differences_between_nodes_are_found() -> None:
    history = versions([row("added", T, 5)])
    history.add("n2", 2, history.versions[2].activation, [row("added", U, 5)])
    history.add("n1", 5, history.versions[3].activation, [])
    found = [each.split(" version")[0] for each in history.problems]
    assert found == ["n2 has another", "version 5 follows 3", "version 5 is active before 3"]


def test_an_id_that_is_used_again_and_a_drop_without_a_removal_are_found() -> None:
    history = versions([row("added", T, 5)], [row("added", U, 5)], [row("removed", U, 5)])
    assert len(history.problems) == 2
