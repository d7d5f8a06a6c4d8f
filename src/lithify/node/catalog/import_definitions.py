"""Imports the file `definitions` of a data directory into the catalog.

    DIRECTORY/definitions              written by version 0.1, or by a restore
    DIRECTORY/definitions.taken-over   the same file afterwards; nothing reads it

1. Read the file. If it is damaged, or of a newer version, the start of the node fails. Omit topics
   and stores whose directories are marked `DELETED`: their deletion is finished afterwards.
2. Add to the catalog what it lacks, in batches. This node owns it, because its data is here. A
   tenant or namespace that the catalog has keeps its settings, and gets those that it lacks. If the
   catalog is new, what it begins with and the file lacks is removed before.
3. Write the file `OBJECT` into the directories of all of these (`log/object_file.py`), unless it
   names another object, or a store has another shape.
4. Rename the file.

A crash leaves the file, and the next start repeats all of it: what was added is in the catalog by
then. What was deleted between two such starts is added again, without data.

A topic or store that the catalog has with another owner is not added: the directory here stays
unclaimed. So nodes may import directories at once: the first to add a name owns it. A change that
loses races, or whose outcome is unknown, is repeated: what it has added is not added again.

Called when the node opens, before topics and blob stores.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.blobs.unclaimed_directories import deletion_in, differs_in_shape
from lithify.catalog.manager.errors import CatalogBusy
from lithify.errors import LithifyError, WriteFailed, is_outcome_unknown
from lithify.log.object_file import read_object, write_object
from lithify.logger import get_logger
from lithify.topics.definitions.definitions import (
    AlreadyDefined,
    Definitions,
    NamespaceDefinition,
    TopicDefinition,
)
from lithify.topics.definitions.definitions_file import DEFINITIONS, read_definitions
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.directories.unclaimed import deletion_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.fs import FileSystem
    from lithify.log.directory_marks import Deletion
    from lithify.log.object_file import ObjectIdentity
    from lithify.node.catalog.definitions import CatalogDefinitions

__all__ = ["IMPORTED", "import_definitions"]

IMPORTED = "definitions.taken-over"

BATCH_BYTES = 256 * 1024
"""Of the JSON form of what a batch adds; an update of the catalog has at most 1 MiB."""
OWNER_BYTES = 64
"""Of the owner of a partition."""
TRIES_MAX = 100
"""Of one change, each of which loses several races."""
NAMED_MAX = 10
"""Names of other nodes that are logged."""

_NOTHING = Definitions()

log = get_logger("lithify.node")


def import_definitions(fs: FileSystem, directory: str, definitions: CatalogDefinitions) -> None:
    """See the module; without a file nothing happens."""
    path = f"{directory}/{DEFINITIONS}"
    found = read_definitions(fs, path)
    if found is None:
        return
    found = _without_deleted(fs, directory, found)
    if not definitions.found:
        _change(definitions, partial(_without_initial, found))
        definitions.found = True
    for batch in _batches(found):
        _change(definitions, partial(_with_batch, found, batch))
    _write_objects(fs, directory, found, definitions.current)
    if found.logs:
        _change(definitions, lambda d: replace(d, logs=True))
    _warn_of_others(found, definitions.current)
    try:
        fs.rename(path, f"{directory}/{IMPORTED}")
        fs.sync_dir(directory)
    except OSError as error:
        raise WriteFailed(path, error) from error
    log.info(
        "the definitions were imported into the catalog",
        topics=len(found.topics),
        stores=len(found.stores),
        kept_as=IMPORTED,
    )


def _change(definitions: CatalogDefinitions, edit: Callable[[Definitions], Definitions]) -> None:
    for left in reversed(range(TRIES_MAX)):
        try:
            definitions.change(edit)
        except LithifyError as error:
            if not left or not (isinstance(error, CatalogBusy) or is_outcome_unknown(error)):
                raise
        else:
            return


def _without_deleted(fs: FileSystem, directory: str, found: Definitions) -> Definitions:
    """Without topics and stores of which a mark says that they were deleted."""

    def is_deleted(deletion: Deletion | None, created_ms: int) -> bool:
        return deletion is not None and (
            deletion.of is None or deletion.of.created_ms == created_ms
        )

    topics = {
        text: each
        for text, each in found.topics.items()
        if not is_deleted(
            deletion_of(fs, f"{directory}/topics", TopicName.parse(text)), each.created_ms
        )
    }
    stores = {
        name: row
        for name, row in found.stores.items()
        if not is_deleted(deletion_in(fs, f"{directory}/blobs/{name}", name), row["created_ms"])
    }
    return replace(found, topics=topics, stores=stores)


def _batches(found: Definitions) -> Iterator[Definitions]:
    """All that a file has, a part at a time; what is above others comes before them."""
    rows: list[tuple[str, str, Any, int]] = [
        *(("tenants", name, settings, 0) for name, settings in found.tenants.items()),
        *(("namespaces", name, each, 0) for name, each in found.namespaces.items()),
        *(("topics", name, each, each.partitions) for name, each in found.topics.items()),
        *(("stores", name, row, 0) for name, row in found.stores.items()),
    ]
    batch: dict[str, Any] = {}
    size_bytes = 0
    for kind, name, value, partitions in rows:
        entry: dict[str, Any] = {kind: {name: value}}
        one = len(replace(_NOTHING, **entry).to_json()) + partitions * OWNER_BYTES
        if batch and size_bytes + one > BATCH_BYTES:
            yield replace(_NOTHING, **batch)
            batch, size_bytes = {}, 0
        batch.setdefault(kind, {})[name] = value
        size_bytes += one
    yield replace(_NOTHING, **batch)


def _with_batch(found: Definitions, batch: Definitions, current: Definitions) -> Definitions:
    for name, settings in batch.tenants.items():
        current = current.with_tenant(name, settings | current.tenants.get(name, {}))
    for text, namespace in batch.namespaces.items():
        known = current.namespaces.get(text, NamespaceDefinition())
        merged = NamespaceDefinition(namespace.settings | known.settings)
        current = current.with_namespace(Namespace.parse(text), merged)
    for text, topic in batch.topics.items():
        owned = replace(topic, owners=current.here * (topic.partitions or 1))
        topic_name = TopicName.parse(text)
        current = _with_namespace(found, topic_name.namespace, current)
        with suppress(AlreadyDefined):
            current = current.with_new_topic(topic_name, owned)
    for name, row in batch.stores.items():
        current = _with_namespace(found, Namespace.parse(row["namespace"]), current)
        with suppress(AlreadyDefined):
            current = current.with_store(name, row)
    return current


def _with_namespace(found: Definitions, name: Namespace, current: Definitions) -> Definitions:
    """Add a namespace that another node has removed since it was added."""
    if name.tenant not in current.tenants:
        current = current.with_tenant(name.tenant, found.tenants.get(name.tenant, {}))
    if str(name) not in current.namespaces:
        namespace = found.namespaces.get(str(name), NamespaceDefinition())
        current = current.with_namespace(name, namespace)
    return current


def _write_objects(
    fs: FileSystem, directory: str, found: Definitions, current: Definitions
) -> None:
    """Say in the directories that exist of which objects they are, unless of other ones."""
    for path, wanted in _places(fs, directory, found, current):
        known = read_object(fs, path)
        # An id may be that of a catalog that was lost.
        if known is None or replace(known, id=wanted.id) == wanted != known:
            write_object(fs, path, wanted)


def _places(
    fs: FileSystem, directory: str, found: Definitions, current: Definitions
) -> Iterator[tuple[str, ObjectIdentity]]:
    """The directories of what the catalog has of the file, with this node as the owner."""
    for text, topic in found.topics.items():
        for part in topic.logs_of(TopicName.parse(text)):
            path, wanted = f"{directory}/topics/{part.path}", current.identity(part)
            if wanted is None or wanted.created_ms != topic.created_ms:
                # It was created again.
                continue
            if current.owns(part) and fs.exists(path):
                yield path, wanted
    for name, row in found.stores.items():
        path, wanted = f"{directory}/blobs/{name}", current.store_identity(name)
        if wanted is None or wanted.created_ms != row["created_ms"]:
            continue
        is_here = current.owns_store(name) and fs.exists(path)
        if is_here and not differs_in_shape(fs, path, current.stores[name]):
            yield path, wanted


def _without_initial(found: Definitions, current: Definitions) -> Definitions:
    """Without what a new catalog begins with and the file does not have, unless it was changed."""
    if replace(current, logs=False) != Definitions.initial():
        return current
    for text in [name for name in current.namespaces if name not in found.namespaces]:
        current = current.without_namespace(Namespace.parse(text))
    for name in [name for name in current.tenants if name not in found.tenants]:
        current = current.without_tenant(name)
    return current


def _warn_of_others(found: Definitions, current: Definitions) -> None:
    owners = {
        text: _owners(TopicName.parse(text), each, current) for text, each in found.topics.items()
    }
    for name in found.stores:
        place = current.store_places.get(name)
        owners[name] = {place.owner} if place is not None else set()
    others = {name: nodes for name, nodes in owners.items() if nodes and current.node not in nodes}
    for name, nodes in list(others.items())[:NAMED_MAX]:
        log.warning(
            "a name of this data directory belongs to another node: the directory is unclaimed",
            name=name,
            node=current.node,
            owner=", ".join(sorted(nodes)),
            all=len(others),
        )


def _owners(name: TopicName, topic: TopicDefinition, current: Definitions) -> set[str]:
    """The nodes of a topic, or of topics that have the names of its partitions; or the reverse."""
    names = {str(name), str(name.whole), *map(str, topic.logs_of(name))}
    return {node for each in names & current.topics.keys() for node in current.topics[each].owners}
