"""Cases of the real Java client, `java/*.java`, each in a process of its own.

They need `java`, and `mvn` with a repository that has the client: without these they are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import PROCESS_S_MAX
from tests.protocol.harness import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

JAVA = Path(__file__).with_name("java")
RESOLVE_S_MAX = 300
"""The first run downloads the client."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"the Java client's cases need {' and '.join(missing)}")
    found = tmp_path_factory.mktemp("java") / "classpath"
    done = subprocess.run(
        ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={found}"],
        cwd=JAVA,
        capture_output=True,
        text=True,
        timeout=RESOLVE_S_MAX,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"Maven cannot resolve the Java client: {done.stdout.strip()[:500]}")
    return found.read_text().strip()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data")
    server.start()
    yield server
    server.kill()
    assert "Traceback" not in server.log, server.log


def run(class_path: str, case: str, *arguments: str) -> list[str]:
    """What a case prints, but for its log."""
    done = subprocess.run(
        ["java", "-cp", class_path, str(JAVA / f"{case}.java"), *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PROCESS_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_two_topics_of_one_application_have_retry_and_dead_letter_topics_of_their_own(
    class_path: str, broker: Server
) -> None:
    topics = [f"persistent://public/default/{name}" for name in ("orders", "invoices")]
    printed = run(class_path, "RetryTopics", f"pulsar://127.0.0.1:{broker.port}", *topics)
    for what in ("retried", "dead"):
        found = Counter(line for line in printed if line.startswith(what))
        wanted = Counter(f"{what} {topic} {topic}#{n}" for topic in topics for n in range(5))
        assert found == wanted, printed
