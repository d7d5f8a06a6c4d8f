"""The horizon of the history: the least of what holds it."""

from __future__ import annotations

from lithify.compaction.planning.horizon import Hold
from lithify.hybrid_time import milliseconds
from lithify.metastore.compaction.horizon import history_horizon
from tests.unit.metastore.store import Store

MINUTE_MS = 60_000


def a_store() -> tuple[Store, list[int]]:
    """With a revision each minute."""
    store = Store()
    revisions = []
    for number in range(5):
        store.time_ms = 1_000_000 + number * MINUTE_MS
        revisions.append(store.put(b"a", b"%d" % number))
    return store, revisions


def test_the_state_at_the_start_of_the_retention_stays_readable() -> None:
    store, revisions = a_store()
    now_ms = store.time_ms
    for retention_ms, kept in (
        (2 * MINUTE_MS, revisions[2]),
        (2 * MINUTE_MS - 1, revisions[2]),
        (2 * MINUTE_MS + 1, revisions[1]),
    ):
        found = history_horizon(store.state, now_ms, retention_ms, ())
        assert found.position == kept - 1
        assert [hold.name for hold in found.blocking] == ["retention"]


def test_the_newest_revision_stays_readable_on_an_idle_store() -> None:
    store, revisions = a_store()
    found = history_horizon(store.state, store.time_ms + 100 * MINUTE_MS, MINUTE_MS, ())
    assert found.position == revisions[-1] - 1
    assert [hold.name for hold in found.blocking] == ["newest revision", "retention"]


def test_a_clock_that_was_set_back_makes_nothing_older() -> None:
    store, revisions = a_store()
    found = history_horizon(store.state, 0, MINUTE_MS, ())
    assert found.position == revisions[-2] - 1
    assert milliseconds(store.state.time) == store.time_ms


def test_nothing_is_old_enough() -> None:
    store, _ = a_store()
    assert history_horizon(store.state, store.time_ms, 100 * MINUTE_MS, ()).position == 0
    assert history_horizon(Store().state, 0, 0, ()).position == 0


def test_others_hold_it_by_name() -> None:
    store, revisions = a_store()
    others = [Hold("export", revisions[1] - 1, "n2"), Hold("hold backup", revisions[2] - 1)]
    found = history_horizon(store.state, store.time_ms, 0, others)
    assert found.position == revisions[1] - 1
    assert "held by export (owner n2); next: hold backup" in found.explain(store.time_ms)


def test_no_more_revisions_than_the_limit_are_kept() -> None:
    store, revisions = a_store()
    found = history_horizon(store.state, store.time_ms, 100 * MINUTE_MS, (), revisions_max=2)
    assert found.position == revisions[-2] - 1
    [hold] = found.blocking
    assert (hold.name, hold.owner) == ("retention", "2 revisions")
    for limit in (5, 6):
        found = history_horizon(store.state, store.time_ms, 100 * MINUTE_MS, (), limit)
        assert found.position <= revisions[0] - 1
    # What is older goes, also if there are few.
    found = history_horizon(store.state, store.time_ms, MINUTE_MS, (), revisions_max=4)
    assert found.position == revisions[-2] - 1
