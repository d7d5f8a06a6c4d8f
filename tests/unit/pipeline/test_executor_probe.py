"""What an executor that does not see the log's files says, and what Spark says of a failed job."""

from __future__ import annotations

import os
from socket import gethostname
from typing import TYPE_CHECKING

import pytest

from lithify.compaction.tasks.jobs import no_check
from lithify.errors import ExecutorUnfit, JobFailed
from lithify.fs import LocalFileSystem
from lithify.pipeline.executor_probe import Probe, explain_failure, run_probe
from tests.unit.compaction.logs import fill, open_log

if TYPE_CHECKING:
    from pathlib import Path

FS = LocalFileSystem()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("lithify.pipeline.executor_probe.HOLD_S", 0)
    made = open_log(FS, str(tmp_path / "log"))
    fill(made, 1)
    made.close()
    return tmp_path / "log"


def probe(log: Path, elsewhere: Path | None) -> None:
    """The executor finds `elsewhere` at the path of the log; None: it finds nothing."""
    before = sorted(os.listdir(log))
    here = log.parent / "here"
    try:
        with Probe(FS, str(log)) as asking:
            tasks = asking.tasks(2)
            if elsewhere != log:
                log.rename(here)
                if elsewhere is not None:
                    log.symlink_to(elsewhere)
            try:
                seen = [run_probe(task, no_check) for task in tasks]
            finally:
                if elsewhere != log:
                    log.unlink(missing_ok=True)
                    here.rename(log)
            asking.judge(zip(tasks, seen, strict=True))
    finally:
        assert sorted(os.listdir(log)) == before, "markers are removed"


def test_an_executor_that_sees_the_files_is_fit(log: Path) -> None:
    probe(log, log)


def test_an_executor_without_the_files_or_with_other_files_is_unfit(
    log: Path, tmp_path: Path
) -> None:
    other = open_log(FS, str(tmp_path / "other"))
    other.close()
    os.makedirs(tmp_path / "copy")
    (tmp_path / "copy/MANIFEST").write_bytes((log / "MANIFEST").read_bytes())
    for elsewhere, what in (
        (None, "does not see"),
        (tmp_path / "other", "sees another log at"),
        (tmp_path / "copy", "sees another copy of"),
    ):
        with pytest.raises(ExecutorUnfit, match=rf"on {gethostname()} {what} {log}: the data dir"):
            probe(log, elsewhere)


def test_an_executor_whose_files_the_driver_does_not_see_is_unfit(log: Path) -> None:
    with Probe(FS, str(log)) as asking:
        [task] = asking.tasks(1)
        seen = run_probe(task, no_check)
        os.unlink(log / task.written)
        with pytest.raises(ExecutorUnfit, match=r"wrote a file to .* that is not here"):
            asking.judge([(task, seen)])


LOST = "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: "
AT = "Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 2): "


NO_LITHIFY = """org.apache.spark.SparkException:
Error from python worker:
  /usr/bin/python3: Error while finding module specification for 'lithify.pipeline.python_daemon' \
(ModuleNotFoundError: No module named 'lithify')
PYTHONPATH was:
  /x"""
NO_NUMBA = """org.apache.spark.SparkException: Error from python worker:
  Traceback (most recent call last):
  ModuleNotFoundError: No module named 'numba'"""
NO_PYTHON = """java.io.IOException: Cannot run program "/opt/python": error=2, No such file
\tat java.base/java.lang.ProcessBuilder.start"""


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (NO_LITHIFY, "has no Python package lithify: install lithify "),
        (NO_NUMBA, "has no Python package numba: "),
        (NO_PYTHON, "cannot run /opt/python: PYSPARK_PYTHON names "),
    ],
)
def test_an_executor_that_cannot_run_tasks_is_named_in_one_line(told: str, line: str) -> None:
    failure = Exception(f"An error occurred while calling x.\n: SparkException: {LOST}{AT}{told}")
    explained = explain_failure("index", failure)
    assert isinstance(explained, ExecutorUnfit)
    assert str(explained).startswith(f"the executor on 10.0.0.7 {line}")
    assert "\n" not in str(explained)


def test_any_other_failure_is_its_first_line() -> None:
    told = f"An error occurred while calling x.\n: org.SparkException: {LOST}no\n\tat a.b\n\tat c.d"
    explained = explain_failure("index", Exception(told))
    assert isinstance(explained, JobFailed)
    assert str(explained) == f"job index failed: {LOST}no"
