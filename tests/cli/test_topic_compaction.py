"""Compaction from the command line: at a node, and on a directory without a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest
from typer.testing import CliRunner

import lithify
from lithify.cli.main import app
from lithify.compaction.limits.one_run_per_disk import DiskGate
from lithify.exit_codes import CONFLICT, FAILED, UNREACHABLE, USAGE
from lithify.fs import LocalFileSystem
from tests.cli.nodes import COMMAND, served

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = "persistent://public/default/orders"


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITHIFY_URL", raising=False)


def topics(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["topics", *arguments])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["topics", *arguments])
    assert result.exit_code > 0
    return result.stderr


def fill(data: Path) -> None:
    with lithify.open(str(data)) as node:
        topic = node.topics.create(ORDERS)
        for number in range(100):
            topic.append(key=f"k{number % 10}", value=b"v%d" % number)


def watch_one_that_is_cancelled(url: str) -> None:
    """A run that takes ten seconds for as many kilobytes; others look on, and one stops it."""
    at = f"{url}/admin/v2/persistent/public/default/orders"
    slow = {"compaction_read_bytes_per_s": 1024}
    httpx.post(f"{at}/compactionSettings", json=slow).raise_for_status()
    httpx.put(f"{at}/compaction").raise_for_status()
    assert topics("compaction-status", "orders", "--url", url).startswith(f"{ORDERS}: ")
    waiting = httpx.put(f"{at}/compaction").headers["x-lithify-request"]

    def stop() -> None:
        while httpx.get(f"{at}/compaction/progress").json()[0]["phase"] != "index":
            pass
        assert "is being cancelled" in topics("cancel-compaction", "orders", "--url", url)

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert "cancelled" in refused("compaction-status", "orders", "--watch", "--url", url)
    stopping.join()
    [row] = httpx.get(f"{at}/compaction/progress?request={waiting}").json()
    assert "cancelled before it began" in row["lastError"]
    assert "no run" in refused("cancel-compaction", "orders", "--url", url)
    httpx.delete(f"{at}/compactionSettings").raise_for_status()


def test_compaction_at_a_node_is_requested_watched_and_listed(tmp_path: Path) -> None:
    fill(tmp_path)
    with served(tmp_path) as node:
        at = ("--url", node.http)
        assert topics("compaction-status", "orders", *at) == f"{ORDERS}: has not been compacted\n"
        [planned] = json.loads(topics("compact", "orders", "--dry-run", "--json", *at))
        assert planned["text"].startswith("horizon 0:end, held by "), "no ledger is sealed yet"
        told = topics("compact", "orders", "--dry-run", *at).splitlines()
        assert told[0] == ORDERS
        assert told[-1].startswith("not included: 100 entries")
        assert topics("compaction-history", "orders", "--json", *at) == "[]\n", "it was no run"
        watch_one_that_is_cancelled(node.http)
        lines = topics("compact", "orders", *at).splitlines()
        assert lines[0].startswith(f"{ORDERS}: done in ")
        assert [line.split()[:3] for line in lines[2:4]] == [
            ["judged", "100"],
            ["dropped,", "superseded", "90"],
        ]
        assert "nothing to do" in topics("compact", "orders", *at)
        [status] = json.loads(topics("compaction-status", "orders", "--watch", "--json", *at))
        assert status["status"] == "SUCCESS"
        history = topics("compaction-history", "orders", *at).splitlines()
        assert [(" done " in row, " cancelled " in row) for row in history[-2:]] == [
            (True, False),
            (False, True),
        ]
        assert topics("get", "orders", "k3", *at).endswith("  k3  v93\n")
        row = json.loads(topics("get", "orders", "k3", "--json", *at))
        assert (row["id"], row["value"]) == ("1:93", "v93")
        assert "no message of key 'x'" in refused("get", "orders", "x", *at)
        assert "--master" in refused("compact", "orders", "--master", "local", *at)
        assert "does not exist" in refused("compact", "nothing", *at)
        httpx.put(f"{node.http}/admin/v2/persistent/public/default/orders/compaction")
        code, _, _ = node.end(signal.SIGTERM)
        assert code == 0


def test_compaction_of_a_directory_without_a_node(tmp_path: Path) -> None:
    fill(tmp_path)
    at = ("--data", str(tmp_path))
    command = [str(COMMAND), "topics", "compact", "orders", "--master", "local[1,4]", "--json", *at]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    [status] = json.loads(done.stdout)
    report = status["report"]
    assert (report["read_messages"], report["kept_messages"]) == (100, 10)
    assert report["trigger"] == "admin"
    [row] = json.loads(topics("compaction-history", "orders", "--json", *at))
    assert row == {"topic": ORDERS} | report
    assert topics("get", "orders", "k3", *at).endswith("  k3  v93\n")
    assert "is not a data directory" in refused("compact", "orders", "--data", f"{tmp_path}/none")


def test_a_command_waits_for_another_process_or_is_refused(tmp_path: Path) -> None:
    """Another process has the disk: this one, in a directory of its own for the gate."""
    data, runtime = tmp_path / "data", tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    fill(data)
    fs = LocalFileSystem()
    command = [str(COMMAND), "topics", "compact", "orders", "--data", str(data)]
    environ = os.environ | {"XDG_RUNTIME_DIR": str(runtime)}
    gate = DiskGate(fs, f"{runtime}/lithify")
    with ExitStack() as stack:
        with gate.enter(str(data), "pid 7 compacts public/default/other"):
            done = subprocess.run(
                [*command, "--no-wait"], capture_output=True, text=True, env=environ, check=False
            )
            assert done.returncode == CONFLICT
            assert "compaction refused (disk): pid 7 compacts public/default/other" in done.stderr
            waiting = stack.enter_context(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
                )
            )
            assert waiting.stderr is not None
            expected = f"{ORDERS}: waiting for disk: pid 7 compacts public/default/other\n"
            # Java may have warned of something before.
            assert any(line.endswith(expected) for line in waiting.stderr)
        told, _ = waiting.communicate()
    assert waiting.returncode == 0
    assert f"{ORDERS}: done in " in told


NO_SPARK = "Spark did not start with master local[*,4] and --conf"
HEAP = "Invalid maximum heap size: -Xmxbanana"


@pytest.mark.parametrize(
    ("option", "value", "code", "line"),
    [
        ("--master", "nonsense", USAGE, "setting --master is 'nonsense', must be local, "),
        ("--conf", "spark.x", USAGE, "setting --conf is 'spark.x', must be KEY=VALUE"),
        ("--master", "spark://127.0.0.1:1", UNREACHABLE, "no Spark master answers at spark://"),
        ("--conf", "spark.driver.memory=banana", FAILED, f"{NO_SPARK} spark.driver.memory: {HEAP}"),
        pytest.param(
            *("--conf", "spark.executor.cores=x", FAILED),
            f"{NO_SPARK} spark.executor.cores: org.apache.spark.SparkException: Executor cores ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("--conf", "spark.driver.extraJavaOptions=-Xmx1g", FAILED),
            f"{NO_SPARK} spark.driver.extraJavaOptions: Not allowed to specify max heap(Xmx) ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_invalid_master_is_one_line_and_an_exit_code(
    tmp_path: Path, option: str, value: str, code: int, line: str
) -> None:
    fill(tmp_path)
    command = [str(COMMAND), "topics", "compact", "orders", option, value, "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == code
    assert done.stderr.startswith(f"lithify: error: {line}")
    assert done.stderr.count("\n") == 1
