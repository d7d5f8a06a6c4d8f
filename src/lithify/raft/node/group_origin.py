"""Checks that a node which is to be added does not have another group of the same name. Pure.

Each cluster starts with a group that has the key `default`, so neither name nor key distinguishes
two of them. A node that is to be added reports its group of that name (`origin`):

    {"key": "default", "members": {"n1": "0b5c…", "n4": "c41d…"}}

with the members of all configurations that may be in force, and their known identities. The leader
accepts the node (`check_origin`) if

1. it has no group of that name, or one without members, which waits for a leader's log;
2. the group has the same key, and the key is random (`raft/storage/file_names.py`): no other group
   has it;
3. another member is also a member here, and its known identities are the same. So a node that was
   removed and does not know it yet can be added again.

Any other group has its own history, which adding the node would destroy or mix with this one.

`Answering` and `Changes` call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.raft.errors import ForeignGroup
from lithify.raft.storage.file_names import group_of, is_drawn, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.raft.group.group import Group

__all__ = ["check_origin", "origin"]


def origin(group: Group[Any], known: Mapping[str, str]) -> dict[str, Any]:
    """The key and members of a group; `known` has the identities of nodes."""
    members: dict[str, str] = {}
    for config in group.open_configs:
        for name in config.members:
            members[name] = config.identity_of(name) or known.get(name, "")
    return {"key": key_of(group.name), "members": members}


def check_origin(node: str, own: dict[str, Any], shown: object) -> None:
    """Raise `ForeignGroup` if a node that is to be added has another group of the same name."""
    if not isinstance(shown, dict) or not isinstance(shown.get("members"), dict):
        # It has no group of that name, or is of an earlier version and does not report it.
        return
    there, here = shown["members"], own["members"]
    is_same = shown.get("key") == own["key"]
    if is_same and (is_drawn(own["key"]) or not there):
        return
    shared = (there.keys() & here.keys()) - {node}
    if is_same and any(there[each] in ("", here[each]) or not here[each] for each in shared):
        return
    raise ForeignGroup(node, group_of(own["key"]), sorted(map(str, there)))
