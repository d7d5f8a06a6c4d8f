"""Groups that sleep are not ticked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.kv import format as kv
from lithify.raft.kv.machine import KvMachine
from lithify.raft.machine import Timer
from lithify.raft.node.group_ticks import GroupTicks
from tests.raft_members import GROUP, Members

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.raft.kv.state import KvState
    from lithify.raft.machine import CommandBatch, Effect

MANY_TICKS = 50
"""More than a group waits before it sleeps."""


class Repeating(KvMachine):
    """Puts a key some time after each command."""

    def apply_many(
        self, batch: CommandBatch, start: int, state: KvState
    ) -> tuple[KvState, list[bytes], Sequence[Effect]]:
        state, replies, _ = super().apply_many(batch, start, state)
        return state, replies, (Timer(b"t", 2 * MANY_TICKS, kv.put(b"later", b"!")),)


def alone(machine: Callable[[], KvMachine] = KvMachine) -> tuple[Members, GroupTicks]:
    """A group with one member, which leads."""
    members, ticks = Members("n1", machine=machine), GroupTicks(check_ticks=10)
    members.elect("n1")
    ticks.worked(GROUP, members["n1"].group)
    return members, ticks


def tick(members: Members, ticks: GroupTicks, times: int = 1) -> int:
    """Tick as a node does; how many groups worked?"""
    worked = 0
    for _ in range(times):
        worked += len(ticks.tick())
        members.settle()
        ticks.worked(GROUP, members["n1"].group)
    return worked


def test_an_idle_group_is_checked_only() -> None:
    members, ticks = alone()
    tick(members, ticks, MANY_TICKS)
    assert not ticks.awake
    assert tick(members, ticks, 100) == 10
    assert not ticks.awake


def test_a_command_wakes_a_group_for_a_while() -> None:
    members, ticks = alone()
    tick(members, ticks, MANY_TICKS)
    members.put("n1", b"k", b"v")
    ticks.worked(GROUP, members["n1"].group)
    assert list(ticks.awake) == [GROUP]
    tick(members, ticks, MANY_TICKS)
    assert not ticks.awake
    assert members.get("n1", b"k") == b"v"


def test_a_group_that_waits_for_a_time_is_ticked() -> None:
    members, ticks = alone(Repeating)
    members.put("n1", b"first", b"")
    tick(members, ticks, MANY_TICKS)
    assert list(ticks.awake) == [GROUP]
    tick(members, ticks, 2 * MANY_TICKS)
    assert members.get("n1", b"later") == b"!"


def test_a_group_that_has_left_is_neither_ticked_nor_checked() -> None:
    members, ticks = alone()
    tick(members, ticks, MANY_TICKS)
    ticks.forget(GROUP)
    assert not any(ticks.tick() for _ in range(100))
