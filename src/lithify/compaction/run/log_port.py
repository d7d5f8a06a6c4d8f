"""The interfaces of a run: the log that is compacted, and the writer of its targets.

A log is compacted through `CompactedLog`:

| part | what a run does with it |
|---|---|
| `manifest` | which segments there are: an immutable value |
| `pin` | keeps the files of that value on disk until the run has published |
| `publish` | makes a changed manifest the current one, crash-safe |
| `settle` | resolves a publish whose outcome is unknown |
| `sweep` | removes output of runs that no manifest names |
| `reclaim` | deletes retired files that no reader needs |

Two kinds of log implement it. `log.Log` keeps its manifest in a file and publishes by replacing
that file. A Raft group (`raft/compaction/segments_port.py`) has no manifest file: its manifest is
derived from the names in its directory, and a publish is a rename and some links.

`Targets` writes the targets of a run. In `rewrite_targets.py` the jobs write them, under a unique
name per attempt. The targets of a Raft group are named after their sources.

A log whose file names are its journal uses `NoJournal` (`journal.py`). A log whose readers know
what is live needs no dead sets (`RunSettings.dead_sets`).

Protocols only. The callers are `compactor.py`, `phases.py` and `resume.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from lithify.compaction.limits.budget import Allowance
    from lithify.compaction.run.journal import RunRecord
    from lithify.compaction.tasks.jobs import Jobs, Progress
    from lithify.events import Event, Reclaimed
    from lithify.log.manifest import Manifest, SegmentRef

__all__ = ["CompactedLog", "Targets"]


class CompactedLog(Protocol):
    """The part of a log that a run uses; see the module."""

    @property
    def directory(self) -> str:
        """The directory of its files, including the journal and the history of its runs."""

    @property
    def manifest(self) -> Manifest:
        """The current generation; its last segment is the active one."""

    @property
    def active_bytes(self) -> int:
        """Size of the active segment."""

    def show_position(self, position: int) -> str:
        """Format a position as users of this kind of log write it."""

    def pin(self, owner: str) -> AbstractContextManager[object]:
        """Keep the files of the manifest, and of later ones, until the block ends."""

    def settle(self) -> None:
        """Make sure that `manifest` is what is on disk; raises if that is unknown."""

    def publish(self, edit: Callable[[Manifest], Manifest], why: str) -> Manifest:
        """Publish `edit(manifest)` as the next generation. Everything it names is durable."""

    def sweep(self) -> Iterable[Event]:
        """Remove output of runs that the manifest does not name."""

    def reclaim(self, pace: Callable[[int], None]) -> Reclaimed:
        """Delete retired files; `pace` is called with the size before each file."""


class Targets(Protocol):
    """Writes the target of each group of a run."""

    def portions(self, record: RunRecord) -> Sequence[Sequence[int]]:
        """The group numbers to publish together, in this order; at least one portion.

        Copied groups take space twice until they are published. A log that can publish in several
        portions needs less space.
        """

    def write(
        self,
        record: RunRecord,
        numbers: Sequence[int],
        jobs: Jobs,
        allowance: Allowance,
        progress: Progress,
    ) -> Iterator[tuple[int, SegmentRef]]:
        """(group number, target) of each durable target, in any order."""
