"""What simulators of a bad world share: one seed a world, and a command that makes it again."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class World(Protocol):
    """All that happens in it follows from its seed."""

    def run(self, steps: int) -> None: ...


W = TypeVar("W", bound=World)


def simulated(make: Callable[[int], W], seed: int, steps: int) -> W:
    """The world of a seed after this many steps; if it goes wrong, how to see that again."""
    world = make(seed)
    try:
        world.run(steps)
    except BaseException:
        # The module may be the one that was started, and is not called by its name then.
        spec = sys.modules[make.__module__].__spec__
        name = spec.name if spec is not None else make.__module__
        again = f"python -m {name} --first {seed} --seeds 1 --steps {steps}"
        print(f"seed {seed} failed: {again}", file=sys.stderr)
        raise
    return world


def worlds(make: Callable[[int], W], *, seeds: int, steps: int) -> Iterator[W]:
    """Those that the command line asks for, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
    asked = parser.parse_args()
    for seed in range(asked.first, asked.first + asked.seeds):
        yield simulated(make, seed, asked.steps)
    print(f"{asked.seeds} seeds: ", end="")
