"""Checks the commands of a text of definitions that is applied over HTTP.

The catalog checks what it knows: names, shapes, references. Settings belong to the packages that
use them:

- settings of topics and namespaces are policies, compaction settings and `deduplication`
- settings and shapes of blob stores are what `blobs/settings.py` accepts

The owners create and delete files when they see the version (`node/catalog/reconciler.py`).

Pure.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lithify.blobs.definition import with_settings
from lithify.blobs.settings import StoreShape
from lithify.catalog.commands.blob_stores import AlterBlobStore, CreateBlobStore
from lithify.catalog.commands.tenants_and_namespaces import AlterNamespace, CreateNamespace
from lithify.catalog.commands.topics import AlterTopic, CreateTopic
from lithify.errors import InvalidSetting
from lithify.json_settings import changed_settings
from lithify.settings import kind_of
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.policies import Policies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.blobs.settings import BlobSettings
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.commands.batch import CatalogCommand

__all__ = ["check_applied"]

DEDUPLICATION = "deduplication"
_DEFAULTS = {
    each.name: each.default for kind in (Policies, TopicCompactionSettings) for each in fields(kind)
} | {DEDUPLICATION: False}


def check_applied(command: CatalogCommand, catalog: Catalog, *, stores: BlobSettings) -> None:
    """Raise `InvalidInput` for a command that its owner could not execute.

    `stores` are the defaults of blob stores on this node.
    """
    if isinstance(command, CreateBlobStore):
        StoreShape(command.capacity_bytes, command.segment_bytes)
        with_settings(stores, command.settings)
    if isinstance(command, AlterBlobStore):
        store = catalog.store(command.name)
        known = store.settings if store is not None else {}
        with_settings(stores, changed_settings(known, command.settings, command.unset))
    if isinstance(command, CreateTopic | AlterTopic | CreateNamespace | AlterNamespace):
        _check_settings(command.settings)


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if name not in _DEFAULTS:
            raise InvalidSetting(name, value, f"one of {', '.join(_DEFAULTS)}")
        default = _DEFAULTS[name]
        wanted = (int, float) if isinstance(default, float) else (type(default),)
        if not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool):
            raise InvalidSetting(name, value, kind_of(default))
    for kind in (Policies, TopicCompactionSettings):
        known = {each.name for each in fields(kind)}
        kind(**{name: value for name, value in settings.items() if name in known})
