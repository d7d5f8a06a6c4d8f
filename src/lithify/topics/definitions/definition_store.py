"""Where the definitions of a node are stored, as topics and blob stores see it.

A node has them in the catalog of its cluster (`node/catalog/definitions.py`). Backups, and data
directories of version 0.1, have them in a file (`definitions_file.py`).

Any thread may call. `current` never waits. `change` waits until the change is durable and `current`
has it; changes are serialized, and each applies to the result of the previous one. So `edit` may be
called more than once, in any thread: it must be pure, and is refused by what it raises.

After an error of which `is_outcome_unknown` is true the change was made, or was not, or still may
be. Data that it is about must stay as it is: neither removed, nor used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from lithify.ownership import NodeUrls, NotOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lithify.log.object_file import ObjectIdentity
    from lithify.topics.definitions.definitions import Definitions, RemovedObject
    from lithify.topics.definitions.topic_names import TopicName

__all__ = ["DefinitionStore"]


class DefinitionStore(ABC):
    """See the module. Implements `StoreDefinitions` of `blobs/definition.py`."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[], None]] = []
        """Called after each change, in any thread; they must not wait."""
        self.found = False
        """Were there definitions? Without any a node starts with the initial ones."""

    @property
    @abstractmethod
    def current(self) -> Definitions:
        """The newest definitions."""

    @abstractmethod
    def change(self, edit: Callable[[Definitions], Definitions]) -> Definitions:
        """Replace the definitions by `edit(current)`; durable when it returns."""

    # --- owners -----------------------------------------------------------------------------

    def urls(self, node: str) -> NodeUrls:  # noqa: ARG002  (a file knows no other nodes)
        """Where a node serves clients, as known here now."""
        return NodeUrls()

    def check_owner(self, name: TopicName) -> None:
        """Raise `NotOwner` if a topic or partition belongs to another node."""
        self._check_here(f"topic {name}", self.current.owner(name))

    def store_identity(self, name: str) -> ObjectIdentity | None:
        """What the directory of a blob store must be of; None if there are no ids."""
        return self.current.store_identity(name)

    def owns_store(self, name: str) -> bool:
        """Is a blob store defined, with its data on this node?"""
        return self.current.owns_store(name)

    def check_store_owner(self, name: str) -> None:
        """Raise `NotOwner` if a blob store belongs to another node."""
        place = self.current.store_places.get(name)
        self._check_here(f"blob store {name}", place.owner if place is not None else "")

    def place_store(self) -> str:
        """The node that a new blob store belongs on."""
        return self.current.node

    def check_store_place(self, name: str, owner: str) -> None:
        """Raise `NotOwner` if a new blob store belongs on another node than this one."""
        self._check_here(f"blob store {name}", owner)

    def _check_here(self, what: str, owner: str) -> None:
        if owner not in ("", self.current.node):
            raise NotOwner(what, owner, self.urls(owner))

    # --- removals ---------------------------------------------------------------------------

    def removals(self) -> list[RemovedObject]:
        """What was deleted, and this node has not confirmed."""
        return []

    def confirm_removals(self, ids: Collection[int]) -> None:  # noqa: B027  (a file has none)
        """Say that this node has no directories of objects that were deleted.

        A failure is logged only: it is repeated when the node starts.
        """

    # --- blob stores ------------------------------------------------------------------------

    def stores(self) -> Mapping[str, dict[str, Any]]:
        """The definitions of all blob stores."""
        return self.current.stores

    def add_store(self, name: str, row: dict[str, Any]) -> None:
        """Define a blob store, which must not exist."""
        self.change(lambda d: d.with_store(name, row))

    def change_store(self, name: str, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace the definition of a blob store."""
        self.change(lambda d: d.with_store_changed(name, edit))

    def finish_store(self, known: ObjectIdentity, created_ms: int) -> None:
        """Record that the files of a blob store were created; raises unless it is the known one."""
        self.change(lambda d: d.with_store_created(known, created_ms))

    def remove_store(self, name: str, known: ObjectIdentity | None = None) -> None:
        """Remove the definition of a blob store; raises unless it is the `known` one."""
        self.change(lambda d: d.without_store(name, known))
