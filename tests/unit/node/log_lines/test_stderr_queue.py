"""Log lines for a reader that is slow, stuck or gone: the writer never waits."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING

import pytest

from lithify.node.log_lines.stderr_queue import LineQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE = "x" * 99 + "\n"
LONG_S = 60.0


def missing(lines: int) -> str:
    return f"{lines} are missing\n"


class Pipe:
    """A pipe and the two who hold its ends."""

    def __init__(self, bytes_max: int = 10_000) -> None:
        reading, writing = os.pipe()
        self.reader = open(reading, "rb", buffering=0)  # noqa: SIM115  (closed by the fixture)
        self.writer = open(writing, "wb", buffering=0)  # noqa: SIM115
        self.lines = LineQueue(self.writer.write, missing, bytes_max=bytes_max)

    def read_all(self) -> list[str]:
        """Everything up to now, and what the queue still holds."""
        os.set_blocking(self.reader.fileno(), False)
        found, is_over = b"", False
        while not is_over:
            is_over = self.lines.drain(0)
            while data := self.reader.read(2**16):
                found += data
        return found.decode().splitlines(keepends=True)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.reader.close()
    pipe.lines.drain(LONG_S)
    pipe.writer.close()


def test_lines_come_whole_and_in_order(pipe: Pipe) -> None:
    wanted = [f"line {number} \N{SNOWMAN}\n" for number in range(100)]
    for line in wanted:
        pipe.lines.write(line)
        pipe.lines.flush()
    assert pipe.lines.drain(LONG_S)
    assert pipe.read_all() == wanted


def test_a_line_longer_than_a_pipe_takes_at_once_comes_whole() -> None:
    pipe = Pipe(bytes_max=2**20)
    line = "y" * 300_000 + "\n"
    pipe.lines.write(line)
    pipe.lines.write(LINE)
    assert pipe.read_all() == [line, LINE]
    pipe.reader.close()
    pipe.writer.close()


def test_a_returning_reader_sees_how_many_lines_were_dropped(pipe: Pipe) -> None:
    for _ in range(5_000):
        pipe.lines.write(LINE)
    assert not pipe.lines.drain(0)
    *before, said = pipe.read_all()
    assert before == [LINE] * len(before)
    assert 100 <= len(before) < 1_000, "what the queue took, and the pipe as far as it came to it"
    assert said == missing(5_000 - len(before))
    pipe.lines.write("from now on\n")
    assert pipe.lines.drain(LONG_S)
    assert pipe.read_all() == ["from now on\n"]


def test_a_non_blocking_pipe_loses_nothing() -> None:
    pipe = Pipe(bytes_max=2**20)
    os.set_blocking(pipe.writer.fileno(), False)
    for _ in range(5_000):
        pipe.lines.write(LINE)
    assert pipe.read_all() == [LINE] * 5_000
    pipe.reader.close()
    pipe.writer.close()


def test_writes_refused_by_a_full_disk_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.node.log_lines.stderr_queue.RETRY_S", 0)
    written, is_tried, is_full = io.BytesIO(), threading.Event(), True

    def write(data: memoryview) -> int:
        is_tried.set()
        if is_full:
            raise OSError(28, "No space left on device")
        return written.write(data)

    lines = LineQueue(write, missing)
    lines.write(LINE)
    is_tried.wait()
    assert not lines.drain(0)
    is_full = False
    assert lines.drain(LONG_S)
    assert written.getvalue().decode() == missing(1)
