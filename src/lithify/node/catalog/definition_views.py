"""The definitions of topics and blob stores as a view of one catalog version.

Nothing is copied: an entry is made of the catalog's objects when it is read. So the definitions of
a version cost nothing, whatever the number of topics; reading all entries costs a few microseconds
each. An edit of them (`topics/definitions/edited_mapping.py`) costs what it changes.

Pure; any thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.catalog.objects import NamespaceDescriptor, ObjectKind, TopicDescriptor
from lithify.topics.definitions.definitions import (
    Definitions,
    NamespaceDefinition,
    StorePlace,
    TopicDefinition,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.catalog.catalog import Catalog

__all__ = ["PERSISTENT", "definitions_of", "own_definitions"]

PERSISTENT = "persistent://"

_V = TypeVar("_V")


def definitions_of(catalog: Catalog, node: str, *, logs: bool = False) -> Definitions:
    """The definitions of a catalog, as the node sees them."""
    return Definitions(
        _Tenants(catalog),
        _Namespaces(catalog),
        _Topics(catalog),
        _Stores(catalog),
        logs,
        node,
        _StorePlaces(catalog),
    )


def own_definitions(definitions: Definitions) -> Definitions:
    """A copy, of which topics and stores are those that have data on this node."""
    node, places = definitions.node, definitions.store_places
    return Definitions(
        dict(definitions.tenants),
        dict(definitions.namespaces),
        {name: each for name, each in definitions.topics.items() if node in each.owners},
        {
            name: row
            for name, row in definitions.stores.items()
            if places[name].owner == node and row["created_ms"]
        },
        definitions.logs,
        node,
    )


class _View(Mapping[str, _V]):
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    @abstractmethod
    def find(self, key: str) -> _V | None:
        """The entry, if it exists."""

    def __getitem__(self, key: str) -> _V:
        found = self.find(key)
        if found is None:
            raise KeyError(key)
        return found

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _names(self, kind: ObjectKind, above: int = 0) -> Iterator[str]:
        for name in self.catalog.directory.get((kind, above), ()):
            yield str(name)

    def _namespaces(self) -> Iterator[tuple[str, int]]:
        """The names and ids of all namespaces."""
        for tenant in self.catalog.tenants():
            group = self.catalog.directory.get((ObjectKind.NAMESPACE, tenant.id))
            for name, each in group.items() if group is not None else ():
                yield f"{tenant.name}/{name}", each


class _Tenants(_View[dict[str, Any]]):
    def find(self, key: str) -> dict[str, Any] | None:
        found = self.catalog.tenant(key)
        return None if found is None else dict(found.settings)

    def __iter__(self) -> Iterator[str]:
        return self._names(ObjectKind.TENANT)


class _Namespaces(_View[NamespaceDefinition]):
    def find(self, key: str) -> NamespaceDefinition | None:
        found = self.catalog.namespace(key)
        return None if found is None else NamespaceDefinition(dict(found.settings))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._namespaces())


class _Topics(_View[TopicDefinition]):
    def find(self, key: str) -> TopicDefinition | None:
        tenant, _, rest = key.removeprefix(PERSISTENT).partition("/")
        namespace, _, local = rest.partition("/")
        found = self.catalog.topic(f"{tenant}/{namespace}", local)
        if found is None or not key.startswith(PERSISTENT):
            return None
        return _topic_definition(found)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.ids())

    def items(self) -> ItemsView[str, TopicDefinition]:
        return _TopicItems(self)

    def ids(self) -> Iterator[tuple[str, int]]:
        """The names and ids of all topics."""
        for namespace, above in self._namespaces():
            group = self.catalog.directory.get((ObjectKind.TOPIC, above))
            for name, each in group.items() if group is not None else ():
                yield f"{PERSISTENT}{namespace}/{name}", each


class _TopicItems(ItemsView[str, TopicDefinition]):
    """All entries of a view by the ids of topics: a third of the cost of finding each by name."""

    def __init__(self, topics: _Topics) -> None:
        super().__init__(topics)
        self._topics = topics

    def __iter__(self) -> Iterator[tuple[str, TopicDefinition]]:
        get = self._topics.catalog.get
        for name, each in self._topics.ids():
            yield name, _topic_definition(get(TopicDescriptor, each))


def _topic_definition(topic: TopicDescriptor) -> TopicDefinition:
    return TopicDefinition(
        topic.partitions, topic.created_ms, dict(topic.settings), topic.id, topic.owners
    )


class _Stores(_View[dict[str, Any]]):
    def find(self, key: str) -> dict[str, Any] | None:
        found = self.catalog.store(key)
        if found is None:
            return None
        namespace = self.catalog.get(NamespaceDescriptor, found.namespace_id)
        return {
            "namespace": self.catalog.full_name(namespace),
            "capacity_bytes": found.capacity_bytes,
            "segment_bytes": found.segment_bytes,
            "created_ms": found.created_ms,
            "settings": dict(found.settings),
        }

    def __iter__(self) -> Iterator[str]:
        return self._names(ObjectKind.STORE)


class _StorePlaces(_View[StorePlace]):
    def find(self, key: str) -> StorePlace | None:
        found = self.catalog.store(key)
        return None if found is None else StorePlace(found.id, found.owner)

    def __iter__(self) -> Iterator[str]:
        return self._names(ObjectKind.STORE)
