"""TCP and TLS for sessions: the only module of this package that does I/O.

Each connection has one receive buffer. It begins with `STRANGER_BYTES` and stays below twice the
largest first frame until it is known who the peer is. Then it grows to `RECEIVE_BYTES_FULL` under a
peer that fills it, because what a receive costs does not depend on how much there is in it, and
beyond that only for a frame that needs it: to twice the largest one and no further. What is left of
a frame is moved to its front. Whatever a session sends within one receive goes out in one write;
what is large is not joined with the rest but written by itself.

A connection costs bounded memory, whatever its peer does:

1. A peer that does not drain its socket is not read from, nothing is dispatched to it, and what it
   has asked for already is not carried out, until it does. What was on its way when the socket
   filled up is at most `OUT_BYTES_MAX` and one read of the log.
2. A peer that sends faster than the disk writes is not read from while `UNANSWERED_MAX` of its
   messages wait for their receipts.
3. A peer that is silent is asked every `PING_SECONDS` whether it is there, and hung up on if it
   does not answer by the next time. One that has not said CONNECT after `connect_timeout_ms`, or
   does not finish a frame within `frame_timeout_ms`, is hung up on.
4. What the buffers of all connections have above `RECEIVE_BYTES` each is at most
   `receive_bytes_max` together: the peer that needs more is hung up on, and its client connects and
   sends again. There are at most
   `connections_max` of them, `connections_per_address_max` of one address; others are refused.

Nor does it cost others much time: see `fair_turns.py`.

A peer that breaks the protocol is sent what it had coming, then hung up on; the log says why.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.pulsar.connection_limits import Peers
from lithify.pulsar.wire import replies
from lithify.pulsar.wire.framing import FRAME_MARGIN_BYTES

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from lithify.checksum import Buffer
    from lithify.pulsar.broker import Broker
    from lithify.pulsar.session import Session

__all__ = ["ACCEPTS_MAX", "BACKLOG", "ClientConnection", "listen"]

STRANGER_BYTES = 2**13
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


class ClientConnection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, broker: Broker, connections: set[ClientConnection], peers: Peers) -> None:
        self._broker = broker
        self._connections = connections
        self._peers = peers
        self._address: str | None = None
        """As it was counted; None if it was not."""
        self._frame_due_s: float | None = None
        """When the frame that is in the buffer must be complete."""
        self._frame_start = 0
        self._limit = broker.max_message_bytes + FRAME_MARGIN_BYTES
        self._buffer = np.empty(0, dtype=np.uint8)
        self._start = 0
        self._stop = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._receiving = False
        self._queued = False
        """Does it wait for its turn?"""
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
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        address = str(name[0]) if name else "?"
        refusal = self._peers.add(address)
        if refusal is not None:
            self._peers.log_refusal(log, self.peer, refusal)
            transport.abort()
            return
        self._address = address
        self._connections.add(self)
        self._resize(STRANGER_BYTES)
        self._session = self._broker.session(self._send, self._handle)
        self._session.peer = self.peer
        limits = self._peers.limits
        self._look_in(min(PING_SECONDS, limits.connect_timeout_ms / 1000))

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look_after)

    def _resize(self, size: int, start: int = 0, stop: int = 0) -> None:
        """Another buffer, with what is between `start` and `stop` at its front."""
        target = np.empty(size, dtype=np.uint8)
        target[: stop - start] = self._buffer[start:stop]
        self._peers.buffer_bytes += _counted(size) - _counted(len(self._buffer))
        self._buffer, self._start, self._stop = target, 0, stop - start

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.close()
        if self._address is not None:
            self._peers.remove(self._address)
        # Connection and session know each other, so they stay until the collector comes round.
        self._resize(0)
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
        limits = self._peers.limits
        if not session.connected:
            self._give_up(f"no CONNECT within {limits.connect_timeout_ms} ms (connect_timeout_ms)")
            return
        now_s = asyncio.get_running_loop().time()
        if self._frame_due_s is not None and now_s >= self._frame_due_s and transport.is_reading():
            why = f"a frame was not complete within {limits.frame_timeout_ms} ms (frame_timeout_ms)"
            self._give_up(why)
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
                self._resize(RECEIVE_BYTES)
        self._heard = False
        self._look_in(min(PING_SECONDS, limits.frame_timeout_ms / 1000))

    # --- receiving --------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (the protocol's name)
        """Where the next bytes go."""
        if self._stop == len(self._buffer):
            left = self._stop - self._start
            session = self._session
            limit = self._limit if session is None else session.frame_bytes_max
            room = min(len(self._buffer), RECEIVE_BYTES_FULL)
            if self._start >= left and (room == RECEIVE_BYTES_FULL or 2 * limit <= room):
                self._buffer[:left] = self._buffer[self._start : self._stop]
                self._start, self._stop = 0, left
            else:
                # With a small limit it is not known yet who the peer is.
                least = RECEIVE_BYTES if limit == self._limit else STRANGER_BYTES
                size = min(max(2 * len(self._buffer), least), 2 * limit)
                self._resize(size, self._start, self._stop)
        return self._buffer.data[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self._stop += nbytes
        self._heard = True
        self._go_on()

    def _go_on(self) -> None:
        """Have a turn: now, or when it is the turn of this connection; see `fair_turns.py`."""
        if self._queued:
            return
        rounds, session = self._broker.rounds, self._session
        assert session is not None
        if rounds.is_open:
            rounds.run(self._handle)
            return
        self._queued = True
        # What it has sent is in the buffer, which must not fill up meanwhile.
        self._read_or_not()
        rounds.enqueue(session.source, self._have_turn)

    def _have_turn(self) -> None:
        self._queued = False
        if self._session is not None and not self._session.closed:
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
        self._look_at_buffer(session)
        self._flush()

    def _look_at_buffer(self, session: Session) -> None:
        """Note when an unfinished frame is due, and hang up if all buffers are too large."""
        unfinished = self._start < self._stop and not session.waiting and not session.paused
        if not unfinished:
            self._frame_due_s = None
        elif self._frame_due_s is None or self._start != self._frame_start:
            timeout_s = self._peers.limits.frame_timeout_ms / 1000
            self._frame_due_s = asyncio.get_running_loop().time() + timeout_s
        self._frame_start = self._start
        peers = self._peers
        limit = peers.limits.receive_bytes_max
        if peers.buffer_bytes <= limit // 2 or len(self._buffer) <= RECEIVE_BYTES:
            return
        if self._start == self._stop:
            self._resize(RECEIVE_BYTES)
        elif peers.buffer_bytes > limit:
            self._give_up(
                f"frames that all connections are sending take {peers.buffer_bytes} bytes, "
                f"the limit is {limit} (receive_bytes_max)"
            )

    def _read_or_not(self) -> None:
        """Read on if the peer takes what it is sent and the disk keeps up with it."""
        session, transport = self._session, self._transport
        assert session is not None
        assert transport is not None
        if transport.is_closing():
            return
        reading = transport.is_reading()
        limit = UNANSWERED_MAX if reading else UNANSWERED_MAX // 2
        busy = self._queued or session.waiting
        wanted = self._draining and not busy and session.unanswered <= limit
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
            self._go_on()


def _counted(size: int) -> int:
    """What of a buffer counts for `receive_bytes_max`: what is more than each peer may have."""
    return max(0, size - RECEIVE_BYTES)


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
    connections: set[ClientConnection],
    tls: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Serve clients at an address; port 0 takes a free one."""
    loop = asyncio.get_running_loop()
    peers = Peers(broker.limits)
    timeout_s = broker.limits.connect_timeout_ms / 1000
    server = await loop.create_server(
        lambda: ClientConnection(broker, connections, peers),
        host,
        port,
        ssl=tls,
        ssl_handshake_timeout=None if tls is None else timeout_s,
        backlog=ACCEPTS_MAX,
    )
    for each in server.sockets:
        with each.dup() as listening:
            listening.listen(BACKLOG)
    return server
