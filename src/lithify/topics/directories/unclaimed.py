"""Directories of topics that no definition explains: found, listed, adopted.

Definitions may be older than the directories, or missing; a directory may have been put back from a
backup. None of that says that data may go. At open every directory of a topic is one of these:

1. defined: it is served. A partitioned topic has logs in the directories of its partitions only: a
   log in its own directory is of another topic of that name, and unclaimed.
2. marked `DELETED` for the log that it holds (`log/directory_marks.py`): a deletion was
   interrupted, and is finished, also if definitions from before the deletion know the topic.
3. marked `CREATING` and not defined: a restore was interrupted, nothing of it was acknowledged.
   Removed. If it is defined, only the mark is left over, unless the mark says that the definition
   was there before the restore: then it is removed too.
4. empty: the last step of a removal was interrupted. Removed.
5. **unclaimed**: left as it is and reported. Nothing of it is served and no topic is created in its
   place until somebody adopts it or moves it away.

Adopting defines a topic from its directories. Messages, subscriptions and schemas are in them. The
number of partitions is that of the highest directory. Deduplication is switched on where the
directory knows producers. All other settings are lost with the definition: retention is set to
keep everything, so that nothing goes by a default that its owner never chose.

For `topics/topics.py`; a scan waits for the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput
from lithify.log.directory_marks import is_creating, is_empty, log_id_in, read_deletion
from lithify.log.file_names import MANIFEST
from lithify.log.manifest import read_manifest
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition, TopicDefinition
from lithify.topics.definitions.topic_names import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import FileSystem
    from lithify.log.directory_marks import Deletion

__all__ = [
    "FoundDirectories",
    "UnclaimedTopic",
    "adopted",
    "defines",
    "deletion_of",
    "explains",
    "group_unclaimed",
    "scan_topics",
]

KEPT_SETTINGS = {"retention_ms": -1, "retention_bytes": -1, "message_ttl_ms": 0}
"""Of an adopted topic."""


@dataclass(frozen=True, slots=True)
class UnclaimedTopic:
    """A topic that could be adopted."""

    name: TopicName
    partitions: tuple[int, ...]
    """Those that have directories; none of a topic without partitions."""
    directories: tuple[str, ...]
    problem: str = ""
    """Why it cannot be adopted; empty if it can."""

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "topic": str(self.name),
            "partitions": len(self.partitions),
            "directories": list(self.directories),
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class FoundDirectories:
    """The directories of a data directory's topics that are not simply in use."""

    deleted: dict[TopicName, Deletion]
    unfinished: tuple[TopicName, ...]
    """Marked `CREATING`, defined or not."""
    empty: tuple[TopicName, ...]
    """And not defined."""
    unclaimed: tuple[TopicName, ...]
    served: tuple[TopicName, ...]
    """Topics and partitions as their definitions say."""


def defines(definitions: Definitions, name: TopicName) -> bool:
    """Is it a topic, or a partition of one?"""
    topics = definitions.topics
    if str(name) in topics:
        return True
    whole = topics.get(str(name.whole))
    return whole is not None and 0 <= name.partition < whole.partitions


def explains(fs: FileSystem, root: str, definitions: Definitions, name: TopicName) -> bool:
    """Is the directory of a topic or partition what its definition says?"""
    found = definitions.topics.get(str(name))
    if found is not None and found.partitions:
        return not fs.exists(f"{root}/{name.path}/log")
    return defines(definitions, name)


def scan_topics(fs: FileSystem, root: str, definitions: Definitions) -> FoundDirectories:
    """Look at every directory below `root`; changes nothing."""
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
    gone = {f"{root}/{_beside(name, each)}" for name, d in deleted.items() for each in d.logs}
    unclaimed = [name for name in undefined if f"{root}/{name.path}" not in gone]
    return FoundDirectories(
        deleted, tuple(unfinished), tuple(empty), tuple(unclaimed), tuple(served)
    )


def deletion_of(fs: FileSystem, root: str, name: TopicName) -> Deletion | None:
    """The mark in a topic's directory, if it is about the logs that are there."""
    found = read_deletion(fs, f"{root}/{name.path}")
    if found is None or found.name != str(name):
        return None
    for place in found.logs:
        if not found.covers(place, log_id_in(fs, f"{root}/{_beside(name, place)}/log")):
            return None
    return found


def _beside(name: TopicName, place: str) -> str:
    """The path of a directory that a mark in the topic's own directory names."""
    return f"{name.path.rpartition('/')[0]}/{place}" if place else name.path


def _names(fs: FileSystem, root: str) -> Iterator[TopicName]:
    """The topics that have directories; a name that is none of ours is left alone."""
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
    """The directories by topic: those of partitions together."""
    with_logs = {name for name in names if fs.exists(f"{root}/{name.path}/log")}
    groups: dict[TopicName, list[TopicName]] = {}
    for name in names:
        whole = name.whole
        known = definitions.topics.get(str(whole))
        # A log of its own makes the whole a topic without partitions, and so does its definition.
        stands_alone = not known.partitions if known is not None else whole in with_logs
        groups.setdefault(name if stands_alone else whole, []).append(name)
    return {
        topic: UnclaimedTopic(
            topic,
            tuple(sorted(each.partition for each in found if each != topic)),
            tuple(f"{root}/{each.path}" for each in found),
            _problem(root, topic, found, definitions),
        )
        for topic, found in sorted(groups.items())
    }


def _problem(root: str, topic: TopicName, found: list[TopicName], definitions: Definitions) -> str:
    known = definitions.topics.get(str(topic))
    if known is None or topic not in found:
        return ""
    return (
        f"topic {topic} is defined with {known.partitions} partitions, but {root}/{topic.path} "
        "holds the log of a topic without partitions: move the directory away, or delete the "
        "topic, which leaves this directory in place, and adopt it then"
    )


def adopted(
    fs: FileSystem, topic: UnclaimedTopic, definitions: Definitions, now_ms: int
) -> Definitions:
    """The definitions with the topic, and with its tenant and namespace if they are missing."""
    for directory in topic.directories:
        _check_log(fs, f"{directory}/log")
    name = topic.name
    if name.namespace.tenant not in definitions.tenants:
        definitions = definitions.with_tenant(name.namespace.tenant, {})
    if str(name.namespace) not in definitions.namespaces:
        definitions = definitions.with_namespace(name.namespace, NamespaceDefinition())
    count = topic.partitions[-1] + 1 if topic.partitions else 0
    known = definitions.topics.get(str(name))
    if known is not None:
        # Partitions that were added after these definitions were saved.
        return definitions.with_topic(name, replace(known, partitions=max(count, known.partitions)))
    settings: dict[str, Any] = dict(KEPT_SETTINGS)
    if any(fs.exists(f"{directory}/producers") for directory in topic.directories):
        settings["deduplication"] = True
    return definitions.with_topic(name, TopicDefinition(count, now_ms, settings))


def _check_log(fs: FileSystem, directory: str) -> None:
    """Raise unless a directory holds the log of a topic, or none yet; damage is told as such."""
    if fs.exists(f"{directory}/{MANIFEST}"):
        kind = read_manifest(fs, directory).kind
        if kind != "topic":
            raise InvalidInput(f"{directory} is a log of kind {kind!r}, not of a topic")
