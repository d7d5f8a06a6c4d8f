"""What a cluster costs that has many Raft groups and nothing to do.

`idle-groups`: three nodes, one table in a zone with many partitions, three replicas each. When all
groups sleep, the seconds of processor that the busiest node uses in `idle_s`, against 5 % of a
core. The note has the share of each node.

Everything is as `lithify serve` has it: the metastore and its leases, the low watermark, metrics.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.harness import Case
from bench.raft_client import free_port
from lithify.raft.client.client import RaftClient
from lithify.raft.net.client_operations import Address, ClientOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

SHARE_MAX = 0.05
"""Of a core, per node."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SLEEP_S_MAX = 900.0
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    groups: int
    idle_s: float


FULL = Sizes(rounds=3, groups=1000, idle_s=60)
QUICK = Sizes(rounds=1, groups=8, idle_s=0.5)


@dataclass(slots=True)
class _Nodes:
    """Three nodes that run, and what they have used in the best round."""

    addresses: list[Address] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def idle(self, seconds: float) -> float:
        """The seconds of processor of the busiest one, in this time."""
        before = [_used_s(each.pid) for each in self.processes]
        time.sleep(seconds)
        used = [_used_s(p.pid) - b for p, b in zip(self.processes, before, strict=True)]
        shares = [each / seconds for each in used]
        if not self.shares or max(shares) < max(self.shares):
            self.shares = shares
        # A tick of the processor is the least that can be measured.
        return max(*used, 1 / TICKS_PER_S)

    def note(self) -> str:
        """The share of each node."""
        return ", ".join(f"{each:.1%}" for each in self.shares) + " of a core"


def _used_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@contextmanager
def cluster(directory: str) -> Iterator[_Nodes]:
    """Three nodes, until the block ends."""
    book = {f"n{number}": Address("127.0.0.1", free_port()) for number in (1, 2, 3)}
    found = _Nodes(list(book.values()))
    os.makedirs(directory)
    with ExitStack() as stack:
        for name, address in book.items():
            peers = [part for peer, at in book.items() for part in ("--peer", f"{peer}={at}")]
            del peers[2 * list(book).index(name) : 2 * list(book).index(name) + 2]
            options = ["--data", f"{directory}/{name}", "--pulsar-port", "0", "--http-port", "0"]
            options += ["--node", name, "--cluster-port", str(address.port), *peers]
            process = subprocess.Popen(
                [sys.executable, "-m", "lithify", "serve", *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            found.processes.append(process)
        for process in found.processes:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[2].startswith("cluster"), "a node did not start"
            found.urls.append(lines[1].removeprefix("http").strip())
        yield found


def _define(url: str, groups: int) -> None:
    text = f"""
        [zones.many]
        partitions = {groups}
        replicas = 3
        [tables.idle]
        zone = "many"
        key = ["id"]
        columns = [{{ name = "id", type = "int64" }}]
    """
    command = [sys.executable, "-m", "lithify", "catalog", "apply", "-", "--url", url]
    subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


async def _until_asleep(addresses: list[Address], groups: int) -> None:
    """Return when each node has all groups, and they sleep."""
    limit_s = time.monotonic() + SLEEP_S_MAX
    for address in addresses:
        async with RaftClient([address]) as client:
            while True:
                found: dict[str, Any] = await client.ask_json("", ClientOperation.OVERVIEW)
                asleep = sum(each["asleep"] for each in found["groups"])
                if asleep == groups:
                    break
                assert time.monotonic() < limit_s, f"{asleep} of {groups} groups sleep"
                await asyncio.sleep(LOOK_S)


def idle_groups(directory: str, sizes: Sizes) -> Iterator[Case]:
    with cluster(f"{directory}/nodes") as nodes:
        _define(nodes.urls[0], sizes.groups)
        asyncio.run(_until_asleep(nodes.addresses, sizes.groups))
        yield Case(
            "idle-groups",
            f"three idle nodes with {sizes.groups:,} groups, the busiest node",
            f"{SHARE_MAX:.0%} of a core",
            1,
            sizes.idle_s,
            "idle seconds",
            lambda: nodes.idle(sizes.idle_s),
            lambda: SHARE_MAX * sizes.idle_s,
            nodes.note,
        )


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {"idle-groups": idle_groups}
