"""The connection of a node to one peer, reopened when it closes. The transport owns the links."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lithify.errors import ProtocolError
from lithify.logger import get_logger
from lithify.raft.net.channel import Channel
from lithify.raft.net.cluster_secret import ClusterSecretRefused
from lithify.raft.net.control_frames import INTRODUCES, SHOWS_STARTS, Introduction, Welcome
from lithify.raft.net.handshake import Greeting, credentials_in, credentials_of

if TYPE_CHECKING:
    from lithify.raft.net.client_operations import Address
    from lithify.raft.net.transport import Transport

__all__ = ["GOODBYE_S", "HELLO_S", "PeerLink"]

HELLO_S = 5.0
GOODBYE_S = 1.0
WAIT_S_MIN, WAIT_S_MAX = 0.05, 2.0

log = get_logger("lithify.raft")


class PeerLink:
    """The connection to one peer; see the module."""

    def __init__(self, transport: Transport, name: str, address: Address) -> None:
        self._transport = transport
        self._name = name
        self.address = address
        self.channel: Channel | None = None
        """None while not connected."""
        self._opening: Channel | None = None
        self._changed = asyncio.Event()
        self._welcomed = asyncio.Event()
        self._welcome: Welcome | None = None
        self._greeting: Greeting
        self.reason = ""
        self._task = asyncio.create_task(self._run())

    def resend_credentials(self) -> None:
        """Send this node's credentials again, because they have changed."""
        if self.channel is not None and self.version >= SHOWS_STARTS:
            self.channel.send("", self._transport.introduction(self._name, self.version))

    @property
    def version(self) -> int:
        """The version of the peer; 0 before it has answered."""
        return 0 if self._welcome is None else self._welcome.version

    def hurry(self) -> None:
        """Connect now: the peer is there."""
        self._changed.set()

    def move(self, address: Address) -> None:
        """The peer has another address."""
        self.address = address
        if self._opening is not None:
            self._opening.abort("the node has moved")

    async def close(self) -> None:
        """Close the connection and stop."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._opening is not None:
            self._opening.abort("the node stops")
            await self._opening.wait_closed(GOODBYE_S)

    async def _run(self) -> None:
        wait_s = WAIT_S_MIN
        while True:
            if await self._stay_connected():
                wait_s = WAIT_S_MIN
            self._changed.clear()
            with suppress(TimeoutError):
                # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together
                # with the event, and `close` would never return.
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            wait_s = min(2 * wait_s, WAIT_S_MAX)

    async def _stay_connected(self) -> bool:
        """Connect, and return when the connection has closed; returns whether it was accepted."""
        ended, self._welcomed = asyncio.Event(), asyncio.Event()
        self._welcome = None

        def lost(_: Channel) -> None:
            # Wakes the task that waits for the welcome.
            self._welcomed.set()
            ended.set()

        channel = self._opening = Channel(self._receive, lost, self._transport.unsent)
        transport = self._transport
        self._greeting = transport.greeting(self._name)
        try:
            async with asyncio.timeout(HELLO_S):
                await self._greeting.connect(self.address, channel, transport.context)
                await self._welcomed.wait()
        except (OSError, TimeoutError) as error:
            channel.abort(str(error) or "no answer")
        if not channel.greeted or channel.closed:
            self._tell(channel.reason)
            return False
        self.reason = ""
        log.info("connected", node=self._name, address=str(self.address))
        self.channel = channel
        await ended.wait()
        self.channel = None
        self._tell(channel.reason)
        return True

    def _receive(self, channel: Channel, messages: list[tuple[str, Any]]) -> None:
        if channel.greeted:
            raise ProtocolError("a peer talks on a connection that is for listening")
        transport = self._transport
        if self._welcome is None:
            try:
                self._welcome = self._greeting.receive(channel, messages)
            except ClusterSecretRefused as error:
                # Not raised: it is logged once, not at every attempt.
                channel.abort(str(error))
            if self._welcome is None:
                return
            if self._welcome.version >= INTRODUCES:
                channel.send("", transport.introduction(self._name, self._welcome.version))
                return
            shown = credentials_of(Introduction(0, "", "", "{}"))
        else:
            shown = credentials_in(messages)
            if shown.refusal:
                transport.merge_starts(self._name, shown)
                transport.disowned_by(self._name, shown)
                # Not raised, as above.
                channel.abort(shown.refusal)
                return
        refusal = transport.refusal_of(self._name, shown)
        if refusal:
            # So that the peer's log has the reason too.
            version = self._welcome.version
            channel.send("", transport.introduction(self._name, version, refusal))
            channel.close(refusal)
            return
        if shown.identity:
            transport.accept(self._name, shown)
        channel.identity = shown.identity
        transport.take_book(self._welcome.book, self._name)
        channel.greet(self._name, "")
        transport.accepted_by(self._name)
        self._welcomed.set()

    def _tell(self, reason: str) -> None:
        # Once, not at every attempt.
        if reason != self.reason:
            self.reason = reason
            address = str(self.address)
            log.warning("not connected", node=self._name, address=address, reason=reason)
