"""A node that serves: the broker, HTTP and the upkeep of the topics, in one event loop.

1. Make the compiled kernels ready, so that no client has to wait for that (`warming.py`).
2. Listen for Pulsar clients, then for HTTP. A port that is taken ends it here.
3. Tell the caller the addresses.
4. Open the topics that nobody uses yet, in the background (`opening.py`), and close those that
   nobody uses any more (`idle.py`).
5. Compact topics and blob stores on request, and by themselves where that is wanted
   (`compacting.py`); open the stores and look after them (`blob_upkeep.py`), and keep those in step
   that have replicas (`replicating.py`).
6. Until told to stop: serve, and once an interval let the topics do what only time brings about.
   What of it waits for the disk is done in a thread, one round at a time.
7. Stop listening; let each connection send what was answered and close it, and those hard that
   do not take it in time. What was not answered was not acknowledged: clients send it again.
8. Wait for what threads still do for clients: they use files that the caller is about to close.

The caller closes the node afterwards, which makes the rest durable.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import socket
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify import __version__
from lithify.errors import LithifyError, LogClosed
from lithify.logger import get_logger
from lithify.node.blob_upkeep import keep_up
from lithify.node.compacting import compacting
from lithify.node.descriptors import AcceptErrors, files_max, open_topics_max
from lithify.node.idle import release_idle
from lithify.node.opening import open_rest
from lithify.node.replicating import replicate
from lithify.node.security import make_access, make_peers, make_tls
from lithify.node.warming import warm_up
from lithify.pulsar.broker import Broker
from lithify.pulsar.listener import BACKLOG, listen

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from lithify.blobs.stores import BlobStores
    from lithify.node.node import Node
    from lithify.node.settings import NodeSettings
    from lithify.pulsar.listener import Connection
    from lithify.topics.topic import Topic

    MakeApp = Callable[[Broker, BlobStores], Any]
    """Makes the ASGI application that answers over HTTP."""

__all__ = ["Addresses", "CannotListen", "serve"]

GOODBYE_S = 2.0
"""How long a connection may take to send what is left when the node stops."""

WARM_S = 5.0
"""Kernels that are not loaded by then are being compiled."""

ROUND_TOPICS = 50
"""Topics that are looked after before clients have their turn again; about 1 ms."""

log = get_logger("lithify.node")


class CannotListen(LithifyError):
    """The operating system refuses an address."""

    def __init__(self, setting: str, host: str, port: int, why: str) -> None:
        self.setting = setting
        self.host = host
        self.port = port
        super().__init__(f"cannot listen at {authority(host, port)} ({setting}): {why}")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a node can be reached; `http` is None if it answers no HTTP."""

    pulsar: str
    http: str | None


def authority(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve(
    node: Node,
    *,
    stop: asyncio.Event,
    ready: Callable[[Addresses], None],
    make_app: MakeApp | None,
) -> None:
    """Serve clients until `stop` is set."""
    settings = node.settings
    security = settings.security
    access = make_access(
        security,
        node.fs,
        definitions=lambda: node.topics.definitions.current,
        clock=node.clock,
    )
    tls = make_tls(security)
    node.blobs.peers = make_peers(settings, node.fs)
    # Producers that come back bring the name that a broker gave them before a restart: so that
    # no other one gets it, each start has names of its own.
    broker = Broker(
        node.topics,
        name=f"lithify-{secrets.token_hex(4)}",
        version=f"Lithify {__version__}",
        access=access,
    )
    descriptors = files_max()
    broker.max_message_bytes = settings.message_bytes_max
    broker.limits = settings.limits
    await _warm_up()
    asyncio.get_running_loop().set_exception_handler(AcceptErrors(descriptors))
    async with AsyncExitStack() as stack:
        # First in, last out: no connection is left then that could ask for more.
        stack.push_async_callback(broker.settled)
        port = await stack.enter_async_context(
            _pulsar(broker, settings.pulsar_host, settings.pulsar_port, tls)
        )
        address = authority(settings.advertised_host or settings.pulsar_host, port)
        if tls is None:
            url = broker.service_url = f"pulsar://{address}"
        else:
            url = broker.service_url_tls = f"pulsar+ssl://{address}"
        http = None
        if make_app is not None:
            app = make_app(broker, node.blobs)
            http_port = await stack.enter_async_context(_http(app, settings, tls, stop))
            scheme = "http" if tls is None else "https"
            http = f"{scheme}://{authority(settings.http_host, http_port)}"
        await stack.enter_async_context(_meanwhile(lambda ended: _upkeep(node, broker, ended)))
        topics_max = settings.open_topics_max or open_topics_max(descriptors)
        node.topics.open_max = topics_max
        # Beyond three quarters only those that somebody uses.
        await stack.enter_async_context(
            _meanwhile(lambda ended: open_rest(node.topics, ended, topics_max * 3 // 4))
        )
        idle_s = settings.topic_idle_ms / 1000
        await stack.enter_async_context(
            _meanwhile(lambda ended: release_idle(broker, ended, idle_s))
        )
        await stack.enter_async_context(_meanwhile(lambda ended: keep_up(node.blobs, ended)))
        await stack.enter_async_context(_meanwhile(lambda ended: replicate(node.blobs, ended)))
        await stack.enter_async_context(compacting(node))
        # What is there by now stays for good: without it a full collection, which stops the loop,
        # takes a few milliseconds instead of a hundred.
        gc.collect()
        gc.freeze()
        ready(Addresses(url, http))
        await stop.wait()
        broker.end()


async def _warm_up() -> None:
    task = asyncio.ensure_future(asyncio.to_thread(warm_up))
    done, _ = await asyncio.wait({task}, timeout=WARM_S)
    if not done:
        log.info("compiling, which the first start after an installation does once")
    await task


@asynccontextmanager
async def _pulsar(
    broker: Broker, host: str, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[int]:
    """Listen for clients; the port."""
    connections: set[Connection] = set()
    with _refusals("pulsar_port", host, port):
        server = await listen(broker, host, port, connections, tls)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for connection in set(connections):
            connection.close()
        deadline_s = asyncio.get_running_loop().time() + GOODBYE_S
        while connections and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(0.01)
        for connection in set(connections):
            connection.abort()
        await server.wait_closed()


@asynccontextmanager
async def _http(
    app: Any, settings: NodeSettings, tls: ssl.SSLContext | None, stop: asyncio.Event
) -> AsyncIterator[int]:
    """Answer HTTP; the port. If that ends by itself, the node stops with it."""
    # Only a node that answers HTTP needs it.
    from lithify.node.http_port import http_server  # noqa: PLC0415

    host, port = settings.http_host, settings.http_port
    with _refusals("http_port", host, port):
        listening = listen_for_http(host, port)
    server = http_server(app, settings.limits, tls, GOODBYE_S)
    # Signals are the business of the process, not of one of its parts: so not `server.serve`.
    task = asyncio.create_task(server._serve([listening]))  # noqa: SLF001
    task.add_done_callback(lambda _: stop.set())
    try:
        yield int(listening.getsockname()[1])
    finally:
        server.should_exit = True
        await task
        listening.close()


def listen_for_http(host: str, port: int) -> socket.socket:
    """Of its connections none lets a body wait until the client has acknowledged the headers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # They inherit it; asyncio would set it only where the listening socket names its protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


@contextmanager
def _refusals(setting: str, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Python puts sentences of its own around the system's; a name that is not found has a
        # negative number.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise CannotListen(setting, host, port, why) from error


@asynccontextmanager
async def _meanwhile(work: Callable[[asyncio.Event], Awaitable[None]]) -> AsyncIterator[None]:
    """Have something done while the block runs; it is told when to end by the event it gets."""
    ended = asyncio.Event()
    task = asyncio.ensure_future(work(ended))
    try:
        yield
    finally:
        # Not cancelled: its thread would go on while the topics are closed.
        ended.set()
        await task


async def _upkeep(node: Node, broker: Broker, ended: asyncio.Event) -> None:
    """Look after the open topics."""
    interval_s = node.settings.sync_interval_ms / 1000
    while not ended.is_set():
        try:
            await asyncio.to_thread(maintain_files, node.topics.opened().values())
            for number, topic in enumerate(node.topics.opened().values()):
                # It may be closed while it is looked after.
                with suppress(LogClosed):
                    if not topic.log.closed:
                        await broker.run(topic.maintaining())
                if number % ROUND_TOPICS == ROUND_TOPICS - 1:
                    await asyncio.sleep(0)
        except Exception:
            log.exception("upkeep failed")
        try:
            await asyncio.wait_for(ended.wait(), interval_s)
        except TimeoutError:
            continue


def maintain_files(topics: Iterable[Topic]) -> None:
    """Do what waits for the disk; the logs may be used by other threads meanwhile.

    Why it fails is logged once, until it works again or fails by something else.
    """
    for topic in topics:
        reason = ""
        try:
            topic.maintain_files()
        except LogClosed:
            # It was deleted meanwhile.
            continue
        except (LithifyError, OSError) as error:
            reason = str(error)
            if reason != topic.upkeep_failure:
                log.warning("upkeep failed", topic=str(topic.name), reason=reason)
        topic.upkeep_failure = reason
