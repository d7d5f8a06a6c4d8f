"""A target that an executor wrote somewhere else is not published: the run fails and names it."""

from __future__ import annotations

from socket import gethostname
from typing import TYPE_CHECKING, TypeVar

import pytest

from lithify.compaction.rewrite.rewrite import Rewritten
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import ExecutorUnfit
from lithify.fs import MemoryFileSystem, read_file
from tests.unit.compaction.logs import DIRECTORY, compactor_of, contents, fill, open_log, strays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.compaction.tasks.jobs import Check, Progress

T = TypeVar("T")
R = TypeVar("R")

EVEN = range(0, 1000, 2)


class Elsewhere(LocalJobs):
    """What these executors write is not what the process that publishes finds."""

    def __init__(self, spoil: Callable[[str], None]) -> None:
        self._spoil = spoil

    def run(
        self,
        name: str,
        function: Callable[[T, Check], R],
        tasks: Sequence[T],
        *,
        weights: Sequence[int] = (),
        check: Check,
        progress: Progress,
    ) -> Iterator[tuple[int, R]]:
        results = super().run(
            name, function, tasks, weights=weights, check=check, progress=progress
        )
        for number, result in results:
            if isinstance(result, Rewritten):
                self._spoil(f"{DIRECTORY}/{result.target.name}")
            yield number, result


@pytest.mark.parametrize("how", ["missing", "cut", "of another log", "without its footer"])
def test_a_target_that_the_publisher_does_not_see_is_not_published(how: str) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 4)
    before = contents(log)
    foreign = open_log(fs, "/data/other")
    fill(foreign, 4)
    compactor_of(foreign, fs, EVEN).run()

    def spoil(path: str) -> None:
        data = read_file(fs, path)
        fs.remove(path)
        if how == "cut":
            data = data[: len(data) // 2]
        elif how == "of another log":
            data = read_file(fs, f"/data/other/{foreign.manifest.segments[0].name}")
        elif how == "without its footer":
            data = data[:-80] + bytes(80)
        if how != "missing":
            with fs.open_append(path) as file:
                file.write(data)

    generation = log.manifest.generation
    with pytest.raises(ExecutorUnfit, match=rf"on {gethostname()} wrote {DIRECTORY}/\S+\.seg"):
        compactor_of(log, fs, EVEN, jobs=Elsewhere(spoil)).run()
    assert log.manifest.generation == generation
    assert not strays(fs, log)
    log.close()

    log = open_log(fs)
    assert contents(log) == before
    assert compactor_of(log, fs, EVEN).run().result == "done"
    assert contents(log) == {at: body for at, body in before.items() if at % 2 == 0}
