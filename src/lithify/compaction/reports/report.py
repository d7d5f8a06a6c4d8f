"""Reports: a durable record of what each run did.

A history file has one report per line (`fs/checked_lines.py`). The JSON has `"version":1` and every
field of `Report`. Before the file exceeds `2 * keep` lines, it is atomically replaced by the newest
`keep` runs: there is one rewrite per `keep` appends, and the size is bounded.

A run may be reported again, because its files are reclaimed only after the last reader has
finished: the latest line of a `run_id` is valid, at the place of its first one.

The history is for information; no run depends on it. If it is damaged, unreadable or of a newer
version, the appending process sets it aside (`log/side_files.py`) and rebuilds it from the intact
reports. A read-only reader raises the error.

Invariants: a report is durable when `append` returns; a failed `append` leaves the reports
unchanged. One process appends (the one that has the log's lock), any process may read.
"""

from __future__ import annotations

import errno
import json
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from lithify.compaction.planning.plan import human_bytes
from lithify.compaction.policies.why_declined import Declined, WhyNot
from lithify.errors import Corrupt, DamagedFile, InvalidInput, UnsupportedVersion, WriteFailed
from lithify.fs import read_file, write_atomic
from lithify.fs.checked_lines import append_line, encode_line, parse_lines, read_lines
from lithify.log.side_files import set_aside
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.events import EventSink
    from lithify.fs.base import FileSystem

__all__ = ["REPORT_VERSION", "Cause", "History", "Report", "Result"]

REPORT_VERSION = 1

KEEP_MAX = 100_000
"""A report is about 1 KiB, so reading takes at most 200 MiB of disk and memory."""

_Found = TypeVar("_Found")

Result = Literal["done", "failed", "cancelled", "nothing to do", "rolled back"]


class Cause(StrEnum):
    """Why an entry, or a message in one, was dropped."""

    SUPERSEDED = "superseded"
    TOMBSTONE = "tombstone"
    EXPIRED = "expired"
    DELETED = "deleted"
    UNREFERENCED = "unreferenced"
    KEYLESS = "keyless"
    MARKER = "marker"


@dataclass(frozen=True, slots=True)
class Report:
    """The durable record of one run.

    `dropped` is (count, bytes) by cause. Where an entry has several messages, as in topics, the
    count is of messages, and so are `read_messages` and `kept_messages`; in other logs they are 0.
    """

    run_id: str
    log: str
    policy: str
    trigger: str
    started_ms: int
    finished_ms: int
    horizon: int
    generation_before: int
    generation_after: int
    result: Result
    error: str | None = None
    read_bytes: int = 0
    read_entries: int = 0
    kept_entries: int = 0
    kept_bytes: int = 0
    dropped: Mapping[Cause, tuple[int, int]] = field(default_factory=dict)
    retired_bytes: int = 0
    reclaimed_bytes: int = 0
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    read_messages: int = 0
    kept_messages: int = 0
    declined: Declined | None = None
    """Why the run did nothing."""

    def to_json(self) -> str:
        """Compact JSON on one line; message counts and the reason are left out if empty.

        `declined` is an object with the fields of `Declined`.
        """
        values: dict[str, object] = {"version": REPORT_VERSION}
        values |= {each.name: getattr(self, each.name) for each in fields(self)}
        if not self.read_messages:
            del values["read_messages"], values["kept_messages"]
        if self.declined is None:
            del values["declined"]
        else:
            values["declined"] = asdict(self.declined)
        values["dropped"] = dict(self.dropped)
        values["seconds_by_phase"] = dict(self.seconds_by_phase)
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "report") -> Report:
        """Decode what `to_json` returned; `source` is the file name for errors."""
        try:
            values = json.loads(text)
            version = values.pop("version")
            if isinstance(version, int) and version > REPORT_VERSION:
                raise UnsupportedVersion(source, version, REPORT_VERSION)
            values["dropped"] = {
                Cause(cause): (int(entries), int(size_bytes))
                for cause, (entries, size_bytes) in values["dropped"].items()
            }
            if "declined" in values:
                declined = values["declined"]
                values["declined"] = Declined(WhyNot(declined["why"]), declined["detail"])
            report = cls(**values)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{source} holds no report: {error!r}") from error
        if report.result not in get_args(Result):
            raise InvalidInput(f"{source} holds a report with the unknown result {report.result!r}")
        return report

    def summary(self) -> str:
        """One line of text."""
        seconds = (self.finished_ms - self.started_ms) / 1000
        line = f"{self.log}: {self.result} in {seconds:.1f} s ({self.trigger}, {self.policy})"
        if self.generation_after != self.generation_before:
            line += f", generation {self.generation_before} to {self.generation_after}"
        line += (
            f", read {self.read_entries} entries ({human_bytes(self.read_bytes)})"
            f", kept {self.kept_entries} ({human_bytes(self.kept_bytes)})"
        )
        if self.read_messages:
            line += f", {self.kept_messages} of {self.read_messages} messages"
        for cause, (entries, size_bytes) in self.dropped.items():
            line += f", dropped {entries} {cause} ({human_bytes(size_bytes)})"
        line += f", reclaimed {human_bytes(self.reclaimed_bytes)}"
        if self.retired_bytes:
            line += f" of {human_bytes(self.retired_bytes)} retired"
        if self.declined is not None:
            line += f": {self.declined}"
        return line if self.error is None else f"{line}: {' '.join(self.error.split())}"


class History:
    """The reports of one log, in one file whose directory must exist. Thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        keep: int = 1000,
        *,
        repaired: EventSink | None = None,
    ) -> None:
        """Only the appending process passes `repaired`, the sink for events about damage."""
        check_range("keep", keep, 1, KEEP_MAX)
        self._fs = fs
        self._path = path
        self._keep = keep
        self._repaired = repaired
        self._lock = threading.Lock()

    def append(self, report: Report) -> None:
        """Add a report, or a newer version of one; durable on return."""
        line = encode_line(report.to_json())
        with self._lock:
            try:
                if len(self._usable(self._lines)) < 2 * self._keep:
                    append_line(self._fs, self._path, line)
                    return
                runs = {each.run_id: each for each in self._usable(self._runs)}
                runs[report.run_id] = report
                write_atomic(self._fs, self._path, _encoded(list(runs.values())[-self._keep :]))
            except OSError as error:
                raise WriteFailed(self._path, error) from error

    def newest(self, limit: int) -> list[Report]:
        """The last `limit` runs, newest first, each in its latest version.

        The whole file is read, because the last lines may be newer versions of old reports.
        """
        if limit < 0:
            raise InvalidInput(f"cannot list {limit} reports, must be 0 or more")
        with self._lock:
            runs = self._usable(self._runs)
        return list(reversed(runs))[:limit]

    def _usable(self, read: Callable[[], list[_Found]]) -> list[_Found]:
        """The result of `read`, after a repair if the file is damaged."""
        try:
            return read()
        except (Corrupt, UnsupportedVersion, OSError) as error:
            unreadable = not isinstance(error, OSError) or error.errno == errno.EIO
            if self._repaired is None or not unreadable:
                raise
            self._repair(str(error), self._repaired)
            return read()

    def _lines(self) -> list[tuple[int, bytes]]:
        if not self._fs.exists(self._path):
            return []
        return read_lines(self._fs, self._path)[0]

    def _runs(self) -> list[Report]:
        """The latest version of each run, in order of the first reports."""
        runs: dict[str, Report] = {}
        for offset, text in self._lines():
            try:
                report = Report.from_json(text, self._path)
            except InvalidInput as error:
                raise DamagedFile(self._path, offset, str(error)) from error
            runs[report.run_id] = report
        return list(runs.values())

    def _repair(self, reason: str, events: EventSink) -> None:
        """Set the file aside and rewrite it with the intact reports."""
        data = b""
        with suppress(OSError):
            data = read_file(self._fs, self._path)
        intact = []
        for line in data.splitlines(keepends=True):
            with suppress(Corrupt, UnsupportedVersion, InvalidInput):
                for _, text in parse_lines(line, self._path)[0]:
                    intact.append(Report.from_json(text, self._path))
        set_aside(self._fs, self._path, reason, events)
        write_atomic(self._fs, self._path, _encoded(intact))


def _encoded(reports: list[Report]) -> bytes:
    return b"".join(encode_line(report.to_json()) for report in reports)
