"""What a run needs of a log, and of the one who writes its targets.

A log is compacted through `CompactedLog`:

| part | what a run does with it |
|---|---|
| `manifest` | which segments there are: a value that never changes |
| `pin` | keeps the files of that value on disk until the run has published |
| `publish` | makes a changed manifest the one that counts, in a way that survives a crash |
| `settle` | finds out what counts after a publish whose outcome is unknown |
| `sweep` | removes what runs have written and no manifest names |
| `reclaim` | deletes what was published away, once no reader needs it |

Two kinds of log implement it. `log.Log` keeps its manifest in a file and publishes by replacing
that file. A Raft group (`raft/compaction/segments_port.py`) has no manifest file: its manifest is
read off the names in its directory, and a publish is a rename and some links.

`Targets` writes the targets of a run. Those of `rewrite_targets.py` are written by the jobs, under
names that no other attempt has. The targets of a Raft group are named by their sources.

A log whose journal is its file names gets `NoJournal` (`journal.py`). One whose readers know what
is live needs no dead sets (`RunSettings.dead_sets`).

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
    """A log as a run sees it; see the module."""

    @property
    def directory(self) -> str:
        """Where its files are, also the journal and the history of its runs."""

    @property
    def manifest(self) -> Manifest:
        """The generation that counts now; its last segment is the active one."""

    @property
    def active_bytes(self) -> int:
        """Size of the active segment."""

    def show_position(self, position: int) -> str:
        """A position as people of this kind of log write it."""

    def pin(self, owner: str) -> AbstractContextManager[object]:
        """Keep the files of the manifest, and of later ones, until the block ends."""

    def settle(self) -> None:
        """Make sure that `manifest` is what is on disk; raises while that cannot be said."""

    def publish(self, edit: Callable[[Manifest], Manifest], why: str) -> Manifest:
        """Make `edit(manifest)` the next generation. Everything it names is durable."""

    def sweep(self) -> Iterable[Event]:
        """Remove what runs have written and the manifest does not name."""

    def reclaim(self, pace: Callable[[int], None]) -> Reclaimed:
        """Delete what was published away; `pace` is called with the bytes before each file."""


class Targets(Protocol):
    """Writes the target of each group of a run."""

    def portions(self, record: RunRecord) -> Sequence[Sequence[int]]:
        """The numbers of the groups that are published together, in this order; one at least.

        What is copied and not yet published is on disk twice. A log that can publish some groups
        before the others needs less room for it.
        """

    def write(
        self,
        record: RunRecord,
        numbers: Sequence[int],
        jobs: Jobs,
        allowance: Allowance,
        progress: Progress,
    ) -> Iterator[tuple[int, SegmentRef]]:
        """(number of the group, its target) as they are durable, in any order."""
