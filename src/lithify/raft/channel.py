"""One connection of a node or a client: frames in, frames out.

1. What is sent within one turn of the event loop goes out together, in frames of about
   `FRAME_BYTES_USUAL`.
2. What is received stands in one buffer, which grows only for a frame that needs it, and messages
   are read out of it. Before a peer has said who it is, a frame has at most `HELLO_BYTES_MAX`.
3. Bytes that are not the protocol end the connection; the log says why.

Nothing is queued without an end: whoever sends asks `unsent_bytes` first, or does not send more
than it was asked for. All calls come from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.raft.wire import (
    FRAME_HEADER_BYTES,
    decode_frame,
    encode_message,
    frame_bytes,
    join_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.checksum import Buffer

    Heard = Callable[["Channel", list[tuple[str, Any]]], None]
    Lost = Callable[["Channel"], None]

__all__ = ["FRAME_BYTES_MAX", "Channel"]

HELLO_BYTES_MAX = 2**16
FRAME_BYTES_MAX = 32 * 2**20
"""Above any message: a command has at most half of it."""
FRAME_BYTES_USUAL = 2**16
RECEIVE_BYTES = 2**16
RECEIVE_BYTES_FULL = 2**20
SILENCE_MS_MAX = 10_000
"""How long the other end may leave bytes unacknowledged before the connection counts as dead."""

log = get_logger("lithify.raft")


class Channel(asyncio.BufferedProtocol):
    """See the module."""

    def __init__(self, heard: Heard, lost: Lost) -> None:
        self._heard = heard
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BYTES)
        self._start = 0
        self._stop = 0
        self._limit = HELLO_BYTES_MAX
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._flushing = False
        self._gone = asyncio.Event()
        self._wanted = self._taken = True
        self.peer = "?"
        self.node = ""
        """Who is at the other end; empty for a client, or before it has said so."""
        self._here = ""
        self.identity: str | None = None
        """That of the other node's directory; None before it was shown and accepted."""
        self.book: str | None = None
        """What the other node says about addresses, until it was accepted."""
        self.greeted = False
        self.reason = "the connection was closed"

    def greet(self, node: str, here: str) -> None:
        """The other end is who it should be: from now on it may say more."""
        self.node, self._here = node, here
        self._limit = FRAME_BYTES_MAX
        self.greeted = True

    @property
    def certificate_names(self) -> set[str] | None:
        """Whose certificate the other end has shown; None without TLS."""
        assert self._transport is not None
        if self._transport.get_extra_info("ssl_object") is None:
            return None
        shown = self._transport.get_extra_info("peercert") or {}
        names = {value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"}
        subject = (pair for part in shown.get("subject", ()) for pair in part)
        return names | {value for kind, value in subject if kind == "commonName"}

    # --- the connection ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        found = transport.get_extra_info("socket")
        # Other systems do not have it; there a dead peer is found when its answers stay away.
        with suppress(OSError, AttributeError):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        if exc is not None:
            self.reason = str(exc)
            if not self.greeted and self.certificate_names is not None:
                # The other end looks at ours when the connection stands already, and hangs up.
                self.reason += "; perhaps it does not take the certificate that was shown"
        self._buffer = bytearray()
        self._start = self._stop = 0
        self._queue.clear()
        self._gone.set()
        self._lost(self)

    @property
    def closed(self) -> bool:
        """Is it of no more use?"""
        return self._transport is None or self._transport.is_closing()

    def close(self, reason: str = "") -> None:
        """Hang up once everything that was sent has gone out."""
        self.reason = reason or self.reason
        self._flush()
        # A second time would have the transport of TLS forget its connection: then nobody could
        # abort it, and its end would not be told.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Hang up."""
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self, timeout_s: float) -> None:
        """Come back when nothing is left of it; what has not gone out by then is dropped."""
        if self._transport is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()
        self._transport.abort()
        await self._gone.wait()

    # --- receiving --------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (the protocol's name)
        """Where the next bytes go."""
        left = self._stop - self._start
        if self._stop == len(self._buffer):
            target = self._buffer
            if self._start < left or len(target) < RECEIVE_BYTES_FULL:
                # Bounded: a frame above the limit was refused when its header came.
                target = bytearray(2 * len(target))
            target[:left] = self._buffer[self._start : self._stop]
            self._buffer, self._start, self._stop = target, 0, left
        return memoryview(self._buffer)[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self._stop += nbytes
        try:
            self._read_frames()
        except LithifyError as error:
            log.warning("connection closed", peer=self.peer, node=self.node, reason=str(error))
            self.abort(str(error))
        if self._start == self._stop:
            self._start = self._stop = 0
            if len(self._buffer) > RECEIVE_BYTES_FULL:
                self._buffer = bytearray(RECEIVE_BYTES_FULL)

    def _read_frames(self) -> None:
        # Without the views closed, the buffer could not be replaced.
        with memoryview(self._buffer) as view:
            while not self.closed:
                with view[self._start : self._stop] as rest:
                    size = frame_bytes(rest, self._limit)
                    if not size or size > len(rest):
                        return
                    with rest[:size] as frame:
                        messages = decode_frame(frame, self.node, self._here)
                self._start += size
                self._heard(self, messages)

    def read_on(self, *, wanted: bool) -> None:
        """Read on, or let the other end wait; it also waits while it does not take its answers."""
        self._wanted = wanted
        self._read_or_not()

    def pause_writing(self) -> None:
        """The other end does not take what it is sent."""
        self._taken = False
        self._read_or_not()

    def resume_writing(self) -> None:
        """It has taken nearly all of it."""
        self._taken = True
        self._read_or_not()

    def _read_or_not(self) -> None:
        transport, reading = self._transport, self._wanted and self._taken
        if transport is None or transport.is_closing() or transport.is_reading() == reading:
            return
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- sending ----------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """What waits here because the other end does not take it."""
        if self._transport is None or self.closed:
            return 0
        return self._queued_bytes + self._transport.get_write_buffer_size()

    def send(self, group: str, message: object) -> None:
        """Have a message sent with the others of this turn of the loop."""
        if self.closed:
            return
        self._queued_bytes += encode_message(group, message, self._queue)
        if self._queued_bytes >= FRAME_BYTES_USUAL:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        self._queued_bytes = 0
        self._flushing = False
        if queue and self._transport is not None and not self._transport.is_closing():
            self._transport.write(join_frame(queue))


assert HELLO_BYTES_MAX + FRAME_HEADER_BYTES <= 2 * RECEIVE_BYTES
