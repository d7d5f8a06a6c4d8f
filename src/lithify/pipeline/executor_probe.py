"""Checks that the executors of a cluster can access a log, before the first job.

Tasks read and write the files of the log by path, so every executor must have the directory of the
publishing process, at the same path, with permission to read and write. For each executor:

1. The driver writes a marker into the log's directory.
2. A task reads the log id of the manifest, looks for the driver's marker, writes its own marker,
   and returns its host. It keeps its slot for a moment, so that the next task runs on another one.
3. The driver looks for the returned markers, and removes them all.

A failed check is an `ExecutorUnfit` that names the host. Markers end in `.tmp`, so that those of a
driver that was killed are removed with other temporary files.

`explain_failure` explains a job that fails before its function is called, because Python or a
package is missing. Called by `jobs.py`, once per directory and session.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from lithify.errors import ExecutorUnfit, JobFailed, LithifyError
from lithify.fs.atomic import TEMPORARY_SUFFIX
from lithify.log.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.fs import FileSystem

__all__ = ["Probe", "ProbeTask", "Seen", "explain_failure", "place_of", "run_probe"]

HOLD_S = 0.3
"""Many times the duration of the rest of a probe."""

SAME_PATH = "the data directory must be the same one, at the same path, on every executor"
REASON_CHARACTERS_MAX = 300

_WHERE = re.compile(r"\(TID \d+\) \((\S+) executor [^)]+\)")
_NO_PACKAGE = re.compile(r"No module named '?([\w.]+)'?")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"[^\n]*?(?:error=\d+, )?([^\n:]*)')
_VERSIONS = re.compile(r"\[PYTHON_VERSION_MISMATCH\]([^\n]*)")


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """What an executor must find, and the marker that it must write."""

    fs: FileSystem
    directory: str
    log_id: bytes
    found: str
    written: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a task for its executor."""

    host: str
    process: int
    """The process from which the executor forks its tasks."""
    problem: str | None


def run_probe(task: ProbeTask, _: Callable[[], None]) -> Seen:
    """Step 2; runs on an executor."""
    seen = Seen(socket.gethostname(), os.getppid(), _problem(task))
    time.sleep(HOLD_S)
    return seen


def _problem(task: ProbeTask) -> str | None:
    fs, directory = task.fs, task.directory
    try:
        if read_manifest(fs, directory).log_id != task.log_id:
            return f"sees another log at {directory}: {SAME_PATH}"
        if not fs.exists(f"{directory}/{task.found}"):
            return f"sees another copy of {directory}: {SAME_PATH}"
        fs.open_append(f"{directory}/{task.written}", exclusive=True).close()
    except FileNotFoundError:
        return f"does not see {directory}: {SAME_PATH}"
    except OSError as error:
        what = error.strerror or str(error)
        return f"cannot read and write {directory} as user {os.geteuid()}: {what}"
    except LithifyError as error:
        return f"cannot read {directory}: {error}"
    return None


class Probe:
    """The driver's side, for one directory."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._log_id = read_manifest(fs, directory).log_id
        self._name = f"probe-{secrets.token_hex(6)}"
        self._markers: list[str] = []

    def __enter__(self) -> Self:
        """Step 1."""
        self._fs.open_append(f"{self._directory}/{self._marker()}", exclusive=True).close()
        return self

    def __exit__(self, *error: object) -> None:
        for name in self._markers:
            path = f"{self._directory}/{name}"
            if self._fs.exists(path):
                self._fs.remove(path)

    def _marker(self) -> str:
        self._markers.append(f"{self._name}-{len(self._markers)}{TEMPORARY_SUFFIX}")
        return self._markers[-1]

    def tasks(self, count: int) -> list[ProbeTask]:
        """`count` tasks, each with its own marker."""
        first = self._markers[0]
        return [
            ProbeTask(self._fs, self._directory, self._log_id, first, self._marker())
            for _ in range(count)
        ]

    def judge(self, answers: Iterable[tuple[ProbeTask, Seen]]) -> None:
        """Step 3."""
        for task, seen in answers:
            problem = seen.problem
            if problem is None and not self._fs.exists(f"{self._directory}/{task.written}"):
                problem = f"wrote a file to {self._directory} that is not here: {SAME_PATH}"
            if problem is not None:
                raise ExecutorUnfit(seen.host, problem)


def place_of(task: Any) -> tuple[FileSystem, str] | None:
    """(file system, directory) of the log of a task; None if it has no log."""
    indexes = (getattr(task, "index", None), *getattr(task, "indexes", ())[:1])
    for each in (task, *indexes):
        if hasattr(each, "fs") and hasattr(each, "directory"):
            return each.fs, each.directory
    return None


def explain_failure(name: str, failure: BaseException) -> LithifyError:
    """The error for a failed job, in one line."""
    text = str(failure)
    where = _WHERE.search(text)
    host = where[1] if where else "a host that Spark does not name"
    if match := _NO_PACKAGE.search(text):
        fix = "install lithify for the executors' Python, or ship it (--archives)"
        return ExecutorUnfit(host, f"has no Python package {match[1]}: {fix}")
    if match := _NO_PYTHON.search(text):
        fix = "PYSPARK_PYTHON names the executors' Python, --archives ships one"
        return ExecutorUnfit(host, f"cannot run {match[1]}: {fix}")
    if match := _VERSIONS.search(text):
        return ExecutorUnfit(host, f"has another Python:{match[1]}")
    lines = [line.strip() for line in text.splitlines()]
    reasons = [line for line in lines if line and not line.startswith(("at ", "An error occurred"))]
    # The second half of the first line of a Java error has the reason.
    reason = reasons[0].rpartition("Exception: ")[2] if reasons else type(failure).__name__
    return JobFailed(name, reason[:REASON_CHARACTERS_MAX])
