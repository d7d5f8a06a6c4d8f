"""The bytes of a member's write-ahead log and snapshot, version 1. They never change."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.live_set import LiveSet
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import HardState, SnapshotMeta
from lithify.raft.entry import Entry
from lithify.raft.storage.live_state import LiveStates
from lithify.raft.storage.manifest import End, RaftManifest
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.snapshots.snapshot_store import SnapshotPlace, Snapshots
from lithify.raft.storage.wal.wal import Wal

WAL = Path(__file__).with_name("raft_wal_v1.bin")
PROVED_WAL = Path(__file__).with_name("raft_wal_v1_proved.bin")
"""With an empty batch behind the one that has a state."""
MANIFEST = Path(__file__).with_name("raft_manifest_v1.txt")
SNAPSHOT = Path(__file__).with_name("raft_snapshot_v1.bin")
PLACE = Path(__file__).with_name("raft_place_v1.txt")

FIRST = [Entry(1, 1, b""), Entry(2, 1, b"put a 1", 2)]
SECOND = [Entry(2, 3, b"put a 2", 2), Entry(3, 3, bytes(range(32)), 2)]
SPARSE = [Entry(7, 2, b"live"), Entry(19, 2, b"live too")]
STATE = HardState(3, "n2", 1)

MEMBERS = Config(frozenset({"n1", "n2", "n3"}), learners=frozenset({"n4"}))
HEAD = Head(SnapshotMeta(300, 3, MEMBERS), machine_version=2)
PIECES = [b"the first piece", b"the second"]
LIVE = LiveSet.from_iterable([2, 3, 4, 250])
WHERE = SnapshotPlace(cut_number=6, cut_index=280, wal_file=4, install_index=200)


def written_wal() -> bytes:
    """Entries with a state, the proof of them, then an overwriting one and a sequence with gaps."""
    fs = MemoryFileSystem()
    wal = Wal(fs, "wal", LiveStates())
    wal.append("orders", FIRST, 0)
    wal.save("orders", STATE)
    wal.flush()
    wal.append("orders", SECOND, 1)
    wal.append("orders/20", SPARSE, 5)
    wal.flush()
    return read_file(fs, f"wal/{1:016}.wal")


def written_snapshot() -> tuple[bytes, bytes, bytes]:
    fs = MemoryFileSystem()
    stored = Snapshots(fs, "g").write(HEAD, PIECES, LIVE, WHERE)
    snapshot, live, place = (
        read_file(fs, f"{stored.directory}/{name}") for name in ("snapshot", "live", "place")
    )
    return snapshot, live, place


def test_version_1_of_the_write_ahead_log_is_still_written() -> None:
    assert written_wal() == PROVED_WAL.read_bytes()


@pytest.mark.parametrize("golden", [WAL, PROVED_WAL])
def test_version_1_of_the_write_ahead_log_is_still_read(golden: Path) -> None:
    fs = MemoryFileSystem()
    fs.mkdir("wal")
    with fs.open_append(f"wal/{1:016}.wal") as file:
        file.write(golden.read_bytes())
    found = Wal(fs, "wal", LiveStates()).recover({})
    assert list(found["orders"].entries.values()) == [FIRST[0], *SECOND]
    assert found["orders"].state == STATE
    assert list(found["orders/20"].entries.values()) == SPARSE


def written_manifest() -> bytes:
    fs = MemoryFileSystem()
    fs.mkdir("d")
    manifest = RaftManifest(fs, "d")
    manifest.begin_file(7, 96, {})
    manifest.begin_file(8, 128, {7: 4096})
    manifest.end_files(6, {"orders": End(300, 4, 200)})
    manifest.doubt({"orders": 12})
    return read_file(fs, "d/MANIFEST")


def test_version_1_of_a_manifest_is_still_written_and_read() -> None:
    assert written_manifest() == MANIFEST.read_bytes()
    fs = MemoryFileSystem()
    fs.mkdir("d")
    write_atomic(fs, "d/MANIFEST", MANIFEST.read_bytes())
    manifest = RaftManifest(fs, "d")
    assert manifest.wal == {7: 4096, 8: 128}
    assert (manifest.ends, manifest.doubts) == ({"orders": End(300, 4, 200)}, {"orders": 12})


def test_version_1_of_a_snapshot_is_still_written() -> None:
    snapshot, live, place = written_snapshot()
    assert snapshot == SNAPSHOT.read_bytes()
    assert live == LIVE.to_bytes()
    assert place == PLACE.read_bytes()


def test_version_1_of_a_snapshot_is_still_read() -> None:
    fs = MemoryFileSystem()
    directory = f"g/snapshots/{3:016x}_{300:016x}"
    fs.mkdir(directory)
    files = {"snapshot": SNAPSHOT.read_bytes(), "live": LIVE.to_bytes()}
    for name, data in (files | {"place": PLACE.read_bytes()}).items():
        with fs.open_append(f"{directory}/{name}") as file:
            file.write(data)
    snapshots = Snapshots(fs, "g")
    stored = snapshots.newest()
    assert stored is not None
    assert (stored.head, stored.place) == (HEAD, WHERE)
    assert list(snapshots.pieces(stored)) == PIECES
    assert snapshots.live(stored, lambda _: LiveSet.empty()) == LIVE
