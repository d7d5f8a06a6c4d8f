"""The compaction interface of a topic: a protocol, and its implementation over the topic's log.

    compact                    run a compaction now
    read_compacted_entries     retained entries from a position on, in position order
    last_compacted_position    the horizon: compacted reads at or below it come from the service
    last_message_position      the last retained message, without reading an entry
    find_by_publish_time       the first retained entry published at or after a time
    delete_compacted           delete all compacted data
    close                      release all resources

The node's settings can name another implementation as "module:factory". The factory is called with
the topic's log and its `TopicCompaction`; it need not use the latter.

Requirements for an implementation:

- Positions mean the same as in the log.
- Its data below the horizon determine the newest message of every key there.
- The horizon never decreases, except to -1 when all compacted data is deleted.
- Reads may come from other threads during a run.
- A service that reads the log must take a snapshot. The log above the horizon is retained for the
  service, but during a first run only if a trigger started the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from lithify.compaction.tasks.jobs import ignore_progress
from lithify.errors import InvalidSetting
from lithify.log.segments.lazy_entries import FrameEntries
from lithify.topics.compaction.live_messages import LAST_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.compaction.reports.report import Report
    from lithify.compaction.tasks.jobs import Jobs, Progress
    from lithify.log.log import Log
    from lithify.log.segments.frame import LogEntry
    from lithify.topics.compaction.topic_compaction import TopicCompaction

    ServiceFactory = Callable[[Log, TopicCompaction], "TopicCompactionService"]

__all__ = [
    "LogCompactionService",
    "MessagePosition",
    "TopicCompactionService",
    "service_factory",
]


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """The place of a message; `slot` is its index in a batch, -1 outside a batch."""

    position: int
    slot: int


class TopicCompactionService(Protocol):
    """The compaction service of one topic; the module has the requirements."""

    def compact(
        self, trigger: str, jobs: Jobs | None = None, progress: Progress = ignore_progress
    ) -> Report:
        """Run a compaction.

        `progress` is called with each step and may raise to cancel the run. It is a `RunControl` if
        the queue started the run: pass it to `TopicCompaction.run`.
        """

    def read_compacted_entries(
        self, start: int, limit: int, through: int | None = None
    ) -> tuple[Sequence[LogEntry], int]:
        """Read retained entries from `start` on: (entries, last position covered).

        Returns at most `limit` entries and may return fewer, none above `through`, by default the
        horizon. An empty result means that nothing from `start` to that position is retained.
        """

    @property
    def last_compacted_position(self) -> int:
        """The horizon of the last run, -1 before the first run."""

    def last_message_position(self) -> MessagePosition | None:
        """The last retained message."""

    def find_by_publish_time(self, time_ms: int) -> int | None:
        """The first retained position published at or after a time."""

    def delete_compacted(self) -> None:
        """Delete all compacted data and set the horizon to -1.

        May wait for a run in progress, and deletes its result as well.
        """

    def close(self) -> None:
        """Release all resources."""


class LogCompactionService:
    """Stores the compacted view in the manifest of the topic's own log."""

    def __init__(self, log: Log, compaction: TopicCompaction) -> None:
        self._log = log
        self._compaction = compaction

    def compact(
        self, trigger: str, jobs: Jobs | None = None, progress: Progress = ignore_progress
    ) -> Report:
        """Run a compaction."""
        return self._compaction.run(trigger, jobs, progress)

    def read_compacted_entries(
        self, start: int, limit: int, through: int | None = None
    ) -> tuple[Sequence[LogEntry], int]:
        """See the protocol; returns one piece of the view's files per call."""
        with self._log.snapshot("compacted read") as snapshot:
            manifest = snapshot.manifest
            last = manifest.horizon if through is None else min(through, manifest.horizon)
            if manifest.view is None or start > last:
                return [], max(last, start - 1)
            for frames in snapshot.read_frames(start, compacted=True):
                # Above the horizon the frames come from the log, which is not part of the view.
                within = int(frames.positions.searchsorted(last, side="right"))
                entries = FrameEntries(frames.select(slice(0, min(limit, within))))
                if within > limit:
                    return entries, entries[-1].position
                return entries, last if within < len(frames) else int(frames.positions[-1])
        return [], last

    @property
    def last_compacted_position(self) -> int:
        """The horizon."""
        manifest = self._log.manifest
        return -1 if manifest.view is None else manifest.horizon

    def last_message_position(self) -> MessagePosition | None:
        """The last retained message, as the last run wrote it into the manifest."""
        fields = self._log.manifest.state.get(LAST_MESSAGE)
        return None if fields is None else MessagePosition(*fields)

    def find_by_publish_time(self, time_ms: int) -> int | None:
        """Search the block indexes of the view's segments."""
        with self._log.snapshot("time search") as snapshot:
            position = snapshot.find_time(time_ms, compacted=True)
            in_view = position is not None and position <= snapshot.manifest.horizon
            return position if in_view else None

    def delete_compacted(self) -> None:
        """See the protocol; keeps the log. Raises `ViewBeingDeleted` during another deletion."""
        self._compaction.delete_view()

    def close(self) -> None:
        """Nothing to release: the topic closes the log."""


def service_factory(name: str) -> ServiceFactory:
    """Import the factory of a setting "module:factory"; `LogCompactionService` if empty."""
    if not name:
        return LogCompactionService
    module, _, attribute = name.partition(":")
    try:
        factory: ServiceFactory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSetting("compaction_service", name, f"module:factory ({error})") from error
    return factory
