"""A watched node in a process of its own, and what it can be asked about itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


class WatchedNode:
    """A node that measures its event loop; see `watched_node.py`."""

    def __init__(self, *command: object, **settings: Any) -> None:
        environ = {f"LITHIFY_{name.upper()}": str(value) for name, value in settings.items()}
        self._log = TemporaryFile("w+")  # noqa: SIM115  (closed by `close`)
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("watched_node.py"), *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                **environ,
            },
        )
        self.port = int(self._line().rpartition(":")[2])
        """For Pulsar clients, or for those of a Raft node."""
        self.http_port = 0 if "raft" in command else int(self._line().rpartition(":")[2])

    def _line(self) -> str:
        assert self._process.stdout is not None
        with at_most(PROCESS_S_MAX, self._process.kill):
            line = self._process.stdout.readline()
        assert line, self.logged()
        return line

    def longest_hold(self) -> tuple[float, str]:
        """(ms of CPU time, callback) of the longest callback of the loop since the last call."""
        said = self._ask()
        return said["ms"], said["what"]

    def longest_iteration_ms(self) -> float:
        """CPU time of the longest iteration of the loop since the last call of this or that."""
        ms: float = self._ask()["iteration_ms"]
        return ms

    def _ask(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said: dict[str, Any] = json.loads(self._line())
        return said

    @property
    def memory_bytes(self) -> int:
        """What it keeps in memory now."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def sockets(self) -> int:
        """How many sockets it has, those that it listens at included."""
        links = Path(f"/proc/{self._process.pid}/fd").iterdir()
        return sum(_is_socket(link) for link in links)

    def logged(self) -> str:
        """What it has logged."""
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        with self._log, self._process:
            self._process.kill()


def _is_socket(link: Path) -> bool:
    try:
        return os.readlink(link).startswith("socket:")
    except FileNotFoundError:
        return False


@contextmanager
def watched_node(data: Path, **settings: Any) -> Iterator[WatchedNode]:
    """A `lithify serve` on free ports that is gone when the block ends."""
    ports = ("--pulsar-port", "0", "--http-port", "0")
    with closing(WatchedNode("serve", "--data", data, *ports, **settings)) as node:
        yield node


@contextmanager
def watched_raft_node(data: Path) -> Iterator[WatchedNode]:
    """A `lithify raft serve` alone in its group, on a free port."""
    given = ("--id", "n1", "--listen", "127.0.0.1:0", "--data", data)
    with closing(WatchedNode("raft", "serve", *given)) as node:
        yield node
