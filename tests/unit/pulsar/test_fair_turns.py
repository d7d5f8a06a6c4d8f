"""Turns of connections: a source gets the share of one, however many connections it has."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from lithify.pulsar.fair_turns import ROUND_S, Rounds

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_S = 0.6 * ROUND_S


class Loop:
    """Turns that take `TURN_S`, by a clock that they move, and the iterations of the loop."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.rounds = Rounds(lambda: self.now_s)
        self.done: list[str] = []
        self.iterations: list[list[str]] = []

    def turn(self, name: str, seconds: float = TURN_S) -> None:
        self.now_s += seconds
        self.done.append(name)

    def go_on(self, source: str, name: str) -> None:
        """What a connection does when bytes have come."""
        turn = partial(self.turn, name)
        if self.rounds.is_open:
            self.rounds.run(turn)
        else:
            self.rounds.enqueue(source, turn)

    async def run(self) -> None:
        """Note what each iteration of the loop does, until there is nothing left."""
        while True:
            before = len(self.done)
            await asyncio.sleep(0)
            if before == len(self.done):
                return
            self.iterations.append(self.done[before:])


def story(of: Callable[[Loop], None]) -> Loop:
    async def told() -> Loop:
        loop = Loop()
        of(loop)
        await loop.run()
        return loop

    return asyncio.run(told())


def test_an_iteration_of_the_loop_takes_no_more_than_a_round() -> None:
    def many(loop: Loop) -> None:
        for number in range(100):
            loop.go_on("stranger", f"s{number}")
        assert loop.done == ["s0", "s1"]

    loop = story(many)
    assert loop.done == [f"s{number}" for number in range(100)]
    assert {len(each) for each in loop.iterations} == {2}


def test_a_source_waits_for_one_turn_of_each_other_source() -> None:
    def many(loop: Loop) -> None:
        for number in range(100):
            loop.go_on("stranger", f"s{number}")
        loop.go_on("client", "c0")
        loop.go_on("client", "c1")
        loop.go_on("other", "o0")

    loop = story(many)
    assert loop.done[2:9] == ["s2", "c0", "o0", "s3", "c1", "s4", "s5"]


def test_a_short_command_runs_at_once() -> None:
    def many(loop: Loop) -> None:
        for number in range(1000):
            assert loop.rounds.is_open
            loop.rounds.run(partial(loop.turn, f"s{number}", ROUND_S / 1000))

    story(many)


def test_a_connection_that_is_alone_never_waits() -> None:
    async def alone() -> None:
        loop = Loop()
        for number in range(100):
            assert loop.rounds.is_open
            loop.rounds.run(partial(loop.turn, f"s{number}", 2 * ROUND_S))
            await asyncio.sleep(0)

    asyncio.run(alone())


def test_a_turn_that_continues_waits_for_the_others() -> None:
    def many(loop: Loop) -> None:
        def long(left: int) -> None:
            loop.turn(f"long{left}")
            if left:
                loop.rounds.enqueue("long", partial(long, left - 1))

        loop.rounds.enqueue("long", partial(long, 3))
        loop.rounds.enqueue("short", partial(loop.turn, "short"))

    loop = story(many)
    assert loop.iterations == [["long3", "short"], ["long2", "long1"], ["long0"]]


def test_a_turn_that_fails_does_not_stop_the_others() -> None:
    def many(loop: Loop) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        loop.rounds.enqueue("bad", partial(dict.__getitem__, {}, "missing"))
        loop.rounds.enqueue("good", partial(loop.turn, "good"))

    assert story(many).done == ["good"]
