"""Slow uploads: they block no other caller, and are refused with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from lithify.http import fair_shares
from lithify.http.blobs import content as blob_content
from lithify.http.blobs.content import BlobThreads, receive_content
from lithify.http.error_responses import RequestRefused

LIMIT = 2**23


class Client:
    """A client that sends what it is told to."""

    def __init__(self, threads: BlobThreads, address: str = "10.0.0.1") -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.taken = asyncio.Event()
        """Set when all that was sent has been asked for."""
        scope = {"type": "http", "method": "POST", "headers": [], "client": (address, 1)}
        request = Request(scope, self._receive)
        self.answer = asyncio.ensure_future(receive_content(request, LIMIT, threads, _size))

    async def _receive(self) -> dict[str, Any]:
        if self._messages.empty():
            self.taken.set()
        return await self._messages.get()

    def send(self, body: bytes, *, more: bool = True) -> None:
        self.taken.clear()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})


def _size(content: Any) -> int:
    """Stands for the put: reads it all."""
    if isinstance(content, bytes):
        return len(content)
    size = 0
    while data := content.read(2**20):
        size += len(data)
    return size


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One caller may have two puts at a time, one of them of a large content."""
    monkeypatch.setattr(blob_content, "PUTS_MAX", 4)
    monkeypatch.setattr(blob_content, "LARGE_MAX", 2)


@pytest.mark.usefixtures("few")
def test_slow_senders_block_no_other_caller() -> None:
    async def story() -> None:
        threads = BlobThreads()
        slow = [Client(threads) for _ in range(10)]
        for client in slow:
            client.send(b"a little")
            await client.taken.wait()
        quick = Client(threads)
        quick.send(bytes(100_000))
        quick.send(bytes(100_000), more=False)
        assert await quick.answer == 200_000
        for client in slow:
            client.send(b" more", more=False)
            assert await client.answer == 13
        threads.close()

    asyncio.run(story())


@pytest.mark.usefixtures("few")
def test_a_stalled_upload_is_refused_and_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        threads = BlobThreads()
        piece = bytes(fair_shares.PIECE_BYTES)
        small, large = Client(threads), Client(threads)
        small.send(bytes(100_000))
        small.send(b"more")
        large.send(piece)
        await small.taken.wait()
        await large.taken.wait()
        waits = Client(threads)
        waits.send(piece)
        waits.send(piece, more=False)
        for client, sent in ((small, "4 bytes"), (large, "0 bytes")):
            with pytest.raises(
                RequestRefused, match=f"received {sent} of the content in 0 s"
            ) as refused:
                await client.answer
            assert refused.value.status == 408
        assert await waits.answer == 2 * len(piece)
        threads.close()

    monkeypatch.setattr(fair_shares, "STALL_S", 0.2)
    asyncio.run(story())


@pytest.mark.parametrize("sent", [100_000, 2**20])
def test_slow_uploads_of_one_caller_block_no_other(sent: int) -> None:
    """As many as there are places for all, and some more: of each size, slow for ever."""

    async def story() -> None:
        threads = BlobThreads()
        slow = [Client(threads) for _ in range(blob_content.PUTS_MAX + 2)]
        for client in slow:
            client.send(bytes(sent))
        places = (blob_content.PUTS_MAX if sent < 2**20 else blob_content.LARGE_MAX) // 2
        for client in slow[:places]:
            await client.taken.wait()
        quick = Client(threads, "10.0.0.2")
        quick.send(bytes(2**20))
        quick.send(bytes(2**20), more=False)
        assert await asyncio.wait_for(quick.answer, 30) == 2 * 2**20
        for client in slow:
            client.leave()
        ended = await asyncio.gather(*(client.answer for client in slow), return_exceptions=True)
        assert all(isinstance(each, RequestRefused) for each in ended)
        threads.close()

    asyncio.run(story())


def test_a_caller_that_disconnects_has_put_nothing() -> None:
    async def story() -> None:
        threads = BlobThreads()
        for sent in (b"", bytes(100_000), bytes(2 * fair_shares.PIECE_BYTES)):
            client = Client(threads)
            client.send(sent)
            client.leave()
            with pytest.raises(RequestRefused, match="before the end of the content"):
                await client.answer
        threads.close()

    asyncio.run(story())
