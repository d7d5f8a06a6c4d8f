"""Checks the commands of a text of definitions that is applied over HTTP.

The catalog checks what it knows: names, shapes, references. Settings belong to the packages that
use them, and so do directories:

- settings of topics and namespaces are policies, compaction settings and `deduplication`
- topics and blob stores are deleted, and stores are created, by their own commands, at the owner:
  clients must be disconnected and files created or deleted in the same step

Pure.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lithify.catalog.commands.blob_stores import AlterBlobStore, CreateBlobStore, DropBlobStore
from lithify.catalog.commands.tenants_and_namespaces import AlterNamespace, CreateNamespace
from lithify.catalog.commands.topics import AlterTopic, CreateTopic, DropTopic
from lithify.errors import InvalidInput, InvalidSetting
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.policies import Policies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.catalog.commands.batch import CatalogCommand

__all__ = ["check_applied"]

DEDUPLICATION = "deduplication"
_DEFAULTS = {
    each.name: each.default for kind in (Policies, TopicCompactionSettings) for each in fields(kind)
} | {DEDUPLICATION: False}


def check_applied(command: CatalogCommand) -> None:
    """Raise `InvalidInput` for a command that a text of definitions may not contain."""
    if isinstance(command, DropTopic):
        raise InvalidInput("a topic is deleted by 'lithify topics delete', not by a text")
    if isinstance(command, DropBlobStore | CreateBlobStore):
        raise InvalidInput(
            "a blob store is created and deleted by 'lithify blobs create' and 'lithify blobs "
            "delete', not by a text"
        )
    if isinstance(command, AlterBlobStore):
        raise InvalidInput("settings of a blob store are changed by 'lithify blobs update'")
    if isinstance(command, CreateTopic | AlterTopic | CreateNamespace | AlterNamespace):
        _check_settings(command.settings)


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if name not in _DEFAULTS:
            raise InvalidSetting(name, value, f"one of {', '.join(_DEFAULTS)}")
        default = _DEFAULTS[name]
        wanted = (int, float) if isinstance(default, float) else (type(default),)
        if not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool):
            raise InvalidSetting(name, value, f"of the kind of {default!r}")
    for kind in (Policies, TopicCompactionSettings):
        known = {each.name for each in fields(kind)}
        kind(**{name: value for name, value in settings.items() if name in known})
