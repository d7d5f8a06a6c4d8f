"""Producers, compacted readers and table views of one topic, real clients, beside a model.

    python -m tests.crash.keyed_clients URL TOPIC LOG

It prints `ready` when all are at work, and continues when the node is killed. A line on its
input ends it: producers stop, and what readers and views then find must be the model exactly. It
prints one line of JSON: how many messages were acknowledged, reads and views checked, and every
violation.

A producer writes keys of its own, one message at a time; each value is a number that grows. The
model has two entries for each key: the last number that was acknowledged, and the last one sent,
each with whether it was a value or a tombstone. A read that began when N was acknowledged and ended
when M had been sent is wrong

1. if it finds a number below N: a value is older than acknowledged, or a deleted key is back;
2. if it finds nothing though N is a value and N = M: something acknowledged is lost.

When its connection breaks, the client says that it has read all messages, and that a view is
complete which has read nothing. So a reader's end counts if it is still connected and says so once
more. A view cannot be asked: `Connection` watches a reader of the same client, which has the same
connection. A view that was made while that stood must be right at once. One that is wrong, and
whose connection broke meanwhile, is counted as broken and opened again.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import Any

import pulsar

BALLAST = "ballast"
KEYS = 40
PRODUCERS = 2
TOMBSTONES = 0.2
PAUSE_S = 0.002
RETRY_S = 0.1
VIEW_S = 2.0
"""Between two new views, all of which stay and follow the topic."""
READ_MS = 1000
WATCH_S = 0.01
NOTICE_S = 0.5
END_S_MAX = 90

State = dict[str, tuple[int, bool]]


class Clients:
    """What the threads have in common."""

    def __init__(self, url: str, topic: str, log: str) -> None:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, log)
        self._client = pulsar.Client(url, logger=logger, operation_timeout_seconds=5)
        self._topic = topic
        self._lock = threading.Lock()
        self._acknowledged: State = {}
        self._sent: State = {}
        self._stop = threading.Event()
        self._views: list[Any] = []
        self.counts = {"acknowledged": 0, "reads": 0, "views": 0, "broken": 0}
        self.violations: list[str] = []

    def run(self) -> None:
        begun = threading.Barrier(PRODUCERS + 3)
        threads = [
            threading.Thread(target=self._produce, args=(number, begun), daemon=True)
            for number in range(PRODUCERS)
        ]
        threads += [
            threading.Thread(target=self._check, args=(*given, begun), daemon=True)
            for given in (("reads", self._read, 0.0), ("views", self._view, VIEW_S))
        ]
        for thread in threads:
            thread.start()
        self._connection = Connection(self._client, self._topic)
        begun.wait()
        lasting = self._client.create_table_view(self._topic)
        print("ready", flush=True)
        sys.stdin.readline()
        self._stop.set()
        for thread in threads:
            thread.join(END_S_MAX)
            assert not thread.is_alive(), "a client hangs"
        self._end(lasting)

    def _end(self, lasting: Any) -> None:
        """All is acknowledged, so every reader must find the model itself."""
        model = {key: number for key, (number, live) in self._acknowledged.items() if live}
        for name, found in (("reader", self._read()), ("view", self._view())):
            if found != model:
                self.violations.append(f"at the end a {name} finds {differ(found, model)}")
        deadline = time.monotonic() + END_S_MAX
        for view in (lasting, *self._views):
            while (found := entries(view)) != model and time.monotonic() < deadline:
                time.sleep(RETRY_S)
            if found != model:
                self.violations.append(f"a view that stayed has {differ(found, model)}")
        print(json.dumps({**self.counts, "violations": self.violations}), flush=True)
        os._exit(0)  # There is nothing to be learned from how the client ends.

    def _produce(self, number: int, begun: threading.Barrier) -> None:
        rng = random.Random(number)
        producer = self._client.create_producer(self._topic, send_timeout_millis=0)
        begun.wait()
        count = 0
        while not self._stop.is_set():
            key = f"p{number}-{rng.randrange(KEYS)}"
            count += 1
            live = rng.random() >= TOMBSTONES
            with self._lock:
                self._sent[key] = count, live
            # Waits for its receipt, also while there is no node; then it is sent again.
            producer.send(b"%d" % count if live else b"", partition_key=key)
            with self._lock:
                self._acknowledged[key] = count, live
                self.counts["acknowledged"] += 1
            time.sleep(PAUSE_S)
        producer.close()

    def _check(self, name: str, find: Any, pause_s: float, begun: threading.Barrier) -> None:
        begun.wait()
        while not self._stop.wait(pause_s):
            with self._lock:
                before = dict(self._acknowledged)
            began_s = time.monotonic()
            wrong = self._compare(before, find())
            if wrong and name == "views" and not self._connection.has_stood_since(began_s):
                self._views.pop()
                self.counts["broken"] += 1
                continue
            self.violations += [f"{name}: {each}" for each in wrong]
            self.counts[name] += 1

    def _compare(self, before: State, found: dict[str, int]) -> list[str]:
        """What is wrong with a read that began when `before` was acknowledged."""
        with self._lock:
            after = dict(self._sent)
        wrong = []
        for key, (number, live) in before.items():
            got = found.get(key)
            if got is not None and got < number:
                wrong.append(f"{key} is {got}, {number} was acknowledged")
            if got is None and live and after[key] == (number, True):
                wrong.append(f"{key} is lost, {number} was acknowledged")
        return wrong

    def _read(self) -> dict[str, int]:
        """What a compacted reader finds, from the beginning to the end; it survives the node."""
        found: dict[str, int] = {}
        reader = retried(
            lambda: self._client.create_reader(
                self._topic, pulsar.MessageId.earliest, is_read_compacted=True
            )
        )
        while not is_at_end(reader):
            try:
                message = reader.read_next(READ_MS)
            except pulsar.Timeout:
                continue  # The node is gone, and the reader continues when there is one.
            key, data = message.partition_key(), message.data()
            if data:
                put(found, key, data)
            else:
                found.pop(key, None)
        retried(reader.close)
        return found

    def _view(self) -> dict[str, int]:
        """What a new table view has. It stays: the client crashes if many are closed in a row."""
        view = retried(lambda: self._client.create_table_view(self._topic))
        self._views.append(view)
        return entries(view)


class Connection:
    """Whether a client's connection to its node stands, and since when."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        # Nothing reads from it. A client has one connection to a node, which all of it share.
        self._reader = client.create_reader(topic, pulsar.MessageId.latest)
        self._since_s: float | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """A node that was killed needs a second at least to be back: no break is missed."""
        while True:
            if not self._reader.is_connected():
                self._since_s = None
            elif self._since_s is None:
                self._since_s = time.monotonic()
            time.sleep(WATCH_S)

    def has_stood_since(self, began_s: float) -> bool:
        """Was it there all the time, and is it still?"""
        # A view may be told of a break a little before the reader.
        time.sleep(NOTICE_S)
        since_s = self._since_s
        return since_s is not None and since_s < began_s


def is_at_end(reader: Any) -> bool:
    """Has it read everything? True only if the node says so."""
    return not any(
        retried(reader.has_message_available) or not reader.is_connected() for _ in range(2)
    )


def retried(action: Any) -> Any:
    """The result of an action that fails while there is no node."""
    deadline = time.monotonic() + END_S_MAX
    while True:
        try:
            return action()
        except pulsar.AlreadyClosed:
            return None
        except pulsar.PulsarException:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def put(found: dict[str, int], key: str, data: bytes) -> None:
    if not key.startswith(BALLAST):
        found[key] = int(data)


def entries(view: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    view.for_each(lambda key, data: put(found, key, data))
    return found


def differ(found: dict[str, int], model: dict[str, int]) -> dict[str, tuple[Any, Any]]:
    """By key: what was found, and what should have been."""
    keys = [key for key in {*found, *model} if found.get(key) != model.get(key)]
    return {key: (found.get(key), model.get(key)) for key in keys[:10]}


if __name__ == "__main__":
    Clients(*sys.argv[1:]).run()
