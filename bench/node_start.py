"""The start of a node, and commands on a directory, against a version without cluster and catalog.

`node-start`: `lithify serve` on an empty data directory until it prints its addresses; `again`: on
one that has a topic, with the memory of the idle node; `topics`: on one with many topics.

`directory-commands`: `lithify topics list --data` and `lithify topics compact --data`.

All include the start of Python. The other side runs the sources of `earlier.py` on a directory of
its own. Without them in the history there are no rows.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bench.earlier import EARLIER, environment, extract, is_in_history, serving_until_ready
from bench.harness import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

START_MIN = 1 / 1.2
TOPICS_MIN = 1 / 1.1
MEMORY_RATIO_MAX = 1.2
COMMIT = EARLIER[:10]
AGAINST = f"commit {COMMIT}, without cluster and catalog"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    topics: int


FULL = Sizes(rounds=3, topics=10_000)
QUICK = Sizes(rounds=1, topics=3)


def start(directory: str, sizes: Sizes) -> Iterator[Case]:
    if not is_in_history():
        return
    earlier = _Earlier(directory)
    numbers = itertools.count()

    def new(used: str | None) -> float:
        data = f"{directory}/data{next(numbers)}"
        seconds = _start(data, used)
        shutil.rmtree(data)
        return seconds

    yield earlier.case("node-start", "`lithify serve` in an empty directory until ready", new)
    yield earlier.case(
        "node-start (again)",
        "`lithify serve` in a directory with a topic until ready",
        lambda used: _start(earlier.with_topics(1, used), used),
        note=earlier.memory,
    )
    yield earlier.case(
        "node-start (topics)",
        f"`lithify serve` with {sizes.topics:,} topics until ready",
        lambda used: _start(earlier.with_topics(sizes.topics, used), used),
        TOPICS_MIN,
    )


def commands(directory: str, _: Sizes) -> Iterator[Case]:
    if not is_in_history():
        return
    earlier = _Earlier(directory)
    for name, words in (("commands", ("list",)), ("commands (compact)", ("compact", "t0"))):
        yield earlier.case(
            f"directory-{name}",
            f"`lithify topics {words[0]} --data`, with one topic",
            partial(_command, earlier, words),
        )


class _Earlier:
    """Directories of the earlier version, and copies that ours continues."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.sources = extract(directory)

    def case(
        self,
        name: str,
        what: str,
        seconds: Callable[[str | None], float],
        at_least: float = START_MIN,
        note: Callable[[], str] = str,
    ) -> Case:
        """`seconds` gets the sources of the other version, or None for ours."""
        ours, raw = (lambda: seconds(None)), (lambda: seconds(self.sources))
        return Case(name, what, AGAINST, round(at_least, 2), 1, "starts", ours, raw, note)

    def with_topics(self, count: int, used: str | None) -> str:
        """A directory with `count` topics, for the version that is used."""
        earlier, ours = f"{self._directory}/earlier-{count}", f"{self._directory}/ours-{count}"
        if not os.path.exists(earlier):
            command = [sys.executable, "-m", "bench.make_topics", earlier, str(count), "1"]
            subprocess.run(command, env=environment(self.sources), check=True)
            shutil.copytree(earlier, ours)
            # It imports the definitions.
            _start(ours, None)
        return ours if used is None else earlier

    def memory(self) -> str:
        """What an idle node takes, with one topic."""
        ours, theirs = (
            _memory_mb(self.with_topics(1, each), each) for each in (None, self.sources)
        )
        verdict = "pass" if ours <= MEMORY_RATIO_MAX * theirs else "miss"
        return (
            f"{ours:.0f} MB idle, {ours / theirs:.2f} of the other's, "
            f"up to {MEMORY_RATIO_MAX}: {verdict}"
        )


def _start(data: str, sources: str | None) -> float:
    began_s = time.perf_counter()
    with serving_until_ready(data, sources):
        return time.perf_counter() - began_s


def _memory_mb(data: str, sources: str | None) -> float:
    with serving_until_ready(data, sources) as pid, open(f"/proc/{pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024 / 1e6


def _command(earlier: _Earlier, words: tuple[str, ...], sources: str | None) -> float:
    data = earlier.with_topics(1, sources)
    command = [sys.executable, "-m", "lithify", "topics", *words, "--data", data]
    began_s = time.perf_counter()
    subprocess.run(
        command,
        env=environment(sources),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began_s


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "node-start": start,
    "directory-commands": commands,
}
"""Row by row, in the order of the table."""
