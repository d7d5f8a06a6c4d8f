"""Contents that come slowly: they keep nobody out, and end with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from lithify.http import blob_content
from lithify.http.blob_content import BlobThreads, receive_content
from lithify.http.errors import Refused

LIMIT = 2**23


class Client:
    """A client that sends what it is told to."""

    def __init__(self, threads: BlobThreads) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.taken = asyncio.Event()
        """Set when all that was sent has been asked for."""
        scope = {"type": "http", "method": "POST", "headers": []}
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
    """Two may put at a time, one of them a large content."""
    monkeypatch.setattr(blob_content, "PUTS_MAX", 2)
    monkeypatch.setattr(blob_content, "LARGE_MAX", 1)


@pytest.mark.usefixtures("few")
def test_those_who_trickle_keep_nobody_out() -> None:
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
def test_one_that_stalls_is_told_and_lets_the_next_one_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        threads = BlobThreads()
        piece = bytes(blob_content.PIECE_BYTES)
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
            with pytest.raises(Refused, match=f"{sent} of the content came in 0 s") as refused:
                await client.answer
            assert refused.value.status == 408
        assert await waits.answer == 2 * len(piece)
        threads.close()

    monkeypatch.setattr(blob_content, "STALL_S", 0.2)
    asyncio.run(story())


def test_one_that_leaves_has_put_nothing() -> None:
    async def story() -> None:
        threads = BlobThreads()
        for sent in (b"", bytes(100_000), bytes(2 * blob_content.PIECE_BYTES)):
            client = Client(threads)
            client.send(sent)
            client.leave()
            with pytest.raises(Refused, match="ended before its end"):
                await client.answer
        threads.close()

    asyncio.run(story())
