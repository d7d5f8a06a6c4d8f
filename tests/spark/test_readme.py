"""The Spark example of the README is run as it is written there, but for the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lithify
from tests.cli.test_readme import blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.usefixtures("spark")
def test_topics_as_a_data_frame(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with lithify.open(f"{tmp_path}/data") as node:
        topic = node.topics.create("persistent://public/default/orders")
        topic.append(key="4711", value=b"paid")
        topic.append(key="4711", value=b"shipped")
        topic.compact()
    _, example = blocks("Topics", "python")
    exec(example.replace("data/", f"{tmp_path}/data/"), {})
    shown = capsys.readouterr().out
    assert "|4711|shipped|" in shown
    assert shown.count("4711") == 1
    assert spark.range(1).count() == 1, "the session is still there"
