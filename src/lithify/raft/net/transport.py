"""The connections between nodes: one per peer and direction, shared by all groups.

1. A node connects to every peer in its book, sends `Hello`, waits for `Welcome`, and both introduce
   themselves (`Introduction`). Then this connection carries messages to the peer. The peer's
   messages come over another connection, which the peer has opened.
2. Both send their books, so a node that knows one member learns all, and all learn it. A node's own
   address wins; other addresses only fill gaps.
3. A closed connection is reopened, after a wait that doubles up to `WAIT_S_MAX` and ends early when
   the peer connects.
4. A message to a peer that is not connected, or that has `UNSENT_BYTES_MAX` queued, is dropped, and
   the group is notified that the peer is unreachable: Raft sends again by itself.

A node with the name of a member and another data directory is refused by both ends
(`peer_recognition.py`), with an error in both logs: all its messages are ignored, even its address.
`recheck` does the same for open connections when members change. A node whose directory is an older
copy is refused too, and a node of another cluster with the same name.

A node that connects is answered when the record of it is durable (`raft/node/identity_saving.py`).
It sends nothing before, so no promise of it is known here without the start in which it was given.

With a cluster secret both ends must prove it before anything else (`cluster_secret.py`). With TLS
both ends show a certificate of the same authority. The certificate of a node must be for
its name; a client's may have any name.

A node with the wrong name, cluster or version is refused with a text that says so.
All of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from lithify.errors import InvalidInput, LithifyError, ProtocolError
from lithify.logger import get_logger
from lithify.raft.core.configuration import check_identity, check_name
from lithify.raft.core.messages import Commit, RaftMessage
from lithify.raft.net.admission import Admission
from lithify.raft.net.channel import Channel, UnsentChannels
from lithify.raft.net.client_operations import Address, parse_address
from lithify.raft.net.cluster_secret import ClusterSecretRefused
from lithify.raft.net.control_frames import (
    HEARS_COMMITS,
    SHOWS_STARTS,
    WATCHES_NODES,
    WIRE_VERSION,
    ClientRequests,
    Credentials,
    Hello,
    Introduction,
    NodeAlive,
    Welcome,
)
from lithify.raft.net.handshake import (
    Greeting,
    check_certificate,
    credentials_of,
    met_in,
    starts_in,
)
from lithify.raft.net.peer_link import GOODBYE_S, HELLO_S, PeerLink
from lithify.raft.net.peer_recognition import IdentityRefused, KnownStart, OwnStart

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.configuration import Config
    from lithify.raft.net.cluster_secret import ClusterSecret
    from lithify.raft.net.peer_recognition import PeerRecognition

__all__ = ["Handlers", "Tls", "Transport"]

HANDSHAKE_S = 4.0
"""Limit of the TLS handshake, so that it is over before the greeting is checked."""
UNSENT_BYTES_MAX = 64 * 2**20
"""A few times the bytes in flight of one group to a peer; one more message may exceed it."""
CONNECTIONS_MAX = 4096
GREETINGS_MAX = 1024
"""Connections that may be open without a greeting: nodes and clients send it at once."""

log = get_logger("lithify.raft")


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the common authority, the own certificate, its key."""

    authority_file: str
    certificate_file: str
    key_file: str

    def context(self, *, server: bool) -> ssl.SSLContext:
        """The context for one side; the other side must show a certificate."""
        protocol = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Nodes are identified by their names, not by their addresses: see `check_certificate`.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.authority_file)
        context.load_cert_chain(self.certificate_file, self.key_file)
        return context


def _ignore(_: str) -> None: ...


def _ignore_none() -> None: ...


def _ignore_two(_: str, __: str) -> None: ...


def _ignore_epoch(_: str, __: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Handlers:
    """The callbacks of a transport."""

    heard: Callable[[list[tuple[str, RaftMessage]]], None]
    """Groups got messages of a peer, which came together."""
    asked: Callable[[Channel, str, ClientRequests], None]
    """A client has sent requests for a group."""
    unreachable: Callable[[str, str], None]
    """A group's message to a peer was dropped."""
    left: Callable[[Channel], None]
    """A client has disconnected."""
    configs: Callable[[], list[Config]] = list
    """The members of all groups here, committed or not."""
    accepted: Callable[[str], None] = _ignore
    """A peer accepts this node's directory."""
    disowned: Callable[[str, str], None] = _ignore_two
    """A peer refuses this node's directory, with a reason."""
    outdated: Callable[[], None] = _ignore_none
    """A peer has recorded a start that this node's directory lacks: it is an older copy."""
    alive: Callable[[str, int], None] = _ignore_epoch
    """A peer has sent a `NodeAlive`."""


class RaftCannotListen(LithifyError):
    """The operating system refuses an address."""

    def __init__(self, address: Address, why: str) -> None:
        self.address = address
        super().__init__(f"cannot listen at {address}: {why}")


class ShownIdentity(Protocol):
    """What the transport uses of the node's identity."""

    node: str
    cluster: str
    book: dict[str, str]
    recognition: PeerRecognition

    def learn(self, book: dict[str, str]) -> bool:
        """As `merge_addresses`, and durable."""

    def merge_addresses(self, book: dict[str, str]) -> bool:
        """Take in addresses of nodes; returns whether some are new."""


class Saving(Protocol):
    """Makes changes of the identity durable."""

    def changed(self) -> int:
        """Make a change durable soon; returns its number."""

    def after(self, number: int, then: Callable[[BaseException | None], None]) -> None:
        """Call when all changes up to this one are durable."""

    async def close(self) -> None:
        """Write what is not durable yet."""


class Transport:
    """See the module."""

    def __init__(
        self,
        identity: ShownIdentity,
        saving: Saving,
        handlers: Handlers,
        tls: Tls | None,
        secret: ClusterSecret | None = None,
    ) -> None:
        """`saving` makes changes of the identity durable; `close` closes it."""
        self._identity = identity
        self._saving = saving
        self._recorded_by: dict[str, int] = {}
        """By node: the last change of the identity that is about it."""
        self.handlers = handlers
        self._tls = tls
        self.secret = secret
        self._admission = Admission(secret, identity.cluster, identity.node)
        self.context = None if tls is None else tls.context(server=False)
        self.links: dict[str, PeerLink] = {}
        self.channels: set[Channel] = set()
        self._ungreeted: dict[Channel, None] = {}
        """Those that have not been greeted yet, the oldest first."""
        self.unsent = UnsentChannels()
        self._from: dict[str, Channel] = {}
        self.refused: dict[str, str] = {}
        """Nodes that are not accepted here, with the reason."""
        self.refused_by: dict[str, str] = {}
        """Nodes that do not accept this one, with the reason."""
        self.cluster_ids: dict[str, str] = {}
        """The cluster ids that connected nodes have shown."""
        self._server: asyncio.Server | None = None
        self.address = Address("", 0)
        """The address for other nodes; port 0 if there is none."""

    async def start(self, listen: Address | None, advertised_host: str = "") -> None:
        """Listen, and connect to all known peers; port 0 takes a free one.

        Other nodes are told the advertised host in place of the one of `listen`.
        """
        if listen is not None:
            port = await self._listen(listen)
            self.address = Address(advertised_host or listen.host, port)
        self._connect_all()

    async def _listen(self, listen: Address) -> int:
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.context(server=True)
        try:
            self._server = await loop.create_server(
                self._accept,
                listen.host,
                listen.port,
                ssl=context,
                backlog=1024,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
            )
        except OSError as error:
            raise RaftCannotListen(listen, error.strerror or str(error)) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        links, self.links = self.links, {}
        for link in links.values():
            await link.close()
        channels = set(self.channels)
        for channel in channels:
            channel.close("the node stops")
        for channel in channels:
            # Not the server's `wait_closed`: since Python 3.12 it waits for new connections too.
            await channel.wait_closed(GOODBYE_S)
        await self._saving.close()

    @property
    def connected(self) -> list[str]:
        """The peers that messages can be sent to."""
        return sorted(name for name, link in self.links.items() if link.channel is not None)

    def learn(self, book: dict[str, str]) -> None:
        """Store addresses of nodes, from a trusted source."""
        if self._identity.learn(book):
            self._connect_all()

    def send(self, group: str, message: RaftMessage) -> None:
        """Send a message of a group to its receiver, or drop it and notify the group."""
        link = self.links.get(message.to)
        channel = None if link is None else link.channel
        if link is None or channel is None or channel.unsent_bytes > UNSENT_BYTES_MAX:
            self.handlers.unreachable(group, message.to)
        elif isinstance(message, Commit) and link.version < HEARS_COMMITS:
            channel.send(group, message.as_append())
        else:
            channel.send(group, message)

    def send_alive(self, epoch: int) -> None:
        """Send a `NodeAlive` to all connected nodes."""
        for link in self.links.values():
            if link.channel is not None and link.version >= WATCHES_NODES:
                link.channel.send("", NodeAlive(epoch))

    # --- outgoing ---------------------------------------------------------------------------

    def _connect_all(self) -> None:
        for name, text in self._identity.book.items():
            address = parse_address(text)
            link = self.links.get(name)
            if link is None:
                self.links[name] = PeerLink(self, name, address)
            elif link.address != address:
                link.move(address)

    def greeting(self, name: str) -> Greeting:
        """The greeting for a peer."""
        identity = self._identity
        hello = Hello(WIRE_VERSION, identity.cluster, identity.node, name, json.dumps(self.book))
        return Greeting(hello, self.secret)

    @property
    def book(self) -> dict[str, str]:
        """The addresses of all known nodes, and of this one if it has one."""
        identity = self._identity
        own = {identity.node: str(self.address)} if self.address.port else {}
        return identity.book | own

    def take_book(self, text: str, owner: str) -> None:
        """Store another node's addresses: its own always, others only if unknown."""
        try:
            book = {str(name): str(parse_address(at)) for name, at in json.loads(text).items()}
        except (ValueError, AttributeError, RecursionError, InvalidInput) as error:
            raise ProtocolError(f"a book of addresses cannot be read: {error}") from error
        known = self._identity.book
        news = {n: at for n, at in book.items() if n == owner or n not in known}
        if self._identity.merge_addresses(news):
            self._saving.changed()
            self._connect_all()

    # --- identities -------------------------------------------------------------------------

    def introduction(
        self, name: str, version: int, refusal: str = ""
    ) -> Introduction | Credentials:
        """The own credentials, for a node with a name and version."""
        recognition = self._identity.recognition
        known = "{}" if refusal else json.dumps(recognition.known)
        if version < SHOWS_STARTS:
            return Introduction(version, recognition.own, refusal, known)
        # Among the starts of others: the own start that the other node is known to have recorded.
        own = KnownStart(recognition.own, *recognition.starts_known.get(name, OwnStart()))
        met = json.dumps(recognition.met_starts | {self._identity.node: own})
        starts = json.dumps(recognition.starts)
        cluster_id = recognition.cluster_id
        return Credentials(SHOWS_STARTS, recognition.own, refusal, known, cluster_id, starts, met)

    def resend_credentials(self) -> None:
        """Send this node's changed credentials to all connected nodes."""
        for link in self.links.values():
            link.resend_credentials()

    def refusal_of(self, name: str, shown: Credentials) -> str:
        """Why a node is not accepted; empty if it is. Each reason is logged once."""
        recognition, configs = self._identity.recognition, self.handlers.configs()
        identity, own = shown.identity, met_in(shown).get(name)
        known = None if own is None or own.identity != identity else OwnStart(*own[1:])
        refusal = (
            recognition.refusal(name, identity, configs)
            or recognition.older_copy(name, identity, starts_in(shown), configs, known)
            or recognition.foreign(name, identity, shown.cluster_id, configs)
        )
        if not refusal:
            self.refused.pop(name, None)
        elif self.refused.get(name) != refusal:
            self.refused[name] = refusal
            log.error("node refused: its data directory is another one", node=name, reason=refusal)
        return refusal

    def accept(self, name: str, shown: Credentials) -> None:
        """Record the identity of an accepted node, and what it knows of others."""
        recognition = self._identity.recognition
        try:
            known = {str(n): str(i) for n, i in json.loads(shown.known).items()}
            for each in (shown.identity, *known.values()):
                check_identity(each)
            if shown.cluster_id:
                check_identity(shown.cluster_id)
            for each in known:
                check_name(each)
        except (ValueError, AttributeError, RecursionError, InvalidInput) as error:
            raise ProtocolError(f"an introduction cannot be read: {error}") from error
        known.pop(name, None)
        news = recognition.record_met(name, shown.identity)
        starts = starts_in(shown)
        if starts.marks:
            met = KnownStart(shown.identity, starts.number, starts.marks[-1])
            news |= recognition.record_start(name, met) | recognition.showed_start(name, met)
        news |= self.merge_starts(name, shown)
        self.cluster_ids[name] = shown.cluster_id
        if recognition.merge_known(known) or news:
            self._recorded_by[name] = self._saving.changed()

    def merge_starts(self, name: str, shown: Credentials) -> bool:
        """Record the starts that a node knows; returns whether some are new."""
        recognition, news = self._identity.recognition, False
        for other, met in met_in(shown).items():
            if other not in (self._identity.node, name):
                news |= recognition.record_start(other, met)
            elif other == name:
                continue
            elif recognition.is_older_copy(met, name, is_refused=bool(shown.refusal)):
                self.handlers.outdated()
            else:
                news |= recognition.start_recorded(name, met)
        return news

    def accepted_by(self, name: str) -> None:
        """A peer accepts messages of this node."""
        self.refused_by.pop(name, None)
        self.handlers.accepted(name)

    def disowned_by(self, name: str, reason: str) -> None:
        """A peer knows another directory by this node's name."""
        if self.refused_by.get(name) != reason:
            self.refused_by[name] = reason
            log.error("this node is refused: its data directory is another one", reason=reason)
        self.handlers.disowned(name, reason)

    def disconnect(self, why: str) -> None:
        """Close all connections with nodes; they are reopened."""
        links = (link.channel for link in self.links.values())
        for channel in [*self._from.values(), *(each for each in links if each is not None)]:
            channel.close(why)

    def recheck(self) -> None:
        """Members have changed: close connections to nodes that are not accepted now."""
        links = (link.channel for link in self.links.values())
        for channel in [*self._from.values(), *(link for link in links if link is not None)]:
            if channel.identity is None:
                # Its node is checked when the record of it is durable.
                continue
            shown = Introduction(0, channel.identity, "", "{}")
            refusal = self.refusal_of(channel.node, credentials_of(shown))
            if refusal:
                channel.close(refusal)

    # --- incoming ---------------------------------------------------------------------------

    def _accept(self) -> Channel:
        channel = Channel(self._receive, self._lost, self.unsent)
        self.channels.add(channel)
        self._ungreeted[channel] = None
        if len(self._ungreeted) > GREETINGS_MAX:
            # The others stay: a flood must not keep nodes and clients away.
            oldest = next(iter(self._ungreeted))
            del self._ungreeted[oldest]
            oldest.abort(f"there are {GREETINGS_MAX} later connections without a greeting")
        asyncio.get_running_loop().call_later(HELLO_S, self._check_greeted, channel)
        return channel

    def _check_greeted(self, channel: Channel) -> None:
        if channel.closed:
            # Its TLS handshake may never have completed; then `_lost` was not called.
            self.channels.discard(channel)
            self._ungreeted.pop(channel, None)
        elif not channel.greeted:
            channel.abort(f"no greeting within {HELLO_S} s")

    def _lost(self, channel: Channel) -> None:
        self.channels.discard(channel)
        self._ungreeted.pop(channel, None)
        self._admission.closed(channel)
        if self._from.get(channel.node) is channel:
            del self._from[channel.node]
        if channel.greeted and not channel.node:
            self.handlers.left(channel)

    def _receive(self, channel: Channel, messages: list[tuple[str, Any]]) -> None:
        if not channel.greeted:
            hello = self._admitted(channel, messages)
            if hello is None or not self._welcome(channel, hello):
                return
            messages = messages[1:]
        heard: list[tuple[str, RaftMessage]] = []
        try:
            self._receive_each(channel, messages, heard)
        finally:
            if heard:
                self.handlers.heard(heard)

    def _receive_each(
        self,
        channel: Channel,
        messages: list[tuple[str, Any]],
        heard: list[tuple[str, RaftMessage]],
    ) -> None:
        for group, message in messages:
            if channel.node and isinstance(message, Introduction | Credentials):
                if not self._introduced(channel, credentials_of(message)):
                    return
            elif channel.identity is not None and isinstance(message, NodeAlive):
                self.handlers.alive(channel.node, message.epoch)
            elif channel.node and isinstance(message, RaftMessage):
                if channel.identity is None:
                    # A node of an earlier version: it shows nothing.
                    shown = credentials_of(Introduction(0, "", "", "{}"))
                    refusal = self.refusal_of(channel.node, shown)
                    if refusal:
                        raise IdentityRefused(refusal)
                    channel.identity = ""
                heard.append((group, message))
            elif not channel.node and isinstance(message, ClientRequests):
                self.handlers.asked(channel, group, message)
            else:
                kind = type(message).__name__
                raise ProtocolError(f"{kind} from {channel.node or 'a client'}")

    def _admitted(self, channel: Channel, messages: list[tuple[str, Any]]) -> Hello | None:
        """The greeting of a peer, when it has proven the cluster secret."""
        try:
            return self._admission.receive(channel, messages, self._refusal)
        except ClusterSecretRefused as error:
            channel.send("", Welcome(WATCHES_NODES, self._identity.node, str(error), ""))
            # Not raised: it is logged once, not at every attempt.
            channel.close(str(error))
            return None

    def _welcome(self, channel: Channel, hello: Hello) -> bool:
        here = self._identity.node
        refusal = self._refusal(hello)
        book = "" if refusal else json.dumps(self.book)
        channel.send("", Welcome(WATCHES_NODES, here, refusal, book))
        if refusal:
            log.warning("connection refused", peer=channel.peer, reason=refusal)
            channel.close(refusal)
            return False
        if hello.node:
            check_certificate(channel, hello.node)
            expected = self._identity.recognition.expected(hello.node, self.handlers.configs())
            if expected:
                # Its addresses are taken when it has shown its identity.
                channel.book = hello.book
            else:
                self._take_in(channel, hello.node, hello.book)
        channel.greet(hello.node, here)
        self._ungreeted.pop(channel, None)
        return True

    def _introduced(self, channel: Channel, shown: Credentials) -> bool:
        """A connecting node shows its identity; returns whether it is accepted."""
        if shown.refusal:
            self.merge_starts(channel.node, shown)
            self.disowned_by(channel.node, shown.refusal)
            channel.close(shown.refusal)
            return False
        refusal = self.refusal_of(channel.node, shown)
        if refusal:
            channel.send("", self.introduction(channel.node, shown.version, refusal))
            channel.close(refusal)
            return False
        self.accept(channel.node, shown)
        if channel.identity is None:
            number = self._recorded_by.get(channel.node, 0)
            self._saving.after(number, partial(self._recorded, channel, shown))
        return True

    def _recorded(self, channel: Channel, shown: Credentials, error: BaseException | None) -> None:
        """The record of a connecting node is durable, or the disk has refused it."""
        if error is not None:
            channel.abort(f"the node cannot be recorded: {error}")
        if channel.closed or channel.identity is not None:
            return
        # Members may have changed meanwhile.
        refusal = self.refusal_of(channel.node, shown)
        channel.send("", self.introduction(channel.node, shown.version, refusal))
        if refusal:
            channel.close(refusal)
            return
        channel.identity = shown.identity
        if channel.book is not None:
            self._take_in(channel, channel.node, channel.book)
            channel.book = None

    def _take_in(self, channel: Channel, name: str, book: str) -> None:
        """A node is connected; its earlier connection is closed."""
        self.take_book(book, name)
        old = self._from.get(name)
        if old is not None:
            old.close("the node has connected again")
        self._from[name] = channel
        if name in self.links:
            self.links[name].hurry()

    def _refusal(self, hello: Hello) -> str:
        identity = self._identity
        if hello.version != WIRE_VERSION:
            return f"version {hello.version} of the protocol, this node speaks {WIRE_VERSION}"
        if hello.to not in ("", identity.node):
            return f"this is node {identity.node}, not {hello.to}"
        if hello.node and hello.cluster != identity.cluster:
            return f"this is a node of cluster {identity.cluster}, not of {hello.cluster}"
        if hello.node == identity.node:
            return f"there is another node {identity.node}"
        if len(self.channels) - len(self._ungreeted) >= CONNECTIONS_MAX:
            return f"this node has {CONNECTIONS_MAX} connections already"
        return ""
