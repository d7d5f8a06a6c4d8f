"""Mixed puts, gets and deletes from several processes while the store is compacted repeatedly.

No answer is wrong and none is a 5xx. In the long version gets during compaction must have at most
three times the p99 of gets without; in the short one there are too few of them to say.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.cli.nodes import served
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

CAPACITY_BYTES = 2**33
SETTINGS = {"deleted_retention_ms": 500}


def carry_load(
    data: Path, seconds: float, clients: int, rest_s: float, segment_bytes: int
) -> tuple[Any, Any, Any]:
    """(what the clients told, when runs were in progress, reports)."""
    spans: list[tuple[float, float]] = []
    with served(data) as node, httpx.Client(base_url=node.http, timeout=PROCESS_S_MAX) as http:
        shape = {"capacity_bytes": CAPACITY_BYTES, "segment_bytes": segment_bytes}
        created = http.put("/blobs/photos", json=shape | {"settings": SETTINGS})
        assert created.status_code == 201
        # The first run waits for Spark to start: not in the middle of the load.
        run_once(http, [])
        began_s = time.monotonic()
        command = [sys.executable, "-m", "tests.http.blob_client", node.http, "photos"]
        processes = [
            subprocess.Popen([*command, str(seed)], stdin=PIPE, stdout=PIPE, text=True)
            for seed in range(clients)
        ]
        reports: list[Any] = []
        # On a busy machine it takes longer until there is something to compact.
        while time.monotonic() < began_s + seconds or not reports:
            assert time.monotonic() < began_s + seconds + PROCESS_S_MAX, "nothing was compacted"
            # That a run has nothing to do yet is no reason to ask again at once.
            time.sleep(rest_s)
            run_once(http, spans)
            reports = http.get("/blobs/photos/compaction/history").json()
        told = [json.loads(each.communicate()[0]) for each in processes]
    return told, spans, reports


def run_once(http: httpx.Client, spans: list[tuple[float, float]]) -> None:
    began_s = time.monotonic()
    while (answer := http.post("/blobs/photos/compaction", json={"policy": "all"})).is_error:
        # A store asks for its first run itself, when the node starts.
        assert answer.status_code == 409, answer.text
        time.sleep(0.05)
    while (found := http.get("/blobs/photos/compaction").json())["status"] == "RUNNING":
        time.sleep(0.05)
    assert found["status"] == "SUCCESS", found
    spans.append((began_s, time.monotonic()))


def p99_ms(took_s: list[float]) -> float:
    return sorted(took_s)[len(took_s) * 99 // 100] * 1000


def compared(told: Any, spans: Any) -> tuple[float, float]:
    """P99 of gets without compaction, and with."""
    gets = [(at, took) for each in told for at, took in each["gets"]]
    during = [took for at, took in gets if any(start <= at < stop for start, stop in spans)]
    without = [took for at, took in gets if not any(start <= at < stop for start, stop in spans)]
    print(f"{len(without)} gets without, {len(during)} during compaction")
    return p99_ms(without), p99_ms(during)


def test_a_mixed_load_gets_right_answers_while_the_store_is_compacted(tmp_path: Path) -> None:
    told, *_ = carry_load(tmp_path, seconds=6, clients=3, rest_s=1, segment_bytes=2**19)
    assert [each["wrong"] for each in told] == [[], [], []]
    assert sum(each["operations"] for each in told) > 50


@pytest.mark.slow
def test_ten_minutes_of_mixed_load_do_not_slow_gets_down_during_compaction(tmp_path: Path) -> None:
    told, spans, reports = carry_load(
        tmp_path, seconds=600, clients=4, rest_s=10, segment_bytes=2**24
    )
    assert [each["wrong"] for each in told] == [[]] * 4
    assert any(report["reclaimed_bytes"] for report in reports)
    without_ms, during_ms = compared(told, spans)
    print(f"p99 of gets: {without_ms:.1f} ms without, {during_ms:.1f} ms during compaction")
    assert during_ms <= 3 * without_ms
