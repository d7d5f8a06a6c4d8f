"""A seeded life of a log: appends, rolls, compaction, reclaim, dropping heads, reopening.

`Story.play` runs it on a file system that may cut the power at any operation. `Story.check` then
opens what a crash left and compares it with what the story knows was promised:

    acknowledged ⊆ recovered ⊆ written        (less what was declared dead or dropped)
    what a finished run removed stays removed
    no file that the manifest does not name
    the log continues: append, compact, reclaim, verify
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.clock import ManualClock
from lithify.compaction.live_set_rules.rule_interface import GivenLiveSet
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.run.compactor import Compactor, RunSettings
from lithify.errors import LithifyError
from lithify.events import WriteRefused
from lithify.live_set import LiveSet
from lithify.log.file_names import FileKind, parse_name
from lithify.log.log import Log
from lithify.log.verify import verify_log
from lithify.settings import Durability, LogSettings

if TYPE_CHECKING:
    from lithify.events import Event
    from lithify.fs import FileSystem

DIRECTORY = "/data/log"
POLICIES = ("all", "stats", "neighbours", "whole-dead")
SETTLED = frozenset({FileKind.LOCK, FileKind.MANIFEST, FileKind.HISTORY})


@dataclass
class Promises:
    """What the story knows; updated in the order in which things become certain."""

    written: dict[int, bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    condemned: set[int] = field(default_factory=set)
    """May be gone: a run that drops them has started."""
    removed: set[int] = field(default_factory=set)
    """Must be gone: that run has ended, and they were at or below its horizon."""
    head_maybe: int = 0
    head: int = 0


class Story:
    """One life. All choices come from the seed, none from the file system."""

    def __init__(self, seed: int, length: int, durability: Durability = Durability.ALWAYS) -> None:
        self.seed = seed
        self.length = length
        self.promises = Promises()
        self.settings = LogSettings(segment_bytes_max=1024, durability=durability)
        self.errors: list[LithifyError | OSError] = []
        """What failed and was outlived, in order; only opening may raise an `OSError`."""
        self.refused: list[WriteRefused] = []
        """Writes that failed, as events tell them."""

    # --- living -----------------------------------------------------------------------------

    def play(self, fs: FileSystem, *, tolerate: bool = False) -> None:
        """Live until the end, or until the power is cut. `tolerate` outlives failed writes."""
        rng = random.Random(self.seed)
        log = self._open_somehow(fs, rng) if tolerate else self._open(fs, rng)
        for step in range(self.length):
            log = self._step(fs, log, rng, step, tolerate=tolerate)
        try:
            log.close()
        except LithifyError as error:
            self._survive(error, tolerate=tolerate)

    def _step(
        self, fs: FileSystem, log: Log, rng: random.Random, step: int, *, tolerate: bool
    ) -> Log:
        act = rng.choices(
            (self._append, self._append_many, self._roll, self._compact, self._drop_head),
            weights=(6, 3, 2, 2, 1),
        )[0]
        reopen = rng.random() < 0.08
        inner = random.Random(rng.random())
        try:
            act(fs, log, inner, step)
            if reopen:
                log.close()
        except LithifyError as error:
            self._survive(error, tolerate=tolerate)
        if log.closed:
            log = self._open_somehow(fs, inner) if tolerate else self._open(fs, inner)
        return log

    def _survive(self, error: LithifyError, *, tolerate: bool) -> None:
        if not tolerate:
            raise error
        self.errors.append(error)

    def _open_somehow(self, fs: FileSystem, rng: random.Random) -> Log:
        while True:  # Faults run out.
            try:
                return self._open(fs, rng)
            except (LithifyError, OSError) as error:
                self.errors.append(error)

    def _event(self, event: Event) -> None:
        if isinstance(event, WriteRefused):
            self.refused.append(event)

    def _open(self, fs: FileSystem, rng: random.Random) -> Log:
        return Log.open(
            fs,
            DIRECTORY,
            kind="test",
            settings=self.settings,
            clock=ManualClock(),
            events=self._event,
            random_bytes=rng.randbytes,
        )

    def _append(self, fs: FileSystem, log: Log, rng: random.Random, step: int) -> None:
        body = rng.randbytes(rng.choice((0, 1, 30, 200)))
        position = log.next_position + rng.choice((0, 0, 0, 5))
        self.promises.written[position] = body
        pending = log.append(body, time_ms=1000 + step, position=position)
        if rng.random() < 0.7:
            self.promises.acknowledged.add(pending.result())

    def _append_many(self, fs: FileSystem, log: Log, rng: random.Random, step: int) -> None:
        bodies = [rng.randbytes(rng.choice((5, 60, 120))) for _ in range(rng.randint(1, 12))]
        positions = [log.next_position + i for i in range(len(bodies))]
        self.promises.written.update(zip(positions, bodies, strict=True))
        pending = log.append_many(bodies, time_ms=1000 + step, positions=positions)
        if rng.random() < 0.7:
            pending.result()
            self.promises.acknowledged.update(positions)

    def _roll(self, fs: FileSystem, log: Log, rng: random.Random, step: int) -> None:
        log.roll()

    def _compact(self, fs: FileSystem, log: Log, rng: random.Random, step: int) -> None:
        promises = self.promises
        for position in promises.written:
            if position not in promises.condemned and rng.random() < 0.4:
                promises.condemned.add(position)
        compactor = self.compactor(fs, log, rng)
        with log.snapshot("a slow reader") if rng.random() < 0.3 else _ignore_result():
            report = compactor.run()
            promises.removed |= {p for p in promises.condemned if p <= report.horizon}
            compactor.reclaim()

    def _drop_head(self, fs: FileSystem, log: Log, rng: random.Random, step: int) -> None:
        before = rng.randint(0, log.last_position + 1) // 2
        self.promises.head_maybe = max(self.promises.head_maybe, before)
        log.drop_head(before)
        log.reclaim()

    def compactor(self, fs: FileSystem, log: Log, rng: random.Random) -> Compactor:
        """A compactor that keeps what is not condemned."""
        live = LiveSet.from_iterable(self.promises.written.keys() - self.promises.condemned)
        return Compactor(
            log,
            fs,
            GivenLiveSet(live),
            settings=RunSettings(
                limits=Limits(target_bytes_max=1500, target_entries_max=1000),
                policy=rng.choice(POLICIES),
            ),
            clock=ManualClock(),
            # Names must not come again when a story is checked twice.
            random_bytes=secrets.token_bytes,
        )

    # --- judging ----------------------------------------------------------------------------

    def check(self, fs: FileSystem, *, lossless: bool = True) -> None:
        """Open what is there and hold it against the promises."""
        rng = random.Random(self.seed + 1)
        log = self._open(fs, rng)
        self.compactor(fs, log, rng).recover()
        self._check_contents(log, lossless=lossless)
        self._check_files(fs, log)
        last = log.next_position
        assert last > max(self.promises.acknowledged, default=-1) or not lossless
        self.promises.written[last] = b"after the crash"
        log.append(b"after the crash", position=last).result()
        self.promises.acknowledged.add(last)
        log.roll()
        compactor = self.compactor(fs, log, rng)
        compactor.run()
        compactor.reclaim()
        self._check_contents(log, lossless=lossless)
        assert not log.manifest.retired
        self._check_files(fs, log)
        log.close()
        assert verify_log(fs, DIRECTORY).damage is None

    def _check_contents(self, log: Log, *, lossless: bool) -> None:
        promises = self.promises
        with log.snapshot() as snapshot:
            entries = list(snapshot.read())
            backward = [entry.position for entry in snapshot.read_backward()]
        recovered = {entry.position: entry.body for entry in entries}
        order = [entry.position for entry in entries]
        assert order == sorted(set(order))
        assert backward == order[::-1]
        for position, body in recovered.items():
            assert promises.written[position] == body, f"position {position} has another body"
        if lossless:
            due = {p for p in promises.acknowledged if p >= promises.head_maybe}
            lost = due - promises.condemned - recovered.keys()
            assert not lost, f"acknowledged but lost: {sorted(lost)}"
        back = promises.removed & recovered.keys()
        assert not back, f"deleted but back: {sorted(back)}"

    def _check_files(self, fs: FileSystem, log: Log) -> None:
        manifest = log.manifest
        known = manifest.sizes().keys() | {retired.name for retired in manifest.retired}
        strays = [
            name
            for name in fs.list(DIRECTORY)
            if parse_name(name).kind not in SETTLED
            and name not in known
            and not name.startswith("HISTORY.damaged-")
        ]
        assert not strays


class _ignore_result:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
