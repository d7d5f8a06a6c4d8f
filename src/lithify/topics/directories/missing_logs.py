"""The topics whose log is missing, as found by checks since the start; for health reports.

A topic is removed from the list when its log is back, or when it is neither defined nor in the
inventory. Any thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.errors import MissingLog
from lithify.logger import get_logger

if TYPE_CHECKING:
    from lithify.topics.definitions.definition_store import DefinitionStore
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.directories.topic_directories import TopicDirectories

__all__ = ["MissingLogs"]

NAMED_MAX = 100
"""Maximum number of topics in the list; each is logged once."""

log = get_logger("lithify.topics")


class MissingLogs:
    """The missing logs of one node."""

    def __init__(self, directories: TopicDirectories, definitions: DefinitionStore) -> None:
        self._directories = directories
        self._definitions = definitions
        self._reasons: dict[TopicName, str] = {}

    def check(self, name: TopicName) -> bool:
        """Does a topic have a log? Raises `MissingLog` if it had one and has none."""
        try:
            has_log = self._directories.check_log(name)
        except MissingLog as error:
            if name not in self._reasons and len(self._reasons) < NAMED_MAX:
                self._reasons[name] = str(error)
                log.warning("the log of a topic is missing", topic=str(name), reason=str(error))
            raise
        self._reasons.pop(name, None)
        return has_log

    def reasons(self) -> tuple[str, ...]:
        """The reason for each missing log, after another check. Waits for the disk."""
        listed = self._directories.is_listed
        for name in tuple(self._reasons):
            if not self._definitions.current.defines(name) and not listed(name):
                self._reasons.pop(name, None)
                continue
            with suppress(MissingLog):
                self.check(name)
        return tuple(self._reasons.copy().values())
