"""Places that callers share: no caller holds all of them, and none waits for ever."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lithify.http.error_responses import RequestRefused
from lithify.http.fair_shares import Shares

if TYPE_CHECKING:
    from collections.abc import Coroutine


def taken(shares: Shares, caller: str) -> int:
    """How many places a caller gets until it is refused."""
    count = 0
    with suppress(RequestRefused):
        while True:
            shares.take(caller)
            count += 1
    return count


def test_each_caller_gets_half_of_what_is_left() -> None:
    shares = Shares(128, "uploads")
    callers = [taken(shares, name) for name in "abcdefghij"]
    assert callers == [64, 32, 16, 8, 4, 2, 1, 1, 0, 0]


def test_a_refusal_names_the_limits() -> None:
    shares = Shares(4, "readers of topics")
    taken(shares, "a")
    with pytest.raises(
        RequestRefused, match="readers of topics: 2 of 4 places are taken, 2 of"
    ) as error:
        shares.take("a")
    assert error.value.status == 429
    shares.release("a")
    shares.take("a")


class Crowd:
    """Requests that hold a place until they are told to end."""

    def __init__(self, places: int) -> None:
        self.shares = Shares(places, "requests")
        self.held: Counter[str] = Counter()
        self._ends: dict[str, list[asyncio.Event]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def come(self, caller: str, count: int = 1) -> None:
        self.tasks += [asyncio.create_task(self._request(caller)) for _ in range(count)]

    async def _request(self, caller: str) -> None:
        async with self.shares.waits(caller):
            self.held[caller] += 1
            end = asyncio.Event()
            self._ends.setdefault(caller, []).append(end)
            try:
                await end.wait()
            finally:
                self.held[caller] -= 1
                self._ends[caller].remove(end)

    def end_one(self, caller: str) -> None:
        next(each for each in self._ends[caller] if not each.is_set()).set()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def run(story: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


def test_busy_callers_get_equal_shares() -> None:
    async def story() -> None:
        crowd = Crowd(12)
        crowd.come("early", 100)
        await crowd.settle()
        assert crowd.held == {"early": 6}
        crowd.come("late", 100)
        crowd.come("last", 100)
        await crowd.settle()
        assert crowd.held == {"early": 6, "late": 3, "last": 2}
        for _ in range(20):
            crowd.end_one("early")
            await crowd.settle()
        assert crowd.held == {"early": 3, "late": 3, "last": 3}
        await crowd.end()

    run(story())


def test_a_caller_that_disconnects_while_waiting_takes_no_slot() -> None:
    async def story() -> None:
        for handed_over in (False, True):
            crowd = Crowd(2)
            crowd.come("a", 2)
            await crowd.settle()
            assert crowd.held == {"a": 1}
            if handed_over:
                # It gets the place and is cancelled before it learns of it.
                crowd.end_one("a")
                while crowd.held["a"]:
                    await asyncio.sleep(0)
            crowd.tasks[1].cancel()
            await crowd.settle()
            crowd.come("b", 1)
            await crowd.settle()
            assert crowd.held["b"] == 1
            await crowd.end()
            assert taken(crowd.shares, "c") == 1
            assert taken(crowd.shares, "d") == 1

    run(story())


@pytest.mark.parametrize("seed", range(5))
def test_no_slot_is_lost_when_callers_come_and_go(seed: int) -> None:
    async def story() -> None:
        rng, crowd = random.Random(seed), Crowd(8)
        for _ in range(2000):
            caller = rng.choice("abcd")
            what = rng.random()
            if what < 0.5:
                crowd.come(caller)
            elif what < 0.7 and crowd.tasks:
                crowd.tasks.pop(rng.randrange(len(crowd.tasks))).cancel()
            elif crowd.held[caller]:
                with suppress(StopIteration):
                    crowd.end_one(caller)
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            assert sum(crowd.held.values()) <= 8
        await crowd.end()
        await crowd.settle()
        assert [taken(crowd.shares, name) for name in "wxyz"] == [4, 2, 1, 1]

    run(story())
