"""Named pins: neither a pin nor a snapshot can overlook the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.update_log.format import SNAPSHOT_KEY, SnapshotPointer
from lithify.catalog_compaction.pins import (
    NamedPin,
    delete_expired,
    place_pin,
    read_pins,
    release_pin,
)
from lithify.clock import ManualClock
from lithify.errors import InvalidInput
from lithify.metastore.transaction import Transaction
from lithify.positions import NO_POSITION
from lithify.testing.memory_metastore import MemoryMetastore, MemoryMetastoreCluster
from tests.unit.metastore.nodes import put, told


def pin_of(clock: ManualClock, name: str = "export", version: int = 7) -> NamedPin:
    return NamedPin(name, version, "me", "Monday", clock.now_ms() + 1000)


def store(clock: ManualClock) -> MemoryMetastore:
    return MemoryMetastoreCluster(clock).node()


async def published(metastore: MemoryMetastore, version: int) -> None:
    await put(metastore, SNAPSHOT_KEY, SnapshotPointer(version, 1, bytes(32)).encode())


def test_a_pin_holds_its_version_until_it_expires() -> None:
    async def story() -> None:
        clock = ManualClock()
        metastore = store(clock)
        await place_pin(metastore, clock, pin_of(clock))
        pins = await read_pins(metastore)
        [hold] = pins.holds(clock.now_ms())
        assert (hold.name, hold.position, hold.owner) == ("pin export", 7, "me: Monday")
        clock.advance(1)
        assert pins.holds(clock.now_ms()) == ()
        await delete_expired(metastore, pins, clock.now_ms())
        assert (await read_pins(metastore)).named == ()

    told(story)


def test_a_pin_that_was_renewed_meanwhile_is_not_deleted() -> None:
    async def story() -> None:
        clock = ManualClock()
        metastore = store(clock)
        await place_pin(metastore, clock, pin_of(clock))
        pins = await read_pins(metastore)
        clock.advance(1)
        await place_pin(metastore, clock, pin_of(clock))
        await delete_expired(metastore, pins, clock.now_ms())
        assert len((await read_pins(metastore)).named) == 1

    told(story)


def test_a_pin_of_a_version_that_is_gone_is_refused() -> None:
    async def story() -> None:
        clock = ManualClock()
        metastore = store(clock)
        await published(metastore, 8)
        with pytest.raises(CatalogVersionTrimmed, match="the earliest version left is 8"):
            await place_pin(metastore, clock, pin_of(clock))
        await place_pin(metastore, clock, pin_of(clock, version=8))

    told(story)


def test_a_pin_that_races_with_a_snapshot_is_judged_again() -> None:
    async def story() -> None:
        clock = ManualClock()
        cluster = MemoryMetastoreCluster(clock)
        metastore, other = cluster.node(), cluster.node()

        class Overtaken:
            """The snapshot is published between the read and the transaction."""

            async def transact(self, transaction: Transaction) -> object:
                await published(other, 8)
                return await metastore.transact(transaction)

            def __getattr__(self, name: str) -> object:
                return getattr(metastore, name)

        with pytest.raises(CatalogVersionTrimmed):
            await place_pin(Overtaken(), clock, pin_of(clock))  # type: ignore[arg-type]
        assert (await read_pins(metastore)).named == ()

    told(story)


@pytest.mark.parametrize("change", ["place", "move", "release"])
def test_a_change_of_pins_is_seen_by_the_demand_of_a_snapshot(change: str) -> None:
    async def story() -> None:
        clock = ManualClock()
        metastore = store(clock)
        await place_pin(metastore, clock, pin_of(clock))
        pins = await read_pins(metastore)
        assert (await metastore.transact(Transaction((pins.unchanged,)))).succeeded
        if change == "release":
            assert await release_pin(metastore, "export")
        else:
            name = "other" if change == "place" else "export"
            await place_pin(metastore, clock, pin_of(clock, name, 9))
        assert not (await metastore.transact(Transaction((pins.unchanged,)))).succeeded

    told(story)


def test_a_pin_that_cannot_be_read_permits_nothing() -> None:
    async def story() -> None:
        clock = ManualClock()
        metastore = store(clock)
        await put(metastore, b"catalog_pin/new", b'{"format": 2}')
        await put(metastore, b"catalog_pin/torn", b"{")
        holds = (await read_pins(metastore)).holds(clock.now_ms())
        assert [each.position for each in holds] == [NO_POSITION] * 2
        assert holds[0].name == "pin new, which is unreadable"

    told(story)


def test_a_wrong_pin_is_refused() -> None:
    async def story() -> None:
        clock = ManualClock()
        expired = replace(pin_of(clock), expires_ms=clock.now_ms())
        with pytest.raises(InvalidInput, match="has expired"):
            await place_pin(store(clock), clock, expired)

    told(story)
    clock = ManualClock()
    for wrong in ({"name": ""}, {"name": "n" * 201}, {"version": -1}):
        with pytest.raises(InvalidInput):
            replace(pin_of(clock), **wrong)
