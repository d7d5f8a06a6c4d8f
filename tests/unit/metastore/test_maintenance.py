"""Each member purges what is below the floor, and makes dead entries go."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import LithifyError
from lithify.metastore import maintenance
from lithify.metastore.lease_expiry import CHECK_S
from lithify.metastore.local_metastore import LocalMetastore
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.maintenance import MetastoreMaintenance, maintained
from tests.unit.metastore.nodes import alone, put, settings, three, told
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import running

if TYPE_CHECKING:
    from pathlib import Path


def is_purged(metastore: LocalMetastore) -> bool:
    return metastore.state.purged_floor == metastore.state.floor


def test_every_member_purges_what_the_floor_has_passed(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as nodes:
            for number in range(20):
                last = await put(nodes[0], b"a", b"%d" % number)
            clock = ManualClock()
            async with maintained(nodes[0], clock), maintained(nodes[2], clock):
                await nodes[0].compact(last)
                for node in (nodes[0], nodes[2]):
                    await node.node.listeners.wait_applied("metastore", last + 1)
                    await until(partial(is_purged, node))
                    assert (await node.status(local=True)).values == 1
            await nodes[1].node.listeners.wait_applied("metastore", last + 1)
            assert (await nodes[1].status(local=True)).values == 20, "each purges for itself"

    told(story)


def test_a_purge_is_done_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PURGE_CHANGES", 4)

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            for number in range(10):
                last = await put(metastore, b"a", b"%d" % number)
            await metastore.compact(last)
            steps = MetastoreMaintenance(metastore, ManualClock())
            pauses = [steps.step() for _ in range(3)]
            assert pauses == [maintenance.PURGE_PAUSE_S] * 2 + [CHECK_S]
            assert metastore.state.purged_floor == last

    told(story)


def test_much_that_was_removed_is_followed_by_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "REMOVED_MIN", 10)

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            steps, group = MetastoreMaintenance(metastore, ManualClock()), metastore.group
            for number in range(9):
                last = await put(metastore, b"a", b"%d" % number)
            await metastore.compact(last)
            steps.step()
            assert group.overview()["snapshot_index"] == 0, "too little"
            for number in range(9):
                last = await put(metastore, b"a", b"%d" % number)
            await metastore.compact(last)
            steps.step()
            await until(lambda: group.overview()["snapshot_index"])
            assert group.overview()["live_entries"] == 1

    told(story)


def test_a_snapshot_completes_the_purge(tmp_path: Path) -> None:
    """So members have the same live entries at an index, however far each has purged."""

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            group = metastore.group
            for number in range(5):
                last = await put(metastore, b"a", b"%d" % number)
            await metastore.compact(last)
            group.take_snapshot()
            metastore.node.mark(group)
            await until(lambda: group.overview()["snapshot_index"])
            assert group.overview()["live_entries"] == 1
            assert metastore.state.purged_floor == last

    told(story)


def test_a_node_that_is_no_member_yet_is_maintained_later(tmp_path: Path) -> None:
    async def story() -> None:
        given = settings(tmp_path, "n1", ManualClock(), None)
        async with running(given, MetastoreMachine) as node:
            group = node.groups.pop("metastore")
            metastore = LocalMetastore(node, ManualClock())
            steps = MetastoreMaintenance(metastore, ManualClock())
            assert steps.step() == CHECK_S
            waiting = asyncio.ensure_future(metastore.wait_present())
            await asyncio.sleep(0)
            assert not waiting.done()
            node.groups["metastore"] = group
            await waiting
            assert steps.step() == CHECK_S

    told(story)


def test_an_error_in_it_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(LithifyError):
        """A bug."""

    def fail(_: int) -> None:
        raise Broken("a bug in the purge")

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            monkeypatch.setattr(metastore, "purge", fail)
            async with maintained(metastore, ManualClock()):
                await until(metastore.node._failed.done)

    with pytest.raises(Broken):
        told(story)
