"""The nodes of a cluster, each a `lithify serve` of its own; directories and ports outlive them."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.forked_processes import ForkedProcess, run_command
from tests.patience import PROCESS_S_MAX, at_most, wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
SECRET = b"a secret of sixteen bytes or more"


class Member:
    """A process; its directory and port outlive it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.port = free_port()
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.pulsar_port = 0
        self.ready_s = PROCESS_S_MAX
        """The limit of a wait until it is ready."""
        self.program = "lithify"
        """The module that runs `serve`."""
        self.environ: dict[str, str] = {}
        # Connections of a killed node are not used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(timeout=PROCESS_S_MAX, limits=limits)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, others: list[Member], *options: str) -> None:
        config = self.directory / "lithify.toml"
        peers = [part for each in others for part in ("--peer", f"{each.name}={each.address}")]
        given = ["--data", str(self.directory / self.name), "--config", str(config)]
        given += ["--pulsar-port", str(self.pulsar_port), "--http-port", "0"]
        given += ["--node", self.name, "--cluster-port", str(self.port), *peers, *options]
        with self.log.open("a") as log:
            self.process = ForkedProcess(
                self.program,
                ["serve", *given],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self.environ,
            )

    def await_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        with at_most(self.ready_s, self.process.kill):
            lines = [self.process.stdout.readline() for _ in range(3)]
        assert lines[2] == f"cluster  {self.address}\n", self.log.read_text()
        self.url = lines[1].removeprefix("http").strip()

    def await_logged(self, text: str) -> None:
        """Until it has said something."""
        wait_until(lambda: text in self.log.read_text())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal that does not end it."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=PROCESS_S_MAX)
        code, self.process = self.process.returncode, None
        return code

    def close(self) -> None:
        self._http.close()
        if self.process is not None:
            self.end(signal.SIGKILL)

    def ask(self, path: str) -> httpx.Response:
        """The answer to a request for something."""
        return self._http.get(f"{self.url}{path}")

    def get(self, path: str) -> Any:
        """The JSON of an answer that must be good."""
        answer = self.ask(path)
        assert answer.is_success, answer.text
        return answer.json()

    def run(self, *words: str, stdin: bytes = b"") -> str:
        """What a command that is sent to this node prints; it must succeed."""
        code, out, err = self.try_run(*words, stdin=stdin)
        assert code == 0, (words, err)
        return out

    def try_run(self, *words: str, stdin: bytes = b"", at_url: bool = True) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of a command that is sent to this node, or as it is."""
        at = ("--url", self.url) if at_url else ()
        done = run_command([*words, *at], stdin=stdin, timeout=PROCESS_S_MAX)
        return done.returncode, done.stdout.decode(), done.stderr.decode()


@contextmanager
def members(directory: Path, count: int, **settings: int | str) -> Iterator[list[Member]]:
    """Nodes that are not started yet; they share a secret and other settings."""
    secret = directory / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    lines = [f'cluster_secret_file = "{secret}"']
    lines += [f"{name} = {value}" for name, value in settings.items()]
    (directory / "lithify.toml").write_text("\n".join(lines) + "\n")
    found = [Member(directory, f"n{number}") for number in range(1, count + 1)]
    with ExitStack() as stack:
        for each in found:
            stack.callback(each.close)
        yield found


def start_all(nodes: list[Member]) -> None:
    """Start nodes as the first members of a cluster."""
    for each in nodes:
        each.start([other for other in nodes if other is not each])
    for each in nodes:
        each.await_ready()
