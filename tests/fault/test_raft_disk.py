"""A member whose disk refuses to write: the group continues without it, and with it afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from lithify.errors import Corrupt
from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES, read_footer
from lithify.raft.errors import EntriesLost
from lithify.raft.kv.client import KvClient
from lithify.raft.net.client_operations import Address, ClientOperation
from lithify.raft.storage.file_names import parse_segment
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.storage import RaftStorage, StorageSettings
from lithify.raft.storage.wal.wal import Rolled
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.patience import PROCESS_S_MAX
from tests.ports import free_port
from tests.raft_members import Member, Members
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import client_of, running, settings
from tests.unit.raft.stored import GROUP, entry, rebuild

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.raft.node.settings import RaftNodeSettings

GROUPS = (GROUP, "other")


def test_a_leader_that_is_refused_hands_over_and_follows() -> None:
    members = Members("n1", "n2", "n3")
    fs = FaultyFileSystem(MemoryFileSystem(clock=members.clock))
    members.all["n1"] = Member("n1", fs, members["n1"].settings)  # type: ignore[arg-type]
    members.elect("n1")
    fs.add(Fault("write", "*.wal", count=3, kind="ENOSPC"))
    members.put("n1", b"key", b"value")
    members.tick(2)
    leader = members["n1"].group.leader
    assert leader in ("n2", "n3")
    members.put(leader, b"key", b"of another")
    members.tick(2)
    assert members.get("n1", b"key") == b"of another"


@pytest.mark.parametrize("names", [["n1"], ["n1", "n2", "n3"]])
def test_a_client_reads_when_the_first_node_has_a_full_disk(
    tmp_path: Path, names: list[str]
) -> None:
    """The first node follows; the others are known to the client, or only to the node."""
    ports = {name: free_port() for name in ("n1", "n2", "n3")}
    fs = FaultyFileSystem(LocalFileSystem())

    def given(name: str) -> RaftNodeSettings:
        peers = {other: f"127.0.0.1:{port}" for other, port in ports.items() if other != name}
        made = settings(tmp_path, name, peers=peers)
        return replace(made, listen=Address("127.0.0.1", ports[name]), tick_ms=50)

    async def story() -> None:
        async with (
            running(given("n1"), fs=fs) as full,  # type: ignore[arg-type]
            running(given("n2")) as two,
            running(given("n3")) as three,
            client_of(two, three) as others,
        ):
            kv = KvClient(others, "default")
            await kv.put(b"key", b"old")
            group = full.groups["default"]
            if group.leading_term:
                await others.ask_json("default", ClientOperation.TRANSFER, to="n2")
            await until(lambda: group.leader in ("n2", "n3"))
            fs.add(Fault("write", "*.wal", count=None, kind="ENOSPC"))
            await kv.put(b"key", b"new")
            nodes = {"n1": full, "n2": two, "n3": three}
            async with client_of(
                *(nodes[name] for name in names), timeout_s=PROCESS_S_MAX
            ) as client:
                assert (await KvClient(client, "default").get(b"key")).value == b"new"
            fs.clear()

    asyncio.run(story())


@pytest.mark.parametrize("limits", [SegmentLimits(5, 10_000), SegmentLimits(50, 300)])
def test_segments_that_were_refused_anywhere_are_written_by_the_next_try(
    limits: SegmentLimits,
) -> None:
    """Of two groups: one may be through when the other is refused, and takes it in only later."""
    settings = StorageSettings(segments=limits)
    nth = refusals = 0
    while refusals == nth:
        nth += 1
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk)
        storage = RaftStorage(fs, "d", settings)
        storage.open_groups(rebuild)
        logs = [storage.create(name).log for name in GROUPS]
        for first, stop in ((1, 8), (8, 20)):
            for log in logs:
                log.append([entry(index) for index in range(first, stop)])
            (rolled,) = [event for event in storage.wal.roll() if isinstance(event, Rolled)]
            if first > 1:
                fs.add(Fault("mutating", "*.segment", nth, kind="SHORT"))
            try:
                done = storage.flush(rolled)
            except OSError:
                refusals += 1
                done = storage.flush(rolled)
            storage.settle(rolled, done)
        for found in (storage, _reopened(disk, settings)):
            for name in GROUPS:
                _check(found, name)
    assert refusals > 10


def _check(storage: RaftStorage, name: str) -> None:
    """All entries are there, in segments that are what the group takes them for."""
    own = storage.groups[name]
    assert own.log.entries(1, 20, 2**40) == [entry(index) for index in range(1, 20)]
    names = [file for file in storage.fs.list(own.directory) if parse_segment(file)]
    assert names == [span.ref.name for span in own.log.segments.spans]
    for span in own.log.segments.spans:
        with storage.fs.open_read(f"{own.directory}/{span.ref.name}") as file:
            assert read_footer(file).last_position == span.ref.last_position


def _reopened(disk: MemoryFileSystem, settings: StorageSettings) -> RaftStorage:
    storage = RaftStorage(disk.kill_clone(), "d", settings)
    storage.open_groups(rebuild)
    return storage


@pytest.mark.parametrize("limits", [SegmentLimits(5, 10_000), SegmentLimits(50, 10_000)])
@pytest.mark.parametrize("operation", ["mutating", "*"])
def test_a_segment_that_fails_twice_in_a_row_does_not_keep_the_node_from_starting(
    limits: SegmentLimits, operation: str
) -> None:
    """The disk fails while the newest segment is appended to, and again while it is reopened."""
    settings = StorageSettings(segments=limits)
    nth = left = 0
    refused = True
    while refused:
        nth += 1
        refused = False
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk)
        storage = RaftStorage(fs, "d", settings)
        storage.open_groups(rebuild)
        log = storage.create(GROUP).log
        for first, stop in ((1, 8), (8, 12), (12, 20)):
            log.append([entry(index) for index in range(first, stop)])
            (rolled,) = [event for event in storage.wal.roll() if isinstance(event, Rolled)]
            if first == 8:
                fs.add(Fault(operation, "*.segment", nth, count=2))
            for _ in range(3):
                try:
                    done = storage.flush(rolled)
                except OSError:
                    refused = True
                else:
                    break
            storage.settle(rolled, done)
            left += bool(log.segments.damages.open)
            for found in (disk.kill_clone(), disk.crash_clone(Random(nth))):
                again = RaftStorage(found, "d", settings)
                again.open_groups(rebuild)
                own = again.groups[GROUP].log
                assert own.entries(1, stop, 2**40) == [entry(index) for index in range(1, stop)]
    assert left > 1


def test_a_truncated_segment_is_not_read_as_an_unfinished_one() -> None:
    disk = MemoryFileSystem()
    settings = StorageSettings(segments=SegmentLimits(5, 10_000))
    storage = RaftStorage(disk, "d", settings)
    storage.open_groups(rebuild)
    own = storage.create(GROUP)
    own.log.append([entry(index) for index in range(1, 12)])
    (rolled,) = [event for event in storage.wal.roll() if isinstance(event, Rolled)]
    storage.settle(rolled, storage.flush(rolled))
    name = own.log.segments.spans[0].ref.name
    for size in range(0, own.log.segments.spans[0].ref.file_bytes - 1, 7):
        cut = disk.kill_clone()
        with cut.open_append(f"{own.directory}/{name}") as file:
            file.truncate(size)
        whole = RaftStorage(cut, "d", settings)
        if size >= own.log.segments.spans[0].ref.frame_bytes + SEGMENT_HEADER_BYTES:
            # Only the block index and the footer are gone: they are rebuilt.
            whole.open_groups(rebuild)
            assert len(whole.groups[GROUP].log.entries(1, 12, 2**40)) == 11
            continue
        with pytest.raises((Corrupt, EntriesLost)):
            whole.open_groups(rebuild)
