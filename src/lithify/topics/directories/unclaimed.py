"""Unclaimed directories: topic directories without a definition, found, listed and adopted.

Definitions may be older than the directories, or missing; a directory may have been copied back
from a backup. None of that permits a deletion. At open every directory of a topic is one of these:

1. defined, and its file `OBJECT` names what is defined (`log/object_file.py`), or it has no log
   yet: it is served. Only the partitions of a partitioned topic have logs. A log in its own
   directory belongs to another topic of that name, and is unclaimed.
2. marked `DELETED` for the log that it contains (`log/directory_marks.py`): a deletion was
   interrupted. It is finished, even if definitions from before the deletion have the topic.
3. marked `CREATING` and not defined: a restore was interrupted, and nothing in it was acknowledged.
   It is removed. If it is defined, only the mark is a leftover, unless the mark says that the
   definition existed before the restore: then the directory is removed too.
4. empty: the last step of a removal was interrupted. It is removed.
5. **unclaimed**: it is not changed, and reported. It is not served, and no topic is created in its
   place until an administrator adopts it or moves it away.

Adoption defines a topic from its directories, which contain messages, subscriptions and schemas.
The number of partitions follows from the highest partition. Deduplication is switched on if the
directory has producers. All other settings are lost with the definition; retention is set to keep
everything, so that no default deletes data. If the topic is defined with its data on this node, and
only the file `OBJECT` is missing or damaged, adoption writes it, and the definition stays.

For `topics/topics.py`; a scan waits for the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput
from lithify.log.directory_marks import is_creating, is_empty, log_id_in, read_deletion
from lithify.log.file_names import MANIFEST
from lithify.log.manifest import read_manifest
from lithify.log.object_file import is_of, read_object
from lithify.topics.definitions.definitions import (
    AlreadyDefined,
    Definitions,
    NamespaceDefinition,
    TopicDefinition,
)
from lithify.topics.definitions.topic_names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.fs import FileSystem
    from lithify.log.directory_marks import Deletion

__all__ = [
    "FoundDirectories",
    "UnclaimedTopic",
    "adopting",
    "deletion_of",
    "explains",
    "group_unclaimed",
    "is_unused",
    "scan_topics",
]

KEPT_SETTINGS = {"retention_ms": -1, "retention_bytes": -1, "message_ttl_ms": 0}
"""The settings of an adopted topic."""


@dataclass(frozen=True, slots=True)
class UnclaimedTopic:
    """A topic without a definition, for adoption."""

    name: TopicName
    partitions: tuple[int, ...]
    """The partitions that have directories; empty for a topic without partitions."""
    directories: tuple[str, ...]
    problem: str = ""
    """Why it cannot be adopted; empty if it can be."""

    def row(self) -> dict[str, Any]:
        """Encode as a JSON row."""
        return {
            "topic": str(self.name),
            "partitions": len(self.partitions),
            "directories": list(self.directories),
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class FoundDirectories:
    """The result of a scan: the topics of each kind of directory."""

    deleted: dict[TopicName, Deletion]
    unfinished: tuple[TopicName, ...]
    """Marked `CREATING`, defined or not."""
    empty: tuple[TopicName, ...]
    """Empty directories without a definition."""
    unclaimed: tuple[TopicName, ...]
    served: tuple[TopicName, ...]
    """Topics and partitions with a definition."""


def is_unused(fs: FileSystem, directory: str) -> bool:
    """Has a topic or partition no log yet? Its file `OBJECT` is written before that."""
    return not fs.exists(f"{directory}/log")


def explains(fs: FileSystem, root: str, definitions: Definitions, name: TopicName) -> bool:
    """Does the directory of a topic or partition match a definition?"""
    path = f"{root}/{name.path}"
    wanted = definitions.identity(name)
    if not is_of(fs, path, wanted, is_new=False) and not (
        is_unused(fs, path) and is_of(fs, path, wanted, is_new=True)
    ):
        return False
    definition = definitions.topics.get(str(name))
    if definition is not None and definition.partitions:
        return is_unused(fs, path)
    return definitions.owns(name)


def scan_topics(fs: FileSystem, root: str, definitions: Definitions) -> FoundDirectories:
    """Classify every directory below `root`; changes nothing."""
    # A view makes an entry each time that it is read, which here is several times.
    definitions = replace(definitions, topics=dict(definitions.topics.items()))
    deleted: dict[TopicName, Deletion] = {}
    unfinished, empty, undefined, served = [], [], [], []
    for name in _names(fs, root):
        path = f"{root}/{name.path}"
        deletion = deletion_of(fs, root, name)
        if deletion is not None:
            deleted[name] = deletion
        elif is_creating(fs, path):
            unfinished.append(name)
        elif explains(fs, root, definitions, name):
            served.append(name)
        elif is_empty(fs, path):
            empty.append(name)
        else:
            undefined.append(name)
    deleted_paths = {
        f"{root}/{_beside(name, each)}" for name, d in deleted.items() for each in d.logs
    }
    unclaimed = [name for name in undefined if f"{root}/{name.path}" not in deleted_paths]
    return FoundDirectories(
        deleted, tuple(unfinished), tuple(empty), tuple(unclaimed), tuple(served)
    )


def deletion_of(fs: FileSystem, root: str, name: TopicName) -> Deletion | None:
    """The mark in the directory of a topic, if it names the logs that exist."""
    deletion = read_deletion(fs, f"{root}/{name.path}")
    if deletion is None or deletion.name != str(name):
        return None
    for place in deletion.logs:
        path = f"{root}/{_beside(name, place)}"
        # One that is missing was removed.
        if fs.exists(path) and not deletion.covers(
            place, log_id_in(fs, f"{path}/log"), read_object(fs, path)
        ):
            return None
    return deletion


def _beside(name: TopicName, place: str) -> str:
    """The path of a directory that the mark of a topic names."""
    return f"{name.path.rpartition('/')[0]}/{place}" if place else name.path


def _names(fs: FileSystem, root: str) -> Iterator[TopicName]:
    """The topics that have directories; skips paths that are not those of a topic."""
    for tenant in _directories(fs, root):
        for namespace in _directories(fs, f"{root}/{tenant}"):
            for local in _directories(fs, f"{root}/{tenant}/{namespace}"):
                path = f"{tenant}/{namespace}/{local}"
                try:
                    name = TopicName.from_path(path)
                except InvalidInput:
                    continue
                if name.path == path:
                    yield name


def _directories(fs: FileSystem, path: str) -> list[str]:
    if not fs.exists(path):
        return []
    return [name for name in fs.list(path) if fs.stat(f"{path}/{name}").is_dir]


def group_unclaimed(
    fs: FileSystem, root: str, names: tuple[TopicName, ...], definitions: Definitions
) -> dict[TopicName, UnclaimedTopic]:
    """Group unclaimed directories by topic: the partitions of a topic together."""
    with_logs = {name for name in names if fs.exists(f"{root}/{name.path}/log")}
    groups: dict[TopicName, list[TopicName]] = {}
    for name in names:
        whole = name.whole
        known = definitions.topics.get(str(whole))
        # The definition decides whether a topic has partitions; without one, a log of its own
        # means that it has none.
        is_unpartitioned = not known.partitions if known is not None else whole in with_logs
        groups.setdefault(name if is_unpartitioned else whole, []).append(name)
    return {
        topic: UnclaimedTopic(
            topic,
            tuple(sorted(each.partition for each in members if each != topic)),
            tuple(f"{root}/{each.path}" for each in members),
            _problem(fs, root, topic, members, definitions),
        )
        for topic, members in sorted(groups.items())
    }


def _problem(
    fs: FileSystem,
    root: str,
    topic: TopicName,
    members: list[TopicName],
    definitions: Definitions,
) -> str:
    known = definitions.topics.get(str(topic))
    others = [
        each
        for each in members
        if known is not None
        and definitions.defines(each)
        and not _can_claim(fs, root, definitions, each)
    ]
    if others and (not known or not known.partitions or others != [topic]):
        owner = definitions.owner(others[0])
        where = f" on node {owner}" if owner not in ("", definitions.node) else ""
        return (
            f"topic {topic} is defined{where}, and {root}/{others[0].path} has the data of another "
            "topic that had the name: move the directory away, or delete the topic, which leaves "
            "this directory in place, and adopt it then"
        )
    if known is None or not known.partitions or topic not in members:
        return ""
    return (
        f"topic {topic} is defined with {known.partitions} partitions, but {root}/{topic.path} "
        "holds the log of a topic without partitions: move the directory away, or delete the "
        "topic, which leaves this directory in place, and adopt it then"
    )


def _can_claim(fs: FileSystem, root: str, definitions: Definitions, name: TopicName) -> bool:
    """Has a defined log its data on this node, and lacks only the file `OBJECT`?"""
    whole = definitions.topics.get(str(name))
    has_log = whole is None or not whole.partitions
    path = f"{root}/{name.path}"
    return has_log and definitions.owns(name) and read_object(fs, path) is None


def adopting(
    fs: FileSystem, topic: UnclaimedTopic, now_ms: int
) -> Callable[[Definitions], Definitions]:
    """The edit that defines an unclaimed topic, and its tenant and namespace if missing.

    It leaves a definition of which this node has the data as it is; the partitions that it lacks
    are added.
    """
    for directory in topic.directories:
        _check_log(fs, f"{directory}/log")
    settings: dict[str, Any] = dict(KEPT_SETTINGS)
    if any(fs.exists(f"{directory}/producers") for directory in topic.directories):
        settings["deduplication"] = True
    count = topic.partitions[-1] + 1 if topic.partitions else 0
    definition = TopicDefinition(count, now_ms, settings)
    return partial(_adopted, topic.name, topic.partitions, definition)


def _adopted(
    name: TopicName, parts: tuple[int, ...], topic: TopicDefinition, definitions: Definitions
) -> Definitions:
    for part in map(name.partition_name, parts) if parts else (name,):
        if definitions.defines(part) and not definitions.owns(part):
            owner = definitions.owner(part)
            raise AlreadyDefined(f"topic {part} exists already, on node {owner}")
    if name.namespace.tenant not in definitions.tenants:
        definitions = definitions.with_tenant(name.namespace.tenant, {})
    if str(name.namespace) not in definitions.namespaces:
        definitions = definitions.with_namespace(name.namespace, NamespaceDefinition())
    here = definitions.here
    known = definitions.topics.get(str(name))
    if known is not None:
        others = sorted({*known.owners}.difference(here))
        if others:
            raise AlreadyDefined(
                f"topic {name} is on node {others[0]}, and so are all of its partitions: move the "
                "directories there, and adopt them there"
            )
        # The partitions were added after these definitions were saved.
        added = max(topic.partitions - known.partitions, 0)
        owners = known.owners + here * added
        more = replace(known, partitions=known.partitions + added, owners=owners)
        return definitions.with_topic(name, more)
    return definitions.with_topic(name, replace(topic, owners=here * (topic.partitions or 1)))


def _check_log(fs: FileSystem, directory: str) -> None:
    """Raise if a directory has a log of another kind; damage raises its own error."""
    if fs.exists(f"{directory}/{MANIFEST}"):
        kind = read_manifest(fs, directory).kind
        if kind != "topic":
            raise InvalidInput(f"{directory} is a log of kind {kind!r}, not of a topic")
