"""After the warm-up nothing is compiled: seen in a process that has just begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

CHILD = """
import asyncio, sys
from numba.core.dispatcher import Dispatcher
from lithify.node.warm_up_kernels import warm_up
from tests.unit.pulsar.test_waiting import served, subscribe
from tests.unit.pulsar.frames import entry, send
from lithify.pulsar.wire import wire_pb2 as wire


def kernels():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("lithify."):
            for each in vars(module).values():
                if isinstance(each, Dispatcher):
                    found[each.py_func.__qualname__, name] = set(each.signatures)
    return found


async def converse():
    async with served() as node:
        client = await node.client()
        await client.join()
        client.send(subscribe("orders", 1))
        await client.answer()
        for sizes in ((10,), (10, 20, 30), (2000, 1)):
            for number, size in enumerate(sizes):
                client.send(send(entry(bytes(size), sequence_id=number), sequence_id=number))
            await client.answers(len(sizes))
        flow = wire.BaseCommand(type=wire.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 100
        client.send(flow)
        assert (await client.answer()).type == wire.BaseCommand.MESSAGE


warm_up()
ready = kernels()
assert any(ready.values())
asyncio.run(converse())
late = {name: more for name, found in kernels().items() if (more := found - ready.get(name, set()))}
print("compiled late:", late)
"""


def test_a_client_never_waits_for_a_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "compiled late: {}\n", done.stdout + done.stderr
