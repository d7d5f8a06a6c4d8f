"""TCP and TLS for sessions: the only module of this package that does I/O.

Each connection has one receive buffer. It begins with `RECEIVE_BYTES`, grows to
`RECEIVE_BYTES_FULL` under a peer that fills it, because what a receive costs does not depend on how
much there is in it, and beyond that only for a frame that needs it: to twice the largest one and
no further. What is left of a frame is moved to its front. Whatever a session sends within one
receive goes out in one write; what is large is not joined with the rest but written by itself.

A connection costs bounded memory, whatever its peer does:

1. A peer that does not drain its socket is not read from, nothing is dispatched to it, and what it
   has asked for already is not carried out, until it does. What was on its way when the socket
   filled up is at most `OUT_BYTES_MAX` and one read of the log.
2. A peer that sends faster than the disk writes is not read from while `UNANSWERED_MAX` of its
   messages wait for their receipts.
3. A peer that is silent is asked every `PING_SECONDS` whether it is there, and hung up on if it
   does not answer by the next time, as is one that has not said CONNECT by then.

A peer that breaks the protocol is sent what it had coming, then hung up on; the log says why.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.pulsar import replies
from lithify.pulsar.framing import FRAME_MARGIN_BYTES

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from lithify.checksum import Buffer
    from lithify.pulsar.broker import Broker
    from lithify.pulsar.session import Session

__all__ = ["ACCEPTS_MAX", "BACKLOG", "Connection", "listen"]

RECEIVE_BYTES = 2**18
RECEIVE_BYTES_FULL = 2**20
PIECE_BYTES_LARGE = 2**16
OUT_BYTES_MAX = 2**18
UNANSWERED_MAX = 10_000
PING_SECONDS = 30
LINGER_SECONDS = 5
BACKLOG = 1024
"""Connections that the operating system keeps until they are accepted."""
ACCEPTS_MAX = 16
"""Connections that are accepted at once. asyncio knows one number for both, and if no descriptor is
left it reports the error that many times and comes back that many times a second later."""

log = get_logger("lithify.pulsar")


class Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, broker: Broker, connections: set[Connection]) -> None:
        self._broker = broker
        self._connections = connections
        self._limit = broker.max_message_bytes + FRAME_MARGIN_BYTES
        self._buffer = np.empty(RECEIVE_BYTES, dtype=np.uint8)
        self._start = 0
        self._stop = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._receiving = False
        self._draining = True
        self._heard = True
        self._asked = False
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        self._session = self._broker.session(self._send, self._handle)
        self._session.peer = self.peer
        self._timer = asyncio.get_running_loop().call_later(PING_SECONDS, self._look_after)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.close()
        # Connection and session know each other, so they stay until the collector comes round.
        self._buffer = np.empty(0, dtype=np.uint8)
        self._start = self._stop = 0
        if exc is not None:
            log.info("connection lost", peer=self.peer, reason=str(exc))

    def close(self) -> None:
        """Hang up once everything that was sent has gone out, or could not for a while."""
        self._flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, reason: str) -> None:
        log.warning("connection closed", peer=self.peer, reason=reason)
        assert self._session is not None
        # Its producers and consumers must not wait for the socket to close.
        self._session.close()
        self.close()

    def _look_after(self) -> None:
        session, transport = self._session, self._transport
        assert session is not None
        assert transport is not None
        if not session.connected:
            self._give_up(f"no CONNECT within {PING_SECONDS} s")
            return
        if self._heard or not transport.is_reading():
            self._asked = False
        elif self._asked:
            self._give_up(f"no answer to PING within {PING_SECONDS} s")
            return
        else:
            self._asked = True
            self._send(replies.ping())
            if self._start == self._stop and len(self._buffer) > RECEIVE_BYTES:
                self._buffer = np.empty(RECEIVE_BYTES, dtype=np.uint8)
        self._heard = False
        self._timer = asyncio.get_running_loop().call_later(PING_SECONDS, self._look_after)

    # --- receiving --------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (the protocol's name)
        """Where the next bytes go."""
        if self._stop == len(self._buffer):
            left = self._stop - self._start
            if self._start >= left and len(self._buffer) >= RECEIVE_BYTES_FULL:
                target = self._buffer
            else:
                target = np.empty(min(2 * len(self._buffer), 2 * self._limit), dtype=np.uint8)
            target[:left] = self._buffer[self._start : self._stop]
            self._buffer, self._start, self._stop = target, 0, left
        return self._buffer.data[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self._stop += nbytes
        self._heard = True
        self._handle()

    def _handle(self) -> None:
        session = self._session
        assert session is not None
        self._receiving = True
        try:
            self._start = session.receive(self._buffer, self._start, self._stop)
        except (LithifyError, OSError) as error:
            self._give_up(str(error))
        except Exception:
            log.exception("a command failed", peer=self.peer)
            self._give_up("a command failed")
        finally:
            self._receiving = False
        if self._start == self._stop:
            self._start = self._stop = 0
        self._flush()

    def _read_or_not(self) -> None:
        """Read on if the peer takes what it is sent and the disk keeps up with it."""
        session, transport = self._session, self._transport
        assert session is not None
        assert transport is not None
        if transport.is_closing():
            return
        reading = transport.is_reading()
        limit = UNANSWERED_MAX if reading else UNANSWERED_MAX // 2
        wanted = self._draining and not session.waiting and session.unanswered <= limit
        if reading and not wanted:
            transport.pause_reading()
        elif wanted and not reading:
            transport.resume_reading()

    # --- sending ----------------------------------------------------------------------------

    def _send(self, data: Buffer) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > OUT_BYTES_MAX:
            self._flush()
        elif not self._receiving and len(self._out) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if self._transport is not None and not self._transport.is_closing():
            for piece in _joined(out):
                self._transport.write(piece)
            self._read_or_not()

    def pause_writing(self) -> None:
        """The peer does not take what it is sent."""
        self._draining = False
        if self._session is not None:
            self._session.pause()

    def resume_writing(self) -> None:
        """The peer has taken nearly all of it."""
        self._draining = True
        if self._session is not None and not self._session.closed:
            self._session.resume()
            if self._receiving:
                return
            # Its commands may have been left where they were, because of their answers.
            self._handle()


def _joined(pieces: list[Buffer]) -> Iterator[Buffer]:
    """What is to be written: small pieces joined, large ones as they are."""
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < PIECE_BYTES_LARGE:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        # The transport cuts off what it could send: of bytes it would make a copy for that.
        yield memoryview(piece)
    if small:
        yield b"".join(small)


async def listen(
    broker: Broker,
    host: str,
    port: int,
    connections: set[Connection],
    tls: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Serve clients at an address; port 0 takes a free one."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(broker, connections), host, port, ssl=tls, backlog=ACCEPTS_MAX
    )
    for each in server.sockets:
        with each.dup() as listening:
            listening.listen(BACKLOG)
    return server
