"""Ten producers or ten compacted readers of one topic, real clients, in one process.

    python many_compacted_readers.py URL TOPIC LOG produce|read

It says `ready` when all of them are at work. A line on its input ends it: producers stop, readers
read on to the end of the topic. Then it prints one line of JSON:

    producers   {"sent": N, "newest": {key: [[ledger, entry, slot], value or null]}}
    readers     [{"lives": N, "read": N, "map": {key: value}}, …]

Any key may be written by any producer, so the newest of a key is that with the highest id. Every
other reader is restless: now and then it begins again, with nothing. The others are slow, so that
runs overtake them.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import pulsar

if TYPE_CHECKING:
    from collections.abc import Callable

CROWD = 10
KEYS = 400
BURST = 5
PAUSE_S = 0.1
"""Between two bursts of a producer: ten readers in one process have to keep up with all."""
SLOW_S = 0.01
"""A pause of a reader, after each `STEP` messages of it."""
STEP = {True: 20, False: 2}
"""Restless or not: the rate of all producers lies in between."""
LIFE_MESSAGES = (300, 3000)
"""After this many, at least and at most, a restless reader begins again."""


class Crowd:
    """What the threads have in common."""

    def __init__(self, url: str, topic: str, log: str) -> None:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, log)
        self.topic = topic
        self.stop = threading.Event()
        self._clients = [pulsar.Client(url, logger=logger) for _ in range(2)]
        self._failed = ""

    def run(self, work: Callable[[Any, int, Callable[[], object]], Any]) -> list[Any]:
        """The results of ten, each in a thread, once they were told to stop."""
        results: list[Any] = [None] * CROWD
        begun = threading.Barrier(CROWD + 1)

        def one(number: int) -> None:
            client = self._clients[number % len(self._clients)]
            try:
                results[number] = work(client, number, begun.wait)
            except Exception as error:  # noqa: BLE001  (the process ends with it)
                self._failed = f"{work.__name__} {number}: {error!r}"
                begun.abort()

        threads = [threading.Thread(target=one, args=(number,)) for number in range(CROWD)]
        for thread in threads:
            thread.start()
        begun.wait()
        print("ready", flush=True)
        sys.stdin.readline()
        self.stop.set()
        for thread in threads:
            thread.join()
        for client in self._clients:
            client.close()
        assert not self._failed, self._failed
        return results

    def produce(self, client: Any, number: int, begun: Callable[[], object]) -> Any:
        rng = random.Random(number)
        newest: dict[str, tuple[tuple[int, int, int], str | None]] = {}
        producer = client.create_producer(
            self.topic, batching_enabled=bool(number % 2), batching_max_publish_delay_ms=5
        )
        sent = 0
        begun()
        while not self.stop.wait(PAUSE_S):
            for _ in range(BURST):
                sent += 1
                key = f"k{rng.randrange(KEYS)}"
                value = None if rng.random() < 0.2 else f"{number} {sent}"
                data = (value or "").encode()
                producer.send_async(data, noting(newest, key, value), partition_key=key)
            producer.flush()
        producer.close()
        return sent, newest

    def read(self, client: Any, number: int, begun: Callable[[], object]) -> dict[str, Any]:
        rng = random.Random(CROWD + number)
        restless = number % 2 == 0
        lives = read = 0
        while True:
            lives += 1
            life = rng.randint(*LIFE_MESSAGES) if restless else sys.maxsize
            found: dict[str, str] = {}
            last = (-1, -1, -1)
            reader = client.create_reader(
                self.topic,
                pulsar.MessageId.earliest,
                is_read_compacted=True,
                receiver_queue_size=100 if restless else 5,
            )
            if lives == 1:
                begun()
            ended = False
            while life > 0 or ended:
                # Read before: what was sent before the end must still be read.
                ended = self.stop.is_set()
                if not reader.has_message_available():
                    if ended:
                        reader.close()
                        return {"lives": lives, "read": read, "map": found}
                    self.stop.wait(SLOW_S)
                    continue
                message = reader.read_next(60_000)
                at = place_of(message.message_id())
                assert at > last, f"{at} comes after {last}"
                last, read, life = at, read + 1, life - 1
                take(found, message.partition_key(), message.data().decode())
                if read % STEP[restless] == 0:
                    self.stop.wait(SLOW_S)
            reader.close()


def noting(
    newest: dict[str, tuple[tuple[int, int, int], str | None]], key: str, value: str | None
) -> Callable[[Any, Any], None]:
    def note(result: Any, message_id: Any) -> None:
        assert result == pulsar.Result.Ok, result
        at = place_of(message_id)
        if key not in newest or newest[key][0] < at:
            newest[key] = at, value

    return note


def place_of(message_id: Any) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def take(found: dict[str, str], key: str, value: str) -> None:
    if value:
        found[key] = value
    else:
        found.pop(key, None)


def main(url: str, topic: str, log: str, what: str) -> None:
    crowd = Crowd(url, topic, log)
    if what == "read":
        print(json.dumps(crowd.run(crowd.read)), flush=True)
        return
    total = 0
    newest: dict[str, tuple[tuple[int, int, int], str | None]] = {}
    for sent, mine in crowd.run(crowd.produce):
        total += sent
        for key, each in mine.items():
            newest[key] = max(newest.get(key, each), each, key=lambda each: each[0])
    print(json.dumps({"sent": total, "newest": newest}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
