"""The status of a log's compaction: totals of all runs, and the state of the last one.

A record is computed from the reports of the history, oldest first, and updated by each run that
ends; so it survives restarts as far as the history reaches back. Runs with nothing to do are not in
the history and only count as the latest run.

Pure: values only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.compaction.reports.report import Report

__all__ = ["CompactionRecord", "CompactionState", "CompactionStatus", "report_row"]


class CompactionState(StrEnum):
    """Named as in Pulsar's admin interface."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The outcome of the last run, or the progress of the current one."""

    state: CompactionState
    error: str = ""
    phase: str = ""
    done: int = 0
    total: int = 0
    """Progress within the phase: bytes while indexing and rewriting, otherwise tasks or entries."""
    report: Report | None = None
    """The report of the last finished run."""
    waits_for: str = ""
    """What a run that has not started waits for."""

    def row(self) -> dict[str, Any]:
        """Encode as JSON values."""
        return {
            "status": str(self.state),
            "lastError": self.error,
            "phase": self.phase,
            "waitsFor": self.waits_for,
            "done": self.done,
            "total": self.total,
            "report": None if self.report is None else report_row(self.report),
        }


def report_row(report: Report) -> dict[str, Any]:
    """Encode a report as JSON values."""
    row: dict[str, Any] = json.loads(report.to_json())
    return row


@dataclass(frozen=True, slots=True)
class CompactionRecord:
    """Totals of all runs."""

    latest: Report | None = None
    removed_last: int = 0
    """Messages dropped by the last published run."""
    duration_last_ms: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    succeeded: int = 0
    failed: int = 0
    removed: int = 0
    duration_ms: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @classmethod
    def of(cls, reports: Iterable[Report]) -> CompactionRecord:
        """The record of these runs, oldest first."""
        record = cls()
        for report in reports:
            record = record.with_report(report)
        return record

    def with_report(self, report: Report) -> CompactionRecord:
        """The record with one more run."""
        record = replace(self, latest=report)
        if report.result == "nothing to do":
            return record
        duration_ms = report.finished_ms - report.started_ms
        record = replace(
            record,
            duration_last_ms=duration_ms,
            duration_ms=self.duration_ms + duration_ms,
            read_bytes=self.read_bytes + report.read_bytes,
        )
        if report.result != "done":
            return replace(record, failed=self.failed + 1, failed_ms=report.finished_ms)
        removed = sum(count for count, _ in report.dropped.values())
        return replace(
            record,
            succeeded=self.succeeded + 1,
            succeeded_ms=report.finished_ms,
            removed_last=removed,
            removed=self.removed + removed,
            written_bytes=self.written_bytes + report.kept_bytes,
        )
