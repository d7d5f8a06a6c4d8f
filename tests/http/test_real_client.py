"""The real Pulsar client with an http:// service URL, against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import at_most

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60


def test_a_client_with_an_http_address(tmp_path: Path) -> None:
    # The client is C++ underneath and can take its process down, so it has one of its own.
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.http.server", str(tmp_path / "data")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdout is not None
        with at_most(SECONDS_MAX, server.kill):
            _, port = server.stdout.readline().split()
        client = subprocess.run(
            [sys.executable, "-m", "tests.http.client", f"http://127.0.0.1:{port}"],
            cwd=ROOT,
            timeout=SECONDS_MAX,
            check=False,
            capture_output=True,
            text=True,
        )
        with at_most(SECONDS_MAX, server.kill):
            server.communicate()
    assert client.returncode == 0, client.stdout + client.stderr
    assert server.returncode == 0
