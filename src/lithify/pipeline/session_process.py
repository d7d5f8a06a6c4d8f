"""A process that keeps a Spark session open and runs jobs for a node.

A node must not have a JVM in its process, nor wait seconds for one in each run. So `WorkerJobs`
starts this module as a child process with the first job, communicates over a socket pair, and stops
it when it has been idle for a while.

    node → worker   (target,), once  ("run", name, function, tasks, weights)  ("cancel",)
    worker → node   ("ready", slots)  ("progress", done, total)  ("result", number, value)
                    ("end",)  ("error", exception), also instead of "ready"

All messages are pickled: both ends are the same program. When the node dies, the worker reads end
of file and exits with its JVM. When the worker dies, its job fails with `JobFailed`; the next job
starts another one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.compaction.tasks.jobs import no_check
from lithify.compiled import KERNEL_CACHE, cache_to_offer
from lithify.errors import JobFailed, LithifyError, LogClosed, RunCancelled
from lithify.pipeline.jobs import SMALL_WEIGHT, SparkJobs
from lithify.pipeline.spark_target import SparkTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.clock import Clock

__all__ = ["WorkerJobs"]

POLL_S = 0.1
END_S_MAX = 2.0
"""Time in which a worker that closed its connection exits, so that its exit code is known."""

STARTING = "starting Spark"
"""The progress reported while there is no worker."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class WorkerJobs:
    """`Jobs` in a worker process; one job at a time, others wait."""

    def __init__(
        self,
        clock: Clock,
        *,
        target: SparkTarget | None = None,
        preload: Sequence[str] = (),
        idle_s: float = 300.0,
    ) -> None:
        self._clock = clock
        self._command = [
            sys.executable,
            "-m",
            "lithify.pipeline.session_process",
            ",".join(preload),
        ]
        self._target = target or SparkTarget()
        self._idle_s = idle_s
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._used_s = 0.0
        self._closed = False
        self.slots = os.cpu_count() or 1

    @property
    def pid(self) -> int | None:
        """The process id of the worker, or None."""
        return self._process.pid if self._process is not None else None

    def run(
        self,
        name: str,
        function: Callable[[_Task, Callable[[], None]], _Result],
        tasks: Sequence[_Task],
        *,
        weights: Sequence[int] = (),
        check: Callable[[], None],
        progress: Callable[[str, int, int], None],
    ) -> Iterator[tuple[int, _Result]]:
        """See `Jobs.run`."""
        if not tasks:
            return
        with self._taken(check):
            if self._closed:
                # Another worker would outlive the node that is stopping, or keep it from that.
                raise LogClosed(f"job {name} was not started: the node is stopping")
            try:
                if self._connection is None:
                    progress(STARTING, 0, 0)
                connection = self._started(check)
                _send(connection, ("run", name, function, list(tasks), list(weights)))
                yield from self._answers(name, connection, check, progress)
            except _ConnectionLost as error:
                raise JobFailed(
                    name, f"the worker process exited: {self._wait_for_exit()}"
                ) from error
            finally:
                self._used_s = self._clock.monotonic_s()

    @contextmanager
    def _taken(self, check: Callable[[], None]) -> Iterator[None]:
        """Take the worker; `check` may end the wait for the job of another run."""
        while not self._turn.acquire(timeout=POLL_S):
            check()
        try:
            yield
        finally:
            self._turn.release()

    def _started(self, check: Callable[[], None]) -> Connection:
        if self._connection is not None:
            return self._connection
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*self._command, str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603  (our own program)
                command,
                env={**os.environ, KERNEL_CACHE: cache_to_offer()},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,  # Ctrl-C is for the node, which stops the worker itself.
            )
        self._connection = Connection(ours.detach())
        try:
            _send(self._connection, (self._target,))
            kind, value = _receive(self._connection, check)
        except _ConnectionLost:
            raise
        except BaseException:
            # The next job must not take the pending greeting for an answer.
            self._stop()
            raise
        if kind == "error":
            self._stop()
            raise value
        self.slots = value
        return self._connection

    def _answers(
        self,
        name: str,
        connection: Connection,
        check: Callable[[], None],
        progress: Callable[[str, int, int], None],
    ) -> Iterator[tuple[int, Any]]:
        finished = False
        try:
            while True:
                kind, *values = _receive(connection, check)
                if kind == "result":
                    yield values[0], values[1]
                elif kind == "progress":
                    progress(name, values[0], values[1])
                else:
                    finished = True
                    if kind == "error":
                        raise values[0]
                    return
        finally:
            if not finished:
                self._cancel(connection)

    @staticmethod
    def _cancel(connection: Connection) -> None:
        """Stop the job; its remaining messages are discarded."""
        with suppress(_ConnectionLost):
            _send(connection, ("cancel",))
            while _receive(connection, no_check)[0] not in {"end", "error"}:
                pass

    def maintain(self) -> None:
        """Stop the worker if it has been idle for `idle_s`."""
        if self._turn.acquire(blocking=False):
            try:
                idle = self._clock.monotonic_s() - self._used_s
                if self._process is not None and idle >= self._idle_s:
                    self._stop()
            finally:
                self._turn.release()

    def close(self) -> None:
        """Stop the worker; a job in progress fails, and so do later ones."""
        self._closed = True
        self._stop()

    def _wait_for_exit(self) -> str:
        """Stop a worker that closed its connection; returns how it exited."""
        code = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(END_S_MAX)
        self._stop()
        if code is None:
            return "it closed the connection"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}, see its log"

    def _stop(self) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.terminate()
            process.wait()


class _ConnectionLost(Exception):
    """The worker closed the connection."""


def _send(connection: Connection, message: tuple[object, ...]) -> None:
    try:
        connection.send(message)
    except OSError as error:
        raise _ConnectionLost(error) from error


def _receive(connection: Connection, check: Callable[[], None]) -> Any:
    try:
        while not connection.poll(POLL_S):
            check()
        return connection.recv()
    except (EOFError, OSError) as error:
        raise _ConnectionLost(error) from error


def _serve(connection: Connection, preload: str) -> None:
    """The worker: run jobs in sequence until the node closes the connection."""
    # Only the worker process needs Spark.
    from lithify.pipeline.python_daemon import load  # noqa: PLC0415
    from lithify.pipeline.session import open_session  # noqa: PLC0415

    names = [name for name in preload.split(",") if name]
    # Small jobs run in this process; the JVM takes longer to start than their code to load.
    loading = threading.Thread(target=load, args=(names,))
    loading.start()
    (target,) = connection.recv()
    try:
        session = open_session(target, preload=names)
    except LithifyError as error:
        connection.send(("error", error))
        return
    finally:
        loading.join()
    jobs = SparkJobs(session, small_weight=SMALL_WEIGHT)
    connection.send(("ready", jobs.slots))
    with suppress(EOFError, OSError):
        while True:
            kind, *values = connection.recv()
            if kind == "run":
                _run(connection, jobs, *values)
    session.stop()


def _run(
    connection: Connection,
    jobs: SparkJobs,
    name: str,
    function: Callable[[Any, Callable[[], None]], Any],
    tasks: list[Any],
    weights: list[int],
) -> None:
    def check() -> None:
        # During a job the node sends only a request to stop it, or closes the connection.
        if connection.poll():
            connection.recv()
            raise RunCancelled(f"job {name} was cancelled")

    def progress(_: str, done: int, total: int) -> None:
        connection.send(("progress", done, total))

    try:
        results = jobs.run(name, function, tasks, weights=weights, check=check, progress=progress)
        for number, value in results:
            connection.send(("result", number, value))
    except (LithifyError, OSError) as error:
        if isinstance(error, (BrokenPipeError, ConnectionError)):
            raise
        connection.send(("error", error))
    else:
        connection.send(("end",))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[2])), sys.argv[1])
