"""The low watermark of a node: nothing at a time below it can be read here.

    watermark = LowWatermark(fs, directory, clock, settings)
    watermark.open(versions.earliest.activation)
    with watermark.read_lock(timestamp) as renew:
        ...                           # reads at this time; `TimeTooOld` below the watermark
        renew()                       # its life begins again
    await watermark.update()

It is the time of the node minus the availability and the greatest difference of two clocks. It only
ascends. An update

1. refuses new locks below the new value;
2. writes it to the file, in a thread: a node that was stopped does not go back;
3. waits for the locks below it;
4. sets it, and calls the listeners with it, one after the other. They are awaited, so the next
   update begins when all have finished with this one.

One update runs at a time; another one meanwhile waits for it. A lock is held for a bounded time,
because its reader's life is (`read_life_ms`): what is older no longer holds the watermark.

The file `low_watermark` is one checked line. When it is opened, listeners are not called. A node
that was away has a watermark below the first version of the catalog that is left: it is raised to
that. A damaged file is set aside: then there is no watermark before the first update.

One event loop.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, LithifyError, WriteFailed
from lithify.exit_codes import NOT_FOUND
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.hybrid_time import add_ms, describe, timestamp
from lithify.log.side_files import set_aside
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem

__all__ = ["FILE", "LowWatermark", "TimeTooOld", "WatermarkSettings"]

FILE = "low_watermark"
_VERSION = 1
LOOK_S = 1.0
"""The interval at which a wait for locks checks whether their lives are over."""


@dataclass(frozen=True, slots=True)
class WatermarkSettings:
    """How long ago a reader may read."""

    availability_ms: int = 600_000
    skew_ms: int = 500
    """The greatest difference between the clocks of two nodes."""
    read_life_ms: int = 3_600_000
    """The longest time that a reader holds the watermark."""

    def __post_init__(self) -> None:
        check_range("table_availability_ms", self.availability_ms, 1000, 2**45)
        check_range("table_read_life_ms", self.read_life_ms, 1000, 2**45)


class TimeTooOld(InvalidInput):
    """A read at a time below the low watermark."""

    exit_code = NOT_FOUND

    def __init__(self, time: int, watermark: int) -> None:
        self.time = time
        self.watermark = watermark
        super().__init__(
            f"nothing at {describe(time)} can be read: the low watermark is {describe(watermark)}"
        )


class LowWatermark:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        clock: Clock,
        settings: WatermarkSettings,
        events: EventSink,
    ) -> None:
        self._fs = fs
        self._path = f"{directory}/{FILE}"
        self._clock = clock
        self._settings = settings
        self._events = events
        self.value = 0
        """0 before the first update."""
        self._next = 0
        self._locks: dict[object, tuple[int, float]] = {}
        """The time, and when the lock ends, of the monotonic clock."""
        self._released = asyncio.Event()
        self._updating = asyncio.Lock()
        self._listeners: list[Callable[[int], Awaitable[None]]] = []

    @property
    def read_life_ms(self) -> int:
        """The life of a lock that is not renewed."""
        return self._settings.read_life_ms

    def open(self, earliest: int) -> None:
        """Read the file; `earliest` is the activation of the first version of the catalog."""
        self.value = self._next = max(self._read(), 0)
        if self.value:
            self.value = self._next = max(self.value, earliest)

    def listen(self, listener: Callable[[int], Awaitable[None]]) -> None:
        """Call a function with each new value."""
        self._listeners.append(listener)

    @contextmanager
    def read_lock(self, time: int) -> Iterator[Callable[[], None]]:
        """Hold the watermark at or below a time; raises `TimeTooOld`.

        Yields what begins its life again, or raises the error if that is over.
        """
        if time < self._next:
            raise TimeTooOld(time, self._next)
        handle = object()

        def begin() -> None:
            ends_s = self._clock.monotonic_s() + self._settings.read_life_ms / 1000
            self._locks[handle] = time, ends_s

        def renew() -> None:
            if self._clock.monotonic_s() >= self._locks[handle][1]:
                raise TimeTooOld(time, self._next)
            begin()

        begin()
        try:
            yield renew
        finally:
            del self._locks[handle]
            self._released.set()

    async def update(self) -> None:
        """Raise the watermark to what the settings permit now."""
        ago_ms = self._settings.availability_ms + self._settings.skew_ms
        await self.raise_to(add_ms(timestamp(self._clock.now_ms()), -ago_ms))

    async def raise_to(self, value: int) -> None:
        """Raise the watermark; no change if it is there or above."""
        async with self._updating:
            if value <= self.value:
                return
            self._next = max(self._next, value)
            await asyncio.to_thread(self._write, value)
            await self._wait_locks(value)
            self.value = value
            for listener in self._listeners:
                await listener(value)

    async def _wait_locks(self, value: int) -> None:
        while True:
            now_s = self._clock.monotonic_s()
            ends = [end for time, end in self._locks.values() if time < value and end > now_s]
            if not ends:
                return
            self._released.clear()
            # A lock that is not released ends by itself.
            try:
                async with asyncio.timeout(min(min(ends) - now_s, LOOK_S)):
                    await self._released.wait()
            except TimeoutError:
                continue

    def _read(self) -> int:
        if not self._fs.exists(self._path):
            return 0
        try:
            lines, _ = read_lines(self._fs, self._path)
            row = json.loads(lines[0][1])
            if row["version"] == _VERSION and isinstance(row["low_watermark"], int):
                return int(row["low_watermark"])
            reason = f"it has version {row['version']}"
        except (LithifyError, ValueError, KeyError, TypeError, IndexError) as error:
            reason = str(error)
        set_aside(self._fs, self._path, reason, self._events)
        return 0

    def _write(self, value: int) -> None:
        row = json.dumps({"version": _VERSION, "low_watermark": value}, separators=(",", ":"))
        try:
            write_atomic(self._fs, self._path, encode_line(row))
        except OSError as error:
            raise WriteFailed(self._path, error) from error
