"""What the tests of the log share: small logs, their contents, and a file system to stop in."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lithify.checksum import crc32c
from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.live_set import LiveSet
from lithify.log.file_names import dead_set_name
from lithify.log.log import Log
from lithify.log.manifest import DeadRef
from lithify.positions import DENSE
from lithify.settings import Durability, LogSettings
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.positions import PositionRule

DIRECTORY = "/log"
SMALL = LogSettings(segment_bytes_max=1024)
LAZY = LogSettings(segment_bytes_max=1024, durability=Durability.NONE)
PATIENCE_S = PROCESS_S_MAX
"""How long a test waits for something it will be told about, before it gives up."""


def open_log(
    fs: FileSystem,
    settings: LogSettings = SMALL,
    *,
    clock: Clock | None = None,
    rule: PositionRule = DENSE,
    events: EventSink = ignore_events,
) -> Log:
    return Log.open(
        fs,
        DIRECTORY,
        kind="test",
        settings=settings,
        clock=clock or ManualClock(),
        rule=rule,
        events=events,
        owner="the test",
        random_bytes=lambda count: bytes(range(count)),
    )


def contents(log: Log, *, compacted: bool = False) -> dict[int, bytes]:
    with log.snapshot() as snapshot:
        return {entry.position: entry.body for entry in snapshot.read(compacted=compacted)}


def fill(log: Log, count: int, size: int = 100) -> None:
    """Entries that name themselves, all durable; nine of size 100 fill a small segment."""
    for _ in range(count):
        log.append(f"{log.next_position:0{size}d}".encode())
    log.sync()


def write_dead_set(
    fs: FileSystem, segment_id: int, run_id: str, positions: Iterable[int], frame_bytes: int
) -> DeadRef:
    """A dead set's file, durable, as compaction leaves it before it publishes."""
    dead = LiveSet.from_iterable(positions)
    data = dead.to_bytes()
    name = dead_set_name(segment_id, run_id)
    with fs.open_append(f"{DIRECTORY}/{name}", exclusive=True) as file:
        file.write(data)
        file.fsync()
    return DeadRef(name, len(dead), frame_bytes, len(data), crc32c(data))


class Hook(ManualClock):
    """A clock for `FaultyFileSystem` that calls back where a SLOW rule fires, once."""

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback: Callable[[], None] | None = callback

    def sleep(self, seconds: float) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Gate:
    """A place where one thread stops until another one lets it continue."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def stop(self) -> None:
        self._reached.set()
        assert self._opened.wait(PATIENCE_S)

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S)

    def open(self) -> None:
        self._opened.set()
