"""A share of a crowd of real clients, in one process: a producer and a consumer of every topic.

Each has a thread. They share a few clients, that is connections: one that the broker drops takes
several of them with it, and the client brings them back. Besides, a producer closes, now and then
with messages in flight, and opens again, and so does a consumer, with messages it did not take.

The process is told what to do by lines:

    stop    producers end; the answer is {topic: [number, …]}, what they have receipts for
    more    the answer is {"topic subscription": [value, …]}, what came since the last time
    end     consumers end, and so does the process

An answer is one line of JSON.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar

from tests.protocol.harness import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.protocol.harness import Case

CLIENTS = 10
LIFE_MESSAGES = (20, 400)
"""After this many messages, at least and at most, one closes and opens again."""
BURST = 5
"""This many are sent before their receipts are waited for: consumers have to keep up."""
TAKE_MS = 500
MORE_SECONDS_MAX = 0.5
KINDS = ("Exclusive", "Shared", "Failover", "KeyShared")


class Share:
    """What the threads of this process have in common."""

    def __init__(self, case: Case, number: int, topics: int, log: str) -> None:
        self._number = number
        self._rng = random.Random(number)
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, log)
        self._clients = [case.connect(logger=logger) for _ in range(CLIENTS)]
        self._producing, self._consuming = True, True
        self._receipts: dict[str, list[int]] = {}
        self._came: dict[str, list[str]] = defaultdict(list)
        self._something_came = threading.Condition()
        self._errors: list[str] = []
        names = [f"crowd-{topic}" for topic in range(topics)]
        self._producers = [self._thread(self._produce, name, at) for at, name in enumerate(names)]
        self._consumers = [self._thread(self._consume, name, at) for at, name in enumerate(names)]

    def _thread(self, work: Callable[[Any, str, int], None], topic: str, at: int) -> Any:
        def run() -> None:
            try:
                work(self._clients[at % CLIENTS], topic, at)
            except Exception as error:  # noqa: BLE001  (raised by the next call)
                self._errors.append(f"{work.__name__} {topic}: {error!r}")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    # --- threads ----------------------------------------------------------------------------

    def _produce(self, client: Any, topic: str, at: int) -> None:
        receipts = self._receipts[topic] = []
        number = 0

        def noting(which: int) -> Callable[[Any, Any], None]:
            def note(result: Any, _: Any) -> None:
                # Any other result is of one that was closed before it had a receipt.
                if result == pulsar.Result.Ok:
                    receipts.append(which)

            return note

        while self._producing:
            producer = client.create_producer(topic, batching_enabled=bool(at % 2))
            life = self._rng.randint(*LIFE_MESSAGES)
            while life > 0 and self._producing:
                for _ in range(BURST):
                    value = b"%d %d" % (self._number, number)
                    producer.send_async(value, noting(number), partition_key=f"k{number % 7}")
                    number += 1
                life -= BURST
                if life > 0 or not self._producing:
                    producer.flush()
            producer.close()

    def _consume(self, client: Any, topic: str, at: int) -> None:
        kind = KINDS[at % len(KINDS)]
        # An exclusive subscription has one consumer, so each gets its own.
        subscription = f"s{self._number}" if kind == "Exclusive" else "s"
        came = self._came[f"{topic} {subscription}"]
        while self._consuming:
            consumer = client.subscribe(
                topic,
                subscription,
                getattr(pulsar.ConsumerType, kind),
                consumer_name=f"c{self._number}",
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=100,
            )
            life = self._rng.randint(*LIFE_MESSAGES)
            while life > 0 and self._consuming:
                try:
                    message = consumer.receive(TAKE_MS)
                except pulsar.Timeout:
                    continue
                with self._something_came:
                    came.append(message.data().decode())
                    self._something_came.notify()
                consumer.acknowledge(message)
                life -= 1
            consumer.close()

    # --- what the process is told -----------------------------------------------------------

    def stop(self) -> dict[str, list[int]]:
        self._producing = False
        for each in self._producers:
            each.join()
        return self._receipts

    def more(self) -> dict[str, list[str]]:
        with self._something_came:
            self._something_came.wait(MORE_SECONDS_MAX)
            new = {where: list(came) for where, came in self._came.items()}
            for came in self._came.values():
                came.clear()
        return new

    def end(self) -> dict[str, list[str]]:
        self._consuming = False
        for each in self._consumers:
            each.join()
        for client in self._clients:
            client.close()
        return {"errors": self._errors}


def take_part(case: Case, number: int, topics: int, log: str) -> None:
    """Run until told to end."""
    share = Share(case, number, topics, log)
    for line in sys.stdin:
        answer = getattr(share, line.strip())()
        # In a file: other lines of the process may come in the middle of one that is long.
        path = Path(f"{log}.answer")
        path.write_text(json.dumps(answer))
        # With a space behind it: a line of the client's may stand before the end of this one.
        say("answer", f"{path} ")
        if line == "end\n":
            return
