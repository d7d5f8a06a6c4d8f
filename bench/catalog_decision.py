"""One decision of the compaction of the catalog, against one empty question to the nodes.

`catalog-decision`: three nodes with replicas of all partitions of a table. The decision is that of
a dry run on the coordinator: one question to each node about its replicas, where they are, the
pins, and how far the history may be trimmed. Nothing is written. The other side is a question to
each node that is answered with nothing, by the same connections.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.harness import Case
from bench.raft_client import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

READY_S = 600.0
AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    groups: int
    decisions: int


FULL = Sizes(rounds=7, groups=1000, decisions=10)
QUICK = Sizes(rounds=1, groups=3, decisions=2)


class _Node:
    """A process of `cluster_node.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> float:
        """Send a line and return the number that answers it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> float:
        """The next line, as a number; 0 for the first one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a node has ended"
        return 0.0 if line == "runs\n" else float(line)


@contextmanager
def _nodes(directory: str) -> Iterator[list[_Node]]:
    ports = {f"n{number}": free_port() for number in (1, 2, 3)}
    with ExitStack() as stack:
        nodes = []
        for name, port in ports.items():
            peers = [f"{peer}={at}" for peer, at in ports.items() if peer != name]
            options = [name, f"{directory}/{name}", str(port), *peers]
            command = [sys.executable, "-m", "bench.cluster_node", *options]
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            nodes.append(_Node(process))
        for node in nodes:
            node.answer()
        yield nodes


def decision(directory: str, sizes: Sizes) -> Iterator[Case]:
    with _nodes(directory) as nodes:
        nodes[0].ask(f"table {sizes.groups}")
        for node in nodes:
            _until(lambda node=node: node.ask(f"ready {sizes.groups}"))  # type: ignore[misc]
        # The first run publishes what the second one finds.
        _until(lambda: not _coordinator(nodes).ask("trim"))
        count = sizes.decisions
        yield Case(
            "catalog-decision",
            f"a decision about the catalog's history, 3 nodes, {sizes.groups:,} groups",
            "an empty question to the nodes",
            0.1,
            count,
            "decisions",
            lambda: _coordinator(nodes).ask(f"decide {count}"),
            lambda: _coordinator(nodes).ask(f"ask {count}"),
        )


def _coordinator(nodes: list[_Node]) -> _Node:
    """The node that leads the metastore, as soon as one does."""
    _until(lambda: any(node.ask("leads") for node in nodes))
    return next((node for node in nodes if node.ask("leads")), nodes[0])


def _until(condition: Callable[[], object]) -> None:
    limit_s = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < limit_s, "the cluster is not ready"
        time.sleep(AGAIN_S)


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {"catalog-decision": decision}
"""Row by row, in the order of the table."""
