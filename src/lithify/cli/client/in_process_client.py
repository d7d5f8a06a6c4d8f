"""A client of the HTTP application in this process, on a data directory that no node serves.

A request is an ASGI call, without a socket. The event loop runs only while the command waits for a
response or for its next piece:

1. `send` starts the application as a task and runs the loop until the response begins. In between
   the application reads the body of the request, piece by piece. Reading stdin blocks the loop,
   which has no other work then.
2. `pieces` runs the loop until the application has sent another piece. The loop stops while the
   command processes it, so the application is at most a few pieces ahead.
3. When the command has read as much of the response as it needs, the task is cancelled.
4. A command that has changed something waits until all indexes of tables are built, because nothing
   builds them after it. That also finishes what a command that was killed has begun.
5. `close` cancels the runs of compaction, which the next run resumes, and waits for all threads.

The caller owns the directory, so no access is checked. Ctrl-C is raised where the loop runs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import unquote

from lithify import __version__
from lithify.blobs.replication.peers import BlobPeers
from lithify.cli.client.interface import Answer, Client
from lithify.cli.quick_imports import without_collections
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
    with without_collections():
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


class ProcessClient(Client):
    """A client without a node; see the module."""

    def __init__(self, node: Node, target: SparkTarget | None) -> None:
        """`target` is the Spark of `start_spark`; None if the command never starts one."""
        with without_collections():
            from lithify.http.app import close_app, create_app
            from lithify.pulsar.broker import Broker

        self.name = node.settings.data
        self._node = node
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._has_changed = False
        """Was a request sent that may change something?"""
        self._stack = ExitStack()
        self._stack.callback(self._loop.close)
        node.blobs.peers = _AnyPeers()
        # A name per broker, so that the generated names of producers are unique.
        name = f"lithify-{secrets.token_hex(4)}"
        broker = Broker(node.topics, name=name, version=f"Lithify {__version__}")
        self._app = create_app(broker, node.blobs, member=node.cluster, empty=True)
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
            if kind is None and self._has_changed:
                self.finish()
            # End the runs first: they use the session, which the stack closes.
            self._node.topics.compactions.close()
            self._node.blobs.compactions.close()

    def finish(self) -> bool:
        """See `Client`."""
        self._node.cluster.ask(self._node.cluster.until_built)
        return True

    def start_spark(self, status_path: str) -> None:
        """See `Client`."""
        from lithify.blobs.compaction.store_compaction import BLOB_TASKS
        from lithify.pipeline.jobs import SparkJobs
        from lithify.pipeline.session import open_session
        from lithify.topics.compaction.topic_compaction import TOPIC_TASKS

        assert self._target is not None
        self.call("GET", status_path)  # Detect a missing log before Spark starts.
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
        self._has_changed |= method != "GET"
        with without_collections():
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
                task.exception()  # `begin` has raised it, or it came after the read part.

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self._loop.run_until_complete(work)


class _Exchange:
    """A request and its response, with the ASGI interface of the application."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._sent = False
        """Has the application read all of the body?"""
        self.failure: Exception | None = None
        """The error of the iterator with the request's body."""
        self.messages: deque[dict[str, Any]] = deque()
        """Pieces that the application has sent and the command has not read."""
        self.more = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Return the next piece of the body; after the last one, wait for the cancellation."""
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
        """Store a message. Never waits: the loop stops while the command processes a piece."""
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
        """Wait for status and headers; raises errors of the application."""
        start = self._next()
        if self._exchange.failure is not None:
            raise self._exchange.failure
        if start["status"] == HTTPStatus.INTERNAL_SERVER_ERROR:
            # An error that is not Lithify's has more details than the response to it.
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
    """The content of a blob cannot be read completely."""

    def __init__(self) -> None:
        super().__init__("the answer ended early: its data is damaged or cannot be read")


async def _either(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Wait for an event, or for the end of the task that sets it."""
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
    """Accepts any replica of a store: the node that will serve the directory checks its peers.

    No replica is asked for a blob.
    """

    def url_of(self, replica: str, store: str) -> str:  # noqa: ARG002
        """See `BlobPeers`."""
        return replica.rstrip("/")
