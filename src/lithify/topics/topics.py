"""All topics of a node: create, open on first use, list, delete.

    DIRECTORY/inventory                   the topics that have logs, see `directories/inventory.py`
    DIRECTORY/topics/TENANT/NAMESPACE/TOPIC/log, …/cursors
    DIRECTORY/topics/TENANT/NAMESPACE/TOPIC/schemas   for all partitions of a partitioned topic

A topic exists if it is defined, whatever directories there are. A directory without a definition is
**unclaimed**: it is not changed, no topic is created in its place, and it can be adopted
(`directories/unclaimed.py`). A topic that had a log and has none is **missing**: it is not served.

To delete a topic:
1. Write the mark `DELETED` into the topic's own directory; it names the log of every partition.
   From this step on the topic is deleted: a crash leaves the mark, and the next open does the rest.
2. Remove the definition.
3. Remove the directories of the partitions, then the topic's own one, its mark last.

Methods run on one thread at a time, except those that wait for the disk, which other threads may
call concurrently: `unopened`, `get`, `schemas`, `create`, `create_partitioned`, `add_partitions`,
`delete_lost`, `wait_for_others`, `unclaimed`, `adopt`, and the functions that `deleting` and
`unloading` return. A topic is opened once; a second caller waits for that topic only.
"""

from __future__ import annotations

import heapq
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.compaction.limits.latencies import Latencies
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.damage import Damage
from lithify.errors import (
    InvalidInput,
    LithifyError,
    MissingLog,
    OpenFailed,
    WriteFailed,
)
from lithify.exit_codes import NOT_FOUND
from lithify.fs import hold_directory, why_not_writable
from lithify.fs.full_disk_reserve import NO_RESERVE
from lithify.fs.remove_tree import remove_tree
from lithify.log.file_names import LOCK
from lithify.logger import get_logger
from lithify.name_locks import Claims
from lithify.topics.compaction.compaction_service import service_factory
from lithify.topics.compaction.scheduling import TopicCompactions
from lithify.topics.definitions.definitions import AlreadyDefined, TopicDefinition
from lithify.topics.definitions.definitions_file import DEFINITIONS, DefinitionsFile
from lithify.topics.definitions.policies import deduplication, is_terminated, policies_of
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.directories.data_directory import check_no_backup
from lithify.topics.directories.inventory import INVENTORY, Inventory
from lithify.topics.directories.missing_logs import MissingLogs
from lithify.topics.directories.topic_directories import MissingTopic, TopicDirectories
from lithify.topics.directories.unclaimed import UnclaimedTopic, adopting
from lithify.topics.schemas.schemas import Schemas
from lithify.topics.topic import Topic
from lithify.topics.topic_settings import TopicSettings
from lithify.topics.withdrawals import TopicWithdrawals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.fs.full_disk_reserve import NoReserve
    from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
    from lithify.topics.definitions.definition_store import DefinitionStore
    from lithify.topics.definitions.definitions import Definitions

__all__ = ["PARTITIONS_MAX", "TooManyTopics", "TopicNotFound", "TopicSettings", "Topics"]

PARTITIONS_MAX = 10_000
log = get_logger("lithify.topics")


class TooManyTopics(LithifyError):
    """The limit of open topics is reached, and all of them are in use."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"{limit} topics are open and in use, which is the limit (open_topics_max, "
            "otherwise a tenth of the files that the process may open)"
        )


class TopicNotFound(InvalidInput):
    """The topic does not exist, and the caller does not create it by use."""

    exit_code = NOT_FOUND


class Topics:
    """The topics of one node; the module docstring has the rules for threads."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        settings: TopicSettings,
        clock: Clock,
        events: EventSink,
        owner: str,
        queue: RunQueue | None = None,
        definitions: DefinitionStore | None = None,
    ) -> None:
        """Open the topics in `directory`, which no other process may have open.

        `queue` is the run queue of the node; by default the topics have one of their own. A node
        that gives `definitions` has locked the directory; without them they are in its file.
        """
        self._fs = fs
        self.directory = directory
        self._clock = self.clock = clock
        self._events = events
        self._open: dict[TopicName, Topic] = {}
        self._claims = Claims[TopicName]()
        """Topics that a thread is opening or deleting."""
        self._schemas: dict[TopicName, Schemas] = {}
        self.open_max: int | None = None
        """Maximum number of open topics; None for no limit."""
        self.settings = settings
        self.owner = owner
        """The text in the lock file of the data directory."""
        self.damage = Damage()
        """Damage of topic files found since the start."""
        self.reserve: NoReserve = NO_RESERVE
        self.compactions = TopicCompactions(self.opened, queue or RunQueue(clock), self.damage)
        self._latencies = Latencies()
        self._new_service = service_factory(settings.compaction_service)
        with ExitStack() as stack:
            if definitions is None:
                check_no_backup(fs, directory)
                fs.mkdir(directory)
                stack.callback(hold_directory(fs, f"{directory}/{LOCK}", owner).release)
                definitions = DefinitionsFile(fs, f"{directory}/{DEFINITIONS}")
            self.definitions = definitions
            inventory = Inventory(fs, f"{directory}/{INVENTORY}", events)
            root = f"{directory}/topics"
            self.directories = TopicDirectories(fs, root, definitions, inventory)
            self._missing = MissingLogs(self.directories, definitions)
            self.withdrawals = TopicWithdrawals(
                self._open, self._schemas, self._claims, self.directories, definitions, self.damage
            )
            """Takes topics out of use that are not of this node."""
            self._unlock = stack.pop_all().close

    # --- definitions ------------------------------------------------------------------------

    def create(self, name: str | TopicName) -> Topic:
        """Define a topic, which must not exist, and open it."""
        name = _parsed(name)
        with self._claims.of([name]), _typed_errors(name):
            if self.exists(name):
                raise AlreadyDefined(f"topic {name} exists already")
            return self._create(name)

    def _create(self, name: TopicName) -> Topic:
        """Define and open a topic; the caller's claim keeps others out if it is undone."""
        self._check_room()
        self._define(name, TopicDefinition(0, self._clock.now_ms()))
        with self._undone(name):
            return self._open_topic(name)

    def create_partitioned(self, name: str | TopicName, partitions: int) -> None:
        """Define a partitioned topic, which must not exist; its partitions open on first use."""
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInput(f"{partitions} partitions: must be 1 to {PARTITIONS_MAX}")
        name = _parsed(name)
        topic = TopicDefinition(partitions, self._clock.now_ms())
        with self._claims.of({name, *topic.logs_of(name)}), _typed_errors(name):
            if self.exists(name):
                raise AlreadyDefined(f"topic {name} exists already")
            self._define(name, topic)

    def _define(self, name: TopicName, topic: TopicDefinition) -> None:
        self.directories.check_root(name)
        for part in {name, *topic.logs_of(name)}:
            self._check_free(part)
        self.definitions.change(lambda d: d.with_new_topic(name, topic))

    def _check_free(self, name: TopicName) -> None:
        if str(name) in self.definitions.current.topics:
            raise AlreadyDefined(f"topic {name} exists already")
        self.directories.check_new(name)

    def add_partitions(self, name: str | TopicName, partitions: int) -> None:
        """Add partitions to a partitioned topic, up to this number."""
        name = _parsed(name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInput(f"{partitions} partitions: must be 1 to {PARTITIONS_MAX}")
        new = [name.partition_name(each) for each in range(self.partitions(name), partitions)]
        with self._claims.of(new):
            for part in new:
                self._check_free(part)

            def edit(definitions: Definitions) -> Definitions:
                # Read again: another change may have come first.
                current = definitions.topics.get(str(name))
                if current is None or not current.partitions:
                    raise TopicNotFound(f"partitioned topic {name} does not exist")
                count = max(partitions, current.partitions)
                return definitions.with_topic(name, replace(current, partitions=count))

            self.definitions.change(edit)

    @contextmanager
    def _undone(self, name: TopicName) -> Iterator[None]:
        """Remove the definition of a new topic if its files cannot be created."""
        try:
            yield
        except (OSError, OpenFailed, TooManyTopics, WriteFailed):
            # If the inventory cannot be written, its next change omits the topic.
            with suppress(LithifyError):
                self.directories.forget_log(name)
            with suppress(LithifyError):
                # A crash in between leaves a defined topic without files, which opens empty.
                # If files cannot be removed, keep the definition: without it they are unclaimed.
                remove_tree(self._fs, self._path(name))
                self.directories.undo_definition(name, self.now_ms())
            raise

    def exists(self, name: str | TopicName) -> bool:
        """Is it defined, or a partition of a defined topic?"""
        return self.definitions.current.defines(_parsed(name))

    def partitions(self, name: str | TopicName) -> int:
        """The number of partitions; 0 if it is not partitioned or does not exist."""
        definition = self.definitions.current.topics.get(str(_parsed(name)))
        return definition.partitions if definition is not None else 0

    def names_in(self, namespace: Namespace) -> list[str]:
        """All topics of a namespace as text, one per partition; fast for very many topics."""
        prefix = f"persistent://{namespace}/"
        topics = self.definitions.current.topics
        names = []
        for name in sorted(filter(lambda each: each.startswith(prefix), topics)):
            count = topics[name].partitions
            names += [f"{name}-partition-{i}" for i in range(count)] if count else [name]
        return names

    def list(self, namespace: Namespace) -> list[TopicName]:
        """All topics of a namespace, one per partition."""
        names = []
        for name in self.definitions.current.topics_of(namespace):
            count = self.partitions(name)
            names += [name.partition_name(i) for i in range(count)] if count else [name]
        return names

    def delete(self, name: str | TopicName) -> None:
        """Delete a topic, all its partitions and their files."""
        name = _parsed(name)
        if self.exists(name):
            self.deleting(name)()
        else:
            self.delete_lost(name)

    def delete_lost(self, name: TopicName) -> None:
        """Delete a topic from the inventory that has neither a definition nor a directory."""
        lost = self._lost(name)
        parts = lost.logs_of(name)
        with self._claims.of({name, *parts}), self.reserve.if_full():
            if self._lost(name) != lost:
                raise TopicNotFound(f"topic {name} was changed by another request")
            deletion = self.directories.mark_deleted(name, lost, self.now_ms())
            self.directories.remove(name, deletion)
        for part in parts:
            self.damage.forget(f"topic {part}")

    def _lost(self, name: TopicName) -> TopicDefinition:
        definition = None if self.exists(name) else self.directories.lost(name)
        if definition is None:
            raise TopicNotFound(f"topic {name} does not exist")
        return definition

    def deleting(
        self, name: str | TopicName, *, wait: bool = True, in_use: bool = False
    ) -> Callable[[], None]:
        """Take an unused topic out of use; returns the function that deletes it, in any thread.

        If another thread is opening the topic, wait, or raise `Claimed` without `wait` (for an
        event loop). `in_use` allows a topic with clients, which the caller then disconnects before
        it calls the function.
        """
        name = _parsed(name)
        definition = self.definitions.current.topics.get(str(name))
        if definition is None:
            raise TopicNotFound(f"topic {name} does not exist")
        self.definitions.check_owner(name)
        parts = definition.logs_of(name)
        with ExitStack() as stack:
            stack.enter_context(self._claims.of({name, *parts}, wait=wait))
            if not self.exists(name):
                raise TopicNotFound(f"topic {name} does not exist")
            for part in parts:
                topic = self._open.get(part)
                if topic is not None and topic.has_clients and not in_use:
                    raise InvalidInput(f"topic {part} is in use")
            opened = {part: self._open.pop(part) for part in parts if part in self._open}
            claims = stack.pop_all()

        def finish() -> None:
            with claims, self.reserve.if_full():
                try:
                    deletion = self.directories.delete_definition(name, definition, self.now_ms())
                except BaseException as error:
                    with ExitStack() as closing:
                        for topic in opened.values():
                            closing.callback(topic.close)
                        if not self.directories.keep_after(error, name, definition):
                            raise
                        closing.pop_all()
                    self._open.update(opened)
                    raise
                for topic in opened.values():
                    topic.close()
                self._schemas.pop(name, None)
                for part in parts:
                    self.damage.forget(f"topic {part}")
                self.directories.remove(name, deletion)
                self.definitions.confirm_removals([definition.id] if definition.id else ())

        return finish

    def unloading(self, names: Collection[TopicName], *, wait: bool = True) -> Callable[[], None]:
        """Take topics out of use; returns the function that closes them, for any thread.

        The caller disconnects their clients before it calls the function. The next use opens them
        again. `wait` as for `deleting`.
        """
        with ExitStack() as stack:
            stack.enter_context(self._claims.of(names, wait=wait))
            opened = [self._open.pop(name) for name in names if name in self._open]
            claims = stack.pop_all()

        def finish() -> None:
            with claims, ExitStack() as closing:
                for topic in opened:
                    closing.callback(topic.close)

        return finish

    def wait_for_others(self, names: Collection[TopicName], timeout_s: float) -> None:
        """Wait, in any thread, while another thread opens, creates or deletes one of these."""
        self._claims.wait(names, timeout_s)

    # --- topics -----------------------------------------------------------------------------

    def get(self, name: str | TopicName, *, create: bool = False) -> Topic:
        """The topic, opened on first use; `create` defines one that does not exist."""
        name = _parsed(name)
        topic = self.opened_topic(name)
        if topic is not None:
            return topic
        with self._claims.of([name]), _typed_errors(name):
            if not self.exists(name):
                if not create:
                    raise TopicNotFound(f"topic {name} does not exist")
                with suppress(AlreadyDefined):
                    return self._create(name)
            if self.partitions(name):
                raise InvalidInput(f"topic {name} is partitioned: name a partition of it")
            # Another thread may have opened it during the wait for the claim.
            return self._open.get(name) or self._open_topic(name)

    def _open_topic(self, name: TopicName) -> Topic:
        self.definitions.check_owner(name)
        if not self.definitions.current.owns(name):
            # Its owner, another node, has deleted it since it was found.
            raise TopicNotFound(f"topic {name} does not exist")
        whole = self._whole(name)
        self.directories.clear_removed(name)
        if self.directories.is_deleted(whole):
            raise TopicNotFound(f"topic {whole} is marked as deleted; deleting it again removes it")
        is_new = not self._missing.check(name)
        identity = self.directories.check_object(name)
        if not self.exists(name):
            raise TopicNotFound(f"topic {name} was deleted while it was opened")
        self._check_room()
        with self.damage.opening(f"topic {name}"):
            topic = Topic.open(
                self._fs,
                self._path(name),
                name,
                settings=self.settings.log,
                clock=self._clock,
                events=self._events,
                deduplicates=deduplication(
                    lambda: self.definitions.current, name, node=self.settings.deduplication
                ),
                compaction_settings=lambda: self.compaction_settings(name),
                new_service=self._new_service,
                latencies=self._latencies,
            )
        topic.object_id = identity.id if identity is not None else 0
        topic.compaction.reserve = self.reserve
        node = self.settings.policies
        topic.policies = lambda: policies_of(self.definitions.current, name, node)
        topic.writer.terminated = is_terminated(self.definitions.current, name)
        try:
            self.directories.note_log(name, is_new=is_new)
        except BaseException:
            with suppress(LithifyError):
                topic.close()
            raise
        # Last: from here on other threads use it.
        self._open[name] = topic
        if not self.withdrawals.is_own(topic):
            # It was deleted meanwhile, and `withdraw` has not found it.
            del self._open[name]
            topic.close()
            raise TopicNotFound(f"topic {name} was deleted while it was opened")
        return topic

    def compaction_settings(self, name: TopicName) -> TopicCompactionSettings:
        """The compaction settings of a topic, by the current definitions."""
        return policies_of(self.definitions.current, name, self.settings.compaction)

    def unopened(self) -> tuple[TopicName, ...]:
        """Topics that have a log and are not open; missing logs are reported."""
        defined = self.definitions.current.topics.items()
        names = []
        for text, definition in defined:
            for part in definition.logs_of(TopicName.parse(text)):
                if part in self._open or not self.definitions.current.owns(part):
                    continue
                with suppress(MissingLog):
                    if self._missing.check(part) or self._fs.exists(f"{self._path(part)}/log"):
                        names.append(part)
        for name in self.directories.listed():
            if not self.exists(name):
                with suppress(MissingLog):
                    self._missing.check(name)
        return tuple(names)

    def schemas(self, name: str | TopicName) -> Schemas:
        """The schemas of a topic, which all its partitions share."""
        name = _parsed(name)
        schemas = self.opened_schemas(name)
        if schemas is None:
            name = self._whole(name)
            self.definitions.check_owner(name)
            with self._claims.of([name]), _typed_errors(name):
                self.directories.clear_removed(name)
                self._missing.check(name)
                self.directories.check_object(name)
                new = Schemas(self._fs, self._path(name), clock=self._clock)
                # Another thread may have been faster.
                schemas = self._schemas.setdefault(name, new)
        return schemas

    def opened_schemas(self, name: TopicName) -> Schemas | None:
        """The schemas of a topic if they are in memory, otherwise None."""
        if not self.exists(name):
            raise TopicNotFound(f"topic {name} does not exist")
        return self._schemas.get(self._whole(name))

    def _whole(self, name: TopicName) -> TopicName:
        """The partitioned topic of a partition, or the topic itself."""
        return name if str(name) in self.definitions.current.topics else name.whole

    def why_not_writable(self, topic: Topic | None = None) -> str:
        """Why a topic, or any topic, is not writable; "" if it is. Waits for the disk."""
        directory = self.directory if topic is None else topic.log.directory
        return self.reserve.keep() or why_not_writable(self._fs, directory)

    def damage_found(self) -> tuple[str, ...]:
        """Damaged and missing files found since the start. Waits for the disk."""
        return (*self.damage.reasons(self._fs.exists), *self._missing.reasons())

    def now_ms(self) -> int:
        """The wall-clock time of the node."""
        return self._clock.now_ms()

    def opened_topic(self, name: TopicName) -> Topic | None:
        """The topic if it is open, otherwise None. Does not wait."""
        topic = self._open.get(name)
        if topic is not None:
            topic.used_s = self._clock.monotonic_s()
        return topic

    # --- idle topics ------------------------------------------------------------------------

    def has_room(self, count: int = 1) -> bool:
        """Can `count` more topics be opened within the limit?"""
        return self.open_max is None or len(self._open) + count <= self.open_max

    def _check_room(self) -> None:
        if not self.has_room():
            raise TooManyTopics(len(self._open))

    def idle(self, idle_s: float, count: int, *, backlogs: bool) -> tuple[Topic, ...]:
        """At most `count` open topics that are idle for `idle_s`, the longest idle first.

        Topics with a backlog only with `backlogs`, because metrics cover open topics only.
        """
        before_s = self._clock.monotonic_s() - idle_s
        topics = (
            topic
            for topic in tuple(self._open.values())
            if topic.used_s <= before_s
            and (backlogs or not topic.has_backlog)
            and not (topic.in_use or self.compactions.is_busy(topic))
        )
        return tuple(heapq.nsmallest(count, topics, key=lambda topic: topic.used_s))

    def mark_visited(self, names: Collection[TopicName], idle_s: float) -> None:
        """Count topics that were opened for maintenance only as idle for `idle_s`."""
        for name in names:
            topic = self._open.get(name)
            if topic is not None:
                topic.used_s -= idle_s

    def opened(self) -> dict[TopicName, Topic]:
        """The open topics, by name."""
        return dict(self._open)

    def maintain(self) -> None:
        """What only time brings about, for all open topics."""
        for topic in self.opened().values():
            topic.maintain()

    def close(self) -> None:
        """Close all topics; raises the first error after all were tried."""
        self.compactions.close()
        errors = []
        for topic in self._open.values():
            try:
                topic.close()
            except Exception as error:  # noqa: BLE001  (continue with the other topics)
                errors.append(error)
        self._open.clear()
        self._unlock()
        if errors:
            raise errors[0]

    # --- directories ------------------------------------------------------------------------

    def missing(self) -> tuple[MissingTopic, ...]:
        """Topics and partitions whose logs are missing."""
        return tuple(self.directories.missing())

    def unclaimed(self) -> tuple[UnclaimedTopic, ...]:
        """Topics that have directories and no definition, by a new scan of the disk."""
        return tuple(self.directories.scan().values())

    @property
    def unclaimed_count(self) -> int:
        """The number of unclaimed topics in the last scan."""
        return len(self.directories.unclaimed)

    def adopt(self, name: str | TopicName) -> None:
        """Define a topic that has directories and no definition; see `directories/unclaimed.py`."""
        name = _parsed(name)
        topic = self.directories.scan().get(name)
        if topic is None:
            if self.exists(name):
                raise AlreadyDefined(f"topic {name} exists already")
            raise TopicNotFound(f"there is no unclaimed directory of topic {name}")
        if topic.problem:
            raise AlreadyDefined(topic.problem)
        if topic.partitions and topic.partitions[-1] >= PARTITIONS_MAX:
            raise InvalidInput(f"topic {name} has partitions above {PARTITIONS_MAX - 1}")
        parts = [*map(name.partition_name, topic.partitions)]
        with self._claims.of([name, *parts]):
            edit = adopting(self._fs, topic, self.now_ms())
            # It becomes another object. A crash after this, or after the change, leaves it
            # unclaimed, and it can be adopted again.
            self.directories.disown(topic)
            self.definitions.change(edit)
            self.directories.claim(parts or [name])
            self.directories.note_logs([name, *parts])
        self.directories.scan()
        log.info("topic adopted", topic=str(name), partitions=len(topic.partitions))

    def _path(self, name: TopicName) -> str:
        return self.directories.path(name)


@contextmanager
def _typed_errors(name: TopicName) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OpenFailed(f"topic {name}", error) from error


def _parsed(name: str | TopicName) -> TopicName:
    return name if isinstance(name, TopicName) else TopicName.parse(name)
