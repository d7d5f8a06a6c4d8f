"""How the tests are spread over processes, and what hypothesis expects of them."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer


FORWARDING = "lithify.node.log_lines.stderr_log"
"""The module of the handler that sends the standard library's records to structlog."""

# Compiled code is loaded by whichever example comes first, and the machine may be busy: neither how
# long an example takes is checked, nor how long it takes to make one.
settings.register_profile(
    "lithify", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("lithify")

# One run at a time may be on a disk, among processes that share a temporary directory. The
# processes of the tests have one each, so that none is refused because of another.
_TEMPORARY = tempfile.mkdtemp(prefix="lithify-tests-")
os.environ["TMPDIR"] = tempfile.tempdir = _TEMPORARY
atexit.register(shutil.rmtree, _TEMPORARY, ignore_errors=True)

# A shell that starts the tests in the background lets them ignore interrupts, and so would the
# commands that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class OneProcessForSpark(LoadScopeScheduling):
    """Any test goes to any process, but all Spark tests to the same, so that one JVM starts."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else nodeid


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three processes for two cores: a third of the time tests wait for disks and for clocks."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneProcessForSpark:
    return OneProcessForSpark(config, log)


@pytest.fixture(autouse=True)
def records_go_where_the_process_has_them() -> Iterator[None]:
    """What a test has configured about log lines ends with it."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, level, uvicorn_level = list(root.handlers), root.level, uvicorn.level
    yield
    structlog.reset_defaults()
    root.handlers = [each for each in root.handlers if type(each).__module__ != FORWARDING]
    root.handlers += [each for each in handlers if each not in root.handlers]
    root.setLevel(level)
    uvicorn.setLevel(uvicorn_level)
