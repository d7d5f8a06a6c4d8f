"""Transfers blob contents over HTTP, in both directions.

Out. The first step of a get, in a thread: find the blob, evaluate the request's conditions, read
and check the first piece, up to 1 MiB. Each further piece is one step, which runs when the client
has received the previous one. So a client takes two pieces of memory, for any size of the blob and
any speed. A client that receives nothing for `STALL_S` is disconnected, because the blob that it
reads cannot be reclaimed. If damage is found after the status was sent, the connection is closed:
the client detects the missing bytes.

In. Up to 1 MiB is buffered in the event loop, without a thread. Most contents are complete by then;
one step in a thread puts them. A dedicated thread reads a larger content through `Upload`, which
requests the next piece from the loop when it has spooled the previous one. If a client disconnects
early, or takes longer than `STALL_S` for a piece, nothing is put.

At most `READS_MAX` clients read contents of more than one piece; more are refused. At most
`PUTS_MAX` clients write, `LARGE_MAX` of them more than one piece; more wait. Callers share these
places (`http/fair_shares.py`). A client needs a place once it has sent `BEGUN_BYTES` or the whole
content: the server buffers that much for any connection. So clients that send only a few bytes do
not block others.

Called by the routes of blobs, in the event loop; `Upload.read` by the thread of the put.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lithify.blobs.blob_json import etag_of
from lithify.blobs.errors import BlobTooLarge
from lithify.errors import LithifyError
from lithify.http.auth import caller_of
from lithify.http.blobs.conditions_and_ranges import is_known, range_of
from lithify.http.blobs.headers import headers_of
from lithify.http.error_responses import RequestRefused
from lithify.http.fair_shares import PIECE_BYTES, Shares, client_time, gather
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from concurrent.futures import Future

    from starlette.datastructures import Headers
    from starlette.types import Receive, Scope, Send

    from lithify.blobs.store import BlobStore
    from lithify.blobs.visibility import Include
    from lithify.damage import Damage

__all__ = [
    "BlobAnswer",
    "BlobThreads",
    "Content",
    "open_content",
    "receive_content",
]

READS_MAX = 256
PUTS_MAX = 128
LARGE_MAX = 32
"""Concurrent uploads of large contents: each occupies a thread as long as its client takes."""
STEPS_MAX = 32
"""Concurrent steps in threads; up to this number of puts share an fsync."""
BEGUN_BYTES = 64 * 1024

log = get_logger("lithify.http")

_Result = TypeVar("_Result")


class BlobThreads:
    """The threads for blobs, and the places of their clients; one per application."""

    def __init__(self) -> None:
        self._steps = ThreadPoolExecutor(STEPS_MAX, "lithify-blobs")
        self._uploads = ThreadPoolExecutor(LARGE_MAX, "lithify-blob-uploads")
        self.puts = Shares(PUTS_MAX, "uploads")
        self.large = Shares(LARGE_MAX, "large uploads")
        self.reads = Shares(READS_MAX, "readers of blobs")

    async def step(self, function: Callable[..., _Result], *values: Any) -> _Result:
        """Run a function in a thread for disk access."""
        return await asyncio.get_running_loop().run_in_executor(self._steps, function, *values)

    async def upload(self, function: Callable[[], _Result]) -> _Result:
        """Run a function in a thread for uploads, which waits for a client."""
        return await asyncio.get_running_loop().run_in_executor(self._uploads, function)

    def close(self) -> None:
        """Wait for steps in progress."""
        self._uploads.shutdown()
        self._steps.shutdown()


# --- out --------------------------------------------------------------------------------------


class BlobPieces(Protocol):
    """A blob that is being read, here or from another replica."""

    @property
    def blob_id(self) -> str:
        """The id of the blob."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """Release the blob."""


@dataclass(slots=True)
class Content:
    """A response whose first piece was read."""

    status: HTTPStatus
    headers: list[tuple[bytes, bytes]]
    blob: BlobPieces | None
    """None if no more pieces follow."""
    first: bytes = b""
    rest_bytes: int = 0


def open_content(
    store: BlobStore, blob_id: str, include: Include, headers: Headers, now_ms: int
) -> Content:
    """Open a blob for a get; call it in a thread."""
    blob = store.get(blob_id, include=include)
    try:
        info, tag = blob.info, etag_of(blob.info)
        answered = headers_of(info, now_ms)
        if is_known(headers, tag):
            blob.close()
            return Content(HTTPStatus.NOT_MODIFIED, answered, None)
        span = range_of(headers, tag, info.size)
        if span is not None:
            blob.close()
            blob = store.get(blob_id, include=include, span=span)
        size = blob.stop - blob.start
        first = next(iter(blob), b"")
    except BaseException:
        blob.close()
        raise
    answered.append((b"content-length", b"%d" % size))
    status = HTTPStatus.OK
    if span is not None:
        status = HTTPStatus.PARTIAL_CONTENT
        answered.append(
            (b"content-range", b"bytes %d-%d/%d" % (blob.start, blob.stop - 1, info.size))
        )
    if len(first) == size:
        blob.close()
        return Content(status, answered, None, first)
    return Content(status, answered, blob, first, size - len(first))


class BlobAnswer(Response):
    """The answer to a get."""

    def __init__(self, content: Content, threads: BlobThreads) -> None:
        super().__init__(status_code=content.status)
        self.raw_headers = content.headers
        self._content = content
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        content = self._content
        if content.blob is None:
            await self._send_first(send, more=False)
            return
        try:
            with self._threads.reads.now(caller_of(Request(scope))):
                await self._send_first(send, more=True)
                damage: Damage = scope["app"].state.broker.topics.damage
                await self._send_rest(content.blob, receive, send, damage)
        finally:
            content.blob.close()

    async def _send_first(self, send: Send, *, more: bool) -> None:
        content = self._content
        start = {"type": "http.response.start", "status": content.status}
        await send({**start, "headers": content.headers})
        await send({"type": "http.response.body", "body": content.first, "more_body": more})

    async def _send_rest(
        self, blob: BlobPieces, receive: Receive, send: Send, damage: Damage
    ) -> None:
        left_bytes = self._content.rest_bytes
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        pieces = iter(blob)
        reading = asyncio.ensure_future(self._threads.step(next, pieces))
        try:
            while not disconnected.done():
                # A thread cannot be cancelled: a cancelled task must wait for its thread.
                piece = await asyncio.shield(reading)
                left_bytes -= len(piece)
                body = {"type": "http.response.body", "body": piece, "more_body": left_bytes > 0}
                # Returns when the client has received most of the previous piece.
                async with client_time():
                    await send(body)
                if not left_bytes:
                    break
                reading = asyncio.ensure_future(self._threads.step(next, pieces))
        except TimeoutError:
            log.info("a client receives nothing of a blob and is disconnected", blob=blob.blob_id)
        except LithifyError as error:
            damage.record(error)
            log.warning(
                "reading a blob failed during its transfer", blob=blob.blob_id, reason=str(error)
            )
        finally:
            disconnected.cancel()
            await asyncio.wait({reading})


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


# --- in ---------------------------------------------------------------------------------------


class Upload:
    """A content being received, as a stream for the thread that puts it."""

    def __init__(self, first: bytes, chunks: AsyncIterator[bytes]) -> None:
        self._held = first
        self._chunks = chunks
        self._loop = asyncio.get_running_loop()
        self._coming: Future[bytes] | None = None
        self._stopped = False

    def read(self, size: int, /) -> bytes:
        """See `Readable`; waits for the client."""
        if not self._held:
            self._coming = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            self._held = self._coming.result()
        data, self._held = self._held[:size], self._held[size:]
        return data

    async def _next(self) -> bytes:
        if self._stopped:
            raise ClientDisconnect
        return (await gather(self._chunks))[0]

    def stop(self) -> None:
        """The put was abandoned: end the read in progress, or the next one."""
        self._stopped = True
        if self._coming is not None:
            self._coming.cancel()


async def receive_content(
    request: Request, limit_bytes: int, threads: BlobThreads, put: Callable[[Any], _Result]
) -> _Result:
    """Receive the body of a request and call `put` with it, as bytes or as a stream."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit_bytes:
        # Before the body is read: a client that waits for 100 Continue has not sent any of it.
        raise BlobTooLarge(int(announced), limit_bytes)
    chunks, caller = request.stream(), caller_of(request)
    try:
        first, ended = await gather(chunks, BEGUN_BYTES)
        async with threads.puts.waits(caller):
            if not ended:
                more, ended = await gather(chunks, PIECE_BYTES - len(first))
                first += more
            if ended:
                return await threads.step(put, first)
            async with threads.large.waits(caller):
                upload = Upload(first, chunks)
                try:
                    return await threads.upload(lambda: put(upload))
                finally:
                    upload.stop()
    except ClientDisconnect as error:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, "the client disconnected before the end of the content"
        ) from error
