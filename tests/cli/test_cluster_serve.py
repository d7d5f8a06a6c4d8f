"""Three `lithify serve` processes are one cluster, whichever comes first."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lithify.metastore.client import MetastoreClient
from lithify.metastore.transaction import Put, Transaction
from lithify.raft.client.client import RaftClient
from lithify.raft.net.client_operations import Address
from lithify.raft.net.cluster_secret import ClusterSecret, ClusterSecretRefused
from tests.cli.nodes import COMMAND
from tests.patience import PROCESS_S_MAX, at_most
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
SECRET = b"a secret of sixteen bytes or more"


class Member:
    """A process; its directory and port outlive it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.port = free_port()
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[str] | None = None

    def start(self, others: list[Member]) -> None:
        config = self.directory / "lithify.toml"
        peers = [
            part for each in others for part in ("--peer", f"{each.name}=127.0.0.1:{each.port}")
        ]
        given = ["--data", str(self.directory / self.name), "--config", str(config)]
        given += ["--pulsar-port", "0", "--http-port", "0"]
        given += ["--node", self.name, "--cluster-port", str(self.port), *peers]
        command = [str(COMMAND), "serve", *given]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def await_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        with at_most(PROCESS_S_MAX, self.process.kill):
            lines = [self.process.stdout.readline() for _ in range(3)]
        assert lines[2] == f"cluster  127.0.0.1:{self.port}\n", self.log.read_text()

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=PROCESS_S_MAX)
        code, self.process = self.process.returncode, None
        return code

    def close(self) -> None:
        if self.process is not None:
            self.end(signal.SIGKILL)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Member]]:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    (tmp_path / "lithify.toml").write_text(f'cluster_secret_file = "{secret}"\n')
    found = [Member(tmp_path, f"n{number}") for number in (1, 2, 3)]
    with ExitStack() as stack:
        for each in found:
            stack.callback(each.close)
        yield found


def test_three_processes_are_one_cluster(three: list[Member]) -> None:
    for each in three:
        each.start([other for other in three if other is not each])
    for each in three:
        each.await_ready()
    addresses = [Address("127.0.0.1", each.port) for each in three]

    async def put_and_get(number: int) -> None:
        async with RaftClient(
            addresses, secret=ClusterSecret(SECRET), timeout_s=PROCESS_S_MAX
        ) as client:
            store = MetastoreClient(client)
            await store.transact(Transaction(then=(Put(b"k%d" % number, b"v"),)))
            for n in range(number + 1):
                found = await store.get(b"k%d" % n)
                assert found is not None
                assert found.value == b"v"

    async def stranger() -> None:
        async with RaftClient(addresses) as client:
            await MetastoreClient(client).get(b"k")

    asyncio.run(put_and_get(0))
    with pytest.raises(ClusterSecretRefused):
        asyncio.run(stranger())
    killed, *others = three
    killed.end(signal.SIGKILL)
    asyncio.run(put_and_get(1))
    killed.start(others)
    killed.await_ready()
    asyncio.run(put_and_get(2))
    assert [each.end(signal.SIGTERM) for each in three] == [0, 0, 0]
