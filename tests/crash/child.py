"""A process that appends, rolls and compacts until it is killed, and reports what was acknowledged.

Entries are functions of their position, so the parent knows them without being told. What it says:

    a LAST        everything up to LAST was acknowledged
    c BELOW       a run starts that drops the doomed positions below BELOW
    d HORIZON     that run has ended; what it dropped up to HORIZON must stay away
"""

from __future__ import annotations

import random
import tempfile
from typing import TYPE_CHECKING

from lithify.compaction.live_set_rules.rule_interface import GivenLiveSet
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.run.compactor import Compactor, RunSettings
from lithify.fs import LocalFileSystem
from lithify.live_set import LiveSet
from lithify.log.log import Log
from lithify.settings import LogSettings

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SETTINGS = LogSettings(segment_bytes_max=8192)


def body_of(position: int) -> bytes:
    return random.Random(position).randbytes(position % 150)


def is_doomed(position: int) -> bool:
    return position * 2654435761 % 2**32 % 3 != 0


def open_log(directory: str) -> Log:
    return Log.open(LocalFileSystem(), directory, kind="test", settings=SETTINGS)


def compactor_of(log: Log, below: int) -> Compactor:
    last = log.last_position
    live = (p for p in range(last + 1) if p >= below or not is_doomed(p))
    return Compactor(
        log,
        LocalFileSystem(),
        GivenLiveSet(LiveSet.from_iterable(live)),
        settings=RunSettings(limits=Limits(8192, 10_000), policy="all"),
    )


def live(directory: str, seed: int, below: int, say: Connection) -> None:
    """Until the end, which comes from outside."""
    rng = random.Random(seed)
    log = open_log(directory)
    compactor_of(log, below).recover()
    say.send(("a", log.last_position))
    while True:
        choice = rng.random()
        if choice < 0.6:
            first = log.next_position
            bodies = [body_of(first + i) for i in range(rng.randint(1, 40))]
            say.send(("a", log.append_many(bodies).result()))
        elif choice < 0.8:
            position = log.next_position
            say.send(("a", log.append(body_of(position)).result()))
        elif choice < 0.9:
            log.roll()
        else:
            below = log.last_position
            say.send(("c", below))
            compactor = compactor_of(log, below)
            report = compactor.run()
            say.send(("d", report.horizon))
            compactor.reclaim()


def _warm_up() -> None:
    """Load the compiled code once, in the process that all lives are forked from."""
    with tempfile.TemporaryDirectory() as directory, open_log(directory) as log:
        log.append_many([b"x", b"y"] * 100).result()
        log.roll()
        compactor_of(log, 100).run()
        with log.snapshot() as snapshot:
            assert list(snapshot.read())


if __name__ == "__mp_main__" or __name__.endswith("child"):
    _warm_up()
