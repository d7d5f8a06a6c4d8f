"""Listeners of leaders and of applied entries, without a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lithify.raft.node.group_listeners import GroupListeners


@pytest.mark.parametrize("leader", ["n2", ""])
def test_a_listener_is_notified_when_the_node_leaves_a_group_with_or_without_a_leader(
    leader: str,
) -> None:
    heard: list[tuple[str, str, int]] = []
    listeners = GroupListeners("n1", {})
    listeners.on_leader(lambda *given: heard.append(given))
    group: Any = SimpleNamespace(name="orders", leader=leader, term=3, applied_index=7)
    listeners.worked(group)
    listeners.left(group)
    assert heard == [("orders", leader, 3), ("orders", "", 3)]
