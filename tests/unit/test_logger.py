"""Records of a process that has said nothing about them stay out of its output."""

from __future__ import annotations

import subprocess
import sys

import structlog

from lithify.logger import get_logger
from tests.patience import PROCESS_S_MAX

SERVING = """
import asyncio, socket
import lithify

async def main(node):
    stop = asyncio.Event()
    ready = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(node.serve(stop=stop, ready=ready.set_result))
    host, port = (await ready).pulsar.removeprefix("pulsar://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"this is no frame of the protocol, and the node says so in a record")
        await asyncio.to_thread(client.recv, 1)
    stop.set()
    await serving

with lithify.open("data", pulsar_port=0) as node:
    asyncio.run(main(node))
"""

# In a process of its own: other tests leave handlers, and threads that write records.
LISTENING = """
import logging
from lithify.logger import get_logger

class Keep(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

kept = Keep()
logging.getLogger().addHandler(kept)
logging.getLogger("lithify").setLevel(logging.INFO)
log = get_logger("lithify.test")
log.info("opened", topic="orders")
try:
    int("x")
except ValueError:
    log.exception("failed")
first, second = kept.records
assert first.getMessage() == "opened topic='orders'"
assert (second.levelname, second.exc_info is not None) == ("ERROR", True)
"""


def test_a_node_in_the_callers_process_prints_nothing(tmp_path: object) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SERVING],
        cwd=str(tmp_path),
        capture_output=True,
        timeout=60,
        check=True,
        text=True,
    )
    assert (ran.stdout, ran.stderr) == ("", "")


def test_records_can_be_had_from_the_standard_library() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LISTENING],
        capture_output=True,
        timeout=PROCESS_S_MAX,
        check=True,
        text=True,
    )
    assert (ran.stdout, ran.stderr) == ("", "")


def test_a_process_that_configures_structlog_gets_them_there() -> None:
    with structlog.testing.capture_logs() as lines:
        get_logger("lithify.test").warning("closed", peer="p")
    structlog.reset_defaults()
    assert {"event": "closed", "peer": "p", "log_level": "warning"} in lines
