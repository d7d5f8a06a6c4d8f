from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from lithify.events import SegmentSealed, WriteRefused
from lithify.node.log_lines.stderr_log import configure_log_lines, log_event

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The process's logging is restored afterwards."""
    root = logging.getLogger()
    before = root.handlers, root.level, logging.getLogger("uvicorn").level
    stream = io.StringIO()
    configure_log_lines("info", stream)
    yield stream
    structlog.reset_defaults()
    root.handlers, level, uvicorn_level = before
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(uvicorn_level)


def test_an_event_is_one_line_in_its_own_words(stream: io.StringIO) -> None:
    log_event(SegmentSealed("data/t", "000000000001.seg", 3, 100))
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("timestamp=20")
    assert line.endswith(
        'Z level=info event="data/t: sealed 000000000001.seg with 3 entries, 100 bytes"'
    )
    log_event(WriteRefused("data/t", "data/t/000000000001.seg", "No space left on device"))
    assert "level=error" in stream.getvalue().splitlines()[1]


def test_a_traceback_stays_on_its_line(stream: io.StringIO) -> None:
    try:
        int("first\nsecond")
    except ValueError:
        structlog.get_logger("lithify.test").exception("failed", peer="127.0.0.1:1")
    (line,) = stream.getvalue().splitlines()
    assert "level=error event=failed" in line
    assert "peer=127.0.0.1:1" in line
    assert r"first\\nsecond" in line


def test_the_standard_librarys_records_come_the_same_way(stream: io.StringIO) -> None:
    logging.getLogger("asyncio").warning("took %d s", 3)
    logging.getLogger("uvicorn.error").info("Started server process")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith('level=warning event="took 3 s" logger=asyncio')


def test_lines_below_the_level_are_dropped(stream: io.StringIO) -> None:
    structlog.get_logger("lithify.test").debug("detail")
    assert stream.getvalue() == ""
