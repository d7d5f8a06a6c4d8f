"""Masters and settings of Spark are checked before anything is started."""

from __future__ import annotations

import socket

import pytest

from lithify.errors import InvalidSetting, SparkUnreachable
from lithify.exit_codes import UNREACHABLE, USAGE
from lithify.pipeline.spark_target import SparkTarget, is_local, reach_master


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local[*]",
        "local[*,4]",
        "local-cluster[2,1,1024]",
        "spark://h:7077",
        "spark://h1:7077,h2:7077",
        "k8s://https://10.0.0.1:6443",
        "yarn",
    ],
)
def test_masters_that_spark_knows(master: str) -> None:
    assert SparkTarget(master).master == master
    assert is_local(master) == (master == "local" or master.startswith("local["))


@pytest.mark.parametrize(
    "master", ["", "nonsense", "local[", "local[0]", "spark://h", "spark://h:x", "mesos://h:1"]
)
def test_other_masters_are_refused_by_name(master: str) -> None:
    with pytest.raises(InvalidSetting, match=r"setting compaction_master is .* spark://HOST:PORT"):
        SparkTarget(master, prefix="compaction_")
    assert InvalidSetting.exit_code == USAGE


def test_settings_are_pairs() -> None:
    conf = ("spark.executor.memory=4g", "spark.driver.extraJavaOptions=-Da=b -Dc=d")
    assert SparkTarget(conf=conf, archives="s3://b/env.tar.gz#env").settings() == {
        "spark.executor.memory": "4g",
        "spark.driver.extraJavaOptions": "-Da=b -Dc=d",
        "spark.archives": "s3://b/env.tar.gz#env",
    }
    for wrong in ("spark.executor.memory", "=4g", "a b=c"):
        with pytest.raises(InvalidSetting, match="must be KEY=VALUE"):
            SparkTarget(conf=(wrong,))


def test_a_shipped_environment_brings_the_python() -> None:
    assert SparkTarget().python() is None
    assert SparkTarget(archives="/a/env.tar.gz#env,b.zip").python() == "./env/bin/python"
    assert SparkTarget(archives="/a/env.tar.gz").python() == "./env.tar.gz/bin/python"
    conf = ("spark.pyspark.python=/opt/python",)
    assert SparkTarget(conf=conf, archives="/a/env.tar.gz#env").python() == "/opt/python"


def test_an_address_without_a_listener_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reach_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
        reach_master(f"k8s://http://127.0.0.1:{port}")
    reach_master("local[2]")
    reach_master("yarn")
    with pytest.raises(SparkUnreachable, match=rf"at spark://127.0.0.1:{port}: Connection refused"):
        reach_master(f"spark://127.0.0.1:{port}")
    assert SparkUnreachable.exit_code == UNREACHABLE
