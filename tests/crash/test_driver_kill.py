"""The driver of a Spark job, `lithify topics compact`, is killed with SIGKILL while it runs.

What it started, a JVM and its Python processes, is left to find that out by itself, and may still
be writing when the next run begins.
"""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest

import lithify
from lithify.fs import LocalFileSystem
from lithify.log.file_names import JOURNAL
from lithify.log.verify import verify_log
from lithify.topics.definitions.definitions import NamespaceDefinition
from lithify.topics.definitions.topic_names import Namespace
from tests.cli.nodes import COMMAND
from tests.crash.test_compaction_kill import ORDERS, fill, view
from tests.patience import PROCESS_S_MAX
from tests.topic_life import strays

if TYPE_CHECKING:
    from pathlib import Path

PACES = {
    "index": {"compaction_read_bytes_per_s": 100_000},
    "survivors": {},
    "dead sets": {},
    "rewrite": {"compaction_write_bytes_per_s": 5_000},
}
"""The phases in which a run is killed; the rates make the longer ones last some seconds."""


class Command:
    """A run, as it is seen on the terminal that it shows its progress on."""

    def __init__(self, data: Path) -> None:
        self._terminal, shown = pty.openpty()
        at = ("--data", data, "--master", "local[2,4]")
        self.process = subprocess.Popen(
            [COMMAND, "topics", "compact", "orders", *at],
            stdout=subprocess.DEVNULL,
            stderr=shown,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm"},
        )
        os.close(shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.wait_for_all()
        os.close(self._terminal)

    def _read(self) -> bytes:
        """What is shown next; nothing once all that could show something have ended."""
        changed, _, _ = select.select([self._terminal], [], [], PROCESS_S_MAX)
        assert changed, "nothing is shown, and a process is left that could"
        try:
            return os.read(self._terminal, 65536)
        except OSError:
            return b""

    def reach(self, phase: str) -> bool:
        """Wait until it says that it is there; False if it ended before."""
        shown = b""
        while f"orders  {phase}".encode() not in shown:
            more = self._read()
            if not more:
                return False
            shown = shown[-100:] + more
        return True

    def kill(self, steps: int) -> None:
        """The driver alone, when so much more has happened."""
        for _ in range(steps):
            self._read()
        self.process.kill()
        self.process.wait()

    def wait_for_all(self) -> None:
        """Until no process is left that could still write."""
        while self._read():
            pass


def set_pace(data: Path, settings: dict[str, int]) -> None:
    name, namespace = Namespace("public", "default"), NamespaceDefinition(dict(settings))
    with lithify.open(str(data)) as node:
        node.topics.definitions.change(lambda all_: all_.with_namespace(name, namespace))


@pytest.mark.parametrize("rounds", [1, pytest.param(16, marks=pytest.mark.slow)])
def test_a_killed_driver_leaves_what_the_next_run_ends(tmp_path: Path, rounds: int) -> None:
    rng, oracle = random.Random(411), dict[bytes, bytes]()
    ends: Counter[str] = Counter()
    for number in range(rounds):
        fill(tmp_path, rng, oracle)
        # The last is killed while it rewrites: that is what leaves a journal.
        phase = list(PACES)[(number - rounds) % len(PACES)]
        set_pace(tmp_path, PACES[phase])
        with Command(tmp_path) as run:
            ends[phase] += run.reach(phase)
            run.kill(rng.randrange(4))
            if number % 2:
                run.wait_for_all()
            left = {key: value for key, value in view(tmp_path).items() if value}
            assert left == oracle, f"round {number}: the old view, and the log above it"
    assert ends["rewrite"] == -(-rounds // len(PACES))
    log = tmp_path / "topics/public/default/orders/log"
    assert (log / JOURNAL).exists()

    set_pace(tmp_path, {})
    with lithify.open(str(tmp_path)) as node:
        topic = node.topics.get(ORDERS)
        assert "interrupted" in topic.compaction.status().error
        topic.compact()
        assert topic.compaction.history.newest(1)[0].result == "done"
        while topic.compact().result != "nothing to do":
            pass
        topic.log.reclaim()
        assert not strays(LocalFileSystem(), str(log), topic.log.manifest)
    assert view(tmp_path) == oracle
    assert verify_log(LocalFileSystem(), str(log)).damage is None
