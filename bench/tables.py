"""Rows of a table on three nodes against keys of three members of etcd.

`table-writes`: single-row writes, each a transaction of its own, of a row with a key of 8 and a
value of 256 characters; 64 in progress, as of 64 clients; fsync on, all processes on this machine.
`table-reads`: linearizable reads of such rows by their key.

Ours is the client protocol of `tables/client.py`: JSON over one connection to the leader. Its
client is written by hand (`raft_client.py`). That of etcd is a program in Go with the client
library of etcd (`etcd_client/`), which needs Go and its modules. The lines `(client by hand)`
compare with the client of `etcd.py` instead: it costs the machine less than the library does, so
etcd is faster. Without Go there are only these lines.

Without etcd on the machine (PATH, or the directory in ETCD) there are no rows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import etcd
from bench.cluster_members import TABLE, table_members
from bench.harness import Case
from bench.raft_client import ask_process_many
from lithify.tables.row_request_format import RowRequestKind, encode_object, encode_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.raft.net.client_operations import Address

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

CLIENTS = 64
VALUE_BYTES = 256
VALUE = "v" * VALUE_BYTES
GO_CLIENT = Path(__file__).parent / "etcd_client"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    requests: int
    keys: int
    builds: bool
    """Is the client in Go used?"""


FULL = Sizes(rounds=5, requests=20_000, keys=10_000, builds=True)
QUICK = Sizes(rounds=1, requests=300, keys=100, builds=False)


@dataclass(frozen=True, slots=True)
class _Both:
    """Both clusters, with a row or key for each number."""

    leader: Address
    etcd: etcd.EtcdPorts
    client: str | None
    """The program in Go, if there is one."""
    sizes: Sizes

    def put(self) -> float:
        """The seconds of our writes."""
        rows = [_row(number % self.sizes.keys) for number in range(self.sizes.requests)]
        requests = [encode_request(RowRequestKind.PUT, TABLE, row) for row in rows]
        return ask_process_many(self.leader, requests, CLIENTS, 0)

    def get(self) -> float:
        """The seconds of our reads."""
        keys = [{"k": _key(number % self.sizes.keys)} for number in range(self.sizes.requests)]
        requests = [encode_request(RowRequestKind.GET, TABLE, key) for key in keys]
        return ask_process_many(self.leader, requests, CLIENTS, len(encode_object(_row(0))))

    def their_put(self) -> float:
        """The seconds of the writes of etcd, with the client by hand."""
        sizes = self.sizes
        value = VALUE.encode()
        return etcd.put_many(self.etcd.leader, sizes.keys, sizes.requests, CLIENTS, value)

    def their_get(self) -> float:
        """The same of its reads."""
        return etcd.get_many(self.etcd.leader, self.sizes.keys, self.sizes.requests, CLIENTS)

    def by_go(self, operation: str) -> float:
        """The seconds of the client in Go."""
        assert self.client is not None
        numbers = (self.sizes.keys, self.sizes.requests, CLIENTS, VALUE_BYTES)
        command = [self.client, f"127.0.0.1:{self.etcd.leader}", operation, *map(str, numbers)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(run.stdout)

    def cases(self, row: str, what: str, ours: Callable[[], float]) -> Iterator[Case]:
        """The lines of a row."""
        operation, unit = ("put", "writes") if ours == self.put else ("get", "reads")
        theirs = self.their_put if operation == "put" else self.their_get
        count, against = self.sizes.requests, f"three members of etcd, {operation}s"
        if self.client is not None:
            by_go = f"{against} by a client in Go"
            yield Case(row, what, by_go, 1, count, unit, ours, lambda: self.by_go(operation))
            row = f"{row} (client by hand)"
        target = None if self.client is not None else 1
        yield Case(row, what, f"{against} by hand", target, count, unit, ours, theirs)


def writes(directory: str, sizes: Sizes) -> Iterator[Case]:
    with _both(directory, "table-writes", sizes) as found:
        if found is not None:
            what = f"three nodes, writes of rows with {VALUE_BYTES} B, {CLIENTS} clients"
            yield from found.cases("table-writes", what, found.put)


def reads(directory: str, sizes: Sizes) -> Iterator[Case]:
    with _both(directory, "table-reads", sizes) as found:
        if found is not None:
            found.put()
            found.their_put()
            what = f"three nodes, linearizable reads of such rows, {CLIENTS} clients"
            yield from found.cases("table-reads", what, found.get)


@contextmanager
def _both(directory: str, row: str, sizes: Sizes) -> Iterator[_Both | None]:
    """Three nodes of each; None without etcd."""
    program = etcd.find_etcd()
    if program is None:
        print(f"{row}: etcd not installed", file=sys.stderr)
        yield None
        return
    client = _build(directory) if sizes.builds else None
    with (
        table_members(f"{directory}/ours") as leader,
        etcd.etcd_members(program, f"{directory}/etcd") as ports,
    ):
        yield _Both(leader, ports, client, sizes)


def _build(directory: str) -> str | None:
    """The client in Go; None if it cannot be built here."""
    go, built = shutil.which("go"), f"{directory}/etcd-client"
    if go is None:
        return None
    # Read only: the versions are those of go.mod and go.sum.
    command = [go, "build", "-mod=readonly", "-o", built, "."]
    run = subprocess.run(command, cwd=GO_CLIENT, capture_output=True, text=True, check=False)
    if run.returncode:
        print(f"the client in Go cannot be built: {run.stderr.strip()}", file=sys.stderr)
        return None
    return str(Path(built).absolute())


def _key(number: int) -> str:
    return f"k{number:07d}"


def _row(number: int) -> dict[str, str]:
    return {"k": _key(number), "v": VALUE}


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "table-writes": writes,
    "table-reads": reads,
}
