"""Producers wait for a disk that refuses writes, longer each time it refuses again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from lithify.pulsar import write_retries
from lithify.pulsar.write_retries import WriteRetries
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from lithify.topics.topic import Topic


@dataclass
class Disk:
    """Refuses this many probes."""

    refusals: int = 0
    probes: int = 0
    slept_s: list[float] = field(default_factory=list)

    def why_not(self, topic: Topic) -> str:
        del topic
        self.probes += 1
        self.refusals -= 1
        return "full" if self.refusals >= 0 else ""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        disk.slept_s.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(write_retries, "asyncio", _with(asyncio, sleep=note))
    return disk


def _with(module: Any, **changed: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(module), **changed})


def new_topic(*, closed: bool = False) -> Topic:
    return cast("Topic", _Topic(closed))


class _Topic:
    def __init__(self, closed: bool) -> None:
        self.name = "t"
        self.log = SimpleNamespace(closed=closed)


async def waited(retries: WriteRetries, topic: Topic, producers: int = 1) -> None:
    done = [asyncio.get_running_loop().create_future() for _ in range(producers)]
    for each in done:
        retries.wait(topic, "full", lambda each=each: each.set_result(None))  # type: ignore[misc]
    await asyncio.wait_for(asyncio.gather(*done), PROCESS_S_MAX)


def test_all_producers_of_a_topic_resume_together(disk: Disk) -> None:
    disk.refusals = 3
    asyncio.run(waited(WriteRetries(disk.why_not), new_topic(), producers=2))
    assert disk.probes == 4
    assert disk.slept_s == [write_retries.DELAY_S_MIN] * 4


def test_a_disk_that_refuses_repeatedly_is_retried_less_often(disk: Disk) -> None:
    async def story() -> None:
        retries, topic = WriteRetries(disk.why_not), new_topic()
        for _ in range(9):
            await waited(retries, topic)

    asyncio.run(story())
    doubled = [write_retries.DELAY_S_MIN * 2**n for n in range(9)]
    assert disk.slept_s == [min(each, write_retries.DELAY_S_MAX) for each in doubled]


def test_retries_stop_when_the_topic_is_closed(disk: Disk) -> None:
    disk.refusals = 100
    asyncio.run(waited(WriteRetries(disk.why_not), new_topic(closed=True)))
    assert disk.probes == 0
