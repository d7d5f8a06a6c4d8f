"""One connection of a node or a client: frames in, frames out.

1. Messages sent within one turn of the event loop go out together, in frames of about
   `FRAME_BYTES_USUAL`. An owner of several channels may send at once what one event has caused
   (`UnsentChannels`).
2. Received bytes are in one buffer, which grows only for a frame that needs it. Messages are
   decoded from it. Until the peer has identified itself a frame has at most `HELLO_BYTES_MAX`.
3. Bytes that are not the protocol close the connection; the reason is logged.

Queues are bounded by their senders: a sender checks `unsent_bytes`, or sends only what was
requested. Called in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.raft.net.wire_format import (
    FRAME_HEADER_BYTES,
    decode_frame,
    encode_message,
    frame_bytes,
    join_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.checksum import Buffer

    OnMessages = Callable[["Channel", list[tuple[str, Any]]], None]
    Lost = Callable[["Channel"], None]

__all__ = ["FRAME_BYTES_MAX", "Channel", "UnsentChannels"]

HELLO_BYTES_MAX = 2**16
FRAME_BYTES_MAX = 32 * 2**20
"""Above any message: a command has at most half of it."""
FRAME_BYTES_USUAL = 2**16
GREETING_BYTES = 2**12
"""Of the buffer at first: most greetings are shorter."""
RECEIVE_BYTES = 2**16
RECEIVE_BYTES_FULL = 2**20
SILENCE_MS_MAX = 10_000
"""Time for which the peer may leave bytes unacknowledged before the connection counts as dead."""

log = get_logger("lithify.raft")


class UnsentChannels:
    """The channels with queued messages: all are sent in one turn of the loop."""

    def __init__(self) -> None:
        self._channels: list[Channel] = []
        self._is_due = False
        """Is `send` called anyway, by the loop or after `hold`?"""

    def add(self, channel: Channel) -> None:
        """A channel has queued its first message."""
        self._channels.append(channel)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.send)

    def hold(self) -> None:
        """Send nothing before `send`, which must follow in this turn."""
        self._is_due = True

    def send(self) -> None:
        """Send everything queued, to nodes first: clients wait for them."""
        channels, self._channels, self._is_due = self._channels, [], False
        for channel in sorted(channels, key=_is_of_client):
            channel.flush()


class Channel(asyncio.BufferedProtocol):
    """See the module."""

    def __init__(
        self, received: OnMessages, lost: Lost, unsent: UnsentChannels | None = None
    ) -> None:
        self._received = received
        self._lost = lost
        self._unsent = UnsentChannels() if unsent is None else unsent
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(GREETING_BYTES)
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
        """The name of the other node; empty for a client, or before it has identified itself."""
        self._here = ""
        self.identity: str | None = None
        """The identity of the other node's directory; None until it is accepted."""
        self.book: str | None = None
        """The addresses that the other node knows, until it is accepted."""
        self.greeted = False
        self.reason = "the connection was closed"

    def greet(self, node: str, here: str) -> None:
        """The peer has identified itself: accept larger frames."""
        self.node, self._here = node, here
        self._limit = FRAME_BYTES_MAX
        self.greeted = True

    @property
    def certificate_names(self) -> set[str] | None:
        """The names in the peer's certificate; None without TLS."""
        assert self._transport is not None
        if self._transport.get_extra_info("ssl_object") is None:
            return None
        shown = self._transport.get_extra_info("peercert") or {}
        names = {value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"}
        subject = (pair for part in shown.get("subject", ()) for pair in part)
        return names | {value for kind, value in subject if kind == "commonName"}

    # --- the connection ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        found = transport.get_extra_info("socket")
        # Other systems lack the option; there a dead peer is found by its missing answers.
        with suppress(OSError, AttributeError):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        if exc is not None:
            self.reason = str(exc)
            if not self.greeted and self.certificate_names is not None:
                # The peer checks our certificate after the handshake is complete, and hangs up.
                self.reason += "; perhaps it does not take the certificate that was shown"
        self._buffer = bytearray()
        self._start = self._stop = 0
        self._queue.clear()
        self._gone.set()
        self._lost(self)

    @property
    def closed(self) -> bool:
        """Is the connection closed or closing?"""
        return self._transport is None or self._transport.is_closing()

    def close(self, reason: str = "") -> None:
        """Close the connection after everything queued was sent."""
        self.reason = reason or self.reason
        self.flush()
        # A second close makes the TLS transport forget its connection: it could not be aborted,
        # and connection_lost would not be called.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self, timeout_s: float) -> None:
        """Return when the connection is closed; bytes not sent by then are dropped."""
        if self._transport is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()
        self._transport.abort()
        await self._gone.wait()

    # --- receiving --------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (the protocol's name)
        """The free space for the next bytes."""
        left, size = self._stop - self._start, len(self._buffer)
        least = RECEIVE_BYTES if self.greeted else 0
        if self._stop == size or size < least:
            target = self._buffer
            if self._start < left or size < RECEIVE_BYTES_FULL:
                # Bounded: a frame above the limit is refused when its header arrives.
                target = bytearray(max(2 * size, least))
            target[:left] = self._buffer[self._start : self._stop]
            self._buffer, self._start, self._stop = target, 0, left
        return memoryview(self._buffer)[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were received."""
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
        # A buffer with open views cannot be replaced.
        with memoryview(self._buffer) as view:
            while not self.closed and self._wanted:
                with view[self._start : self._stop] as rest:
                    size = frame_bytes(rest, self._limit)
                    if not size or size > len(rest):
                        return
                    with rest[:size] as frame:
                        messages = decode_frame(frame, self.node, self._here)
                self._start += size
                self._received(self, messages)

    def read_on(self, *, wanted: bool) -> None:
        """Resume or pause reading; it is also paused while the peer does not read its answers."""
        self._wanted = wanted
        self._read_or_not()
        if wanted and self._start < self._stop:
            # Frames that came with the one after which the pause began.
            asyncio.get_running_loop().call_soon(self.buffer_updated, 0)

    def pause_writing(self) -> None:
        """The peer does not read what was sent."""
        self._taken = False
        self._read_or_not()

    def resume_writing(self) -> None:
        """The peer has read nearly all of it."""
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
        """Bytes queued here because the peer does not read them."""
        if self._transport is None or self.closed:
            return 0
        return self._queued_bytes + self._transport.get_write_buffer_size()

    def send(self, group: str, message: object) -> None:
        """Send a message, together with the others of this turn of the loop."""
        if self.closed:
            return
        self._queued_bytes += encode_message(group, message, self._queue)
        if self._queued_bytes >= FRAME_BYTES_USUAL:
            self.flush()
        elif not self._flushing:
            self._flushing = True
            self._unsent.add(self)

    def flush(self) -> None:
        """Send everything queued."""
        queue, self._queue = self._queue, []
        self._queued_bytes = 0
        self._flushing = False
        if queue and self._transport is not None and not self._transport.is_closing():
            self._transport.write(join_frame(queue))


def _is_of_client(channel: Channel) -> bool:
    return not channel.node


assert HELLO_BYTES_MAX + FRAME_HEADER_BYTES <= 2 * RECEIVE_BYTES
