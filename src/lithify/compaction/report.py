"""Reports: what each run did, kept in a file that outlives it.

A history file is text. One line is one report:

    crc space json newline

`crc` is the CRC-32C of `json` as 8 lower-case hexadecimal digits; `json` is compact, holds
`"version":1` and every field of `Report`, and contains no newline.

How a report is appended:

1. The first one creates the file: written aside, fsynced, renamed, directory fsynced.
2. Later ones: cut a torn last line and fsync, write the new line, fsync. A crash in between leaves
   the file without the new line or with a torn one.
3. Where the file would exceed `2 * keep` lines, it is replaced instead, in one atomic step, by the
   newest `keep` runs. So it is rewritten once in `keep` appends, and its size stays bounded.

What a reader makes of it:

- A run may be reported again (its bytes are reclaimed only after the last reader has left): the
  latest line of a `run_id` counts, in the place of its first one.
- The last line is torn when its newline is missing, or when its CRC is wrong and it has a zero
  byte, which no report has but a block that never arrived is full of. A torn line was never
  acknowledged and is ignored. Anything else that is wrong, anywhere, is `DamagedFile`.

Invariants: what `append` returned from is durable; a failed `append` leaves the reports as they
were, and one that finds damage is refused. One process appends (the one that has the log's lock),
any may read.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, get_args

from lithify.checksum import crc32c
from lithify.compaction.plan import human_bytes
from lithify.errors import DamagedFile, InvalidInput, UnsupportedVersion, WriteFailed
from lithify.fs.atomic import read_file, write_atomic
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.fs.base import FileSystem

__all__ = ["REPORT_VERSION", "Cause", "History", "Report", "Result"]

REPORT_VERSION = 1

KEEP_MAX = 100_000
"""A report is about 1 KiB, so at most 200 MiB are on disk and in memory while reading."""

CRC_DIGITS = 8

Result = Literal["done", "failed", "cancelled", "nothing to do", "rolled back"]


class Cause(StrEnum):
    """Why an entry was dropped."""

    SUPERSEDED = "superseded"
    TOMBSTONE = "tombstone"
    EXPIRED = "expired"
    UNREFERENCED = "unreferenced"


@dataclass(frozen=True, slots=True)
class Report:
    """The durable record of one run. `dropped` is (entries, bytes) by cause."""

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

    def to_json(self) -> str:
        """Compact JSON on one line."""
        values: dict[str, object] = {"version": REPORT_VERSION}
        values |= {each.name: getattr(self, each.name) for each in fields(self)}
        values["dropped"] = dict(self.dropped)
        values["seconds_by_phase"] = dict(self.seconds_by_phase)
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "report") -> Report:
        """The report that `to_json` wrote; `source` names the file in errors."""
        try:
            values = json.loads(text)
            version = values.pop("version")
            if isinstance(version, int) and version > REPORT_VERSION:
                raise UnsupportedVersion(source, version, REPORT_VERSION)
            values["dropped"] = {
                Cause(cause): (int(entries), int(size_bytes))
                for cause, (entries, size_bytes) in values["dropped"].items()
            }
            report = cls(**values)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{source} holds no report: {error!r}") from error
        if report.result not in get_args(Result):
            raise InvalidInput(f"{source} holds a report with the unknown result {report.result!r}")
        return report

    def summary(self) -> str:
        """One line for people."""
        seconds = (self.finished_ms - self.started_ms) / 1000
        line = f"{self.log}: {self.result} in {seconds:.1f} s ({self.trigger}, {self.policy})"
        if self.generation_after != self.generation_before:
            line += f", generation {self.generation_before} to {self.generation_after}"
        line += (
            f", read {self.read_entries} entries ({human_bytes(self.read_bytes)})"
            f", kept {self.kept_entries} ({human_bytes(self.kept_bytes)})"
        )
        for cause, (entries, size_bytes) in self.dropped.items():
            line += f", dropped {entries} {cause} ({human_bytes(size_bytes)})"
        line += f", reclaimed {human_bytes(self.reclaimed_bytes)}"
        if self.retired_bytes:
            line += f" of {human_bytes(self.retired_bytes)} retired"
        return line if self.error is None else f"{line}: {' '.join(self.error.split())}"


class History:
    """The reports of one log, in one file whose directory must exist. Any thread may call."""

    def __init__(self, fs: FileSystem, path: str, keep: int = 1000) -> None:
        check_range("keep", keep, 1, KEEP_MAX)
        self._fs = fs
        self._path = path
        self._keep = keep
        self._lock = threading.Lock()

    def append(self, report: Report) -> None:
        """Add a report, or a later version of one; durable when it returns."""
        line = _encode(report)
        with self._lock:
            try:
                if self._fs.exists(self._path):
                    self._append(line)
                else:
                    write_atomic(self._fs, self._path, line)
            except OSError as error:
                raise WriteFailed(self._path, error) from error

    def newest(self, limit: int) -> list[Report]:
        """The last `limit` runs, newest first, each in its latest version.

        The whole file is read, since an old run may have been reported again at its end.
        """
        if limit < 0:
            raise InvalidInput(f"cannot list {limit} reports, must be 0 or more")
        with self._lock:
            if not self._fs.exists(self._path):
                return []
            lines, _ = self._lines(read_file(self._fs, self._path))
        return list(reversed(self._runs(lines)))[:limit]

    def _append(self, line: bytes) -> None:
        lines, end = self._lines(read_file(self._fs, self._path))
        if len(lines) >= 2 * self._keep:
            lines.append((end, line))
            kept = self._runs(lines)[-self._keep :]
            write_atomic(self._fs, self._path, b"".join(_encode(each) for each in kept))
            return
        with self._fs.open_append(self._path) as file:
            try:
                if file.size() > end:
                    # Were the cut not durable, a power cut could mix the torn line into the new.
                    file.truncate(end)
                    file.fsync()
                file.write(line)
                file.fsync()
            except OSError:
                # A line that failed to reach the disk must not become part of the file's middle.
                # If the cut fails as well, the line is torn and the next append cuts it.
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise

    def _lines(self, data: bytes) -> tuple[list[tuple[int, bytes]], int]:
        """The whole lines with their offsets, every CRC checked, and where they end."""
        lines: list[tuple[int, bytes]] = []
        offset = 0
        while offset < len(data):
            end = data.find(b"\n", offset) + 1 or len(data)
            line = data[offset:end]
            wrong = _what_is_wrong(line)
            if wrong is not None:
                if end == len(data) and (line[-1:] != b"\n" or b"\0" in line):
                    break
                raise DamagedFile(self._path, offset, wrong)
            lines.append((offset, line))
            offset = end
        return lines, offset

    def _runs(self, lines: list[tuple[int, bytes]]) -> list[Report]:
        """The latest version of each run, in the order in which the runs were first reported."""
        runs: dict[str, Report] = {}
        for offset, line in lines:
            try:
                report = Report.from_json(line[CRC_DIGITS + 1 : -1], self._path)
            except InvalidInput as error:
                raise DamagedFile(self._path, offset, str(error)) from error
            runs[report.run_id] = report
        return list(runs.values())


def _encode(report: Report) -> bytes:
    text = report.to_json().encode()
    return b"%08x %b\n" % (crc32c(text), text)


def _what_is_wrong(line: bytes) -> str | None:
    """Why a line is not whole, `None` if it is."""
    if not line.endswith(b"\n"):
        return "the line has no end"
    text = line[CRC_DIGITS + 1 : -1]
    written, computed = line[: CRC_DIGITS + 1], b"%08x " % crc32c(text)
    if written != computed:
        return f"CRC-32C is {computed.decode()}but the line says {written!r}"
    return None
