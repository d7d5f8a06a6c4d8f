"""A node, and the worker of a node, are killed with SIGKILL during a run.

What was compacted before continues to be served, and the next run ends with what a dictionary says.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx

import lithify
from lithify.topics.definitions.topic_names import TopicName
from tests.cli.nodes import Served, served
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.topics.definitions.definitions import Definitions

ORDERS = "persistent://public/default/orders"
AT = "/admin/v2/persistent/public/default/orders"
SLOW_TO_READ = {"compaction_read_bytes_per_s": 20_000}
SLOW_TO_WRITE = {"compaction_write_bytes_per_s": 5_000}


class Admin:
    """What is asked of a node in these stories."""

    def __init__(self, node: Served) -> None:
        self._http = httpx.Client(base_url=f"{node.http}{AT}", timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def progress(self) -> dict[str, Any]:
        [row] = self._http.get("/compaction/progress").raise_for_status().json()
        found: dict[str, Any] = row
        return found

    def begin(self, settings: dict[str, Any]) -> None:
        self._http.delete("/compactionSettings").raise_for_status()
        self._http.post("/compactionSettings", json=settings).raise_for_status()
        self._http.put("/compaction").raise_for_status()

    def watch(self) -> Iterator[dict[str, Any]]:
        """Until the run is over."""
        while True:
            row = self.progress()
            yield row
            if row["status"] != "RUNNING":
                return

    def reach(self, phase: str) -> None:
        """Wait until a task of a phase has begun."""
        for row in self.watch():
            if row["phase"] == phase:
                return
        raise AssertionError(f"the run is over: {row}")


def fill(data: Path, rng: random.Random, oracle: dict[bytes, bytes]) -> None:
    with lithify.open(str(data), durability="none") as node:
        topic = node.topics.get(ORDERS, create=True)
        for _ in range(3000):
            key, value = f"k{rng.randrange(200)}", rng.randbytes(100)
            gone = rng.random() < 0.1
            topic.append(key=key, value=None if gone else value)
            if gone:
                oracle.pop(key.encode(), None)
            else:
                oracle[key.encode()] = value


def view(data: Path) -> dict[bytes | None, bytes | None]:
    with lithify.open(str(data)) as node:
        return {each.key: each.value for each in node.topics.get(ORDERS).read(compacted=True)}


def worker_of(node: Served) -> int:
    threads = Path(f"/proc/{node.process.pid}/task").glob("*/children")
    children = [child for path in threads for child in path.read_text().split()]
    [worker] = [
        int(each)
        for each in children
        if b"lithify.pipeline.session_process" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    return worker


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def at_full_speed(definitions: Definitions) -> Definitions:
    name = TopicName.parse(ORDERS)
    return definitions.with_topic(name, replace(definitions.topics[str(name)], settings={}))


def test_a_killed_worker_and_a_killed_node_leave_the_old_view_and_the_next_run_works(
    tmp_path: Path,
) -> None:
    rng, oracle = random.Random(2026), dict[bytes, bytes]()
    fill(tmp_path, rng, oracle)
    with lithify.open(str(tmp_path)) as library:
        assert library.topics.get(ORDERS).compact().result == "done"
    assert view(tmp_path) == oracle
    fill(tmp_path, rng, oracle)

    with served(tmp_path) as node, Admin(node) as admin:
        admin.begin(SLOW_TO_READ)
        admin.reach("index")
        os.kill(worker_of(node), signal.SIGKILL)
        *_, last = admin.watch()
        assert last["status"] == "ERROR"
        assert "worker process exited" in last["lastError"]
        admin.begin(SLOW_TO_WRITE)
        admin.reach("rewrite")
        worker = worker_of(node)
        node.process.kill()
        node.process.communicate()
    # Its worker hears that the node hung up, and ends by itself.
    wait_until(lambda: not is_alive(worker))
    compacted = view(tmp_path)
    assert {k: v for k, v in compacted.items() if v} == oracle, "the old view and the log above it"

    with lithify.open(str(tmp_path)) as library:
        topic = library.topics.get(ORDERS)
        assert "interrupted" in topic.compaction.status().error
        library.topics.definitions.change(at_full_speed)
        topic.compact()
        newest = topic.compaction.history.newest(10)
        assert [each.result for each in newest] == ["done", "failed", "done"]
    assert view(tmp_path) == oracle
