"""Content of blobs on its way over HTTP, in and out.

Out. A get is one step of a thread: find the blob, judge the request's conditions, read and check
the first piece, which is all of it up to 1 MiB. More pieces are a step each, taken once the client
has taken the piece before. So a client costs two pieces of memory, however large the blob and
however slow the client. One that takes nothing for `STALL_S` is let go, because what it reads
cannot be reclaimed. Damage that is found when the status has been sent ends the connection: the
client sees that bytes are missing.

In. What comes is gathered in the event loop up to 1 MiB, without a thread. Most contents are whole
by then and are put in one step of a thread. A larger one is read by a thread of its own through
`Upload`, which asks the loop for the next piece when it has spooled the one before. A client that
leaves in the middle, or takes longer than `STALL_S` for a piece, has put nothing.

At most `READS_MAX` clients read, and `PUTS_MAX` write, at a time; the rest of those who write wait.
A client counts among them once it has sent `BEGUN_BYTES`, or all: the server holds as much of any
connection. So those who only trickle keep nobody out.

Called by the routes of blobs, in the event loop; `Upload.read` by the thread that puts.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from lithify.blobs.errors import BlobTooLarge
from lithify.blobs.shown import etag_of
from lithify.errors import LithifyError
from lithify.http.blob_headers import headers_of, names_tag, range_of
from lithify.http.errors import Refused
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from concurrent.futures import Future

    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from lithify.blobs.answer import Include
    from lithify.blobs.store import BlobStore
    from lithify.damage import Damage

__all__ = [
    "BlobAnswer",
    "BlobThreads",
    "Content",
    "check_readers",
    "is_known",
    "open_content",
    "receive_content",
]

PIECE_BYTES = 2**20
READS_MAX = 256
PUTS_MAX = 128
LARGE_MAX = 32
"""Larger contents that come in at a time: each has a thread for as long as its client takes."""
STEPS_MAX = 32
"""Steps of threads at a time; as many puts share an fsync."""
BEGUN_BYTES = 64 * 1024
STALL_S = 60.0

log = get_logger("lithify.http")

_Result = TypeVar("_Result")


class BlobThreads:
    """The threads that do the work of blobs, and who waits for them; one an application."""

    def __init__(self) -> None:
        self._steps = ThreadPoolExecutor(STEPS_MAX, "lithify-blobs")
        self._uploads = ThreadPoolExecutor(LARGE_MAX, "lithify-blob-uploads")
        self.puts = asyncio.Semaphore(PUTS_MAX)
        self.large = asyncio.Semaphore(LARGE_MAX)
        self.reads = 0

    async def step(self, function: Callable[..., _Result], *values: Any) -> _Result:
        """Have something done by a thread that takes as long as the disk does."""
        return await asyncio.get_running_loop().run_in_executor(self._steps, function, *values)

    async def upload(self, function: Callable[[], _Result]) -> _Result:
        """The same for what takes as long as a client does."""
        return await asyncio.get_running_loop().run_in_executor(self._uploads, function)

    def close(self) -> None:
        """Wait for what is being done."""
        self._uploads.shutdown()
        self._steps.shutdown()


# --- out --------------------------------------------------------------------------------------


class Pieces(Protocol):
    """A blob that is being read, here or from another replica."""

    @property
    def blob_id(self) -> str:
        """Its id."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """Let go of it."""


@dataclass(slots=True)
class Content:
    """An answer whose first piece was read."""

    status: HTTPStatus
    headers: list[tuple[bytes, bytes]]
    blob: Pieces | None
    """None if there is nothing to send."""
    first: bytes = b""
    rest_bytes: int = 0


def open_content(
    store: BlobStore, blob_id: str, include: Include, headers: Headers, now_ms: int
) -> Content:
    """Open a blob as a get asks for it; belongs into a thread."""
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


def is_known(headers: Headers, tag: str) -> bool:
    """Has the client this content already? Raises if it wants another one."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is not None and not names_tag(match, tag, weak=False):
        raise Refused(HTTPStatus.PRECONDITION_FAILED, f"the tag of the blob is {tag}")
    return none_match is not None and names_tag(none_match, tag, weak=True)


class BlobAnswer(Response):
    """The answer to a get."""

    def __init__(self, content: Content, threads: BlobThreads) -> None:
        super().__init__(status_code=content.status)
        self.raw_headers = content.headers
        self._content = content
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        content = self._content
        start = {"type": "http.response.start", "status": content.status}
        await send({**start, "headers": content.headers})
        more = content.blob is not None
        await send({"type": "http.response.body", "body": content.first, "more_body": more})
        if content.blob is not None:
            damage: Damage = scope["app"].state.broker.topics.damage
            await self._send_rest(content.blob, receive, send, damage)

    async def _send_rest(self, blob: Pieces, receive: Receive, send: Send, damage: Damage) -> None:
        left_bytes = self._content.rest_bytes
        gone = asyncio.ensure_future(_gone(receive))
        self._threads.reads += 1
        pieces = iter(blob)
        reading = asyncio.ensure_future(self._threads.step(next, pieces))
        try:
            while not gone.done():
                # A thread cannot be cancelled: when this is, it must be waited for.
                piece = await asyncio.shield(reading)
                left_bytes -= len(piece)
                body = {"type": "http.response.body", "body": piece, "more_body": left_bytes > 0}
                # It returns when the client has taken most of the piece before this one.
                async with asyncio.timeout(STALL_S):
                    await send(body)
                if not left_bytes:
                    break
                reading = asyncio.ensure_future(self._threads.step(next, pieces))
        except TimeoutError:
            log.info("a client takes nothing of a blob, it is let go", blob=blob.blob_id)
        except LithifyError as error:
            damage.note(error)
            log.warning("a blob cannot be read on", blob=blob.blob_id, reason=str(error))
        finally:
            self._threads.reads -= 1
            gone.cancel()
            await asyncio.wait({reading})
            blob.close()


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        continue


def check_readers(threads: BlobThreads) -> None:
    """Refuse to begin if as many read already as may."""
    if threads.reads >= READS_MAX:
        reason = f"{threads.reads} clients read blobs already, which is the limit"
        raise Refused(HTTPStatus.TOO_MANY_REQUESTS, reason)


# --- in ---------------------------------------------------------------------------------------


class Upload:
    """A content that is still coming, as a stream for the thread that puts it."""

    def __init__(self, begun: bytes, chunks: AsyncIterator[bytes]) -> None:
        self._held = begun
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
        return (await _gather(self._chunks, PIECE_BYTES))[0]

    def stop(self) -> None:
        """Nobody waits for the put any more: the read that goes on, or the next one, ends it."""
        self._stopped = True
        if self._coming is not None:
            self._coming.cancel()


async def receive_content(
    request: Request, limit_bytes: int, threads: BlobThreads, put: Callable[[Any], _Result]
) -> _Result:
    """Take the body of a request and call `put` with it, as bytes or as a stream."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit_bytes:
        # Before its first byte was sent, if the client waits to be told that it may.
        raise BlobTooLarge(int(announced), limit_bytes)
    chunks = request.stream()
    try:
        begun, ended = await _gather(chunks, BEGUN_BYTES)
        async with threads.puts:
            if not ended:
                more, ended = await _gather(chunks, PIECE_BYTES - len(begun))
                begun += more
            if ended:
                return await threads.step(put, begun)
            async with threads.large:
                upload = Upload(begun, chunks)
                try:
                    return await threads.upload(lambda: put(upload))
                finally:
                    upload.stop()
    except ClientDisconnect as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "the content ended before its end") from error


async def _gather(chunks: AsyncIterator[bytes], size_min: int) -> tuple[bytes, bool]:
    """A piece, which is shorter than `size_min` only at the end, and whether that was it."""
    held: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(STALL_S):
            async for chunk in chunks:
                held.append(chunk)
                size += len(chunk)
                if size >= size_min:
                    return b"".join(held), False
    except TimeoutError as error:
        reason = f"{size} bytes of the content came in {STALL_S:.0f} s, which is too slow"
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, reason) from error
    return b"".join(held), True
