"""A slow event sink delays only the thread that called it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lithify.errors import WriteFailed
from lithify.events import Event, Published, Reclaimed, SegmentSealed, WriteRefused
from lithify.fs import MemoryFileSystem
from lithify.log.deferred_events import DeferredEvents
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.unit.log.helpers import PATIENCE_S, SMALL, contents, fill, open_log

if TYPE_CHECKING:
    from lithify.log.log import Log


class Slow:
    """A sink that does not come back from its first event until it is told to."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.called = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, event: Event) -> None:
        first = not self.seen
        self.seen.append(event)
        if first:
            self.called.set()
            assert self.go_on.wait(PATIENCE_S), "it was not released"


def use(log: Log) -> None:
    """Everything that needs a lock of the log."""
    log.append(b"one").result()
    log.append_many([b"two", b"three"]).result()
    log.roll()
    log.publish(lambda manifest: manifest, "for itself")
    log.append(b"four").result()
    log.drop_head(10)
    log.reclaim()
    log.maintain()
    log.settle()


def test_a_sink_that_blocks_does_not_stop_the_log() -> None:
    sink = Slow()
    log = open_log(MemoryFileSystem(), SMALL, events=sink)
    log.append(b"zero").result()
    rolling = threading.Thread(target=log.roll)
    rolling.start()
    assert sink.called.wait(PATIENCE_S)
    using = threading.Thread(target=use, args=(log,), daemon=True)
    using.start()
    using.join(PATIENCE_S)
    assert not using.is_alive(), "the log waits for the sink"
    assert len(sink.seen) == 1
    sink.go_on.set()
    rolling.join()
    generations = [event.generation for event in sink.seen if isinstance(event, Published)]
    assert generations == list(range(2, log.manifest.generation + 1))
    kinds = [type(event) for event in sink.seen]
    assert kinds.count(SegmentSealed) == 2
    assert kinds[-2:] == [Published, Reclaimed]
    assert list(contents(log).values()) == [b"four"]


def test_events_are_delivered_before_the_call_that_raised_them_returns() -> None:
    seen: list[Event] = []
    fs = FaultyFileSystem(MemoryFileSystem())
    log = open_log(fs, SMALL, events=seen.append)
    fill(log, 20)
    assert [type(event) for event in seen] == [Published, SegmentSealed] * 2
    fs.add(Fault("writev"))
    with pytest.raises(WriteFailed):
        log.append(b"x")
    assert isinstance(seen[-1], WriteRefused)


def test_a_sink_may_use_the_log() -> None:
    seen: list[int] = []

    def look(event: Event) -> None:
        if isinstance(event, SegmentSealed):
            seen.append(log.append(b"sealed").result())

    log = open_log(MemoryFileSystem(), SMALL, events=look)
    fill(log, 20)
    assert len(seen) == len(log.manifest.segments) - 1


def test_events_added_during_a_delivery_are_delivered_by_the_same_thread() -> None:
    told: list[str] = []
    events = [Published("d", number, "test") for number in range(3)]

    def sink(event: Event) -> None:
        assert isinstance(event, Published)
        told.append(f"{event.generation} in {threading.current_thread().name}")
        if event.generation == 0:
            other.start()
            other.join()

    telling = DeferredEvents(sink)

    def note() -> None:
        for event in events[1:]:
            with telling:
                telling.put(event)

    other = threading.Thread(target=note)
    with telling:
        telling.put(events[0])
    name = threading.current_thread().name
    assert told == [f"{number} in {name}" for number in range(3)]
