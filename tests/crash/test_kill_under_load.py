"""A node is killed with SIGKILL in COPY, COMMIT and CLEANUP, repeatedly, under load.

Producers, compacted readers and table views of the real client continue all the time, with a model
of every key (`keyed_clients.py`). Nothing that was acknowledged is lost, no key has a value older
than acknowledged, and no deleted key comes back.

COPY takes seconds. From COMMIT to the end of a run it is a few milliseconds, so the run stops there
until its node is killed (`held_node.py`): in COMMIT before the manifest is replaced, in CLEANUP
after it. The clients continue meanwhile.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lithify
from lithify.compaction.run.journal import Journal, Phase
from lithify.fs import LocalFileSystem
from lithify.log.verify import verify_log
from lithify.pipeline.jobs import SMALL_WEIGHT
from tests.cli.nodes import Served
from tests.crash.keyed_clients import BALLAST
from tests.crash.test_compaction_kill import ORDERS, Admin
from tests.patience import PROCESS_S_MAX, at_most
from tests.ports import free_port

CLIENTS = "tests.crash.keyed_clients"
ROOT = Path(__file__).parents[2]
FS = LocalFileSystem()
END_S_MAX = 300
BALLAST_BYTES = 2**19
EVERYTHING = {"live_ratio_min": 1.0, "rewrite_bytes_max": 2**40}
"""Each run rewrites all of the view."""
PHASES = Phase.COPY, Phase.COMMIT, Phase.CLEANUP
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
        self._hold = data.with_name("hold")
        self._ports = [str(free_port()) for _ in range(2)]
        with lithify.open(str(data), durability="none") as node:
            topic = node.topics.create(ORDERS)
            for number in range(ballast):
                topic.append(key=f"{BALLAST}-{number}", value=b"x" * BALLAST_BYTES)

    def serve(self) -> Any:
        pulsar_port, http_port = self._ports
        options = ("--pulsar-port", pulsar_port, "--http-port", http_port)
        command = (sys.executable, str(ROOT / "tests/crash/held_node.py"), str(self._hold))
        return closing(Served(self.data, *options, command=command))

    def kill_in(self, phase: Phase, node: Served) -> None:
        """Kill the node in this phase of a run."""
        with Admin(node) as admin:
            if phase is Phase.COPY:
                self._reach_copy(admin)
            else:
                self._reach_hold(admin, phase)
        node.end(signal.SIGKILL)
        record = Journal(FS, self.log).read()
        assert record is not None, "the run was over"
        assert phase is Phase.COPY or record.phase is phase

    def _await_end(self, admin: Admin) -> None:
        """The node may have resumed the last run by itself."""
        while admin.progress()["status"] == "RUNNING":
            time.sleep(0.05)

    def _targets(self) -> set[str]:
        """The segments that runs have made, or are making."""
        return {path.name for path in Path(self.log).glob("*-*.seg")}

    def _reach_copy(self, admin: Admin) -> None:
        """Until a target is being written, which takes seconds."""
        self._await_end(admin)
        before = self._targets()
        admin.begin({**EVERYTHING, **(SLOW_BALLAST if self._ballast else SLOW)})
        rows = admin.watch()
        assert any(row["phase"] == "rewrite" and self._targets() - before for row in rows)

    def _reach_hold(self, admin: Admin, phase: Phase) -> None:
        """Until a run stops in a phase."""
        hold, reached = (Path(f"{self._hold}-{phase}{end}") for end in ("", "-reached"))
        self._await_end(admin)
        hold.touch()
        admin.begin(EVERYTHING)
        for _ in admin.watch():
            if reached.exists():
                break
            time.sleep(0.05)
        assert reached.exists(), f"the run is over: {admin.progress()}"
        hold.unlink()
        reached.unlink()

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
    ("rounds", "ballast"), [(3, 0), pytest.param(12, 200, marks=pytest.mark.slow)]
)
def test_nothing_acknowledged_is_lost_and_nothing_deleted_comes_back(
    tmp_path: Path, rounds: int, ballast: int
) -> None:
    """With ballast a rewrite is a job of Spark, else the node's worker does it by itself."""
    assert not ballast or ballast * BALLAST_BYTES > SMALL_WEIGHT
    story = Story(tmp_path / "data", ballast)
    clients: Clients | None = None
    try:
        for number in range(rounds):
            phase = PHASES[number % len(PHASES)]
            with story.serve() as node:
                clients = clients or Clients(node, tmp_path / "clients.log")
                story.kill_in(phase, node)
        assert clients is not None
        with story.serve() as node:
            found = clients.end()
            _, _, logged = node.end(signal.SIGTERM)
    finally:
        if clients is not None:
            clients.process.kill()
            clients.process.wait()
    assert found["violations"] == []
    assert found["acknowledged"] > 100
    assert found["reads"] > 0
    assert found["views"] > 0
    # One view is made at a time: while a node is killed, and perhaps while the next one starts.
    assert found["broken"] <= 2 * rounds
    assert "Traceback" not in logged, logged
    story.check_end()
