"""An edit of the definitions of topics and blob stores, as one command of the catalog.

    EditDefinitions(lambda d: d.with_topic(name, topic), "n1")

The command is planned on the newest catalog: the edit gets the definitions of that, and what it
changed is turned into changes of the catalog. After a lost race it is planned again, so the edit is
called again. It must be pure; what it raises refuses the command.

New topics have the owners that the edit gives them, otherwise one of the nodes that are alive, by
`catalog/placement.py`. All partitions of a topic are on one node, because they share its schemas. A
new store is on this node, which has made its files.

Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.catalog.changes import PutObject
from lithify.catalog.commands.blob_stores import CreateBlobStore, DropBlobStore
from lithify.catalog.commands.checks import settings_of
from lithify.catalog.commands.tenants_and_namespaces import (
    CreateNamespace,
    CreateTenant,
    DropNamespace,
    DropTenant,
)
from lithify.catalog.commands.topics import AddPartitions, CreateTopic, DropTopic
from lithify.catalog.errors import InvalidDefinition
from lithify.catalog.objects import ObjectKind
from lithify.catalog.placement import place
from lithify.json_settings import encode_settings
from lithify.node.catalog.definition_views import definitions_of
from lithify.topics.definitions.edited_mapping import differences
from lithify.topics.definitions.topic_names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import CatalogCommand, NewIds
    from lithify.catalog.objects import (
        BlobStoreDescriptor,
        NamespaceDescriptor,
        TenantDescriptor,
        TopicDescriptor,
    )
    from lithify.topics.definitions.definitions import Definitions, TopicDefinition

    _WithSettings: TypeAlias = (
        TenantDescriptor | NamespaceDescriptor | TopicDescriptor | BlobStoreDescriptor
    )

__all__ = ["EditDefinitions"]


class EditDefinitions:
    """See the module; `logs` is the flag of this node, which the catalog does not have."""

    def __init__(
        self,
        edit: Callable[[Definitions], Definitions],
        node: str,
        alive: tuple[str, ...],
        *,
        logs: bool = False,
    ) -> None:
        self._edit = edit
        self._node = node
        self._alive = alive
        self._logs = logs
        self.logs = logs
        """After the edit."""

    def changes(self, catalog: Catalog, ids: NewIds, /) -> list[CatalogChange]:
        """See `catalog/commands/batch.py`."""
        before = definitions_of(catalog, self._node, logs=self._logs)
        after = self._edit(before)
        self.logs = after.logs
        return _Plan(catalog, ids, self._node, self._alive).run(before, after)


class _Plan:
    """The changes of one edit; each part sees those before it."""

    def __init__(self, catalog: Catalog, ids: NewIds, node: str, alive: tuple[str, ...]) -> None:
        self._base = catalog
        self._ids = ids
        self._node = node
        self._alive = alive
        self._changes: list[CatalogChange] = []
        self._applied = 0
        """Changes that `_base` has."""

    @property
    def _catalog(self) -> Catalog:
        """The catalog with the changes so far. Nothing needs it after the last one."""
        if self._applied < len(self._changes):
            self._base = self._base.with_changes(self._changes[self._applied :])
            self._applied = len(self._changes)
        return self._base

    def run(self, before: Definitions, after: Definitions) -> list[CatalogChange]:
        """What is above others is created before, and dropped after them."""
        tenants = differences(before.tenants, after.tenants)
        namespaces = differences(before.namespaces, after.namespaces)
        for name, (old, tenant) in tenants.items():
            if tenant is not None:
                self._put_tenant(name, tenant, is_new=old is None)
        for name, (known, namespace) in namespaces.items():
            if namespace is not None:
                self._put_namespace(name, namespace.settings, is_new=known is None)
        for name, (known_topic, topic) in differences(before.topics, after.topics).items():
            self._change_topic(TopicName.parse(name), known_topic, topic)
        for name, (known_row, row) in differences(before.stores, after.stores).items():
            self._change_store(name, known_row, row)
        for name, (_, namespace) in namespaces.items():
            if namespace is None:
                self._execute(DropNamespace(name))
        for name, (_, tenant) in tenants.items():
            if tenant is None:
                self._execute(DropTenant(name))
        return self._changes

    def _execute(self, command: CatalogCommand) -> None:
        self._changes += command.changes(self._catalog, self._ids)

    def _put_tenant(self, name: str, settings: Mapping[str, Any], *, is_new: bool) -> None:
        if is_new:
            self._execute(CreateTenant(name, settings))
            return
        tenant = self._catalog.tenant(name)
        assert tenant is not None
        self._replace_settings(tenant, name, settings)

    def _put_namespace(self, name: str, settings: Mapping[str, Any], *, is_new: bool) -> None:
        if is_new:
            self._execute(CreateNamespace(name, settings))
            return
        namespace = self._catalog.namespace(name)
        assert namespace is not None
        self._replace_settings(namespace, name, settings)

    def _change_topic(
        self, name: TopicName, old: TopicDefinition | None, new: TopicDefinition | None
    ) -> None:
        namespace = str(name.namespace)
        if new is None:
            self._execute(DropTopic(namespace, name.local))
            return
        if old is None:
            create = CreateTopic(
                namespace,
                name.local,
                new.partitions,
                new.settings,
                owners=new.owners or self._place() * (new.partitions or 1),
                created_ms=new.created_ms,
            )
            self._execute(create)
            return
        if new.partitions != old.partitions:
            added = new.owners[len(old.owners) :] or old.owners[:1] * new.partitions
            added = added[: max(new.partitions - old.partitions, 0)]
            self._execute(AddPartitions(namespace, name.local, new.partitions, added))
        topic = self._catalog.topic(namespace, name.local)
        assert topic is not None
        if topic.created_ms != new.created_ms:
            topic = replace(topic, created_ms=new.created_ms)
            self._changes.append(PutObject(topic))
        self._replace_settings(topic, str(name), new.settings)

    def _place(self) -> tuple[str, ...]:
        zone = self._catalog.default_zone
        return place(self._catalog, zone.id if zone is not None else 0, self._alive)

    def _change_store(
        self, name: str, old: dict[str, Any] | None, new: dict[str, Any] | None
    ) -> None:
        if new is None:
            self._execute(DropBlobStore(name))
        elif old is None:
            self._execute(CreateBlobStore(name=name, owner=self._node, **new))
        else:
            store = self._catalog.store(name)
            assert store is not None
            is_created = bool(old["created_ms"])
            free = {"settings": None} | ({} if is_created else {"created_ms": None})
            if {**old, **free} != {**new, **free}:
                rule = "only its settings can be changed"
                raise InvalidDefinition(ObjectKind.STORE, name, rule)
            if new["created_ms"] != store.created_ms:
                store = replace(store, created_ms=new["created_ms"])
                self._changes.append(PutObject(store))
            self._replace_settings(store, name, new["settings"])

    def _replace_settings(self, of: _WithSettings, name: str, settings: Mapping[str, Any]) -> None:
        found = settings_of(of.kind, name, settings)
        # As text, because True equals 1.
        if encode_settings(found) != encode_settings(of.settings):
            self._changes.append(PutObject(replace(of, settings=found)))
