"""One TCP or TLS connection of a client: its receive buffer, timeouts, PING, and output.

Each connection has one receive buffer. It starts with `STRANGER_BYTES`, and stays below twice
`CONNECT_BYTES_MAX` until the peer is authenticated. It then grows to `RECEIVE_BYTES_FULL` if the
peer fills it, because the cost of a receive does not depend on its size. Beyond that it grows only
for a frame that needs it, to at most twice the largest frame. The rest of an incomplete frame moves
to the front of the buffer. The output of a session during one receive goes out in one write; large
pieces are not joined, but written alone.

The memory of a connection is bounded, whatever its peer does:

1. While a peer does not drain its socket, its connection is not read, no messages are dispatched to
   it, and its remaining commands are not executed. The output in flight at that moment is at most
   `OUT_BYTES_MAX` and one read of the log.
2. While `UNANSWERED_MAX` messages of a peer wait for receipts, because it sends faster than the
   disk writes, its connection is not read.
3. A silent peer gets a PING every `PING_SECONDS`. The connection is closed if no answer arrives
   within the next `PING_SECONDS`, if CONNECT does not arrive within `connect_timeout_ms`, or if a
   frame is not complete within `frame_timeout_ms`.
4. All buffers together have at most `receive_bytes_max` above `RECEIVE_BYTES` each. The connection
   that needs more is closed; its client reconnects and sends again. There are at most
   `connections_max` connections, and `connections_per_address_max` per address; more are refused.

The time that a connection costs others is bounded too, see `fair_turns.py`. `connection_limits.py`
has the limits before authentication and those of all connections.

On a protocol error the pending output is sent, the connection is closed, and the reason is logged.

This module and `listener.py` are the only ones of this package that do network I/O.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.pulsar.connection_limits import STRANGER_BYTES, Peers
from lithify.pulsar.wire import replies
from lithify.pulsar.wire.framing import FRAME_MARGIN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.checksum import Buffer
    from lithify.pulsar.broker import Broker
    from lithify.pulsar.session import Session

__all__ = ["ClientConnection"]

RECEIVE_BYTES = 2**18
RECEIVE_BYTES_FULL = 2**20
PIECE_BYTES_LARGE = 2**16
OUT_BYTES_MAX = 2**18
UNANSWERED_MAX = 10_000
PING_SECONDS = 30
LINGER_SECONDS = 5

log = get_logger("lithify.pulsar")


class ClientConnection(asyncio.BufferedProtocol):
    """One TCP or TLS connection of a Pulsar client."""

    def __init__(self, broker: Broker, connections: set[ClientConnection], peers: Peers) -> None:
        self._broker = broker
        self._connections = connections
        self._peers = peers
        self._address: str | None = None
        """The address that `Peers` has counted; None if the connection was refused."""
        self._frame_due_s: float | None = None
        """Deadline of the incomplete frame in the buffer."""
        self._frame_start = 0
        self._limit = broker.max_message_bytes + FRAME_MARGIN_BYTES
        self._buffer = np.empty(0, dtype=np.uint8)
        self._start = 0
        self._stop = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._receiving = False
        self._queued = False
        """Does the connection wait for its turn?"""
        self._draining = True
        self._received = True
        self._pinged = False
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and start its session or refuse it."""
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
        self._check_in(min(PING_SECONDS, limits.connect_timeout_ms / 1000))

    def _check_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_deadlines)

    def _resize(self, size: int, start: int = 0, stop: int = 0) -> None:
        """Replace the buffer; the bytes from `start` to `stop` move to its front."""
        target = np.empty(size, dtype=np.uint8)
        target[: stop - start] = self._buffer[start:stop]
        self._peers.buffer_bytes += _counted(size) - _counted(len(self._buffer))
        self._buffer, self._start, self._stop = target, 0, stop - start

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the session and release the buffer."""
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.close()
        if self._address is not None:
            self._peers.remove(self._address)
        # Connection and session form a reference cycle: free the buffer without waiting for GC.
        self._resize(0)
        if exc is not None:
            log.info("connection lost", peer=self.peer, reason=str(exc))

    def close(self) -> None:
        """Close after all output is written, or after `LINGER_SECONDS`."""
        self._flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Close without writing the pending output."""
        if self._transport is not None:
            self._transport.abort()

    def _close_with(self, reason: str) -> None:
        log.warning("connection closed", peer=self.peer, reason=reason)
        assert self._session is not None
        # Do not keep its producers and consumers until the socket is closed.
        self._session.close()
        self.close()

    def _check_deadlines(self) -> None:
        session, transport = self._session, self._transport
        assert session is not None
        assert transport is not None
        limits = self._peers.limits
        if not session.connected:
            why = f"no CONNECT within {limits.connect_timeout_ms} ms (connect_timeout_ms)"
            self._close_with(why)
            return
        now_s = asyncio.get_running_loop().time()
        if self._frame_due_s is not None and now_s >= self._frame_due_s and transport.is_reading():
            why = f"a frame was not complete within {limits.frame_timeout_ms} ms (frame_timeout_ms)"
            self._close_with(why)
            return
        if self._received or not transport.is_reading():
            self._pinged = False
        elif self._pinged:
            self._close_with(f"no answer to PING within {PING_SECONDS} s")
            return
        else:
            self._pinged = True
            self._send(replies.ping())
            if self._start == self._stop and len(self._buffer) > RECEIVE_BYTES:
                self._resize(RECEIVE_BYTES)
        self._received = False
        self._check_in(min(PING_SECONDS, limits.frame_timeout_ms / 1000))

    # --- receiving --------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (the protocol's name)
        """Return the free end of the buffer; compact or grow the buffer if it is full."""
        if self._stop == len(self._buffer):
            left = self._stop - self._start
            session = self._session
            limit = self._limit if session is None else session.frame_bytes_max
            room = min(len(self._buffer), RECEIVE_BYTES_FULL)
            if self._start >= left and (room == RECEIVE_BYTES_FULL or 2 * limit <= room):
                self._buffer[:left] = self._buffer[self._start : self._stop]
                self._start, self._stop = 0, left
            else:
                # The limit is small while the peer is not authenticated.
                least = RECEIVE_BYTES if limit == self._limit else STRANGER_BYTES
                size = min(max(2 * len(self._buffer), least), 2 * limit)
                self._resize(size, self._start, self._stop)
        return self._buffer.data[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` new bytes."""
        self._stop += nbytes
        self._received = True
        self._take_turn()

    def _take_turn(self) -> None:
        """Run a turn now, or queue it for this connection's source; see `fair_turns.py`."""
        if self._queued:
            return
        rounds, session = self._broker.rounds, self._session
        assert session is not None
        if rounds.is_open:
            rounds.run(self._handle)
            return
        self._queued = True
        # Stop reading, so that the buffer does not fill up before the turn.
        self._read_or_not()
        rounds.enqueue(session.source, self._run_turn)

    def _run_turn(self) -> None:
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
            self._close_with(str(error))
        except Exception:
            log.exception("a command failed", peer=self.peer)
            self._close_with("a command failed")
        finally:
            self._receiving = False
        if self._start == self._stop:
            self._start = self._stop = 0
        self._check_buffer(session)
        self._flush()

    def _check_buffer(self, session: Session) -> None:
        """Set the deadline of an incomplete frame; close if all buffers exceed their limit."""
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
            self._close_with(
                f"incomplete frames of all connections take {peers.buffer_bytes} bytes, "
                f"the limit is {limit} (receive_bytes_max)"
            )

    def _read_or_not(self) -> None:
        """Resume reading if the peer drains its socket and the disk keeps up; pause otherwise."""
        session, transport = self._session, self._transport
        assert session is not None
        assert transport is not None
        if transport.is_closing():
            return
        reading = transport.is_reading()
        limit = UNANSWERED_MAX if reading else UNANSWERED_MAX // 2
        busy = self._queued or session.waiting
        should_read = self._draining and not busy and session.unanswered <= limit
        if reading and not should_read:
            transport.pause_reading()
        elif should_read and not reading:
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
        """The peer does not drain its socket: pause the session."""
        self._draining = False
        if self._session is not None:
            self._session.pause()

    def resume_writing(self) -> None:
        """The peer has drained its socket: resume the session."""
        self._draining = True
        if self._session is not None and not self._session.closed:
            self._session.resume()
            if self._receiving:
                return
            # Commands may be left in the buffer from before the pause.
            self._take_turn()


def _counted(size: int) -> int:
    """The bytes of a buffer above the share of each peer; they count for `receive_bytes_max`."""
    return max(0, size - RECEIVE_BYTES)


def _joined(pieces: list[Buffer]) -> Iterator[Buffer]:
    """The pieces to write: consecutive small pieces are joined, large ones are not copied."""
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < PIECE_BYTES_LARGE:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        # After a partial write the transport slices the rest: a view is sliced without a copy.
        yield memoryview(piece)
    if small:
        yield b"".join(small)
