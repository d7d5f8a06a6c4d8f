"""A standalone cluster, started from the installed package, that loses an executor in a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from lithify.errors import SparkUnreachable
from lithify.pipeline.java import find_java
from lithify.pipeline.spark_target import reach_master
from tests.patience import wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
SPARK = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": find_java(os.environ).path,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        **more,
    }


@contextmanager
def started(
    log: Path, name: str, *arguments: str, hidden: Path | None = None, **more: str
) -> Iterator[None]:
    """A part of the cluster, until the end of the block; `hidden` is empty for it."""
    command = [str(SPARK / "bin" / "spark-class"), f"{DEPLOY}.{name}", "--host", "127.0.0.1"]
    if hidden is not None:
        script = f'mount -t tmpfs none "{hidden}" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--webui-port", str(free_port()), *arguments],
            env=environment(**more),
            stdout=out,
            stderr=out,
            cwd=log.parent,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


class Cluster:
    """A master and as many workers as are added."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        port = str(free_port())
        self.master = f"spark://127.0.0.1:{port}"
        self._directory = directory
        self._stack = stack
        self._workers = 0
        stack.enter_context(started(directory / "master.log", "master.Master", "--port", port))
        wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            reach_master(self.master)
        except SparkUnreachable:
            return False
        return True

    def add_worker(self, **more: Any) -> None:
        name, self._workers = f"worker{self._workers}", self._workers + 1
        log, work = self._directory / f"{name}.log", str(self._directory / f"{name}.work")
        share = ("--cores", "1", "--memory", "1g", "--work-dir", work)
        self._stack.enter_context(started(log, "worker.Worker", *share, self.master, **more))

    def run(self, story: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A story of `cluster_child.py`, told below the directory."""
        child = [sys.executable, "-m", "tests.spark.cluster_child", story]
        command = [*child, self.master, str(self._workers)]
        return subprocess.run(
            [*command, *arguments],
            env=environment(**more),
            cwd=self._directory,
            capture_output=True,
            check=False,
            text=True,
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_an_executor_that_is_killed_during_a_rewrite_costs_an_attempt(cluster: Cluster) -> None:
    cluster.add_worker()
    cluster.add_worker()
    done = cluster.run("kill")
    assert lines(done) == ["killed, and nothing is left over"]
    assert "Lost executor" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide files from a process")
def test_an_executor_that_does_not_see_the_files_is_named_and_nothing_is_published(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    cluster.add_worker()
    cluster.add_worker(hidden=tmp_path / "data")
    done = cluster.run("compact", "data")
    problem, phases, later = lines(done)
    assert problem.startswith(f"ExecutorUnfit: the executor on {socket.gethostname()} does not see")
    assert f"{tmp_path}/data/topics/public/default/orders/log: the data directory must" in problem
    assert phases == "PREPARE asking executors", "nothing was indexed or copied"
    assert later == "opens, and is compacted later"
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "data").rglob("probe-*"))


@pytest.mark.slow
def test_an_executor_without_lithify_gets_it_shipped(cluster: Cluster, tmp_path: Path) -> None:
    bare = f"/usr/bin/python3.{sys.version_info.minor}"
    if not os.path.exists(bare):
        pytest.skip("there is no second Python")
    cluster.add_worker(PYTHONPATH="")
    (tmp_path / "data").mkdir()
    problem, *_ = lines(cluster.run("compact", "data", PYSPARK_PYTHON=bare))
    assert problem.startswith("ExecutorUnfit: the executor on 127.0.0.1 has no Python package ")
    assert "--archives" in problem

    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    done = cluster.run("compact", "data", f"{tmp_path}/env.tar.gz#env", PYSPARK_PYTHON=bare)
    assert lines(done) == ["done in ./env/bin/python, with 640 MiB"]
