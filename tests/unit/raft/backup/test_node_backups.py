"""A group is saved while it is written to, and comes back as it was at one index."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lithify.fs import LocalFileSystem
from lithify.raft.backup.group_backup import read_backup, verify_backup
from lithify.raft.backup.node_backups import fetch_backup
from lithify.raft.group.settings import GroupSettings
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.machine import kv_machine
from lithify.raft.net.client_operations import ClientOperation, OperationRefused
from lithify.raft.restore import restore
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.storage import StorageSettings
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import client_of, running, settings

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.raft.client.client import RaftClient

SMALL: dict[str, Any] = {
    "group": GroupSettings(snapshot_entries=50),
    "storage": StorageSettings(2**14, SegmentLimits(40, 2**20)),
}


async def _fetch(client: RaftClient, directory: Path) -> None:
    async def read(**given: object) -> bytes:
        return (await client.ask("default", ClientOperation.BACKUP, json.dumps(given).encode()))[1]

    async def ask(**given: object) -> Any:
        return json.loads(await read(**given))

    await fetch_backup(ask, read, LocalFileSystem(), str(directory))


def test_a_backup_under_load_is_of_one_index(tmp_path: Path) -> None:
    async def write(kv: KvClient, stop: asyncio.Event) -> int:
        """The number that is written last follows all values that were written before it."""
        number = 0
        while not stop.is_set():
            await kv.put(b"k%04d" % (number % 300), b"%d " % number + b"x" * 200)
            await kv.put(b"last", b"%d" % number)
            number += 1
        return number

    async def saving() -> int:
        async with running(settings(tmp_path, "n1", **SMALL)) as node, client_of(node) as client:
            kv, stop = KvClient(client, "default"), asyncio.Event()
            writing = asyncio.create_task(write(kv, stop))
            await until(lambda: node.groups["default"].applied_index > 800)
            acknowledged = int((await kv.get(b"last")).value)
            before = node.groups["default"].applied_index
            await _fetch(client, tmp_path / "saved")
            await until(lambda: node.groups["default"].applied_index > before + 200)
            stop.set()
            await writing
            # The node keeps nothing of it.
            await until(lambda: not list((tmp_path / "n1" / "backups").iterdir()))
        return acknowledged

    async def check(acknowledged: int) -> None:
        async with running(settings(tmp_path, "m1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            last = int((await kv.get(b"last")).value)
            assert last >= acknowledged
            found = [int(row.value.split()[0]) for row in await kv.scan(b"k", 1000)]
            # The value behind the last number may have been written already.
            newest = set(range(max(0, last - 299), last + 1))
            assert set(found) in (newest, newest - {last - 299} | {last + 1})
            await kv.put(b"more", b"")

    acknowledged = asyncio.run(saving())
    fs = LocalFileSystem()
    made = verify_backup(fs, str(tmp_path / "saved"))
    saved = read_backup(fs, made)
    restore(fs, str(tmp_path / "m1"), "m1", "raft", [saved], kv_machine, Random(3).randrange)
    asyncio.run(check(acknowledged))


def test_only_files_of_a_backup_are_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            await KvClient(client, "default").put(b"k", b"v")
            begun = await client.ask_json("default", ClientOperation.BACKUP, begin=True)
            name = begun["backup"]
            for given in (
                {"read": name, "file": "../../NODE", "offset": 0},
                {"read": "../..", "file": "NODE", "offset": 0},
                {"read": name, "file": "live", "offset": -1},
                {"read": name, "file": "live", "offset": "x"},
                {"read": name},
            ):
                with pytest.raises(OperationRefused):
                    await client.ask_json("default", ClientOperation.BACKUP, **given)
            await client.ask_json("default", ClientOperation.BACKUP, end="../../wal")
            assert (tmp_path / "n1" / "wal").is_dir()

    asyncio.run(story())


def test_an_unfetched_backup_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            await KvClient(client, "default").put(b"k", b"v")
            for _ in range(2):
                await client.ask_json("default", ClientOperation.BACKUP, begin=True)
            assert len(list((tmp_path / "n1" / "backups").iterdir())) == 1
        async with running(settings(tmp_path, "n1")):
            assert not (tmp_path / "n1" / "backups").exists()

    asyncio.run(story())
