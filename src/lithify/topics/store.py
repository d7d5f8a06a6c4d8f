"""All topics of a node: created, opened when first used, listed, deleted.

    DIRECTORY/definitions                 see `definitions.py`
    DIRECTORY/topics/TENANT/NAMESPACE/TOPIC/log, …/cursors
    DIRECTORY/topics/TENANT/NAMESPACE/TOPIC/schemas   for all partitions of a partitioned topic

A topic exists when it is defined, whatever directories there are. Deleting takes the definition
away first and the files after it; a directory without a definition is removed at the next open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, LogLocked, WriteFailed
from lithify.fs import read_file
from lithify.settings import LogSettings
from lithify.topics.definitions import DefinitionsFile, TopicDefinition
from lithify.topics.names import Namespace, TopicName
from lithify.topics.policies import Policies, policies_of
from lithify.topics.schemas import Schemas
from lithify.topics.topic import Topic

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem

__all__ = ["PARTITIONS_MAX", "TopicNotFound", "TopicSettings", "Topics"]

PARTITIONS_MAX = 10_000


class TopicNotFound(InvalidInput):
    """No such topic, and it may not be created by using it."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How the topics of a node behave unless they say otherwise."""

    log: LogSettings = field(default_factory=LogSettings)
    policies: Policies = field(default_factory=Policies)
    auto_create: bool = True
    deduplication: bool = False
    """Of messages that a producer sends again; a topic's or namespace's own setting comes first."""


class Topics:
    """The topics of one node; one thread at a time."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        settings: TopicSettings,
        clock: Clock,
        events: EventSink,
        owner: str,
    ) -> None:
        """Open the topics in `directory`, which no other process may have open."""
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._events = events
        self._open: dict[TopicName, Topic] = {}
        self._schemas: dict[TopicName, Schemas] = {}
        self.settings = settings
        fs.mkdir(directory)
        lock = fs.lock(f"{directory}/LOCK", owner)
        if lock is None:
            raise LogLocked(directory, read_file(fs, f"{directory}/LOCK").decode() or "unknown")
        self._lock = lock
        try:
            self.definitions = DefinitionsFile(fs, f"{directory}/definitions")
            self._remove_undefined(f"{directory}/topics", ())
        except BaseException:
            lock.release()
            raise

    # --- definitions ------------------------------------------------------------------------

    def create(self, name: str | TopicName) -> Topic:
        """Define a topic, which must not exist, and open it."""
        name = self._new(name)
        self._define(name, TopicDefinition(0, self._clock.now_ms()))
        return self.get(name)

    def create_partitioned(self, name: str | TopicName, partitions: int) -> None:
        """Define a topic with partitions, which must not exist; each is opened when it is used."""
        name = self._new(name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInput(f"{partitions} partitions: must be 1 to {PARTITIONS_MAX}")
        self._define(name, TopicDefinition(partitions, self._clock.now_ms()))

    def _new(self, name: str | TopicName) -> TopicName:
        name = _parsed(name)
        if self.exists(name):
            raise InvalidInput(f"topic {name} exists already")
        return name

    def _define(self, name: TopicName, topic: TopicDefinition) -> None:
        # Files of an earlier topic of that name may be left, if deleting them failed.
        for part in _parts(name, topic):
            self._remove_tree(self._path(part))
        self._remove_tree(self._path(name))
        self.definitions.change(lambda d: d.with_topic(name, topic))

    def exists(self, name: str | TopicName) -> bool:
        """Is it defined, or a partition of one that is?"""
        name = _parsed(name)
        topics = self.definitions.current.topics
        if str(name) in topics:
            return True
        whole = topics.get(str(name.whole))
        return whole is not None and 0 <= name.partition < whole.partitions

    def partitions(self, name: str | TopicName) -> int:
        """How many partitions it has; 0 if it is not partitioned or does not exist."""
        found = self.definitions.current.topics.get(str(_parsed(name)))
        return found.partitions if found is not None else 0

    def list(self, namespace: Namespace) -> list[TopicName]:
        """All topics of a namespace, each partition by itself."""
        names = []
        for name in self.definitions.current.topics_of(namespace):
            count = self.partitions(name)
            names += [name.partition_name(i) for i in range(count)] if count else [name]
        return names

    def delete(self, name: str | TopicName) -> None:
        """Forget a topic with all its partitions and delete its files."""
        name = _parsed(name)
        definition = self.definitions.current.topics.get(str(name))
        if definition is None:
            raise TopicNotFound(f"topic {name} does not exist")
        parts = _parts(name, definition)
        for part in parts:
            topic = self._open.get(part)
            if topic is not None and (topic.producers.joined or _consumers(topic)):
                raise InvalidInput(f"topic {part} is in use")
        self.definitions.change(lambda d: d.without_topic(name))
        for part in parts:
            topic = self._open.pop(part, None)
            if topic is not None:
                topic.close()
            self._remove_tree(self._path(part))
        self._schemas.pop(name, None)
        self._remove_tree(self._path(name))

    # --- topics -----------------------------------------------------------------------------

    def get(self, name: str | TopicName, *, create: bool = False) -> Topic:
        """The topic, opened if need be; `create` defines one that does not exist."""
        name = _parsed(name)
        topic = self._open.get(name)
        if topic is not None:
            return topic
        if not self.exists(name):
            if not create:
                raise TopicNotFound(f"topic {name} does not exist")
            self._define(name, TopicDefinition(0, self._clock.now_ms()))
        elif self.partitions(name):
            raise InvalidInput(f"topic {name} is partitioned: name a partition of it")
        topic = self._open[name] = Topic.open(
            self._fs,
            self._path(name),
            name,
            settings=self.settings.log,
            clock=self._clock,
            events=self._events,
            deduplication=self._deduplicates(name),
        )
        node = self.settings.policies
        topic.policies = lambda: policies_of(self.definitions.current, name, node)
        return topic

    def _deduplicates(self, name: TopicName) -> bool:
        current = self.definitions.current
        topic = current.topics.get(str(name)) or current.topics[str(name.whole)]
        namespace = current.namespace(name.namespace)
        for settings in (topic.settings, namespace.settings):
            if "deduplication" in settings:
                return bool(settings["deduplication"])
        return self.settings.deduplication

    def schemas(self, name: str | TopicName) -> Schemas:
        """The schemas of a topic, which all its partitions share."""
        name = _parsed(name)
        if not self.exists(name):
            raise TopicNotFound(f"topic {name} does not exist")
        if str(name) not in self.definitions.current.topics:
            name = name.whole
        found = self._schemas.get(name)
        if found is None:
            found = self._schemas[name] = Schemas(self._fs, self._path(name), clock=self._clock)
        return found

    def now_ms(self) -> int:
        """The time by the node's clock."""
        return self._clock.now_ms()

    def opened(self) -> dict[TopicName, Topic]:
        """Those that are open now."""
        return dict(self._open)

    def maintain(self) -> None:
        """What only time brings about, for all open topics."""
        for topic in self._open.values():
            topic.maintain()

    def close(self) -> None:
        """Close all; the first error is raised when all were tried."""
        errors = []
        for topic in self._open.values():
            try:
                topic.close()
            except Exception as error:  # noqa: BLE001  (the others must be closed too)
                errors.append(error)
        self._open.clear()
        self._lock.release()
        if errors:
            raise errors[0]

    def _path(self, name: TopicName) -> str:
        return f"{self._directory}/topics/{name.path}"

    def _remove_undefined(self, path: str, above: tuple[str, ...]) -> None:
        """Remove what an interrupted deletion left: directories of topics that nobody defines."""
        for name in self._fs.list(path) if self._fs.exists(path) else ():
            place = (*above, name)
            if len(place) < 3:
                self._remove_undefined(f"{path}/{name}", place)
            elif not self._is_of_a_topic("/".join(place)):
                self._remove_tree(f"{path}/{name}")

    def _is_of_a_topic(self, path: str) -> bool:
        try:
            name = TopicName.from_path(path)
        except InvalidInput:
            # Not a name of ours, so not a directory of ours: it is left alone.
            return True
        return name.path != path or self.exists(name)

    def _remove_tree(self, path: str) -> None:
        if not self._fs.exists(path):
            return
        try:
            for name in self._fs.list(path):
                child = f"{path}/{name}"
                if self._fs.stat(child).is_dir:
                    self._remove_tree(child)
                else:
                    self._fs.remove(child)
            self._fs.rmdir(path)
        except OSError as error:
            raise WriteFailed(path, error) from error


def _parsed(name: str | TopicName) -> TopicName:
    return name if isinstance(name, TopicName) else TopicName.parse(name)


def _parts(name: TopicName, definition: TopicDefinition) -> list[TopicName]:
    """The topics that have logs of their own."""
    count = definition.partitions
    return [name.partition_name(number) for number in range(count)] if count else [name]


def _consumers(topic: Topic) -> int:
    return sum(len(subscription.consumers) for subscription in topic.subscriptions.values())
