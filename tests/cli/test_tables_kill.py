"""Tables on three real nodes that are killed and restarted under writes and transactions."""

from __future__ import annotations

import itertools
import json
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.cli.cluster_members import Member, members, start_all
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path

WRITERS = 3
TICK_MS = 50
COUNTER = -1
ROW = "/tables/t/row"
MAY_FAIL = (404, 409, 503, 504)
"""A transaction is gone with its node; a conflict; nothing happened; unknown."""


class Writers:
    """Threads that put rows and increment a counter at all nodes."""

    def __init__(self, nodes: list[Member]) -> None:
        self._nodes = nodes
        self._numbers = itertools.count()
        self._ended = threading.Event()
        self.put: set[int] = set()
        """Acknowledged rows."""
        self.increments = 0
        """Acknowledged ones."""
        self.unknown = 0
        """Increments that may have happened."""
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> int:
        return len(self.put) + self.increments

    def _write(self) -> None:
        while not self._ended.is_set():
            number = next(self._numbers)
            url = self._nodes[number % len(self._nodes)].url
            with httpx.Client(base_url=url, timeout=PROCESS_S_MAX) as client:
                try:
                    if number % 3:
                        row = {"id": number, "n": number % 10}
                        if self._is_done(client.post("/tables/t/rows", json=row)):
                            self.put.add(number)
                    else:
                        self._increment(client)
                except httpx.HTTPError:
                    # The node was killed: the outcome is not known.
                    time.sleep(0.05)

    def _increment(self, client: httpx.Client) -> None:
        begun = client.post("/tables/transactions", json={})
        if not self._is_done(begun):
            return
        given = {"tx": begun.json()["id"]}
        found = client.get(ROW, params={"key": json.dumps({"id": COUNTER}), **given})
        if not self._is_done(found):
            return
        row = {"id": COUNTER, "n": found.json()["n"] + 1}
        if not self._is_done(client.post("/tables/t/rows", json=row, params=given)):
            return
        with self._lock:
            self.unknown += 1
        ended = client.post(f"/tables/transactions/{given['tx']}/commit")
        with self._lock:
            self.unknown -= ended.status_code != 504
            self.increments += self._is_done(ended)

    @staticmethod
    def _is_done(answer: httpx.Response) -> bool:
        assert answer.is_success or answer.status_code in MAY_FAIL, answer.text
        return answer.is_success

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def rows_at(node: Member, **asked: Any) -> dict[int, int]:
    headers = {"accept": "application/x-ndjson"}
    url = f"{node.url}/tables/t/rows"
    answer = httpx.get(url, params=asked, headers=headers, timeout=PROCESS_S_MAX)
    assert answer.is_success, answer.text
    return {row["id"]: row["n"] for row in map(json.loads, answer.text.splitlines())}


def is_indexed(node: Member) -> bool:
    return [each["status"] for each in node.get("/tables/t")["indexes"]] == ["available"]


def check(nodes: list[Member], writers: Writers) -> None:
    wait_until(lambda: is_indexed(nodes[0]))
    for node in nodes:
        rows = rows_at(node)
        assert writers.put <= rows.keys()
        assert writers.increments <= rows[COUNTER] <= writers.increments + writers.unknown
        indexed: dict[int, int] = {}
        for value in set(rows.values()):
            prefix = json.dumps({"n": value})
            indexed |= rows_at(node, index="by_n", prefix=prefix)
        assert indexed == rows


def kill_and_restart(directory: Path, rng: random.Random, rounds: int) -> None:
    with members(directory, 3, tick_ms=TICK_MS) as nodes:
        start_all(nodes)
        zone = directory / "zone.toml"
        zone.write_text("[zones.z]\npartitions = 3\nreplicas = 3\n")
        nodes[0].run("catalog", "apply", str(zone))
        columns = ("--column", "id:int64", "--column", "n:int64")
        nodes[0].run("tables", "create", "t", *columns, "--key", "id", "--zone", "z")
        nodes[0].run("tables", "put", "t", f"id={COUNTER}", "n=0")
        writers = Writers(nodes)
        try:
            for number in range(rounds):
                killed = rng.choice(nodes)
                before = writers.done
                wait_until(lambda before=before: writers.done > before + 20)  # type: ignore[misc]
                if not number:
                    nodes[0].run("tables", "index", "create", "t", "by_n", "--column", "n")
                killed.end(signal.SIGKILL)
                before = writers.done
                wait_until(lambda before=before: writers.done > before + 20)  # type: ignore[misc]
                killed.start([other for other in nodes if other is not killed])
                killed.await_ready()
        finally:
            writers.end()
        assert writers.increments
        check(nodes, writers)


def test_acknowledged_rows_and_transactions_survive_kills_of_any_node(tmp_path: Path) -> None:
    kill_and_restart(tmp_path, random.Random(16), rounds=3)


@pytest.mark.slow
def test_acknowledged_rows_and_transactions_survive_minutes_of_kills(tmp_path: Path) -> None:
    kill_and_restart(tmp_path, random.Random(1600), rounds=30)
