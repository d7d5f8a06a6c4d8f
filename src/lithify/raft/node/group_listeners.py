"""Notifies the process that runs a node about its groups.

    node.listeners.on_leader(lambda group, leader, term: …)
    node.listeners.on_applied(lambda group: …)
    await node.listeners.wait_applied("orders", index)

1. `on_leader` is called whenever the known leader of a group or its term changes, on every member,
   voter or learner; without a known leader with an empty name. A new listener gets the present
   leaders at once.
2. `on_applied` is called after a group has applied entries or installed a snapshot, at most once in
   a round of work, however many entries that were. It has no details: the listener reads the state.
3. A group that this node leaves has no leader, and nothing waits for it any longer.

Listeners are called in the node's event loop, between rounds of work. They must be quick and may
start requests. An error of a listener stops the node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lithify.raft.errors import GroupAbsent
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.raft.group.group import Group

    OnApplied = Callable[[str], None]
    OnLeader = Callable[[str, str, int], None]
    """(group, leader, term)"""

__all__ = ["GroupListeners"]


class GroupListeners:
    """See the module."""

    def __init__(self, node: str, groups: Mapping[str, Group[Any]]) -> None:
        self._node = node
        self._groups = groups
        self._on_applied: list[OnApplied] = []
        self._on_leader: list[OnLeader] = []
        self._applied: dict[str, int] = {}
        self._leaders: dict[str, tuple[str, int]] = {}
        """By group: the leader and the term that listeners know."""
        self._waiting: dict[str, list[tuple[int, asyncio.Future[None]]]] = {}

    def on_applied(self, listener: OnApplied) -> None:
        """Call a listener after a group has applied something."""
        self._on_applied.append(listener)

    def on_leader(self, listener: OnLeader) -> None:
        """Call a listener with the present leaders, and whenever one changes."""
        self._on_leader.append(listener)
        for name, (leader, term) in list(self._leaders.items()):
            listener(name, leader, term)

    async def wait_applied(self, name: str, index: int) -> None:
        """Return when a group has applied an index here; `GroupAbsent` if it is not here."""
        group = self._groups.get(name)
        if group is None:
            raise GroupAbsent(name, self._node)
        if group.applied_index < index:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(name, []).append((index, done))
            await done

    def worked(self, group: Group[Any]) -> None:
        """A group has worked: notify the listeners of what has changed."""
        name, known = group_of(group.name), (group.leader, group.term)
        if self._leaders.get(name) != known:
            self._leaders[name] = known
            self._notify_leader(name, *known)
        applied = group.applied_index
        if self._applied.get(name) != applied:
            self._applied[name] = applied
            for listener in self._on_applied:
                listener(name)
            self._wake(name, applied)

    def left(self, group: Group[Any]) -> None:
        """The node has left a group."""
        name = group_of(group.name)
        self._applied.pop(name, None)
        self._leaders.pop(name, None)
        # Also if no leader was known: what a listener knows of the group has ended.
        self._notify_leader(name, "", group.term)
        self._fail(self._waiting.pop(name, []), name)

    def close(self) -> None:
        """The node stops: nothing more is applied."""
        waiting, self._waiting = self._waiting, {}
        for name, waiters in waiting.items():
            self._fail(waiters, name)

    def _notify_leader(self, name: str, leader: str, term: int) -> None:
        for listener in self._on_leader:
            listener(name, leader, term)

    def _wake(self, name: str, applied: int) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return
        later = []
        for index, done in waiting:
            if index > applied:
                later.append((index, done))
            elif not done.done():
                done.set_result(None)
        later = [each for each in later if not each[1].done()]
        if later:
            self._waiting[name] = later

    def _fail(self, waiting: list[tuple[int, asyncio.Future[None]]], name: str) -> None:
        for _, done in waiting:
            if not done.done():
                done.set_exception(GroupAbsent(name, self._node))
