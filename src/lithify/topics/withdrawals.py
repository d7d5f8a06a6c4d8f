"""Takes topics out of use that the catalog has deleted, by their object ids.

1. `withdraw`: nothing more is accepted, and the topic is no longer found by its name. This does no
   I/O and does not wait, so it runs where a version of the catalog is applied. Until the next step
   no topic of the name is opened.
2. The caller disconnects the clients, and closes the topics.
3. `finish_removals` deletes the directories that the removals in the catalog name, and confirms.

`directories/topic_directories.py` deletes a directory only if it says that it is of exactly the
object of a removal. Part of `topics.py`; `node/catalog/reconciler.py` calls it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.fs.full_disk_reserve import NO_RESERVE
from lithify.logger import get_logger
from lithify.name_locks import Claimed

if TYPE_CHECKING:
    from collections.abc import Collection

    from lithify.damage import Damage
    from lithify.fs.full_disk_reserve import NoReserve
    from lithify.name_locks import Claims
    from lithify.topics.definitions.definition_store import DefinitionStore
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.directories.topic_directories import TopicDirectories
    from lithify.topics.schemas.schemas import Schemas
    from lithify.topics.topic import Topic

__all__ = ["TopicWithdrawals", "WithdrawnTopics"]

log = get_logger("lithify.topics")


@dataclass(frozen=True, slots=True)
class WithdrawnTopics:
    """Topics that are out of use."""

    topics: tuple[Topic, ...]
    claims: ExitStack

    def close(self) -> None:
        """Close them, in any thread."""
        with self.claims:
            for topic in self.topics:
                try:
                    topic.close()
                except (LithifyError, OSError) as error:
                    log.warning(
                        "closing a deleted topic failed", topic=str(topic.name), reason=str(error)
                    )


class TopicWithdrawals:
    """See the module. It shares the open topics and schemas with `Topics`."""

    def __init__(
        self,
        opened: dict[TopicName, Topic],
        schemas: dict[TopicName, Schemas],
        claims: Claims[TopicName],
        directories: TopicDirectories,
        definitions: DefinitionStore,
        damage: Damage,
    ) -> None:
        self._open = opened
        self._schemas = schemas
        self._claims = claims
        self._directories = directories
        self._definitions = definitions
        self._damage = damage
        self.reserve: NoReserve = NO_RESERVE

    def is_own(self, topic: Topic) -> bool:
        """Is the object of an open topic defined, and on this node?"""
        definitions = self._definitions.current
        identity = definitions.identity(topic.name)
        # Definitions in a file have no ids.
        known = identity.id if identity is not None else 0
        return topic.object_id == known and definitions.owns(topic.name)

    def strangers(self) -> list[TopicName]:
        """Open topics that are not, or no longer, of this node."""
        return [name for name, topic in dict(self._open).items() if not self.is_own(topic)]

    def withdraw(self, names: Collection[TopicName]) -> WithdrawnTopics:
        """Take topics out of use if they are not of this node; raises `Claimed`. Does not wait."""
        self._forget_schemas(names)
        with ExitStack() as stack:
            stack.enter_context(self._claims.of(names, wait=False))
            found = [self._open.get(name) for name in names]
            topics = [each for each in found if each is not None and not self.is_own(each)]
            for topic in topics:
                topic.writer.withdrawn = True
                del self._open[topic.name]
            return WithdrawnTopics(tuple(topics), stack.pop_all())

    def finish_removals(self) -> bool:
        """Delete the directories of deleted topics; False if something must be repeated."""
        finished, is_all = [], True
        for removal in self._directories.removals():
            try:
                with self._claims.of(removal.directories, wait=False), self.reserve.if_full():
                    self._directories.finish_removal(removal)
                    # A thread may have read them after `withdraw`.
                    self._forget_schemas(removal.directories)
            except Claimed:
                is_all = False
                continue
            except (LithifyError, OSError) as error:
                log.warning(
                    "the directory of a deleted topic cannot be removed yet",
                    topic=removal.identity.name,
                    reason=str(error),
                )
                is_all = False
                continue
            for name in removal.directories:
                self._damage.forget(f"topic {name}")
            finished.append(removal.identity.id)
        self._definitions.confirm_removals(finished)
        return is_all

    def _forget_schemas(self, names: Collection[TopicName]) -> None:
        for name in names:
            self._schemas.pop(name, None)
