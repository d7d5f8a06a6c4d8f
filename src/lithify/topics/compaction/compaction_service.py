"""What a topic asks of whoever compacts it: one protocol, and its implementation over the log.

    compact                    make a run, now
    read_compacted_entries     what is retained from a position on, in position order
    last_compacted_position    the horizon: at or below it compacted reads come from here
    last_message_position      the last message that is retained, without reading an entry
    find_by_publish_time       the first retained entry published at or after a time
    delete_compacted           forget everything that was compacted
    close                      let go of everything

Another implementation is named in the node's settings as "module:factory"; the factory is called
with the topic's log and its `TopicCompaction`, which it may leave alone.

What an implementation must keep to: positions mean what they mean in the log; what it has below the
horizon is enough to know the newest message of every key there; the horizon never moves back, but
to -1 when everything compacted was deleted. Reads may come while a run goes on, from other threads.
The log above the horizon is kept for it, but during a first run only if it is one that comes by
itself: whoever reads the log takes a snapshot of it.
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
    """Where a message is; `slot` is its place in its batch, -1 if it is in none."""

    position: int
    slot: int


class TopicCompactionService(Protocol):
    """See the module."""

    def compact(
        self, trigger: str, jobs: Jobs | None = None, progress: Progress = ignore_progress
    ) -> Report:
        """Make a run.

        `progress` is called with each step, and raises to stop the run. It is a `RunControl` where
        the queue has begun the run: hand it on to `TopicCompaction.run`.
        """

    def read_compacted_entries(
        self, start: int, limit: int, through: int | None = None
    ) -> tuple[Sequence[LogEntry], int]:
        """(entries, last position that was looked at): retained ones, from `start` on.

        At most `limit`, and fewer if that is enough for now; none above `through`, which is the
        horizon unless given. If there are none, nothing is retained from `start` up to there.
        """

    @property
    def last_compacted_position(self) -> int:
        """The last position that was judged, -1 before the first run."""

    def last_message_position(self) -> MessagePosition | None:
        """The last message that is retained."""

    def find_by_publish_time(self, time_ms: int) -> int | None:
        """The first retained position published at or after a time."""

    def delete_compacted(self) -> None:
        """Forget everything that was compacted; the horizon is -1 then.

        May wait for the end of a run, whose result goes as well.
        """

    def close(self) -> None:
        """Let go of everything."""


class LogCompactionService:
    """The compacted view in the manifest of the topic's own log."""

    def __init__(self, log: Log, compaction: TopicCompaction) -> None:
        self._log = log
        self._compaction = compaction

    def compact(
        self, trigger: str, jobs: Jobs | None = None, progress: Progress = ignore_progress
    ) -> Report:
        """Make a run."""
        return self._compaction.run(trigger, jobs, progress)

    def read_compacted_entries(
        self, start: int, limit: int, through: int | None = None
    ) -> tuple[Sequence[LogEntry], int]:
        """See the protocol; a piece of the view's files at a time."""
        with self._log.snapshot("compacted read") as snapshot:
            manifest = snapshot.manifest
            last = manifest.horizon if through is None else min(through, manifest.horizon)
            if manifest.view is None or start > last:
                return [], max(last, start - 1)
            for frames in snapshot.read_frames(start, compacted=True):
                # Above the horizon the walk goes on in the log, which is not ours to give.
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
        """As the last run wrote it into the manifest."""
        found = self._log.manifest.state.get(LAST_MESSAGE)
        return None if found is None else MessagePosition(*found)

    def find_by_publish_time(self, time_ms: int) -> int | None:
        """By the block indexes of the view's segments."""
        with self._log.snapshot("time search") as snapshot:
            found = snapshot.find_time(time_ms, compacted=True)
            return found if found is not None and found <= snapshot.manifest.horizon else None

    def delete_compacted(self) -> None:
        """See the protocol; the log stays, `ViewBeingDeleted` if somebody else is at it."""
        self._compaction.delete_view()

    def close(self) -> None:
        """The log is closed by its owner."""


def service_factory(name: str) -> ServiceFactory:
    """The factory that a setting names as "module:factory"; ours if it names none."""
    if not name:
        return LogCompactionService
    module, _, attribute = name.partition(":")
    try:
        factory: ServiceFactory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSetting("compaction_service", name, f"module:factory ({error})") from error
    return factory
