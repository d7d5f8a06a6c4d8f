"""Leases: the leader ends those that were not kept, and a holder knows before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.metastore import lease_expiry
from lithify.metastore.command_format import encode_expire
from lithify.metastore.errors import LeaseNotFound
from lithify.metastore.held_lease import HeldLease
from lithify.metastore.lease_expiry import AGAIN_S, LeaseExpiry
from lithify.metastore.maintenance import MetastoreMaintenance
from lithify.metastore.state import StoredLease
from lithify.raft.net.client_operations import MayHaveHappened
from lithify.testing.memory_metastore import MemoryMetastoreCluster, Moment
from tests.unit.metastore.nodes import alone, put, told
from tests.unit.raft.net.nodes import until

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.metastore.metastore import Lease

# --- the leader ---------------------------------------------------------------------------------


def test_a_lease_is_ended_when_it_was_not_kept_for_its_time() -> None:
    clock = ManualClock()
    expiry, leases = LeaseExpiry(clock), {7: StoredLease(1000), 9: StoredLease(3000)}
    assert expiry.check(leases, 1) == []
    clock.advance(0.9)
    assert expiry.check(leases, 1) == []
    clock.advance(0.1)
    assert expiry.check(leases, 1) == [encode_expire(7, 1)]


def test_a_lease_that_is_kept_is_not_ended() -> None:
    clock = ManualClock()
    expiry, lease = LeaseExpiry(clock), StoredLease(1000)
    for generation in range(1, 9):
        lease.generation = generation
        assert expiry.check({7: lease}, 1) == []
        clock.advance(0.9)
    assert expiry.check({7: lease}, 1) == []
    clock.advance(0.1)
    assert expiry.check({7: lease}, 1) == [encode_expire(7, 8)]


def test_the_wall_clock_does_not_matter() -> None:
    clock = ManualClock()
    expiry, leases = LeaseExpiry(clock), {7: StoredLease(1000)}
    expiry.check(leases, 1)
    clock.jump(3600)
    assert expiry.check(leases, 1) == []
    clock.jump(-7200)
    clock.advance(1)
    assert expiry.check(leases, 1) == [encode_expire(7, 1)]


def test_a_new_leader_gives_each_lease_its_whole_time() -> None:
    clock = ManualClock()
    expiry, leases = LeaseExpiry(clock), {7: StoredLease(1000)}
    expiry.check(leases, 1)
    clock.advance(0.9)
    assert expiry.check(leases, 0) == [], "it does not lead"
    clock.advance(5)
    assert expiry.check(leases, 3) == []
    clock.advance(0.9)
    assert expiry.check(leases, 5) == [], "another one may have led in between"
    clock.advance(1)
    assert expiry.check(leases, 5) == [encode_expire(7, 1)]


def test_an_end_that_is_not_applied_is_proposed_again_and_not_at_each_check() -> None:
    clock = ManualClock()
    expiry, leases = LeaseExpiry(clock), {7: StoredLease(1)}
    expiry.check(leases, 1)
    clock.advance(1)
    assert len(expiry.check(leases, 1)) == 1
    assert expiry.check(leases, 1) == []
    clock.advance(AGAIN_S)
    assert len(expiry.check(leases, 1)) == 1
    assert expiry.check({}, 1) == []
    assert not expiry._seen, "nothing is kept of what has ended"


def test_one_check_ends_a_bounded_number_of_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_expiry, "ENDED_MAX", 2)
    clock = ManualClock()
    expiry, leases = LeaseExpiry(clock), {n: StoredLease(1) for n in range(1, 6)}
    expiry.check(leases, 1)
    clock.advance(1)
    assert [len(expiry.check(leases, 1)) for _ in range(4)] == [2, 2, 1, 0]


def test_a_node_ends_overdue_leases_with_their_keys(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with alone(tmp_path, clock) as metastore:
            maintenance = MetastoreMaintenance(metastore, clock)
            kept, ended = [await metastore.grant_lease(10_000) for _ in range(2)]
            await put(metastore, b"kept", b"", kept.id)
            await put(metastore, b"ended", b"", ended.id)
            maintenance.step()
            clock.advance(9)
            await metastore.keep_lease(kept)
            maintenance.step()
            clock.advance(9)
            maintenance.step()
            await until(lambda: ended.id not in metastore.state.leases)
            assert await metastore.get(b"ended") is None
            assert await metastore.get(b"kept") is not None
            with pytest.raises(LeaseNotFound):
                await metastore.keep_lease(ended)

    told(story)


# --- the holder ---------------------------------------------------------------------------------


def believes(held: HeldLease) -> bool:
    return held.is_held


def test_a_holder_counts_from_before_its_request() -> None:
    clock = ManualClock()

    async def slow(_: str, moment: Moment) -> None:
        if moment is Moment.BEFORE:
            clock.advance(0.4)

    async def story() -> None:
        node = MemoryMetastoreCluster(clock).node()
        node.gate = slow
        held = HeldLease(node, clock, 1000)
        assert (held.id, held.is_held) == (0, False)
        await held.acquire()
        assert believes(held)
        assert held.keep_s == pytest.approx(1 / 3)
        clock.advance(0.59)
        assert believes(held)
        clock.advance(0.01)
        assert not believes(held)
        await held.keep()
        clock.advance(0.59)
        assert believes(held)
        clock.advance(0.01)
        assert not believes(held)

    told(story)


def test_a_holder_learns_that_its_lease_has_ended_and_gets_another() -> None:
    clock = ManualClock()

    async def story() -> None:
        node = MemoryMetastoreCluster(clock).node()
        held = HeldLease(node, clock, 1000)
        with pytest.raises(LeaseNotFound):
            await held.keep()
        await held.acquire()
        first = held.id
        await node.revoke_lease(first)
        with pytest.raises(LeaseNotFound):
            await held.keep()
        assert (held.id, held.is_held) == (0, False)
        await held.acquire()
        assert believes(held)
        assert held.id > first

    told(story)


def test_a_lease_that_is_released_while_it_is_kept_stays_released() -> None:
    clock = ManualClock()

    async def story() -> None:
        node = MemoryMetastoreCluster(clock).node()
        held = HeldLease(node, clock, 1000)
        await held.acquire()
        keeping = asyncio.ensure_future(held.keep())
        releasing = asyncio.ensure_future(held.release())
        await asyncio.gather(keeping, releasing)
        assert (held.id, held.is_held) == (0, False)
        assert await node.leases() == []
        await held.release()

    told(story)


def test_keeping_without_an_answer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()

    async def story() -> None:
        node = MemoryMetastoreCluster(clock).node()
        held = HeldLease(node, clock, 1000)
        await held.acquire()

        async def lost(_: Lease) -> Lease:
            raise MayHaveHappened("lost")

        monkeypatch.setattr(node, "keep_lease", lost)
        clock.advance(0.9)
        with pytest.raises(MayHaveHappened):
            await held.keep()
        assert believes(held)
        clock.advance(0.1)
        assert not believes(held)

    told(story)


def test_an_old_answer_does_not_shorten_the_lease() -> None:
    clock = ManualClock()
    gates: list[asyncio.Event] = []

    async def wait(request: str, _: Moment) -> None:
        if request == "keep_lease":
            gates.append(asyncio.Event())
            await gates[-1].wait()

    async def story() -> None:
        node = MemoryMetastoreCluster(clock).node()
        held = HeldLease(node, clock, 1000)
        await held.acquire()
        node.gate = wait
        first = asyncio.ensure_future(held.keep())
        await asyncio.sleep(0)
        clock.advance(0.5)
        second = asyncio.ensure_future(held.keep())
        await asyncio.sleep(0)
        gates[1].set()
        await second
        gates[0].set()
        await first
        clock.advance(0.9)
        assert believes(held)

    told(story)
