"""Ten producers write, ten compacted readers follow, and run comes after run: all agree at the end.

A reader gets what is retained up to the horizon that it found when it began, and the log from
there on, as a subscription with `read_compacted` does: so no delete above its position escapes it,
whatever the runs make of it meanwhile.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from lithify.clock import SystemClock
from lithify.fs import LocalFileSystem
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.messages.message import FLAG_SHRUNK
from tests.oracle import Sent, messages_of
from tests.topic_life import Entries, Life

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lithify.log.log import Log

CROWD = 10


class Reader:
    """Keeps the newest value of each key; a restless one begins again now and then."""

    def __init__(self, log: Log, rng: random.Random, *, restless: bool) -> None:
        self._log = log
        self._rng = rng
        self._restless = restless
        self.lives = 0
        self.begin()

    def begin(self) -> None:
        self.lives += 1
        self.newest: dict[bytes, Sent] = {}
        self._next = 0
        self._joined = self._log.manifest.horizon

    def follow(self, ended: Callable[[], bool]) -> None:
        """Read on until everything is read that was sent before the end."""
        last = False
        while not last:
            last = ended()
            if self._restless and not last and self._rng.random() < 0.02:
                self.begin()
            # The others are slow, so that runs overtake them.
            some = self._rng.choice((1, 10, 100)) if self._restless else 2
            self._read(None if last else some)

    def _read(self, limit: int | None) -> None:
        with self._log.snapshot("reader") as snapshot:
            entries = snapshot.read(self._next, compacted=True, through=self._joined, limit=limit)
            for entry in entries:
                assert entry.position >= self._next, "twice"
                self._next = entry.position + 1
                shrunk = bool(entry.flags & FLAG_SHRUNK)
                for each in messages_of(entry.position, entry.body, shrunk=shrunk, live=entry.live):
                    if each.key is not None and not each.is_part:
                        self.newest[each.key] = each

    def values(self) -> dict[bytes, Sent]:
        return {key: each for key, each in self.newest.items() if not each.tombstone}


@pytest.mark.parametrize("runs", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_ten_readers_end_with_what_ten_producers_have_left(tmp_path: Path, runs: int) -> None:
    settings = TopicCompactionSettings(live_ratio_min=0.9)
    directory, clock = str(tmp_path / "log"), SystemClock()
    life = Life(LocalFileSystem(), random.Random(1), clock, settings, directory)
    failures: list[BaseException] = []
    enough, ended = threading.Event(), threading.Event()

    def produce(seed: int) -> None:
        rng = random.Random(seed)
        made = Entries(rng, clock, keys=3000)
        while not enough.is_set():
            life.log.append_many([body for body, _ in made.some(5)]).result()

    def started(work: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    producers = [started(produce, seed) for seed in range(CROWD)]

    readers = [
        Reader(life.log, random.Random(100 + number), restless=number % 2 == 0)
        for number in range(CROWD)
    ]
    following = [started(reader.follow, ended.is_set) for reader in readers]
    try:
        while runs and not failures:
            runs -= life.compaction.run("test").result == "done"
    finally:
        enough.set()
        for thread in producers:
            thread.join()
        # The last deletes are gone from the view before the slow ones have come to them.
        life.compaction.run("test")
        ended.set()
    for thread in following:
        thread.join()
    assert not failures
    life.remember()
    life.check()
    expected = life.oracle.values()
    assert len(expected) > 10
    assert all(reader.values() == expected for reader in readers)
    assert sum(reader.lives for reader in readers) > CROWD
