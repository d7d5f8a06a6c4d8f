"""A node is killed with SIGKILL in COPY and COMMIT, repeatedly, under load.

Producers, compacted readers and table views of the real client continue all the time, with a model
of every key (`keyed_clients.py`). Nothing that was acknowledged is lost, no key has a value older
than acknowledged, and no deleted key comes back.

From COMMIT to the end of a run it is a few milliseconds. A run that was over before its node was
killed is counted as late, and is not the kill that it should have been.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lithify
from lithify.compaction.run.journal import Phase
from lithify.fs import LocalFileSystem
from lithify.log.file_names import JOURNAL
from lithify.log.verify import verify_log
from lithify.pipeline.jobs import SMALL_WEIGHT
from tests.cli.nodes import served
from tests.crash.keyed_clients import BALLAST
from tests.crash.test_compaction_kill import ORDERS, Admin
from tests.patience import PROCESS_S_MAX, at_most
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.cli.nodes import Served

CLIENTS = "tests.crash.keyed_clients"
ROOT = Path(__file__).parents[2]
FS = LocalFileSystem()
END_S_MAX = 300
BALLAST_BYTES = 2**19
EVERYTHING = {"live_ratio_min": 1.0, "rewrite_bytes_max": 2**40}
"""Each run rewrites all of the view."""
RUNS_MAX = 20
"""Of one node, until COMMIT is seen in one of them."""
COMMIT, COMMIT_BYTES = b'"COMMIT"', 100
SLOW = {"compaction_write_bytes_per_s": 10_000}
SLOW_BALLAST = {"compaction_write_bytes_per_s": 20_000_000}


class Clients:
    """The process of `keyed_clients.py`."""

    def __init__(self, node: Served, log: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", CLIENTS, node.pulsar, ORDERS, str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        with at_most(PROCESS_S_MAX, self.process.kill):
            assert self.process.stdout.readline() == "ready\n"

    def end(self) -> dict[str, Any]:
        out, _ = self.process.communicate("end\n", timeout=END_S_MAX)
        assert self.process.returncode == 0, out
        found: dict[str, Any] = json.loads(out)
        return found


class Story:
    """A data directory and the nodes that serve it one after the other, at the same ports."""

    def __init__(self, data: Path, ballast: int) -> None:
        self.data = data
        self.log = f"{data}/topics/public/default/orders/log"
        self._ballast = ballast
        self._ports = [str(free_port()) for _ in range(2)]
        with lithify.open(str(data), durability="none") as node:
            topic = node.topics.create(ORDERS)
            for number in range(ballast):
                topic.append(key=f"{BALLAST}-{number}", value=b"x" * BALLAST_BYTES)

    def serve(self) -> Any:
        pulsar_port, http_port = self._ports
        return served(self.data, "--pulsar-port", pulsar_port, "--http-port", http_port)

    def kill_in(self, phase: Phase, node: Served) -> bool:
        """Kill the node in this phase of a run; False if the run was over before."""
        with Admin(node) as admin:
            if phase is Phase.COPY:
                slow = SLOW_BALLAST if self._ballast else SLOW
                before = self._begin(admin, {**EVERYTHING, **slow})
                reached = self._reach_copy(admin, before)
            else:
                reached = False
                for _ in range(RUNS_MAX):
                    self._begin(admin, EVERYTHING)
                    if reached := self._reach_commit(admin):
                        break
        node.end(signal.SIGKILL)
        return reached and FS.exists(f"{self.log}/{JOURNAL}")

    def _begin(self, admin: Admin, settings: dict[str, Any]) -> set[str]:
        """Begin a run; the targets that were there before it.

        The node may have taken up the last run by itself; then this one comes after it.
        """
        while admin.progress()["status"] == "RUNNING":
            time.sleep(0.05)
        before = self._targets()
        admin.begin(settings)
        return before

    def _targets(self) -> set[str]:
        """The segments that runs have made, or are making."""
        return {path.name for path in Path(self.log).glob("*-*.seg")}

    def _reach_copy(self, admin: Admin, before: set[str]) -> bool:
        """Until a target is being written, which takes seconds."""
        rows = admin.watch()
        return any(row["phase"] == "rewrite" and self._targets() - before for row in rows)

    def _reach_commit(self, admin: Admin) -> bool:
        """Until the journal says that all is copied."""
        journal, looked_s = Path(self.log, JOURNAL), time.monotonic()
        while True:
            with suppress(FileNotFoundError):
                if COMMIT in journal.read_bytes()[-COMMIT_BYTES:]:
                    return True
            if time.monotonic() - looked_s > 0.2:
                looked_s = time.monotonic()
                if admin.progress()["status"] != "RUNNING":
                    return False
            time.sleep(0.0002)  # Often enough, and the node needs the processor.

    def check_end(self) -> None:
        """What is left can be compacted, and is whole."""
        with lithify.open(str(self.data)) as node:
            topic = node.topics.get(ORDERS)
            while topic.compact().result != "nothing to do":
                pass
            keys = [message.key for message in topic.read(compacted=True)]
            assert len(keys) == len(set(keys))
        assert verify_log(FS, self.log).damage is None


@pytest.mark.parametrize(
    ("rounds", "ballast"), [(2, 0), pytest.param(12, 200, marks=pytest.mark.slow)]
)
def test_nothing_acknowledged_is_lost_and_nothing_deleted_comes_back(
    tmp_path: Path, rounds: int, ballast: int
) -> None:
    """With ballast a rewrite is a job of Spark, else the node's worker does it by itself."""
    assert not ballast or ballast * BALLAST_BYTES > SMALL_WEIGHT
    story = Story(tmp_path / "data", ballast)
    kills: Counter[Phase] = Counter()
    clients: Clients | None = None
    try:
        for number in range(rounds):
            phase = (Phase.COPY, Phase.COMMIT)[number % 2]
            with story.serve() as node:
                clients = clients or Clients(node, tmp_path / "clients.log")
                kills[phase] += story.kill_in(phase, node)
        assert clients is not None
        with story.serve() as node:
            found = clients.end()
            _, _, logged = node.end(signal.SIGTERM)
    finally:
        if clients is not None:
            clients.process.kill()
            clients.process.wait()
    print(f"killed in time: {dict(kills)}, {found}")
    assert found["violations"] == []
    assert found["acknowledged"] > 100
    assert found["reads"] > 0
    assert found["views"] > 0
    # One view is made at a time: while a node is killed, and perhaps while the next one starts.
    assert found["broken"] <= 2 * rounds
    assert kills[Phase.COPY] == rounds // 2
    assert kills[Phase.COMMIT] or not ballast
    assert "Traceback" not in logged, logged
    story.check_end()
