"""Raft nodes under load: alone against the disk, three of them against three members of etcd.

Commands of 1 KiB, 256 in progress, fsync on, all processes on this machine. Both clients have one
connection to the leader and are written by hand (`raft_client.py`, `etcd.py`).

The raw side of the first row writes the same bytes in batches of what is in progress, each followed
by an fdatasync: what a write-ahead log costs at least if it is given 256 commands at a time.

Without etcd on the machine (PATH, or the directory in ETCD) there is no second row.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import etcd
from bench.harness import Case
from bench.raft_client import put_many, raft_members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

IN_FLIGHT = 256
KEYS = 10_000
COMMAND_BYTES = 1024
VALUE = os.urandom(COMMAND_BYTES - 11)
"""With the key of 8 bytes and 3 for its length and kind, a command of 1 KiB."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    commands: int


FULL = Sizes(rounds=5, commands=20_000)
QUICK = Sizes(rounds=1, commands=300)


def single(directory: str, sizes: Sizes) -> Iterator[Case]:
    with raft_members(directory, 1) as address:
        yield Case(
            "raft-single",
            f"one node, commands of 1 KiB, {IN_FLIGHT} in progress",
            f"write and fdatasync of {IN_FLIGHT} KiB at a time",
            0.3,
            sizes.commands,
            "commands",
            lambda: put_many(address, KEYS, sizes.commands, IN_FLIGHT, VALUE),
            lambda: _write(f"{directory}/raw", sizes.commands),
        )


def _write(path: str, commands: int) -> float:
    """The seconds of writing as many bytes to a file, in batches."""
    batch = os.urandom(IN_FLIGHT * COMMAND_BYTES)
    left = commands * COMMAND_BYTES
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    try:
        began_s = time.perf_counter()
        while left > 0:
            left -= os.write(file, batch[:left])
            os.fdatasync(file)
        return time.perf_counter() - began_s
    finally:
        os.close(file)
        os.remove(path)


def three(directory: str, sizes: Sizes) -> Iterator[Case]:
    program = etcd.find_etcd()
    if program is None:
        print("raft-three: etcd not installed", file=sys.stderr)
        return
    with (
        raft_members(f"{directory}/ours", 3) as address,
        etcd.etcd_members(program, f"{directory}/etcd") as ports,
    ):
        yield Case(
            "raft-three",
            f"three nodes, commands of 1 KiB, {IN_FLIGHT} in progress",
            "three members of etcd, the same puts",
            0.5,
            sizes.commands,
            "commands",
            lambda: put_many(address, KEYS, sizes.commands, IN_FLIGHT, VALUE),
            lambda: etcd.put_many(ports.leader, KEYS, sizes.commands, IN_FLIGHT, VALUE),
        )


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "raft-single": single,
    "raft-three": three,
}
