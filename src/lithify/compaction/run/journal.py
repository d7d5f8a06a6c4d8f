"""The journal: the durable progress of one run.

The file `JOURNAL` in the log's directory exists only while a run is unfinished. It is created
atomically with everything the run has decided, then grows by one line per step
(`fs/checked_lines.py`):

    PREPARE   who and when, horizon, the judged segments with their dead sets, drops and groups,
              the store's facts
    COPY      a group's target is written and durable                      (one line per group)
    COMMIT    all targets are durable; the manifest is about to be replaced
    CLEANUP   the new generation is published
    DONE      the report is in the history; only the journal is left to remove

A resumed run reads the journal and does the missing steps; the manifest itself says whether it was
replaced (`last_run`). No acknowledged data depends on the journal: one that is damaged or no longer
fits the log is discarded, with the files that only it refers to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lithify.compaction.reports.report import Cause
from lithify.errors import DamagedFile, UnsupportedVersion
from lithify.fs.checked_lines import append_line, encode_line, read_lines
from lithify.log.file_names import JOURNAL
from lithify.log.manifest import SegmentRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lithify.fs import FileSystem

__all__ = ["JOURNAL_VERSION", "Journal", "NoJournal", "Phase", "RunRecord"]

JOURNAL_VERSION = 1


class Phase(StrEnum):
    """The progress of a run."""

    PREPARE = "PREPARE"
    COPY = "COPY"
    COMMIT = "COMMIT"
    CLEANUP = "CLEANUP"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The decisions of a run, and its progress."""

    run_id: str
    policy: str
    trigger: str
    started_ms: int
    as_of_ms: int
    horizon: int
    generation: int
    """The judged horizon."""
    in_view: bool
    judged: tuple[SegmentRef, ...]
    """All judged segments, with their new dead sets."""
    dropped: tuple[int, ...]
    """Ids of the judged segments that are dropped."""
    groups: tuple[tuple[int, ...], ...]
    """Ids of the judged segments that are rewritten together."""
    causes: Mapping[Cause, tuple[int, int]]
    messages: tuple[int, int] = (0, 0)
    """(all, live) messages of the judged segments. Zeros where entries have no messages."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the store, published with the run in the manifest's `state`."""
    targets: Mapping[int, SegmentRef] = field(default_factory=dict)
    """Targets of finished groups, by number."""
    phase: Phase = Phase.PREPARE

    def portion(self, numbers: Sequence[int]) -> RunRecord:
        """The part of the run that is published with the given groups.

        The first portion includes all segments that are in no group, also the dropped ones.
        """
        is_first = not numbers or numbers[0] == 0
        own = {source for number in numbers for source in self.groups[number]}
        grouped = {source for group in self.groups for source in group}
        return replace(
            self,
            judged=tuple(
                segment
                for segment in self.judged
                if segment.id in own or (is_first and segment.id not in grouped)
            ),
            dropped=self.dropped if is_first else (),
            groups=tuple(self.groups[number] for number in numbers),
            targets={place: self.targets[number] for place, number in enumerate(numbers)},
        )

    def to_json(self) -> str:
        """Encode as the first line of a journal."""
        value: dict[str, Any] = {
            "phase": Phase.PREPARE,
            "version": JOURNAL_VERSION,
            "run_id": self.run_id,
            "policy": self.policy,
            "trigger": self.trigger,
            "started_ms": self.started_ms,
            "as_of_ms": self.as_of_ms,
            "horizon": self.horizon,
            "generation": self.generation,
            "in_view": self.in_view,
            "judged": [segment.to_row() for segment in self.judged],
            "dropped": self.dropped,
            "groups": self.groups,
            "causes": self.causes,
        }
        if any(self.messages):
            value["messages"] = self.messages
        if self.state:
            value["state"] = self.state
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: bytes, path: str) -> RunRecord:
        """Decode the first line."""
        value = json.loads(text)
        if value["version"] != JOURNAL_VERSION:
            raise UnsupportedVersion(path, value["version"], JOURNAL_VERSION)
        return cls(
            run_id=value["run_id"],
            policy=value["policy"],
            trigger=value["trigger"],
            started_ms=value["started_ms"],
            as_of_ms=value["as_of_ms"],
            horizon=value["horizon"],
            generation=value["generation"],
            in_view=value["in_view"],
            judged=tuple(map(SegmentRef.from_row, value["judged"])),
            dropped=tuple(value["dropped"]),
            groups=tuple(map(tuple, value["groups"])),
            causes={Cause(c): (n, size) for c, (n, size) in value["causes"].items()},
            messages=tuple(value.get("messages", (0, 0))),
            state=value.get("state", {}),
        )


class NoJournal:
    """A journal for logs whose file names show the progress of a run: it writes nothing."""

    def read(self) -> RunRecord | None:
        """Always None: `settle` has finished the run or rolled it back."""
        return None

    def exists(self) -> bool:
        """Never."""
        return False

    def create(self, record: RunRecord) -> None:
        """Nothing to write: the names of the targets show the run."""

    def copied(self, group: int, target: SegmentRef) -> None:
        """Nothing to write: the name of the target shows it."""

    def enter(self, phase: Phase) -> None:
        """Nothing to write: the file names show the phase."""

    def remove(self) -> None:
        """Nothing to remove."""


class Journal(NoJournal):
    """The journal file, used by the one run that writes it."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{JOURNAL}"
        self._durable: int | None = None
        """Size of the file after the last line, if that was appended by this object."""

    def read(self) -> RunRecord | None:
        """The unfinished run, or None. Damage raises `DamagedFile`."""
        if not self.exists():
            return None
        lines, _ = read_lines(self._fs, self._path)
        if not lines:
            raise DamagedFile(self._path, 0, "the first line is not whole")
        record = RunRecord.from_json(lines[0][1], self._path)
        targets: dict[int, SegmentRef] = {}
        phase = Phase.PREPARE
        for _, text in lines[1:]:
            step = json.loads(text)
            phase = Phase(step["phase"])
            if phase is Phase.COPY:
                targets[step["group"]] = SegmentRef.from_row(step["target"])
        return replace(record, targets=targets, phase=phase)

    def exists(self) -> bool:
        """Is there an unfinished run?"""
        return self._fs.exists(self._path)

    def create(self, record: RunRecord) -> None:
        """Start a journal; a crash leaves none or a complete one."""
        self._append(record.to_json())

    def copied(self, group: int, target: SegmentRef) -> None:
        """Record that a group's target is durable."""
        self._add({"phase": Phase.COPY, "group": group, "target": target.to_row()})

    def enter(self, phase: Phase) -> None:
        """Record the start of a later phase."""
        self._add({"phase": phase})

    def remove(self) -> None:
        """Remove the journal at the end of the run."""
        self._durable = None
        if self._fs.exists(self._path):
            self._fs.remove(self._path)
            self._fs.sync_dir(self._directory)

    def _add(self, step: dict[str, object]) -> None:
        self._append(json.dumps(step, separators=(",", ":")))

    def _append(self, text: str) -> None:
        durable, self._durable = self._durable, None
        self._durable = append_line(self._fs, self._path, encode_line(text), durable)
