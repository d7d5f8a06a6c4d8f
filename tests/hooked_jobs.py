"""Jobs that let a test do something while a run is in progress."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.compaction.tasks.jobs import LocalJobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.compaction.tasks.jobs import Check, Progress

T = TypeVar("T")
R = TypeVar("R")


class HookedJobs(LocalJobs):
    """Local ones; `before` is called when a job begins, `behind` when a result was taken."""

    def before(self, name: str, check: Check) -> None:
        """May raise, and then the job fails."""

    def behind(self, name: str, check: Check) -> None:
        """The same."""

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
        self.before(name, check)
        results = super().run(
            name, function, tasks, weights=weights, check=check, progress=progress
        )
        for result in results:
            yield result
            self.behind(name, check)


class Halted(LocalJobs):
    """Jobs that begin when they are told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def run(self, name: str, function: Any, tasks: Any, **more: Any) -> Any:
        self.begun.set()
        while not self.go_on.wait(0.01):
            more["check"]()
        return super().run(name, function, tasks, **more)
