"""Whether a group that a node has is the one that the node is to be added to. Pure.

Each cluster begins with a group that has the key `default`, so neither name nor key tell two of
them apart. A node that is to be added says what it has of the name (`origin`):

    {"key": "default", "members": {"n1": "0b5c…", "n4": "c41d…"}}

the members of all configurations that may be in force, with their identities as far as they are
known. The leader accepts it (`check_origin`) if

1. the node has no group of that name, or one without members: it waits for a leader's log;
2. the group has the same key, and that was drawn (`raft/storage/file_names.py`): no other group has
   it;
3. some other member is also a member here, and the identities known of it are the same. So a node
   that was removed and does not know it yet can be added again.

Any other group has a history of its own, which an `add` would destroy or mix with this one.

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
    """Of which group this is a member; `known` has the identities of nodes."""
    members: dict[str, str] = {}
    for config in group.open_configs:
        for name in config.members:
            members[name] = config.identity_of(name) or known.get(name, "")
    return {"key": key_of(group.name), "members": members}


def check_origin(node: str, own: dict[str, Any], shown: object) -> None:
    """Raise `ForeignGroup` if a node that is to be added has another group than the own one."""
    if not isinstance(shown, dict) or not isinstance(shown.get("members"), dict):
        # It has none of that name, or is of an earlier version and does not say.
        return
    there, here = shown["members"], own["members"]
    is_same = shown.get("key") == own["key"]
    if is_same and (is_drawn(own["key"]) or not there):
        return
    shared = (there.keys() & here.keys()) - {node}
    if is_same and any(there[each] in ("", here[each]) or not here[each] for each in shared):
        return
    raise ForeignGroup(node, group_of(own["key"]), sorted(map(str, there)))
