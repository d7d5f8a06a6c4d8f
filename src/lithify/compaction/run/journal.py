"""The journal: the durable progress of one run.

It is the file `JOURNAL` in the log's directory and exists only while a run is unfinished. It is
created in one atomic step with everything the run has decided, then grows a line per step
(`fs/checked_lines.py`):

    PREPARE   who and when, horizon, the judged segments with their dead sets, drops and groups,
              the store's facts
    COPY      a group's target is written and durable                      (a line a group)
    COMMIT    all targets are durable; the manifest is about to be replaced
    CLEANUP   the new generation rules
    DONE      the report is in the history; only this file is left to remove

A run that goes on reads the journal and does what is missing; whether the manifest was replaced is
told by the manifest itself (`last_run`). Nothing that was acknowledged depends on the journal: one
that is damaged or does not fit the log any more is given up, with the files only it knew.
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
    """How far a run has come."""

    PREPARE = "PREPARE"
    COPY = "COPY"
    COMMIT = "COMMIT"
    CLEANUP = "CLEANUP"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run has decided, and what it has done so far."""

    run_id: str
    policy: str
    trigger: str
    started_ms: int
    as_of_ms: int
    horizon: int
    generation: int
    """The one that was judged."""
    in_view: bool
    judged: tuple[SegmentRef, ...]
    """All segments that were looked at, with the dead sets they will have."""
    dropped: tuple[int, ...]
    """Ids of the judged segments that go whole."""
    groups: tuple[tuple[int, ...], ...]
    """Ids of the judged segments that are rewritten together."""
    causes: Mapping[Cause, tuple[int, int]]
    messages: tuple[int, int] = (0, 0)
    """In the judged segments: all, and those that are live. Zeros where entries have none."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the store that are published with the run, into the manifest's `state`."""
    targets: Mapping[int, SegmentRef] = field(default_factory=dict)
    """Finished groups, by number."""
    phase: Phase = Phase.PREPARE

    def portion(self, numbers: Sequence[int]) -> RunRecord:
        """The part of the run that is published with these of its groups.

        The first portion has all segments that are in no group, also those that are dropped.
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
        """The first line of a journal."""
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
        """Read the first line back."""
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
    """Of a log whose file names tell how far a run is: nothing else has to be written down."""

    def read(self) -> RunRecord | None:
        """There is no run to take up: `settle` has finished it or taken it back."""
        return None

    def exists(self) -> bool:
        """Never."""
        return False

    def create(self, record: RunRecord) -> None:
        """The names of the targets will tell."""

    def copied(self, group: int, target: SegmentRef) -> None:
        """Its name tells."""

    def enter(self, phase: Phase) -> None:
        """The names tell."""

    def remove(self) -> None:
        """Nothing to remove."""


class Journal(NoJournal):
    """The file, for the one run that writes it."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{JOURNAL}"

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
        """Begin; a crash leaves no journal or a whole one."""
        append_line(self._fs, self._path, encode_line(record.to_json()))

    def copied(self, group: int, target: SegmentRef) -> None:
        """A group's target is durable."""
        self._add({"phase": Phase.COPY, "group": group, "target": target.to_row()})

    def enter(self, phase: Phase) -> None:
        """A later phase begins."""
        self._add({"phase": phase})

    def remove(self) -> None:
        """The run is over."""
        if self._fs.exists(self._path):
            self._fs.remove(self._path)
            self._fs.sync_dir(self._directory)

    def _add(self, step: dict[str, object]) -> None:
        append_line(self._fs, self._path, encode_line(json.dumps(step, separators=(",", ":"))))
