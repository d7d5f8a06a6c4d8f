"""A process with a member of the metastore, as a node has it, for `metastore.py`.

    python -m bench.metastore_node NAME DATA ADDRESS EVENTS_PORT [PEER=ADDRESS ...]

It prints a line when it runs. A client that connects to the second port gets the revision of each
change that this member sees from then on, 8 bytes each.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from contextlib import aclosing, suppress

from lithify.clock import SystemClock
from lithify.fs import LocalFileSystem
from lithify.metastore.local_metastore import GROUP, LocalMetastore
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.maintenance import maintained
from lithify.raft.net.client_operations import parse_address
from lithify.raft.node.node import RaftNode
from lithify.raft.node.settings import RaftNodeSettings


async def main(name: str, data: str, address: str, events: str, *peers: str) -> None:
    stop, loop, clock = asyncio.Event(), asyncio.get_running_loop(), SystemClock()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    book = dict(each.split("=") for each in peers)
    settings = RaftNodeSettings(name, data, parse_address(address), book, first_group=GROUP)
    fs = LocalFileSystem()
    fs.mkdir(data)
    node = RaftNode(settings, fs, lambda _: MetastoreMachine())
    metastore = LocalMetastore(node, clock)

    async def send_events(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        watch = metastore.watch(b"", b"", after=metastore.state.revision)
        async with aclosing(watch) as revisions:
            writer.write(bytes(8))
            with suppress(ConnectionError, asyncio.CancelledError):
                async for each in revisions:
                    writer.write(each.revision.to_bytes(8, "little"))
                    await writer.drain()
        writer.close()

    async with maintained(metastore, clock):
        server = await asyncio.start_server(send_events, "127.0.0.1", int(events))
        # As a node does: entries make many objects, and no cycles.
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        await node.run(stop, lambda _: print("runs", flush=True))
        server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
