"""Imports the file `definitions` of a data directory into the catalog.

    DIRECTORY/definitions              written by version 0.1, or by a restore
    DIRECTORY/definitions.taken-over   the same file afterwards; nothing reads it

1. Read the file. If it is damaged, or of a newer version, the start of the node fails.
2. Add to the catalog what it lacks, in batches. This node owns it, because its data is here. A
   tenant or namespace that the catalog has keeps its settings, and gets those that it lacks. If the
   catalog is new, what it begins with and the file lacks is removed before.
3. Write the file `OBJECT` into the directories of all of these (`log/object_file.py`).
4. Rename the file.

A crash leaves the file, and the next start repeats all of it: what was added is in the catalog by
then. What was deleted between two such starts is added again, without data.

A topic or store that the catalog has with another owner is not added: the directory here stays
unclaimed. Called when the node opens, before topics and blob stores.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.errors import WriteFailed
from lithify.log.object_file import read_object, write_object
from lithify.logger import get_logger
from lithify.topics.definitions.definitions import AlreadyDefined, Definitions, NamespaceDefinition
from lithify.topics.definitions.definitions_file import DEFINITIONS, read_definitions
from lithify.topics.definitions.topic_names import Namespace, TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import FileSystem
    from lithify.node.catalog_definitions import CatalogDefinitions

__all__ = ["IMPORTED", "import_definitions"]

IMPORTED = "definitions.taken-over"

BATCH_BYTES = 256 * 1024
"""Of the JSON form of what a batch adds; an update of the catalog has at most 1 MiB."""
OWNER_BYTES = 64
"""Of the owner of a partition."""
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
    if not definitions.found:
        definitions.change(partial(_without_others, found))
        definitions.found = True
    for batch in _batches(found):
        definitions.change(partial(_with_batch, batch))
    _write_objects(fs, directory, found, definitions.current)
    if found.logs:
        definitions.change(lambda d: replace(d, logs=True))
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


def _with_batch(batch: Definitions, current: Definitions) -> Definitions:
    for name, settings in batch.tenants.items():
        current = current.with_tenant(name, settings | current.tenants.get(name, {}))
    for text, namespace in batch.namespaces.items():
        known = current.namespaces.get(text, NamespaceDefinition())
        merged = NamespaceDefinition(namespace.settings | known.settings)
        current = current.with_namespace(Namespace.parse(text), merged)
    for text, topic in batch.topics.items():
        owned = replace(topic, owners=current.here * (topic.partitions or 1))
        with suppress(AlreadyDefined):
            current = current.with_new_topic(TopicName.parse(text), owned)
    for name, row in batch.stores.items():
        with suppress(AlreadyDefined):
            current = current.with_store(name, row)
    return current


def _write_objects(
    fs: FileSystem, directory: str, found: Definitions, current: Definitions
) -> None:
    """Say in the directories that exist of which objects they are, unless of other ones."""
    places = [
        (f"{directory}/topics/{part.path}", current.identity(part))
        for text, topic in found.topics.items()
        for part in topic.logs_of(TopicName.parse(text))
        if current.owns(part)
    ]
    places += [
        (f"{directory}/blobs/{name}", current.store_identity(name))
        for name in found.stores
        if current.owns_store(name)
    ]
    for path, wanted in places:
        if wanted is None or not fs.exists(path):
            continue
        known = read_object(fs, path)
        # An id may be that of a catalog that was lost.
        if known is None or replace(known, id=wanted.id) == wanted != known:
            write_object(fs, path, wanted)


def _without_others(found: Definitions, current: Definitions) -> Definitions:
    """Without the tenants and namespaces of a new catalog that the file does not have."""
    for text in [name for name in current.namespaces if name not in found.namespaces]:
        current = current.without_namespace(Namespace.parse(text))
    for name in [name for name in current.tenants if name not in found.tenants]:
        current = current.without_tenant(name)
    return current


def _warn_of_others(found: Definitions, current: Definitions) -> None:
    owners = {
        text: set(current.topics[text].owners) if text in current.topics else {"a partition"}
        for text in found.topics
    }
    owners |= {name: {current.store_places[name].owner} for name in found.stores}
    others = {name: nodes for name, nodes in owners.items() if current.node not in nodes}
    for name, nodes in list(others.items())[:NAMED_MAX]:
        log.warning(
            "a name of this data directory belongs to another node: the directory is unclaimed",
            name=name,
            node=current.node,
            owner=", ".join(sorted(nodes)),
            all=len(others),
        )
