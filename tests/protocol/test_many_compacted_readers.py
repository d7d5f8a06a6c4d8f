"""Ten producers, ten compacted readers, and run after run, through a node as users start it.

Real clients in processes of their own, runs over HTTP, one after the other. Each reader must end
with the newest value of each key, by the ids that the producers got.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.nodes import Served, served
from tests.patience import PROCESS_S_MAX, at_most

ROOT = Path(__file__).parents[2]
TOPIC = "public/default/crowd"
AT = f"/admin/v2/persistent/{TOPIC}"
END_SECONDS_MAX = 120


class Crowd:
    """The process of `many_compacted_readers.py`."""

    def __init__(self, node: Served, log: Path, what: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("many_compacted_readers.py")),
                node.pulsar,
                f"persistent://{TOPIC}",
                str(log),
                what,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        with at_most(PROCESS_S_MAX, self.process.kill):
            assert self.process.stdout.readline() == "ready\n"

    def end(self) -> Any:
        """What it has to say at the end."""
        out, _ = self.process.communicate("end\n", timeout=END_SECONDS_MAX)
        assert self.process.returncode == 0
        return json.loads(out)


def compact(client: httpx.Client) -> None:
    """A run, from its request to its end."""
    answer = client.put(f"{AT}/compaction")
    assert answer.status_code == 204, answer.text
    while (status := client.get(f"{AT}/compaction").json())["status"] == "RUNNING":
        time.sleep(0.02)  # The end of a run is not notified.
    assert status["status"] == "SUCCESS", status


@pytest.mark.parametrize("seconds", [5, pytest.param(120, marks=pytest.mark.slow)])
def test_ten_readers_end_with_what_ten_producers_have_left(tmp_path: Path, seconds: int) -> None:
    with (
        served(tmp_path / "data") as node,
        ExitStack() as crowds,
        httpx.Client(base_url=node.http, timeout=PROCESS_S_MAX) as client,
    ):
        # The worker is started by the first run: here, where it has the processor.
        first = {"messages": [{"key": "first", "payload": "of all"}]}
        assert client.post(f"/topics/persistent/{TOPIC}", json=first).status_code == 200
        compact(client)
        producers = Crowd(node, tmp_path / "producers.log", "produce")
        readers = Crowd(node, tmp_path / "readers.log", "read")
        for crowd in (producers, readers):
            crowds.enter_context(crowd.process)
            crowds.callback(crowd.process.kill)
        producers.wait_until_ready()
        readers.wait_until_ready()
        begin, runs = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            compact(client)
            runs += 1
        made = producers.end()
        # The last deletes are gone from the view before the slow ones have come to them.
        compact(client)
        found = readers.end()
        _, _, logged = node.end(signal.SIGTERM)
    expected = {"first": "of all"}
    expected |= {key: value for key, (_, value) in made["newest"].items() if value is not None}
    lives, read = (sum(each[name] for each in found) for name in ("lives", "read"))
    print(f"{runs + 1} runs, {made['sent']} sent, {read} read in {lives} lives of ten readers")
    assert len(expected) > 10
    assert [each["map"] for each in found] == [expected] * len(found)
    assert lives > len(found)
    assert runs > 1
    assert "Traceback" not in logged, logged
