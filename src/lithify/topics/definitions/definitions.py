"""The definitions of a node: tenants, namespaces, topics, blob stores and their settings.

All definitions are in one file of one checked line (`fs/checked_lines.py`), which each change
replaces atomically. Nothing else stores definitions, so another implementation can replace this
one behind the same interface.

A namespace belongs to a tenant, a topic and a blob store to a namespace. A tenant or namespace that
is not empty cannot be removed. `blobs/definition.py` defines the other fields of a store.
`Definitions` is a value; its methods are pure and return a changed copy.

`logs` records that topics have had logs: if their directory is missing, data is missing. The file
contains it only if it is true.

Version 1 of the file has no stores; it is read, and the next change replaces it by version 2.

`DefinitionsFile.change` waits for the disk. Any thread may call it; changes are serialized, and
each applies to the result of the previous one. Reading `current` never waits.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lithify.errors import DamagedFile, InvalidInput, ReadFailed, UnsupportedVersion, WriteFailed
from lithify.exit_codes import CONFLICT, NOT_FOUND
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.topics.definitions.topic_names import Namespace, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem

__all__ = [
    "DEFINITIONS_VERSION",
    "AlreadyDefined",
    "Definitions",
    "DefinitionsFile",
    "NamespaceDefinition",
    "NotDefined",
    "NotEmpty",
    "TopicDefinition",
]

DEFINITIONS_VERSION = 2


class NotDefined(InvalidInput):
    """The tenant, namespace, topic or store does not exist."""

    exit_code = NOT_FOUND


class AlreadyDefined(InvalidInput):
    """The tenant, namespace, topic or store exists already."""

    exit_code = CONFLICT


class NotEmpty(InvalidInput):
    """A tenant or namespace cannot be removed because it is not empty."""

    exit_code = CONFLICT


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A topic; `partitions` is 0 for one that is not partitioned."""

    partitions: int = 0
    created_ms: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamespaceDefinition:
    """A namespace, with the default settings of its topics."""

    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Definitions:
    """A consistent set of definitions."""

    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    namespaces: dict[str, NamespaceDefinition] = field(default_factory=dict)
    topics: dict[str, TopicDefinition] = field(default_factory=dict)
    stores: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: bool = False
    """Has any topic had a log? Reset when the last topic is deleted."""

    @classmethod
    def initial(cls) -> Definitions:
        """The definitions of a new node."""
        return cls({"public": {}}, {"public/default": NamespaceDefinition()}, {})

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
        return replace(self, tenants=self.tenants | {name: settings})

    def without_tenant(self, name: str) -> Definitions:
        """Remove a tenant, which must have no namespaces."""
        self.tenant(name)
        namespaces = self.namespaces_of(name)
        if namespaces:
            raise NotEmpty(
                f"tenant {name} has namespaces: {namespaces[0]} and {len(namespaces) - 1} more"
            )
        return replace(self, tenants={k: v for k, v in self.tenants.items() if k != name})

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
        return replace(self, namespaces=self.namespaces | {str(name): namespace})

    def without_namespace(self, name: Namespace) -> Definitions:
        """Remove a namespace, which must have neither topics nor stores."""
        self.namespace(name)
        stores = [each for each, row in self.stores.items() if row["namespace"] == str(name)]
        for what, names in (("topics", self.topics_of(name)), ("blob stores", sorted(stores))):
            if names:
                raise NotEmpty(f"namespace {name} has {what}: {names[0]} and {len(names) - 1} more")
        rest = {k: v for k, v in self.namespaces.items() if k != str(name)}
        return replace(self, namespaces=rest)

    # --- topics -----------------------------------------------------------------------------

    def topics_of(self, namespace: Namespace) -> list[TopicName]:
        """The topics of a namespace, sorted; a partitioned topic is one."""
        names = (TopicName.parse(name) for name in self.topics)
        return sorted(name for name in names if name.namespace == namespace)

    def with_topic(self, name: TopicName, topic: TopicDefinition) -> Definitions:
        """Add or replace a topic."""
        self.namespace(name.namespace)
        return replace(self, topics=self.topics | {str(name): topic})

    def without_topic(self, name: TopicName) -> Definitions:
        """Remove a topic."""
        rest = {k: v for k, v in self.topics.items() if k != str(name)}
        return replace(self, topics=rest, logs=self.logs and bool(rest))

    # --- blob stores ------------------------------------------------------------------------

    def with_store(self, name: str, row: dict[str, Any]) -> Definitions:
        """Add a store, which must not exist."""
        if name in self.stores:
            raise AlreadyDefined(f"blob store {name} exists already")
        self.namespace(Namespace.parse(row["namespace"]))
        return replace(self, stores=self.stores | {name: row})

    def with_store_changed(
        self, name: str, edit: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Definitions:
        """Replace the definition of a store."""
        if name not in self.stores:
            raise NotDefined(f"blob store {name} does not exist")
        return replace(self, stores=self.stores | {name: edit(self.stores[name])})

    def without_store(self, name: str) -> Definitions:
        """Remove a store."""
        if name not in self.stores:
            raise NotDefined(f"blob store {name} does not exist")
        return replace(self, stores={k: v for k, v in self.stores.items() if k != name})

    # --- the file ---------------------------------------------------------------------------

    def to_json(self) -> str:
        """Encode for the file."""
        row = {"version": DEFINITIONS_VERSION, **asdict(self)}
        if not self.logs:
            del row["logs"]
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


class DefinitionsFile:
    """The definitions file of a node; one process writes it."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._changing = threading.Lock()
        self.watchers: list[Callable[[], None]] = []
        """Called after each change, in the thread of the change; they must not wait."""
        self.found = fs.exists(path)
        """Did the file exist? Without it a node starts with the initial definitions."""
        if not self.found:
            self.current = Definitions.initial()
            return
        try:
            lines, _ = read_lines(fs, path)
        except OSError as error:
            raise ReadFailed(path, 0, error) from error
        if len(lines) != 1:
            raise DamagedFile(path, 0, f"has {len(lines)} whole lines, not 1")
        self.current = Definitions.from_json(lines[0][1], path)

    def change(self, edit: Callable[[Definitions], Definitions]) -> Definitions:
        """Replace the definitions by `edit(current)`; durable when it returns."""
        with self._changing:
            new = edit(self.current)
            if new != self.current:
                try:
                    write_atomic(self._fs, self._path, encode_line(new.to_json()))
                except OSError as error:
                    raise WriteFailed(self._path, error) from error
                self.current = new
        for watcher in self.watchers:
            watcher()
        return new

    # Implements `StoreDefinitions` of `blobs/definition.py`.

    def stores(self) -> dict[str, dict[str, Any]]:
        """The definitions of all blob stores."""
        return self.current.stores

    def add_store(self, name: str, row: dict[str, Any]) -> None:
        """Define a blob store, which must not exist."""
        self.change(lambda d: d.with_store(name, row))

    def change_store(self, name: str, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace the definition of a blob store."""
        self.change(lambda d: d.with_store_changed(name, edit))

    def remove_store(self, name: str) -> None:
        """Remove the definition of a blob store."""
        self.change(lambda d: d.without_store(name))
