"""A process that compacts a topic is killed with SIGKILL in the middle of its runs, many times."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from lithify.fs import LocalFileSystem
from lithify.log.verify import verify_log
from tests.crash import topic_child

if TYPE_CHECKING:
    from pathlib import Path


WORDS = ("rewrite", "send", "rewrite", "survivors", "rewrite", "dead sets", "rewrite", "index")
"""What a life is heard to do when it is killed; only while it rewrites does it leave a journal."""


@pytest.mark.parametrize("lives", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_lives_of_a_topic_end_by_sigkill(tmp_path: Path, lives: int) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.topic_child"])
    directory = str(tmp_path / "log")
    acknowledged = -1
    ends: Counter[str] = Counter()
    rng = random.Random(2027)
    for life in range(lives):
        hear, say = context.Pipe(duplex=False)
        process = context.Process(target=topic_child.live, args=(directory, life, say))
        process.start()
        say.close()
        wanted, words, last = WORDS[life % len(WORDS)], rng.randint(1, 9), ""
        while True:
            try:
                word, about = hear.recv()
            except EOFError:
                break
            if word == "a":
                acknowledged = about
            last = "send" if word == "a" else about
            words -= last == wanted
            if not words and last == wanted:
                # It continues meanwhile, so this hits it in the middle of anything.
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                ends[wanted] += 1
        process.join()
        hear.close()
        assert process.exitcode == -signal.SIGKILL, f"life {life} ended by itself"
        _check(directory, acknowledged, life)
    assert ends.keys() == set(WORDS)


def _check(directory: str, acknowledged: int, life: int) -> None:
    topic = topic_child.open_topic(directory, life)
    topic.remember()
    assert topic.log.last_position >= acknowledged, f"life {life} lost what it was promised"
    topic.check()
    # Every third time the next process finds what was left as it is.
    if life % 3:
        topic.send(3)
        topic.compact()
        topic.check()
        assert not topic.strays(), f"life {life}"
    topic.log.close()
    assert verify_log(LocalFileSystem(), directory).damage is None
