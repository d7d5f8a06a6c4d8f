"""A node that serves: the broker, HTTP and the maintenance of topics, in one event loop.

1. Load the compiled kernels, so that no client has to wait for that (`warm_up_kernels.py`). If the
   Raft node, which is open in a thread of its own (`cluster.py`), fails, the node stops, and
   `serve` raises the error.
2. Listen for Pulsar clients, then for HTTP. If a port is in use, the start fails here.
3. Pass the addresses to the other nodes of the cluster, and to the caller.
4. Open the topics that are not in use, in the background (`open_topics.py`), and close idle ones
   (`close_idle_topics.py`).
5. Compact topics and blob stores, on request and by triggers (`compaction_loop.py`); open the
   stores and maintain them (`blob_maintenance.py`), and replicate those with replicas
   (`blob_replication.py`).
6. Serve until stopped, and maintain the topics once per interval. Disk access of the maintenance
   runs in a thread, one round at a time.
7. Stop listening. Each connection sends its pending replies and is closed; after `GOODBYE_S` it is
   aborted. A message without a reply was not acknowledged: the client sends it again.
8. Wait for threads with work of clients: they use files that the caller is about to close.

The caller closes the node afterwards, which makes all remaining data durable.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import socket
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lithify import __version__
from lithify.errors import LithifyError, LogClosed
from lithify.logger import get_logger
from lithify.node.blob_maintenance import keep_up
from lithify.node.blob_replication import replicate
from lithify.node.catalog.reconciler import has_no_clients
from lithify.node.close_idle_topics import release_idle
from lithify.node.compaction_loop import compacting
from lithify.node.node_registry import NodeAddresses
from lithify.node.open_file_limit import AcceptErrors, files_max, open_topics_max
from lithify.node.open_topics import open_rest
from lithify.node.security import make_access, make_peers, make_tls
from lithify.node.warm_up_kernels import warm_up
from lithify.pulsar.broker import Broker
from lithify.pulsar.disconnect_topics import disconnect_all
from lithify.pulsar.listener import BACKLOG, listen

if TYPE_CHECKING:
    import ssl
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
    )

    from lithify.blobs.stores import BlobStores
    from lithify.node.served_node import ServedNode
    from lithify.node.settings import NodeSettings
    from lithify.pulsar.connection import ClientConnection
    from lithify.topics.topic import Topic

    MakeApp = Callable[[Broker, BlobStores], Any]
    """Creates the ASGI application for HTTP."""

__all__ = ["Addresses", "CannotListen", "serve"]

GOODBYE_S = 2.0
"""How long a connection may take to send pending data when the node stops."""

WARM_S = 5.0
"""Kernels that are not loaded by then are being compiled."""

ROUND_TOPICS = 50
"""Topics that are maintained before other tasks run again; about 1 ms."""

log = get_logger("lithify.node")


class CannotListen(LithifyError):
    """The operating system refused an address."""

    def __init__(self, setting: str, host: str, port: int, why: str) -> None:
        self.setting = setting
        self.host = host
        self.port = port
        super().__init__(f"cannot listen at {authority(host, port)} ({setting}): {why}")


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a node; `http` is None without HTTP, `cluster` without a cluster port."""

    pulsar: str
    http: str | None
    cluster: str | None = None


def authority(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve(
    node: ServedNode,
    *,
    stop: asyncio.Event,
    ready: Callable[[Addresses], None],
    make_app: MakeApp | None,
) -> None:
    """Serve clients until `stop` is set."""
    node.cluster.check_serving()
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
    # Producers that reconnect send the name that a broker gave them before a restart. Each start
    # has its own names, so that no other producer gets it.
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
        stack.enter_context(_until_failure(node, stop))
        # Pushed first, so it runs last: when no connection is left that could send requests.
        stack.push_async_callback(broker.settled)
        port = await stack.enter_async_context(
            _pulsar(broker, settings.pulsar_host, settings.pulsar_port, tls)
        )
        address = authority(settings.advertised_host or settings.pulsar_host, port)
        if tls is None:
            url = broker.service_url = f"pulsar://{address}"
        else:
            url = broker.service_url_tls = f"pulsar+ssl://{address}"
        http, known = None, NodeAddresses(broker.service_url, broker.service_url_tls)
        if make_app is not None:
            app = make_app(broker, node.blobs)
            http_port = await stack.enter_async_context(_http(app, settings, tls, stop))
            scheme = "http" if tls is None else "https"
            http = f"{scheme}://{authority(settings.http_host, http_port)}"
            host = settings.advertised_host or settings.http_host
            known = replace(known, http=f"{scheme}://{authority(host, http_port)}")
        await stack.enter_async_context(_maintained(node, broker, descriptors))
        # All objects so far are permanent: without this, a full collection, which stops the loop,
        # takes a hundred milliseconds instead of a few. A process whose collector is off has just
        # started, and has no garbage that is worth such a collection.
        if gc.isenabled():
            gc.collect()
        gc.freeze()
        await asyncio.to_thread(node.cluster.announce, known)
        ready(Addresses(url, http, node.cluster.address or None))
        await stop.wait()
        broker.end()


@contextmanager
def _until_failure(node: ServedNode, stop: asyncio.Event) -> Iterator[None]:
    """If the Raft node of the process fails, the process stops."""
    loop = asyncio.get_running_loop()

    def failed() -> None:
        loop.call_soon_threadsafe(stop.set)

    before, node.failed = node.failed, failed
    if node.cluster.failure is not None:
        stop.set()
    try:
        yield
    finally:
        node.failed = before
    if node.cluster.failure is not None:
        raise node.cluster.failure


async def _warm_up() -> None:
    task = asyncio.ensure_future(asyncio.to_thread(warm_up))
    done, _ = await asyncio.wait({task}, timeout=WARM_S)
    if not done:
        log.info("compiling kernels: the first start after an installation does this once")
    await task


@asynccontextmanager
async def _pulsar(
    broker: Broker, host: str, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[int]:
    """Listen for clients; yields the port."""
    connections: set[ClientConnection] = set()
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
    """Serve HTTP; yields the port. If the server ends by itself, the node stops with it."""
    # Only a node with HTTP needs it.
    from lithify.node.http_port import http_server  # noqa: PLC0415

    host, port = settings.http_host, settings.http_port
    with _refusals("http_port", host, port):
        listening = listen_for_http(host, port)
    server = http_server(app, settings.limits, tls, GOODBYE_S)
    # The process handles signals, not one of its parts: so this does not call `server.serve`.
    task = asyncio.create_task(server._serve([listening]))  # noqa: SLF001
    task.add_done_callback(lambda _: stop.set())
    try:
        yield int(listening.getsockname()[1])
    finally:
        server.should_exit = True
        await task
        listening.close()


def listen_for_http(host: str, port: int) -> socket.socket:
    """Listen with TCP_NODELAY: a body does not wait until the client acknowledges the headers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Connections inherit it; asyncio sets it only if the listening socket names its protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


@contextmanager
def _refusals(setting: str, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Python adds its own text to the system's; a name that is not found has a negative number.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise CannotListen(setting, host, port, why) from error


@asynccontextmanager
async def _background(work: Callable[[asyncio.Event], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` while the block runs; its event is set when it must end."""
    ended = asyncio.Event()
    task = asyncio.ensure_future(work(ended))
    try:
        yield
    finally:
        # Not cancelled: its thread would continue while the topics are closed.
        ended.set()
        await task


@asynccontextmanager
async def _maintained(node: ServedNode, broker: Broker, descriptors: int) -> AsyncIterator[None]:
    """Run everything that is not for a client."""
    settings = node.settings
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_disconnecting(node, broker))
        await stack.enter_async_context(_background(lambda ended: _maintain(node, broker, ended)))
        topics_max = settings.open_topics_max or open_topics_max(descriptors)
        node.topics.open_max = topics_max
        # The last quarter is for topics that clients use.
        await stack.enter_async_context(
            _background(lambda ended: open_rest(node.topics, ended, topics_max * 3 // 4))
        )
        idle_s = settings.topic_idle_ms / 1000
        await stack.enter_async_context(
            _background(lambda ended: release_idle(broker, ended, idle_s))
        )
        await stack.enter_async_context(_background(lambda ended: keep_up(node.blobs, ended)))
        await stack.enter_async_context(_background(lambda ended: replicate(node.blobs, ended)))
        await stack.enter_async_context(compacting(node))
        yield


@asynccontextmanager
async def _disconnecting(node: ServedNode, broker: Broker) -> AsyncIterator[None]:
    """Disconnect the clients of topics that the catalog has deleted."""
    loop = asyncio.get_running_loop()

    def disconnect(topics: Collection[Topic]) -> None:
        asyncio.run_coroutine_threadsafe(disconnect_all(broker, topics), loop).result()

    node.reconciler.connect(disconnect)
    try:
        yield
    finally:
        # In a thread: a call in progress needs this loop.
        await asyncio.to_thread(node.reconciler.connect, has_no_clients)


async def _maintain(node: ServedNode, broker: Broker, ended: asyncio.Event) -> None:
    """Maintain the open topics."""
    interval_s = node.settings.sync_interval_ms / 1000
    while not ended.is_set():
        try:
            await asyncio.to_thread(maintain_files, node.topics.opened().values())
            for number, topic in enumerate(node.topics.opened().values()):
                # It may be closed in the meantime.
                with suppress(LogClosed):
                    if not topic.log.closed:
                        await broker.run(topic.maintaining())
                if number % ROUND_TOPICS == ROUND_TOPICS - 1:
                    await asyncio.sleep(0)
        except Exception:
            log.exception("maintenance failed")
        try:
            await asyncio.wait_for(ended.wait(), interval_s)
        except TimeoutError:
            continue


def maintain_files(topics: Iterable[Topic]) -> None:
    """Run the maintenance that accesses the disk; other threads may use the logs concurrently.

    An error is logged once, until the topic works again or fails for another reason.
    """
    for topic in topics:
        reason = ""
        try:
            topic.maintain_files()
        except LogClosed:
            # The topic was closed in the meantime.
            continue
        except (LithifyError, OSError) as error:
            reason = str(error)
            if reason != topic.maintenance_failure:
                log.warning("maintenance failed", topic=str(topic.name), reason=reason)
        topic.maintenance_failure = reason
