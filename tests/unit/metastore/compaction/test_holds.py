"""Named holds: the owner of one can read its revision."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.planning.horizon import Hold
from lithify.errors import InvalidInput
from lithify.metastore.compaction.holds import (
    HOLDS,
    NamedHold,
    list_holds,
    place_hold,
    release_hold,
)
from lithify.metastore.errors import RevisionCompacted, RevisionNotReached
from lithify.testing.memory_metastore import MemoryMetastoreCluster, Moment
from tests.unit.metastore.nodes import put, told

if TYPE_CHECKING:
    from lithify.testing.memory_metastore import MemoryMetastore


def a_store(clock: ManualClock) -> MemoryMetastore:
    return MemoryMetastoreCluster(clock).node()


def test_a_hold_is_listed_moves_forward_and_is_released() -> None:
    clock = ManualClock()

    async def story() -> None:
        store = a_store(clock)
        first = await put(store, b"a", b"1")
        await place_hold(store, clock, NamedHold("backup", first, "n1", "of Monday"))
        ((found,), since) = await list_holds(store)
        assert found == NamedHold("backup", first, "n1", "of Monday", clock.now_ms())
        assert isinstance(found, NamedHold)
        assert found.hold == Hold("hold backup", first - 1, "n1: of Monday", clock.now_ms())
        later = await put(store, b"a", b"2")
        assert since < later
        await place_hold(store, clock, NamedHold("backup", later, "n1", ""))
        with pytest.raises(InvalidInput, match=f"is at revision {later} and cannot go back"):
            await place_hold(store, clock, NamedHold("backup", first, "n1", ""))
        assert await release_hold(store, "backup")
        assert not await release_hold(store, "backup")
        assert (await list_holds(store))[0] == []

    told(story)


def test_a_hold_ends_with_its_lease() -> None:
    clock = ManualClock()

    async def story() -> None:
        store = a_store(clock)
        revision = await put(store, b"a", b"1")
        lease = await store.grant_lease(1000)
        await place_hold(store, clock, NamedHold("x", revision, "n1", "", lease=lease.id))
        ((found,), _) = await list_holds(store)
        assert isinstance(found, NamedHold)
        assert found.lease == lease.id
        await store.revoke_lease(lease.id)
        assert (await list_holds(store))[0] == []

    told(story)


def test_a_hold_on_what_cannot_be_read_is_refused_and_leaves_nothing() -> None:
    clock = ManualClock()

    async def story() -> None:
        store = a_store(clock)
        old = [await put(store, b"a", b"%d" % n) for n in range(3)]
        await store.compact(old[1])
        with pytest.raises(RevisionCompacted):
            await place_hold(store, clock, NamedHold("x", old[1], "n1", ""))
        with pytest.raises(RevisionNotReached):
            await place_hold(store, clock, NamedHold("x", 10_000, "n1", ""))
        assert (await list_holds(store))[0] == []

    told(story)


def test_a_hold_that_the_floor_overtakes_is_refused() -> None:
    clock = ManualClock()

    async def story() -> None:
        cluster = MemoryMetastoreCluster(clock)
        store, other = cluster.node(), cluster.node()
        old = [await put(store, b"a", b"%d" % n) for n in range(3)]

        async def compact(request: str, moment: Moment) -> None:
            if (request, moment) == ("transact", Moment.BEFORE):
                store.gate = None
                await other.compact(old[1])

        store.gate = compact
        with pytest.raises(RevisionCompacted):
            await place_hold(store, clock, NamedHold("x", old[0], "n1", ""))
        assert (await list_holds(store))[0] == []

    told(story)


def test_placing_a_hold_twice_does_not_move_it_back() -> None:
    clock = ManualClock()

    async def story() -> None:
        store = a_store(clock)
        old = [await put(store, b"a", b"%d" % n) for n in range(3)]
        await asyncio.gather(
            *(place_hold(store, clock, NamedHold("x", each, "n1", "")) for each in reversed(old)),
            return_exceptions=True,
        )
        ((found,), _) = await list_holds(store)
        assert isinstance(found, NamedHold)
        assert found.revision == old[2]

    told(story)


def test_a_hold_that_is_unreadable_permits_nothing() -> None:
    async def story() -> None:
        store = a_store(ManualClock())
        for number, value in enumerate((b"", b"[]", b'{"version": 2}', b'{"version": 1}')):
            await put(store, HOLDS + b"%d" % number, value)
        found, _ = await list_holds(store)
        assert [each.position for each in found if isinstance(each, Hold)] == [-1] * 4
        assert found[0].name == "hold 0, which is unreadable"

    told(story)


def test_a_hold_has_limits() -> None:
    for name, revision, reason in (
        ("", 1, ""),
        ("x" * 201, 1, ""),
        ("x", 0, ""),
        ("x", 1, "r" * 201),
    ):
        with pytest.raises(InvalidInput):
            NamedHold(name, revision, "n1", reason)
