"""The definitions of a node: tenants, namespaces, topics, blob stores and their settings.

`definition_store.py` has the interface behind which they are stored.

A namespace belongs to a tenant, a topic and a blob store to a namespace. A tenant or namespace that
is not empty cannot be removed. `blobs/definition.py` defines the other fields of a store.
`Definitions` is a value; its methods are pure and return a changed copy. Its mappings may be views
of definitions that are stored elsewhere (`edited_mapping.py`), and must not be changed.

`logs` records that topics have had logs: if their directory is missing, data is missing.

The ids and owners of topics and stores, which a cluster gives them, are not part of what users
define: they are not in the JSON form, and two definitions that differ only in them are equal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, UnsupportedVersion
from lithify.exit_codes import CONFLICT, NOT_FOUND
from lithify.log.object_file import ObjectIdentity
from lithify.topics.definitions.edited_mapping import with_entry, without_entry
from lithify.topics.definitions.topic_names import Namespace, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "DEFINITIONS_VERSION",
    "AlreadyDefined",
    "Definitions",
    "NamespaceDefinition",
    "NotDefined",
    "NotEmpty",
    "RemovedObject",
    "StorePlace",
    "TopicChanged",
    "TopicDefinition",
]

DEFINITIONS_VERSION = 2
"""Of the JSON form. Version 1 has no stores; it is read."""

_TOPIC_KEYS = ("partitions", "created_ms", "settings")


class NotDefined(InvalidInput):
    """The tenant, namespace, topic or store does not exist."""

    exit_code = NOT_FOUND


class AlreadyDefined(InvalidInput):
    """The tenant, namespace, topic or store exists already."""

    exit_code = CONFLICT


class NotEmpty(InvalidInput):
    """A tenant or namespace cannot be removed because it is not empty."""

    exit_code = CONFLICT


class TopicChanged(InvalidInput):
    """Another change of the topic came first."""

    exit_code = CONFLICT


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A topic; `partitions` is 0 for one that is not partitioned."""

    partitions: int = 0
    created_ms: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    id: int = field(default=0, compare=False)
    """0: it has none."""
    owners: tuple[str, ...] = field(default=(), compare=False)
    """The node of each log; empty: the node that has the definitions."""

    def logs_of(self, name: TopicName) -> list[TopicName]:
        """The names that have a log: the partitions, or the topic itself."""
        count = self.partitions
        return [name.partition_name(number) for number in range(count)] if count else [name]

    def identity(self, name: str) -> ObjectIdentity | None:
        """What the directories of the topic of this name must be of; None if it has no id."""
        return ObjectIdentity(self.id, name, self.created_ms) if self.id else None


@dataclass(frozen=True, slots=True)
class RemovedObject:
    """A topic or store that was deleted, of which this node may still have directories."""

    identity: ObjectIdentity
    partitions: int
    is_store: bool

    @property
    def name(self) -> TopicName:
        """The name of a topic."""
        return TopicName.parse(self.identity.name)

    @property
    def directories(self) -> set[TopicName]:
        """The topic and its partitions: what may have a directory."""
        name = self.name
        return {name, *map(name.partition_name, range(self.partitions))}


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The id and the owner of a blob store."""

    id: int
    owner: str


@dataclass(frozen=True, slots=True)
class NamespaceDefinition:
    """A namespace, with the default settings of its topics."""

    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Definitions:
    """A consistent set of definitions."""

    tenants: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    namespaces: Mapping[str, NamespaceDefinition] = field(default_factory=dict)
    topics: Mapping[str, TopicDefinition] = field(default_factory=dict)
    stores: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    logs: bool = False
    """Has any topic had a log? Reset when the last topic is deleted."""
    node: str = field(default="", compare=False)
    """The node that has these definitions; empty: the only one."""
    store_places: Mapping[str, StorePlace] = field(default_factory=dict, compare=False)
    """Of those stores that have one."""

    @classmethod
    def initial(cls) -> Definitions:
        """The definitions of a new node."""
        return cls({"public": {}}, {"public/default": NamespaceDefinition()}, {})

    @property
    def here(self) -> tuple[str, ...]:
        """The owners of what has its data on this node."""
        return (self.node,) if self.node else ()

    # --- tenants ----------------------------------------------------------------------------

    def tenant(self, name: str) -> dict[str, Any]:
        """The settings of a tenant."""
        if name not in self.tenants:
            raise NotDefined(f"tenant {name} does not exist")
        return self.tenants[name]

    def with_tenant(self, name: str, settings: dict[str, Any]) -> Definitions:
        """Add or replace a tenant."""
        # The names of tenants follow the same rules as those of namespaces.
        Namespace(name, name)
        return replace(self, tenants=with_entry(self.tenants, name, settings))

    def without_tenant(self, name: str) -> Definitions:
        """Remove a tenant, which must have no namespaces."""
        self.tenant(name)
        namespaces = self.namespaces_of(name)
        if namespaces:
            raise NotEmpty(
                f"tenant {name} has namespaces: {namespaces[0]} and {len(namespaces) - 1} more"
            )
        return replace(self, tenants=without_entry(self.tenants, name))

    # --- namespaces -------------------------------------------------------------------------

    def namespaces_of(self, tenant: str) -> list[Namespace]:
        """The namespaces of a tenant, sorted."""
        names = map(Namespace.parse, self.namespaces)
        return sorted(name for name in names if name.tenant == tenant)

    def namespace(self, name: Namespace) -> NamespaceDefinition:
        """The definition of a namespace."""
        namespace = self.namespaces.get(str(name))
        if namespace is None:
            raise NotDefined(f"namespace {name} does not exist")
        return namespace

    def with_namespace(self, name: Namespace, namespace: NamespaceDefinition) -> Definitions:
        """Add or replace a namespace."""
        self.tenant(name.tenant)
        return replace(self, namespaces=with_entry(self.namespaces, str(name), namespace))

    def without_namespace(self, name: Namespace) -> Definitions:
        """Remove a namespace, which must have neither topics nor stores."""
        self.namespace(name)
        _check_none(name, "topics", self.topics_of(name))
        self.check_no_stores(name)
        return replace(self, namespaces=without_entry(self.namespaces, str(name)))

    def check_no_stores(self, name: Namespace) -> None:
        """Raise `NotEmpty` if a namespace has blob stores."""
        stores = [each for each, row in self.stores.items() if row["namespace"] == str(name)]
        _check_none(name, "blob stores", sorted(stores))

    # --- topics -----------------------------------------------------------------------------

    def topics_of(self, namespace: Namespace) -> list[TopicName]:
        """The topics of a namespace, sorted; a partitioned topic is one."""
        prefix = f"persistent://{namespace}/"
        return sorted(TopicName.parse(name) for name in self.topics if name.startswith(prefix))

    def defines(self, name: TopicName) -> bool:
        """Is it a topic, or a partition of one?"""
        if str(name) in self.topics:
            return True
        number = name.partition
        whole = self.topics.get(str(name.whole)) if number >= 0 else None
        return whole is not None and number < whole.partitions

    def owner(self, name: TopicName) -> str:
        """The node of a topic or partition, of a partitioned topic that of the first one; or ""."""
        topic, number = self.topics.get(str(name)), 0
        if topic is None:
            topic, number = self.topics.get(str(name.whole)), name.partition
        owners = topic.owners if topic is not None else ()
        return owners[number] if 0 <= number < len(owners) else ""

    def identity(self, name: TopicName) -> ObjectIdentity | None:
        """What the directory of a topic or partition must be of; None if there are no ids."""
        whole = name if str(name) in self.topics else name.whole
        topic = self.topics.get(str(whole))
        return None if topic is None else topic.identity(str(whole))

    def store_identity(self, name: str) -> ObjectIdentity | None:
        """What the directory of a blob store must be of; None if there are no ids."""
        place = self.store_places.get(name)
        if place is None:
            return None
        return ObjectIdentity(place.id, name, self.stores[name]["created_ms"])

    def owns(self, name: TopicName) -> bool:
        """Is it a topic, or a partition of one, that has its data on this node?"""
        return self.defines(name) and self.owner(name) in ("", self.node)

    def owns_store(self, name: str) -> bool:
        """Is it a blob store that has its data on this node?"""
        place = self.store_places.get(name)
        return name in self.stores and (place is None or place.owner == self.node)

    def with_new_topic(self, name: TopicName, topic: TopicDefinition) -> Definitions:
        """Add a topic; neither it nor one of its partitions may exist."""
        parts = map(name.partition_name, range(topic.partitions))
        for each in (name, *parts):
            if self.defines(each):
                raise AlreadyDefined(f"topic {each} exists already")
        return self.with_topic(name, topic)

    def with_topic(self, name: TopicName, topic: TopicDefinition) -> Definitions:
        """Add or replace a topic."""
        self.namespace(name.namespace)
        return replace(self, topics=with_entry(self.topics, str(name), topic))

    def without_topic(self, name: TopicName, known: TopicDefinition | None = None) -> Definitions:
        """Remove a topic; raises unless it is the `known` one, with the same partitions."""
        if known is not None:
            found = self.topics.get(str(name))
            if found is None:
                raise NotDefined(f"topic {name} does not exist")
            if found.id != known.id:
                raise TopicChanged(f"topic {name} was deleted and created again meanwhile")
            if found.partitions != known.partitions:
                raise TopicChanged(
                    f"topic {name} has {found.partitions} partitions, which were "
                    f"{known.partitions} when its deletion began: repeat it"
                )
        rest = without_entry(self.topics, str(name))
        return replace(self, topics=rest, logs=self.logs and any(True for _ in rest))

    # --- blob stores ------------------------------------------------------------------------

    def with_store(self, name: str, row: dict[str, Any]) -> Definitions:
        """Add a store, which must not exist."""
        if name in self.stores:
            raise AlreadyDefined(f"blob store {name} exists already")
        self.namespace(Namespace.parse(row["namespace"]))
        return replace(self, stores=with_entry(self.stores, name, row))

    def with_store_changed(
        self, name: str, edit: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Definitions:
        """Replace the definition of a store."""
        if name not in self.stores:
            raise NotDefined(f"blob store {name} does not exist")
        return replace(self, stores=with_entry(self.stores, name, edit(self.stores[name])))

    def with_store_created(self, known: ObjectIdentity, created_ms: int) -> Definitions:
        """Set the time at which the owner of a store has created its files, if it is not set."""
        place = self.store_places.get(known.name)
        if place is None or place.id != known.id:
            raise NotDefined(f"blob store {known.name} was deleted while it was created")
        row = self.stores[known.name]
        if row["created_ms"]:
            return self
        new = {**row, "created_ms": created_ms}
        return replace(self, stores=with_entry(self.stores, known.name, new))

    def without_store(self, name: str, known: ObjectIdentity | None = None) -> Definitions:
        """Remove a store; raises unless it is the `known` one."""
        if name not in self.stores:
            raise NotDefined(f"blob store {name} does not exist")
        if known is not None and self.store_identity(name) != known:
            raise AlreadyDefined(f"blob store {name} was deleted and created again meanwhile")
        return replace(self, stores=without_entry(self.stores, name))

    # --- JSON -------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Encode as JSON."""
        row: dict[str, Any] = {
            "version": DEFINITIONS_VERSION,
            "tenants": dict(self.tenants),
            "namespaces": {
                name: {"settings": each.settings} for name, each in self.namespaces.items()
            },
            "topics": {
                name: {key: getattr(each, key) for key in _TOPIC_KEYS}
                for name, each in self.topics.items()
            },
            "stores": dict(self.stores),
        }
        if self.logs:
            row["logs"] = True
        return json.dumps(row, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes, path: str = "<memory>") -> Definitions:
        """Decode; raises `UnsupportedVersion` for a newer version."""
        value = json.loads(text)
        if value["version"] not in range(1, DEFINITIONS_VERSION + 1):
            raise UnsupportedVersion(path, value["version"], DEFINITIONS_VERSION)
        return cls(
            value["tenants"],
            {name: NamespaceDefinition(**row) for name, row in value["namespaces"].items()},
            {name: TopicDefinition(**row) for name, row in value["topics"].items()},
            value.get("stores", {}),
            value.get("logs", False),
        )


def _check_none(namespace: Namespace, what: str, names: Sequence[object]) -> None:
    if names:
        raise NotEmpty(f"namespace {namespace} has {what}: {names[0]} and {len(names) - 1} more")
