"""A process that sends to a topic and compacts it until it is killed, and reports its progress.

("a", POSITION)      everything up to there was acknowledged
("p", PHASE)         a run has come so far
"""

from __future__ import annotations

import random
import tempfile
from typing import TYPE_CHECKING

from lithify.clock import SystemClock
from lithify.fs import LocalFileSystem
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from tests.topic_life import Life

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SETTINGS = TopicCompactionSettings(live_ratio_min=0.9)


def open_topic(directory: str, seed: int = 0) -> Life:
    return Life(LocalFileSystem(), random.Random(seed), SystemClock(), SETTINGS, directory, keys=40)


def live(directory: str, seed: int, say: Connection) -> None:
    """Until the end, which comes from outside."""
    life = open_topic(directory, seed)
    while True:
        life.send(life.rng.randint(1, 30))
        say.send(("a", life.log.last_position))
        if life.rng.random() < 0.3:
            life.log.roll()
        if life.rng.random() < 0.5:
            life.compaction.run("test", progress=lambda phase, *_: say.send(("p", phase)))


def _warm_up() -> None:
    """Load the compiled code once, in the process that all lives are forked from."""
    with tempfile.TemporaryDirectory() as directory:
        life = open_topic(f"{directory}/log")
        for _ in range(3):
            life.send(60)
            life.compact()
        life.log.close()


if __name__ == "__mp_main__" or __name__.endswith("topic_child"):
    _warm_up()
