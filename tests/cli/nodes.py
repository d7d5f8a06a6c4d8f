"""Nodes in processes of their own, started by the command as users do, and one without."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import uvicorn

import lithify
from lithify.blobs.replication.peers import BlobPeer, BlobPeers
from lithify.http import create_app
from lithify.pulsar.broker import Broker
from tests.forked_processes import ForkedProcess
from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Sequence

COMMAND = Path(sys.executable).parent / "lithify"


class Served:
    """A `lithify serve` in a process of its own, on free ports."""

    def __init__(
        self,
        data: Path,
        *options: str,
        stderr: int | None = None,
        files_max: int | None = None,
        command: Sequence[str] = (),
        **environ: str,
    ) -> None:
        """`files_max` is how many descriptors it may have; `command` runs another `lithify`."""
        ports = ("--pulsar-port", "0", "--http-port", "0")
        # A pipe without a reader takes some lines only.
        self._log = TemporaryFile("w+")  # noqa: SIM115  (closed by `close`)
        words = ["serve", "--data", str(data), *ports, *options]
        kept: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": self._log if stderr is None else stderr,
            "text": True,
            "env": os.environ | environ,
        }
        self.process: subprocess.Popen[str]
        if command:
            self.process = subprocess.Popen([*command, *words], **kept)
        else:
            self.process = ForkedProcess("lithify", words, files_max=files_max, **kept)
        assert self.process.stdout is not None
        with at_most(PROCESS_S_MAX, self.process.kill):
            self.pulsar = self.process.stdout.readline().removeprefix("pulsar").strip()
            self.http = self.process.stdout.readline().removeprefix("http").strip()
        assert self.http, (self.process.communicate(), self.logged())

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal; (exit code, what else was on stdout, all of stderr)."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=PROCESS_S_MAX)
        return self.process.returncode, out, self.logged()

    def logged(self) -> str:
        """What it has written to stderr so far."""
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        """Kill it, if it is still there."""
        with self._log, self.process:
            self.process.kill()


@contextmanager
def served(data: Path, *options: str, **environ: str) -> Iterator[Served]:
    """A node that is gone when the block ends."""
    with closing(Served(data, *options, stderr=None, files_max=None, **environ)) as node:
        yield node


@contextmanager
def served_here(data: Path, *, peer: str | None = None) -> Iterator[str]:
    """A node of this process, whose runs are done here, without a Spark session; its address.

    `peer` is the address of a node that its stores may replicate with.
    """
    with (
        lithify.open(str(data)) as node,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        if peer is not None:
            node.blobs.peers = BlobPeers([BlobPeer("other", peer)])
        app = create_app(Broker(node.topics, name="here", version="0"), node.blobs)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
