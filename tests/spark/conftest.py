"""One Spark session for the whole run; `tests/conftest.py` keeps its tests in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.pipeline.session import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = open_session("local[2,4]", app_name="lithify-tests")
    yield session
    session.stop()
