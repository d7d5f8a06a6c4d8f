"""Whose directory is it, if the file NODE is lost? Pure.

A directory with groups and without NODE belongs to a node whose name is not known. Under another
name it would be a node that owns nothing and that no group has as a member, or that leads a group
alone which has other members. So a name that was drawn is refused, and so is a given one that
contradicts what the groups say:

- the members in their snapshots, if there is one;
- otherwise, for a node without an address, the node that was voted for: it votes for itself.

The node decides when it opens its directory, before it writes NODE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.raft.storage.file_names import NODE

if TYPE_CHECKING:
    from collections.abc import Collection

    from lithify.raft.node.settings import RaftNodeSettings
    from lithify.raft.storage.storage import GroupStorage

__all__ = ["NodeFileLost", "check_name"]


class NodeFileLost(LithifyError):
    """The file that names the node is gone, and the node was started under another name."""

    def __init__(self, path: str, node: str, names: Collection[str]) -> None:
        self.node = node
        self.names = sorted(names)
        whose = f"of {', '.join(self.names)}" if names else "of a node that has a name"
        what = f"missing, and the groups beside it are {whose}, not of {node}"
        how = "copy the file back, or start lithify serve once with --node and the name it had"
        super().__init__(f"{path} is {what}; the node does not start: {how}")


def check_name(settings: RaftNodeSettings, groups: Collection[GroupStorage]) -> None:
    """Raise `NodeFileLost` if a directory with these groups, without NODE, may be of another."""
    members = {
        name
        for each in groups
        if each.stored is not None
        for name in each.stored.head.meta.config.members
    }
    votes = {each.hard_state.vote for each in groups} - {""}
    known = members or (votes if settings.listen is None or not settings.is_named else set())
    if groups and (not settings.is_named or (known and settings.node not in known)):
        raise NodeFileLost(f"{settings.data}/{NODE}", settings.node, known)
