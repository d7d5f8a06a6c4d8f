"""A standalone cluster, started from the installed package, that loses an executor in a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from lithify.pipeline.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
SPARK = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": find_java(os.environ).path,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
    }


@contextmanager
def started(log: Path, name: str, *arguments: str) -> Iterator[None]:
    """A part of the cluster, until the end of the block."""
    command = [str(SPARK / "bin" / "spark-class"), f"{DEPLOY}.{name}", "--host", "127.0.0.1"]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--webui-port", str(free_port()), *arguments],
            env=environment(),
            stdout=out,
            stderr=out,
            cwd=log.parent,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


@pytest.mark.slow
def test_an_executor_that_is_killed_during_a_rewrite_costs_an_attempt(tmp_path: Path) -> None:
    port = str(free_port())
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as cluster:
        cluster.enter_context(started(tmp_path / "master.log", "master.Master", "--port", port))
        for number in range(2):
            log, work = tmp_path / f"worker{number}.log", str(tmp_path / f"work{number}")
            share = ("--cores", "1", "--memory", "1g", "--work-dir", work)
            cluster.enter_context(started(log, "worker.Worker", *share, master))
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.cluster_child", str(tmp_path), master],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            check=False,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert "killed, and nothing is left over" in done.stdout
    assert "Lost executor" in done.stderr
