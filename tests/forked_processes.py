"""Runs programs in forks of a process that has imported Lithify: each start takes a second less.

    ForkedProcess("lithify", ["serve", "--data", directory], stdout=subprocess.PIPE, text=True)
    run_command(["topics", "list", "--url", url])

A program is a module, as for `python -m`. It is a process of its own, with its own arguments,
environment, directory and files, and is used like any `subprocess.Popen`. The process that is
forked is started once per test process, and waits for its forks instead of the test process. A
test of the start itself, or of what is read from the environment at imports, runs the command
itself.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import runpy
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ForkedProcess", "run_command"]

REQUEST_BYTES_MAX = 2**20
POLL_S = 0.005


class _Parent:
    """The process that is forked; requests are answered one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def start(self, request: dict[str, Any], files: list[int]) -> int:
        """Fork a program; its process id."""
        return int(self._ask(request, files))

    def wait(self, pid: int) -> tuple[int, int]:
        """As `os.waitpid` with WNOHANG."""
        found, status = self._ask({"wait": pid}, []).split()
        return int(found), int(status)

    def _ask(self, request: dict[str, Any], files: list[int]) -> str:
        with self._lock:
            if self._socket is None:
                self._socket = self._begin()
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            return self._socket.recv(100).decode()

    @staticmethod
    def _begin() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked_processes", str(theirs.fileno())],
                cwd=Path(__file__).parent.parent,
                pass_fds=[theirs.fileno()],
                # A process with threads must not be forked.
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
        atexit.register(process.wait)
        atexit.register(ours.close)
        return ours


_PARENT = _Parent()


class ForkedProcess(subprocess.Popen[Any]):
    """A module that runs as a program with these arguments."""

    _waitpid_lock: threading.Lock

    def __init__(
        self, module: str, words: Sequence[object], *, files_max: int | None = None, **options: Any
    ) -> None:
        """`files_max` is how many descriptors it may have."""
        self._files_max = files_max
        super().__init__([module, *map(str, words)], **options)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        cwd, env = given[4:6]
        pipes = given[9:15]
        reads, _, _, writes, _, errors = pipes
        files = [at if at >= 0 else number for number, at in enumerate((reads, writes, errors))]
        request = {
            "words": args,
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "files_max": self._files_max,
        }
        try:
            self.pid = _PARENT.start(request, files)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, **_given: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                self._take(_PARENT.wait(self.pid))
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        found = _PARENT.wait(self.pid)
        while not found[0] and not flags:
            time.sleep(POLL_S)
            found = _PARENT.wait(self.pid)
        return found

    def _take(self, found: tuple[int, int]) -> None:
        if found[0] and self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(found[1])


def run_command(
    words: Sequence[object], *, timeout: float, stdin: bytes = b"", **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run `lithify` to its end."""
    pipe = subprocess.PIPE
    with ForkedProcess(
        "lithify", words, stdin=pipe, stdout=pipe, stderr=pipe, **options
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


# --- the process that is forked -------------------------------------------------------------


def _serve(requests: socket.socket) -> None:
    status: dict[int, int] = {}
    while True:
        data, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not data:
            return
        request = json.loads(data)
        pid = request.get("wait")
        if pid is None:
            pid = os.fork()
            if not pid:
                requests.close()
                _become(request, files)
            for file in files:
                os.close(file)
            requests.send(str(pid).encode())
            continue
        try:
            found, status[pid] = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            # Another thread of the test process has asked.
            found = pid
        requests.send(f"{found} {status[pid]}".encode())


def _become(request: dict[str, Any], files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["files_max"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["files_max"],) * 2)
    sys.argv = request["words"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    import gc

    gc.disable()
    import lithify.cli.main
    import lithify.cli.serve
    import lithify.http.app
    import lithify.node.http_port
    import lithify.node.node
    import lithify.node.server  # noqa: F401

    gc.freeze()
    gc.enable()
    _serve(socket.socket(fileno=int(sys.argv[1])))
