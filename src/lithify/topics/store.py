"""All topics of a node: created, opened when first used, listed, deleted.

    DIRECTORY/definitions                 see `definitions.py`
    DIRECTORY/topics/TENANT/NAMESPACE/TOPIC/log, …/cursors
    DIRECTORY/topics/TENANT/NAMESPACE/TOPIC/schemas   for all partitions of a partitioned topic

A topic exists when it is defined, whatever directories there are. Deleting takes the definition
away first and the files after it; a directory without a definition is removed at the next open.

One thread at a time uses it, but for `unopened`, `get`, `create`, `create_partitioned` and what
`deleting` returns, which wait for the disk: other threads may call them meanwhile. A topic is
opened once; who comes second waits for it, and for no other.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.claims import Claims
from lithify.errors import NOT_FOUND, InvalidInput, LogLocked
from lithify.fs import read_file
from lithify.fs.trees import remove_tree
from lithify.log.names import MANIFEST
from lithify.settings import LogSettings
from lithify.topics.compaction_service import service_factory
from lithify.topics.compaction_settings import CompactionSettings
from lithify.topics.compactions import Compactions
from lithify.topics.definitions import AlreadyDefined, DefinitionsFile, TopicDefinition
from lithify.topics.names import Namespace, TopicName
from lithify.topics.policies import Policies, deduplicates, is_terminated, policies_of
from lithify.topics.schemas import Schemas
from lithify.topics.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.topics.definitions import Definitions

__all__ = ["PARTITIONS_MAX", "TopicNotFound", "TopicSettings", "Topics"]

PARTITIONS_MAX = 10_000


class TopicNotFound(InvalidInput):
    """No such topic, and it may not be created by using it."""

    exit_code = NOT_FOUND


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How the topics of a node behave unless they say otherwise."""

    log: LogSettings = field(default_factory=LogSettings)
    policies: Policies = field(default_factory=Policies)
    auto_create: bool = True
    deduplication: bool = False
    """Of messages that a producer sends again; a topic's or namespace's own setting comes first."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    compaction_service: str = ""
    """Who compacts topics, as "module:factory"; see `compaction_service.py`."""


class Topics:
    """The topics of one node; see the module for threads."""

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
        self.directory = directory
        self._clock = clock
        self._events = events
        self._open: dict[TopicName, Topic] = {}
        self._claims = Claims[TopicName]()
        """Being opened or deleted by some thread."""
        self._schemas: dict[TopicName, Schemas] = {}
        self.settings = settings
        self.owner = owner
        """What stands in the lock of the data directory."""
        self.compactions = Compactions(self.opened, clock)
        self._new_service = service_factory(settings.compaction_service)
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
        name = _parsed(name)
        self._create(name, TopicDefinition(0, self._clock.now_ms()))
        return self.get(name)

    def create_partitioned(self, name: str | TopicName, partitions: int) -> None:
        """Define a topic with partitions, which must not exist; each is opened when it is used."""
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInput(f"{partitions} partitions: must be 1 to {PARTITIONS_MAX}")
        self._create(_parsed(name), TopicDefinition(partitions, self._clock.now_ms()))

    def _create(self, name: TopicName, topic: TopicDefinition) -> None:
        with self._claims.of({name, *_parts(name, topic)}):
            if self.exists(name):
                raise AlreadyDefined(f"topic {name} exists already")
            self._define(name, topic)

    def _define(self, name: TopicName, topic: TopicDefinition) -> None:
        # Files of an earlier topic of that name may be left, if deleting them failed.
        for part in _parts(name, topic):
            remove_tree(self._fs, self._path(part))
        remove_tree(self._fs, self._path(name))
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

    def names_in(self, namespace: Namespace) -> list[str]:
        """All topics of a namespace as text, each partition by itself; there may be very many."""
        prefix = f"persistent://{namespace}/"
        topics = self.definitions.current.topics
        names = []
        for name in sorted(filter(lambda each: each.startswith(prefix), topics)):
            count = topics[name].partitions
            names += [f"{name}-partition-{i}" for i in range(count)] if count else [name]
        return names

    def list(self, namespace: Namespace) -> list[TopicName]:
        """All topics of a namespace, each partition by itself."""
        names = []
        for name in self.definitions.current.topics_of(namespace):
            count = self.partitions(name)
            names += [name.partition_name(i) for i in range(count)] if count else [name]
        return names

    def delete(self, name: str | TopicName) -> None:
        """Forget a topic with all its partitions and delete its files."""
        self.deleting(name)()

    def deleting(self, name: str | TopicName) -> Callable[[], None]:
        """Take a topic that nobody uses out of use; what is returned deletes it, in any thread."""
        name = _parsed(name)
        definition = self.definitions.current.topics.get(str(name))
        if definition is None:
            raise TopicNotFound(f"topic {name} does not exist")
        parts = _parts(name, definition)
        with ExitStack() as stack:
            stack.enter_context(self._claims.of(parts))
            for part in parts:
                topic = self._open.get(part)
                if topic is not None and (topic.producers.joined or _consumers(topic)):
                    raise InvalidInput(f"topic {part} is in use")
            opened = {part: self._open.pop(part) for part in parts if part in self._open}
            claims = stack.pop_all()

        def finish() -> None:
            with claims:
                try:
                    self.definitions.change(lambda d: d.without_topic(name))
                except BaseException:
                    self._open.update(opened)
                    raise
                for topic in opened.values():
                    topic.close()
                for part in parts:
                    remove_tree(self._fs, self._path(part))
                self._schemas.pop(name, None)
                remove_tree(self._fs, self._path(name))

        return finish

    def unloading(self, names: Collection[TopicName]) -> Callable[[], None]:
        """Take topics that nobody uses out of use; what is returned closes them, in any thread.

        They are opened again by use.
        """
        with ExitStack() as stack:
            stack.enter_context(self._claims.of(names))
            opened = [self._open.pop(name) for name in names if name in self._open]
            claims = stack.pop_all()

        def finish() -> None:
            with claims, ExitStack() as closing:
                for topic in opened:
                    closing.callback(topic.close)

        return finish

    # --- topics -----------------------------------------------------------------------------

    def get(self, name: str | TopicName, *, create: bool = False) -> Topic:
        """The topic, opened if need be; `create` defines one that does not exist."""
        name = _parsed(name)
        topic = self._open.get(name)
        if topic is not None:
            return topic
        with self._claims.of([name]):
            if not self.exists(name):
                if not create:
                    raise TopicNotFound(f"topic {name} does not exist")
                self._define(name, TopicDefinition(0, self._clock.now_ms()))
            elif self.partitions(name):
                raise InvalidInput(f"topic {name} is partitioned: name a partition of it")
            # Another thread may have opened it meanwhile.
            return self._open.get(name) or self._open_topic(name)

    def _open_topic(self, name: TopicName) -> Topic:
        topic = Topic.open(
            self._fs,
            self._path(name),
            name,
            settings=self.settings.log,
            clock=self._clock,
            events=self._events,
            deduplicates=self._deduplicates(name),
            compaction_settings=lambda: self.compaction_settings(name),
            new_service=self._new_service,
        )
        node = self.settings.policies
        topic.policies = lambda: policies_of(self.definitions.current, name, node)
        topic.terminated = is_terminated(self.definitions.current, name)
        # Last, because another thread may find it there.
        self._open[name] = topic
        return topic

    def compaction_settings(self, name: TopicName) -> CompactionSettings:
        """How a topic is compacted, as the definitions say now."""
        return policies_of(self.definitions.current, name, self.settings.compaction)

    def unopened(self) -> tuple[TopicName, ...]:
        """Topics that have been used before and are not open."""
        defined = self.definitions.current.topics.items()
        return tuple(
            part
            for name, definition in defined
            for part in _parts(TopicName.parse(name), definition)
            if part not in self._open and self._fs.exists(f"{self._path(part)}/log/{MANIFEST}")
        )

    def _deduplicates(self, name: TopicName) -> Callable[[], bool]:
        """Asked before every append, so what it says is made anew only for new definitions."""
        seen: Definitions | None = None
        answer = False

        def ask() -> bool:
            nonlocal seen, answer
            current = self.definitions.current
            if current is not seen:
                answer = deduplicates(current, name, node=self.settings.deduplication)
                seen = current
            return answer

        return ask

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

    def opened_topic(self, name: TopicName) -> Topic | None:
        """The topic if it is open, whatever is done to others."""
        return self._open.get(name)

    def opened(self) -> dict[TopicName, Topic]:
        """Those that are open now."""
        return dict(self._open)

    def maintain(self) -> None:
        """What only time brings about, for all open topics."""
        for topic in self.opened().values():
            topic.maintain()

    def close(self) -> None:
        """Close all; the first error is raised when all were tried."""
        self.compactions.close()
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
        return f"{self.directory}/topics/{name.path}"

    def _remove_undefined(self, path: str, above: tuple[str, ...]) -> None:
        """Remove what an interrupted deletion left: directories of topics that nobody defines."""
        for name in self._fs.list(path) if self._fs.exists(path) else ():
            place = (*above, name)
            if len(place) < 3:
                self._remove_undefined(f"{path}/{name}", place)
            elif not self._is_of_a_topic("/".join(place)):
                remove_tree(self._fs, f"{path}/{name}")

    def _is_of_a_topic(self, path: str) -> bool:
        try:
            name = TopicName.from_path(path)
        except InvalidInput:
            # Not a name of ours, so not a directory of ours: it is left alone.
            return True
        return name.path != path or self.exists(name)


def _parsed(name: str | TopicName) -> TopicName:
    return name if isinstance(name, TopicName) else TopicName.parse(name)


def _parts(name: TopicName, definition: TopicDefinition) -> list[TopicName]:
    """The topics that have logs of their own."""
    count = definition.partitions
    return [name.partition_name(number) for number in range(count)] if count else [name]


def _consumers(topic: Topic) -> int:
    return sum(len(subscription.consumers) for subscription in topic.subscriptions.values())
