"""A client of the HTTP application in this process, on a data directory that no node serves.

A request is an ASGI call: no socket, and nothing that listens. The event loop runs only while the
command waits for an answer or for the next piece of one:

1. `send` starts the application as a task and runs the loop until the answer begins. The
   application reads the body in between, a piece at a time; reading stdin stops the loop meanwhile,
   which has nothing else to do.
2. `pieces` runs the loop until the application has sent another piece. The loop stops while the
   command works on it, so the application is at most a few pieces ahead.
3. When the command has read what it wants of the answer, the task is cancelled.
4. `close` cancels the runs of compaction, which the next run resumes, and waits for all threads.

The caller owns the directory, so no access is checked. Ctrl-C is raised where the loop runs.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections import deque
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import unquote

from lithify import __version__
from lithify.blobs.replication.peers import BlobPeers
from lithify.cli.client.client import Answer, Client
from lithify.errors import InvalidInput, LithifyError

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
        MutableMapping,
    )
    from types import TracebackType

    from lithify.node.node import Node
    from lithify.pipeline.spark_target import SparkTarget

__all__ = ["ProcessClient", "open_data"]

_Result = TypeVar("_Result")


@contextmanager
def open_data(data: str, *, create: bool = False) -> Iterator[Node]:
    """The data directory, locked; it must exist unless it may be created."""
    with _without_collections():
        from lithify.fs import LocalFileSystem
        from lithify.node.node import Node
        from lithify.node.settings import NodeSettings
        from lithify.topics.directories.data_directory import check_no_backup, is_data_directory

    fs = LocalFileSystem()
    check_no_backup(fs, data)
    if not create and not is_data_directory(fs, data):
        raise InvalidInput(f"{data} is not a data directory")
    with Node(NodeSettings(data=data), fs=fs, what="a lithify command") as node:
        yield node


@contextmanager
def _without_collections() -> Iterator[None]:
    """Import without the garbage collector: it takes 0.1 s to find that nothing is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ProcessClient(Client):
    """See the module."""

    def __init__(self, node: Node, target: SparkTarget | None) -> None:
        """`target` is the Spark of `start_spark`; None if the command never starts one."""
        with _without_collections():
            from lithify.http.app import close_app, create_app
            from lithify.pulsar.broker import Broker

        self.name = node.settings.data
        self._node = node
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._stack = ExitStack()
        self._stack.callback(self._loop.close)
        node.blobs.peers = _AnyPeers()
        # Each broker names its producers: no two of them may have the same name.
        name = f"lithify-{secrets.token_hex(4)}"
        broker = Broker(node.topics, name=name, version=f"Lithify {__version__}")
        self._app = create_app(broker, node.blobs, empty=True)
        self._stack.callback(lambda: self._run(self._loop.shutdown_default_executor()))
        self._stack.callback(lambda: self._run(close_app(self._app)))
        self._stack.callback(lambda: self._run(broker.settled()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            # Runs first: they use the session, which ends with the stack.
            self._node.topics.compactions.close()
            self._node.blobs.compactions.close()

    def start_spark(self, status_path: str) -> None:
        """See `Client`."""
        from lithify.blobs.compaction.store_compaction import BLOB_TASKS
        from lithify.pipeline.jobs import SparkJobs
        from lithify.pipeline.session import open_session
        from lithify.topics.compaction.topic_compaction import TOPIC_TASKS

        assert self._target is not None
        self.call("GET", status_path)  # A log that does not exist is found before Spark starts.
        session = open_session(self._target, preload=(*TOPIC_TASKS, *BLOB_TASKS))
        self._stack.callback(session.stop)
        self._node.queue.jobs = SparkJobs(session)

    @contextmanager
    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None,
        timeout_s: float | None,  # noqa: ARG002  (a disk takes as long as it takes)
    ) -> Iterator[Answer]:
        """See `Client`."""
        with _without_collections():
            from lithify.http.app import add_routes

            add_routes(self._app, path.partition("?")[0])
        exchange = _Exchange((body,) if isinstance(body, bytes) else body or ())
        scope = _scope(method, path, headers)
        task = self._loop.create_task(self._app(scope, exchange.receive, exchange.send))
        answer = _ProcessAnswer(exchange, task, self._run)
        try:
            answer.begin()
            yield answer
        finally:
            task.cancel()
            self._run(asyncio.wait({task}))
            if not task.cancelled():
                task.exception()  # It was raised by `begin`, or came after what was read.

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self._loop.run_until_complete(work)


class _Exchange:
    """A request and its answer, as the application sees them."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._sent = False
        """Has the application read all of the body?"""
        self.failure: Exception | None = None
        """Raised by the body of the request."""
        self.messages: deque[dict[str, Any]] = deque()
        """What the application has sent, and the command has not taken."""
        self.more = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """The next piece of the body; then nothing until the task of the request is cancelled."""
        if self._sent:
            await asyncio.Future()
        try:
            piece = next(self._pieces, None)
        except Exception as error:
            self.failure = error
            raise
        self._sent = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": not self._sent}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Never waits: the loop stops while the command works on what it was sent."""
        self.messages.append(dict(message))
        self.more.set()


class _ProcessAnswer(Answer):
    def __init__(
        self,
        exchange: _Exchange,
        task: asyncio.Task[None],
        run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._exchange = exchange
        self._task = task
        self._run = run
        self._ended = False

    def begin(self) -> None:
        """Wait for status and headers; raise an error that is no refusal."""
        start = self._next()
        if self._exchange.failure is not None:
            raise self._exchange.failure
        if start["status"] == HTTPStatus.INTERNAL_SERVER_ERROR:
            # The error itself says more than its answer, if it was none of Lithify's.
            self._run(asyncio.wait({self._task}))
            self._task.result()
        self.status = start["status"]
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in start["headers"]
        }

    def pieces(self) -> Iterator[bytes]:
        """See `Answer`."""
        while not self._ended:
            message = self._next()
            self._ended = not message.get("more_body", False)
            yield message.get("body", b"")

    def _next(self) -> dict[str, Any]:
        messages = self._exchange.messages
        if not messages:
            self._exchange.more.clear()
            self._run(_either(self._exchange.more, self._task))
        if not messages:
            self._task.result()
            raise AnswerIncomplete
        return messages.popleft()


class AnswerIncomplete(LithifyError):
    """The content of a blob cannot be read to its end."""

    def __init__(self) -> None:
        super().__init__("the answer ended early: its data is damaged or cannot be read")


async def _either(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Wait for an event, or for the task that would set it to end."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _scope(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    raw, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
    }


class _AnyPeers(BlobPeers):
    """The replicas of a store may be any: the node that will serve the directory asks its peers.

    None of them is asked for a blob.
    """

    def url_of(self, replica: str, store: str) -> str:  # noqa: ARG002
        """See `BlobPeers`."""
        return replica.rstrip("/")
