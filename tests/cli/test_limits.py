"""A node keeps the limits that its settings name, seen by the real client."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.nodes import served
from tests.patience import PROCESS_S_MAX

CLIENT = Path(__file__).with_name("limits_client.py")


@pytest.mark.parametrize(
    ("story", "settings"),
    [
        ("retention", {"LITHIFY_SEGMENT_BYTES_MAX": "4096", "LITHIFY_RETENTION_BYTES": "8192"}),
        ("ttl", {"LITHIFY_MESSAGE_TTL_MS": "3000"}),
        ("quota", {"LITHIFY_BACKLOG_BYTES_MAX": "10000"}),
    ],
)
def test_a_serving_node_keeps_its_limits(
    tmp_path: Path, story: str, settings: dict[str, str]
) -> None:
    with served(tmp_path / "data", **settings) as node:
        client = [sys.executable, str(CLIENT), story, node.pulsar, node.http]
        ended = subprocess.run(
            client, capture_output=True, text=True, timeout=PROCESS_S_MAX, check=False
        )
        code, _, log = node.end(signal.SIGTERM)
    assert ended.returncode == 0, ended.stdout + ended.stderr + log
    assert code == 0
    assert "Traceback" not in log
    assert "level=warning" not in log
