"""The low watermark: it ascends, is durable before it counts, and waits for readers."""

from __future__ import annotations

import asyncio

import pytest

from lithify.clock import ManualClock
from lithify.errors import WriteFailed
from lithify.events import Event, SideFileSetAside
from lithify.fs.memory import MemoryFileSystem
from lithify.hybrid_time import add_ms, timestamp
from lithify.tables.low_watermark import FILE, LowWatermark, TimeTooOld, WatermarkSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem

AGO_MS = 600_500


class Node:
    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.fs.mkdir("node")
        self.clock = ManualClock()
        self.events: list[Event] = []

    def open(self, earliest: int = 0) -> LowWatermark:
        made = LowWatermark(self.fs, "node", self.clock, WatermarkSettings(), self.events.append)
        made.open(earliest)
        return made

    @property
    def due(self) -> int:
        return add_ms(timestamp(self.clock.now_ms()), -AGO_MS)


def test_it_follows_the_clock_and_never_goes_back() -> None:
    async def run() -> None:
        node = Node()
        watermark = node.open()
        heard: list[int] = []

        async def listen(value: int) -> None:
            assert watermark.value == value
            heard.append(value)

        watermark.listen(listen)
        assert watermark.value == 0
        await watermark.update()
        first = node.due
        node.clock.jump(-60)
        await watermark.update()
        node.clock.jump(120)
        await watermark.update()
        assert heard == [first, node.due]
        assert node.open().value == watermark.value == node.due

    asyncio.run(run())


def test_a_read_below_it_is_refused_and_one_at_it_is_not() -> None:
    async def run() -> None:
        watermark = Node().open()
        with watermark.read_lock(1):
            pass
        await watermark.raise_to(500)
        with watermark.read_lock(500):
            pass
        with pytest.raises(TimeTooOld, match="low watermark"), watermark.read_lock(499):
            pass

    asyncio.run(run())


def admits(watermark: LowWatermark, time: int) -> bool:
    try:
        with watermark.read_lock(time):
            return True
    except TimeTooOld:
        return False


def test_it_waits_for_readers_below_it_and_admits_no_new_ones() -> None:
    async def run() -> None:
        watermark = Node().open()
        with watermark.read_lock(100), watermark.read_lock(200):
            with watermark.read_lock(99):
                raising = asyncio.create_task(watermark.raise_to(100))
                while admits(watermark, 99):
                    await asyncio.sleep(0)
                assert watermark.value == 0
            await raising
            assert watermark.value == 100

    asyncio.run(run())


def test_a_reader_whose_life_is_over_no_longer_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.tables.low_watermark.LOOK_S", 0.01)

    async def run() -> None:
        node = Node()
        watermark = node.open()
        with watermark.read_lock(1):
            node.clock.advance(WatermarkSettings().read_life_ms / 1000 + 1)
            await watermark.raise_to(2)
        assert watermark.value == 2

    asyncio.run(run())


def test_it_is_raised_to_the_first_version_that_is_left() -> None:
    async def run() -> None:
        node = Node()
        assert node.open(70).value == 0
        await node.open().raise_to(50)
        assert node.open(70).value == 70
        assert node.open(30).value == 50

    asyncio.run(run())


def test_a_damaged_file_is_set_aside() -> None:
    async def run() -> None:
        node = Node()
        await node.open().raise_to(50)
        node.fs.flip(f"node/{FILE}", 12)
        assert node.open().value == 0
        assert [type(event) for event in node.events] == [SideFileSetAside]

    asyncio.run(run())


def test_it_does_not_count_before_it_is_durable() -> None:
    async def run() -> None:
        node = Node()
        fs = FaultyFileSystem(node.fs, [Fault("fsync", nth=1, kind="EIO")])
        watermark = LowWatermark(fs, "node", node.clock, WatermarkSettings(), node.events.append)
        with pytest.raises(WriteFailed):
            await watermark.raise_to(5)
        assert watermark.value == 0

    asyncio.run(run())
