"""Installed by root, and run by a user who has no home and cannot write to the package."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lithify.cache_directories import is_trusted
from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
NOBODY = 65534
SPARK_CHILD = """
import sys
import lithify
from lithify.pipeline.jobs import SparkJobs
from lithify.pipeline.session import open_session
from lithify.topics.compaction.topic_compaction import TOPIC_TASKS
with lithify.open(sys.argv[1]) as node:
    topic = node.topics.get("persistent://public/default/orders")
    topic.log.roll()
    session = open_session("local[2,4]", preload=TOPIC_TASKS)
    topic.compaction.run("test", SparkJobs(session, small_weight=0))
    session.stop()
    print(topic.compaction.status().row()["status"])
"""


def interpreter() -> str:
    """A Python of this version that every user may run."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path in (Path(sys.executable).resolve(), Path(f"/usr/bin/python{version}")):
        if path.exists() and all(each.stat().st_mode & 0o001 for each in (path, *path.parents)):
            return str(path)
    pytest.skip("no Python of this version that other users may run")


class Service:
    """Commands of a user without a home, on a data directory of that user."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.data.mkdir(mode=0o700)
        os.chown(self.data, NOBODY, NOBODY)
        self._environ = {
            "HOME": "/nonexistent",
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), *filter(None, sys.path), str(ROOT))),
        }

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [interpreter(), *map(str, arguments)],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object, given: str = "") -> tuple[str, str]:
        """(stdout, stderr) of a command that succeeds."""
        process = self.start(*arguments)
        # Several processes compile all kernels.
        with at_most(3 * PROCESS_S_MAX, process.kill):
            out, problems = process.communicate(given)
        assert process.returncode == 0, problems
        assert "Traceback" not in problems
        return out, problems

    def compiled(self) -> set[str]:
        return {path.name for path in (self.data / "kernels").rglob("*.nbc")}


@pytest.fixture
def service() -> Iterator[Service]:
    if os.geteuid():
        pytest.skip("only root can become another user")
    # The temporary directory of the tests is closed to other users.
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Service(Path(directory))


def test_a_command_keeps_what_it_compiles_in_the_data_directory(service: Service) -> None:
    at = ("--data", service.data)
    service.run("-m", "lithify", "topics", "create", "orders", *at)
    service.run("-m", "lithify", "topics", "produce", "orders", *at, given="a\nb\n")
    out, _ = service.run("-m", "lithify", "topics", "tail", "orders", *at)
    assert out.splitlines()[-1].endswith("b")
    assert service.compiled()


@pytest.mark.slow
def test_a_node_and_the_workers_of_spark_keep_what_they_compile(service: Service) -> None:
    at = ("--data", service.data)
    service.run("-m", "lithify", "topics", "create", "orders", *at)
    service.run("-m", "lithify", "topics", "produce", "orders", *at, given="a\nb\n")
    out, _ = service.run("-c", SPARK_CHILD, service.data)
    assert out == "SUCCESS\n"
    compiled = service.compiled()
    assert any(name.startswith("newest_and_tombstone_kernels") for name in compiled), compiled
    ports = ("--pulsar-port", "0", "--http-port", "0")
    for _ in range(2):
        process = service.start("-m", "lithify", "serve", *at, *ports)
        assert process.stdout is not None
        with at_most(PROCESS_S_MAX, process.kill):
            ready = [process.stdout.readline() for _ in range(2)]
        process.terminate()
        _, logged = process.communicate(timeout=PROCESS_S_MAX)
        assert ready[1].startswith("http"), logged
        assert f'compiled code is cached in the data directory" directory={service.data}' in logged
        assert "Traceback" not in logged
    assert "compiling" not in logged, "the second start finds what the first one has kept"


def test_code_is_not_loaded_from_where_another_user_can_write(tmp_path: Path) -> None:
    assert is_trusted(f"{tmp_path}/a/b")
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700
    for mode in (0o720, 0o702):
        (tmp_path / "a/b").chmod(mode)
        assert not is_trusted(f"{tmp_path}/a/b"), oct(mode)
        (tmp_path / "a/b").chmod(0o700)
        (tmp_path / "a").chmod(mode)
        assert not is_trusted(f"{tmp_path}/a/b"), oct(mode)
        (tmp_path / "a").chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert is_trusted(f"{tmp_path}/link/b")
    (tmp_path / "file").touch()
    assert not is_trusted(f"{tmp_path}/file")
    if os.geteuid() == 0:
        os.chown(tmp_path / "a/b", NOBODY, NOBODY)
        assert not is_trusted(f"{tmp_path}/a/b")


def test_a_cache_that_another_user_can_write_to_is_not_used(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    planted.chmod(0o777)
    program = (
        "from lithify.log.segments import frame_kernels as kernels\n"
        "from numba.core.dispatcher import Dispatcher\n"
        "print({each._cache.cache_path for each in vars(kernels).values()"
        " if isinstance(each, Dispatcher)})"
    )
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(planted)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert "pycache" in found or "kernels" in found
    assert str(planted) not in found
