"""Tables on three real nodes that are killed, paused and restarted, for minutes, under everything.

Under transactions, index builds and changes of definitions. At the end every acknowledged row is
there, the transactions of each partition are serialisable, and each index is equal to its rows.
After each recovery the history of the catalog is trimmed again, and what is live stays small.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.append_lists import problem_of
from tests.cli.cluster_members import Member, members, start_all
from tests.cli.table_clients import LISTS, NOTE, PARTITIONS, PUTTING, ROWS, Clients
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))
LIVE_BYTES_MAX = 40 * PUTTING * ROWS * (len(NOTE) + 500)
"""Of all partitions of a node: versions of rows of the last moments, and of those that wait for the
next snapshot of their group. Without compaction of rows it is passed within a minute."""


def make_tables(node: Member, directory: Path) -> None:
    zone = directory / "zone.toml"
    zone.write_text(f"[zones.z]\npartitions = {PARTITIONS}\nreplicas = 3\n")
    node.run("catalog", "apply", str(zone))
    columns = [f"--column={each}" for each in ("id:int64", "n:int64", "note:string?")]
    node.run("tables", "create", "t", *columns, "--key", "id", "--zone", "z")
    columns = [f"--column={each}" for each in ("part:int32", "id:int64", "list:string")]
    keys = ("--key", "part", "--key", "id", "--partition-key", "part")
    node.run("tables", "create", "l", *columns, *keys, "--zone", "z")
    for key in range(LISTS):
        node.run("tables", "put", "l", f"part={key // 2}", f"id={key}", 'list="[]"')


def rows_at(node: Member, table: str, **asked: Any) -> list[dict[str, Any]]:
    headers = {"accept": "application/x-ndjson"}
    url = f"{node.url}/tables/{table}/rows"
    answer = httpx.get(url, params=asked, headers=headers, timeout=PROCESS_S_MAX)
    assert answer.is_success, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def indexes(node: Member) -> dict[str, Any]:
    return {each["name"]: each for each in node.get("/tables/t")["indexes"]}


def check_rows(nodes: list[Member], clients: Clients) -> None:
    wait_until(
        lambda: all(each["status"] == "available" for each in indexes(nodes[0]).values()),
        every_s=0.2,
    )
    for node in nodes:
        rows = {row["id"]: row for row in rows_at(node, "t")}
        for number, last in clients.put.items():
            assert last <= rows[number]["n"] <= clients.tried[number], (number, node.name)
        for name, index in indexes(node).items():
            prefixes = {tuple(row[each] for each in index["columns"]) for row in rows.values()}
            found = [
                row
                for values in prefixes
                for row in rows_at(
                    node,
                    "t",
                    index=name,
                    prefix=json.dumps(dict(zip(index["columns"], values, strict=True))),
                )
            ]
            assert sorted(found, key=lambda row: row["id"]) == [rows[each] for each in sorted(rows)]
        last_lists = {row["id"]: json.loads(row["list"]) for row in rows_at(node, "l")}
        assert problem_of(clients.txns, last_lists) == ""


def is_trimmed_past(node: Member, version: int) -> bool:
    """Is it after one more run?"""
    node.try_run("catalog", "compact")
    return bool(node.get("/cluster")["catalog"]["earliest"] >= version)


def live_bytes(node: Member) -> int:
    groups = node.get("/cluster/raft")["groups"]
    return sum(each["live_bytes"] for each in groups if each["group"].startswith("zone-"))


class Faults:
    """What happens to one node at a time."""

    def __init__(self, nodes: list[Member], rng: random.Random, clients: Clients) -> None:
        self.nodes = nodes
        self.rng = rng
        self.clients = clients
        self.counts: dict[str, int] = {}

    def go_on(self) -> None:
        """Until the clients have got further."""
        before = self.clients.done.total()

        def further() -> bool:
            return self.clients.done.total() > before + 15 or self.clients.failure is not None

        wait_until(further)
        assert self.clients.failure is None, self.clients.failure

    def one(self) -> None:
        node = self.rng.choice(self.nodes)
        kind = self.rng.choice(["kill", "kill", "pause", "restart"])
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "pause":
            node.send_signal(signal.SIGSTOP)
            try:
                time.sleep(self.rng.choice([0.5, 3, 12]))
            finally:
                node.send_signal(signal.SIGCONT)
        else:
            node.end(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            self.go_on()
            node.start([other for other in self.nodes if other is not node])
            node.await_ready()
        self.go_on()
        asked = self.rng.choice(self.nodes)
        target = asked.get("/cluster")["catalog"]["version"]
        try:
            wait_until(lambda: is_trimmed_past(asked, target), every_s=0.5)
        except AssertionError:
            pytest.fail(f"version {target}: {asked.run('catalog', 'compact', '--dry-run')}")


def live_through(directory: Path, rng: random.Random, seconds: float) -> None:
    settings = {
        "tick_ms": 50,
        "table_availability_ms": 1000,
        # What a client has left open holds the history for this time.
        "table_read_life_ms": 5000,
        "table_transaction_life_ms": 5000,
    }
    with members(directory, 3, **settings) as nodes:
        start_all(nodes)
        make_tables(nodes[0], directory)
        clients = Clients(nodes)
        faults = Faults(nodes, rng, clients)
        began = time.monotonic()
        try:
            while time.monotonic() < began + seconds:
                faults.go_on()
                faults.one()
                assert max(map(live_bytes, nodes)) < LIVE_BYTES_MAX
        finally:
            clients.end()
        check_rows(nodes, clients)
        print(faults.counts, dict(clients.done), list(map(live_bytes, nodes)), file=sys.stderr)


@pytest.mark.slow
def test_tables_live_through_kills_pauses_and_restarts(tmp_path: Path) -> None:
    live_through(tmp_path, random.Random(1616), SECONDS)
