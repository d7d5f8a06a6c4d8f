"""The HTTP port: uvicorn's connections, with limits on the resources of slow or idle peers.

uvicorn waits without a limit for the headers of a request, and for the rest of a body. Here

1. a port has at most `connections_max` connections, `connections_per_address_max` of one address;
2. the headers of a request are complete within `connect_timeout_ms` (after the connection, or after
   their first byte), and have at most `HEADER_BYTES_MAX` in at most `HEADERS_MAX` lines;
3. of a body that the application reads at least `BODY_BYTES_MIN` arrive in each `frame_timeout_ms`;
4. a connection that was closed is aborted `frame_timeout_ms` later, even if the peer does not
   receive what it was sent;
5. a body in thousands of tiny chunks is parsed in steps of `TURN_S`, with other tasks in between.

A connection that breaks a limit is closed. Between two requests uvicorn's own limit applies, 5 s.

Called by `server.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from lithify.logger import get_logger
from lithify.pulsar.connection_limits import Peers
from lithify.pulsar.listener import ACCEPTS_MAX, BACKLOG

if TYPE_CHECKING:
    import asyncio
    import socket
    import ssl

    from lithify.pulsar.connection_limits import ConnectionLimits

__all__ = ["http_server"]

HEADER_BYTES_MAX = 32 * 2**10
HEADERS_MAX = 200
"""Parsing one takes about 3 µs, and every connection may send this many."""
BODY_BYTES_MIN = 1024
TURN_S = 0.002
SLICE_BYTES = 4096
CHECKS_PER_TIMEOUT = 4

_HEAD_END = re.compile(rb"\r?\n\r?\n")

log = get_logger("lithify.http")


class HttpConnection(H11Protocol):
    """One connection with the limits of the module docstring."""

    peers: Peers

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._address: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        """The deadline for what the peer is sending."""
        self._body_bytes = 0
        """Bytes of the body since `_due_s` was set."""
        self._rest = b""
        """Bytes to parse in the next step."""
        self._is_new = True
        """Whether no request has arrived."""
        self._closing = False
        """Whether the last check found the connection closing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        address = self.client[0] if self.client else "?"
        reason = self.peers.add(address)
        if reason is not None:
            self.peers.log_refusal(log, address, reason)
            transport.abort()
            return
        self._address = address
        self._due_s = self.loop.time() + self._header_s
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        super().connection_lost(exc)
        if self._address is not None:
            self.peers.remove(self._address)
            self._address = None
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _header_s(self) -> float:
        return self.peers.limits.connect_timeout_ms / 1000

    @property
    def _body_s(self) -> float:
        return self.peers.limits.frame_timeout_ms / 1000

    # --- receiving --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Start the deadline of a new request, and parse."""
        if self._rest:
            # Reading is paused, but TLS may still deliver buffered data.
            self._rest += data
            return
        was_idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if was_idle:
            self._due_s = self.loop.time() + self._header_s
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse for one step; the rest is parsed in the next one."""
        begun_s, at = self.loop.time(), 0
        while at < len(data) and not self.transport.is_closing():
            was_body = self.conn.their_state is h11.SEND_BODY
            some = data[at : at + SLICE_BYTES]
            if not was_body and _header_lines(self.conn.trailing_data[0] + some) > HEADERS_MAX:
                self._abort(f"a request with more than {HEADERS_MAX} headers")
                return
            super().data_received(some)
            at += len(some)
            self._is_new &= self.conn.their_state is h11.IDLE
            if self.conn.their_state is h11.SEND_BODY:
                if not was_body:
                    self._expect_body()
                self._body_bytes += len(some)
            if at < len(data) and self.loop.time() - begun_s > TURN_S:
                self._rest = data[at:]
                self.transport.pause_reading()
                self.loop.call_soon(self._resume)
                return

    def _resume(self) -> None:
        data, self._rest = self._rest, b""
        if self.transport.is_closing():
            return
        if not self.flow.read_paused:
            self.transport.resume_reading()
        self._parse(data)

    def _expect_body(self) -> None:
        self._due_s = self.loop.time() + self._body_s
        self._body_bytes = 0

    # --- limits -----------------------------------------------------------------------------

    def _schedule_check(self) -> None:
        seconds = min(self._header_s, self._body_s) / CHECKS_PER_TIMEOUT
        self._timer = self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """Close the connection if the peer has missed the deadline."""
        if self.transport.is_closing():
            # Send the remaining data first, but only for a limited time.
            if self._closing:
                self.transport.abort()
            else:
                self._closing = True
                self._timer = self.loop.call_later(self._body_s, self._check)
            return
        state = self.conn.their_state
        waits = state is h11.SEND_BODY and self.transport.is_reading() and not self._rest
        if self.loop.time() >= self._due_s:
            if state is h11.IDLE and (self._is_new or self.conn.trailing_data[0]):
                limit = self.peers.limits.connect_timeout_ms
                self._abort(f"no request within {limit} ms (connect_timeout_ms)")
                return
            if waits and self._body_bytes < BODY_BYTES_MIN:
                limit = self.peers.limits.frame_timeout_ms
                self._abort(f"no more of a body within {limit} ms (frame_timeout_ms)")
                return
            self._expect_body()
        self._schedule_check()

    def _abort(self, reason: str) -> None:
        log.info("connection closed", peer=self.client and self.client[0], reason=reason)
        self.transport.abort()


def _header_lines(data: bytes) -> int:
    """Lines of a request before its body, as far as they have arrived."""
    return _HEAD_END.split(data, maxsplit=1)[0].count(b"\n")


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)


def http_server(
    app: Any,
    limits: ConnectionLimits,
    tls: ssl.SSLContext | None,
    goodbye_s: float,
) -> uvicorn.Server:
    """A server of the application, not started."""

    class Bounded(HttpConnection):
        peers = Peers(limits)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except (ClientDisconnect, h11.LocalProtocolError):
            # The client disconnected or sent invalid HTTP: no reply is possible.
            return

    config = uvicorn.Config(
        answer,
        http=Bounded,
        ws="none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        timeout_graceful_shutdown=int(goodbye_s),
        backlog=ACCEPTS_MAX,
    )
    config.load()
    config.ssl = tls
    return _Server(config)
