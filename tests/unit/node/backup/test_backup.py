"""A backup holds what its node had, never changes, and is restored whole or in parts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import lithify
from lithify.blobs.errors import BlobDeleted
from lithify.blobs.settings import StoreShape
from lithify.blobs.visibility import Include
from lithify.checksum import crc32c
from lithify.cli.main import app
from lithify.clock import ManualClock, SystemClock
from lithify.errors import (
    Corrupt,
    DamagedFile,
    InvalidInput,
    LithifyError,
    LogLocked,
    ReadFailed,
    UnclaimedDirectory,
    WriteFailed,
)
from lithify.fs import LocalFileSystem, read_file
from lithify.log.manifest import read_manifest, write_manifest
from lithify.node.backup.backup import BackupReport, run_backup
from lithify.node.backup.backup_list import (
    BackupExists,
    NotABackup,
    checksum_file,
    read_list,
    write_list,
)
from lithify.node.backup.restore import AlreadyExists, NotInBackup, check_backup, run_restore
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.schemas.schemas import Schema, SchemaType
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.subscriptions.cursor_changes import AckedUpTo
from tests.crash.test_directories import prepared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FS = LocalFileSystem()
MIB = 2**20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node that is open: topics of several segments, a subscription, a schema, a store."""
    with lithify.open(str(tmp_path / "data"), segment_bytes_max=4096) as made:
        orders = made.topics.create("orders")
        for number in range(100):
            orders.append(key=f"{number % 10}", value=bytes([number]) * 100)
        orders.cursors.create("mine", Cursor(-1), {})
        orders.cursors.ack("mine", AckedUpTo(orders.last_position))
        made.topics.schemas("orders").register(Schema(SchemaType.STRING, b"", "", {}))
        made.topics.create_partitioned("parts", 3)
        made.topics.get("parts-partition-1").append(value=b"one")
        settings = {"deleted_retention_ms": 0}
        photos = made.blobs.create(
            "photos", capacity_bytes=16 * MIB, segment_bytes=MIB, settings=settings
        )
        for number in range(12):
            photos.put(bytes([number]) * 300_000, service="s", blob_id=f"{number}")
        yield made


def save(tmp_path: Path, name: str = "one", previous: str | None = None) -> BackupReport:
    before = None if previous is None else str(tmp_path / previous)
    return run_backup(
        FS, str(tmp_path / "data"), str(tmp_path / name), clock=SystemClock(), previous=before
    )


def restore(
    tmp_path: Path, name: str = "one", *, topic: str | None = None, store: str | None = None
) -> None:
    backup, data = str(tmp_path / name), str(tmp_path / "again")
    run_restore(FS, backup, data, clock=SystemClock(), topic=topic, store=store)


def messages(node: Node, name: str) -> list[bytes | None]:
    return [message.value for message in node.topics.get(name).read()]


def content(tmp_path: Path, name: str) -> dict[str, bytes]:
    top = tmp_path / name
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def test_a_backup_of_an_open_node_has_everything_and_is_restored(
    tmp_path: Path, node: Node
) -> None:
    report = save(tmp_path)
    assert (report.topics, report.stores) == (2, 1)
    expected = messages(node, "orders")
    # What comes later is not in it, and what goes later is.
    node.topics.get("orders").append(value=b"later")
    node.topics.delete("parts")
    node.blobs.get("photos").delete("3")
    assert check_backup(FS, report.directory).files == report.files
    restore(tmp_path)
    with lithify.open(str(tmp_path / "again"), segment_bytes_max=4096) as again:
        assert messages(again, "orders") == expected
        assert messages(again, "parts-partition-1") == [b"one"]
        assert again.topics.partitions("parts") == 3
        orders = again.topics.get("orders")
        assert orders.cursors.get("mine").mark_delete == orders.last_position
        assert len(again.topics.schemas("orders").all()) == 1
        photos = again.blobs.get("photos")
        assert photos.settings.deleted_retention_ms == 0
        assert [info.blob_id for info in photos.list()] == [f"{n}" for n in range(12)]
        assert photos.get("7").read() == bytes([7]) * 300_000
        # What is produced now is not acknowledged by a cursor that is ahead of the log.
        position = orders.append(value=b"new")
        assert orders.last_position > orders.cursors.get("mine").mark_delete, position
        photos.put(b"new", service="s")


def test_a_backup_never_changes_whatever_its_node_does(tmp_path: Path, node: Node) -> None:
    save(tmp_path)
    before = content(tmp_path, "one")
    orders, photos = node.topics.get("orders"), node.blobs.get("photos")
    for number in range(100):
        orders.append(key=f"{number % 3}", value=bytes(100))
    orders.log.roll()
    orders.compact()
    orders.log.reclaim()
    for number in range(0, 12, 2):
        photos.delete(f"{number}")
    while not photos.erase.step(10**9).idle:
        pass
    assert photos.erase.status().blobs
    photos.compaction.run()
    photos.compaction.reclaim()
    node.close()
    with Node(NodeSettings(data=str(tmp_path / "data"))) as again:
        again.topics.get("orders").append(value=b"x")
    assert content(tmp_path, "one") == before
    check_backup(FS, str(tmp_path / "one"))


def test_the_next_backup_links_what_is_the_same(tmp_path: Path, node: Node) -> None:
    save(tmp_path)
    node.topics.get("orders").append(value=b"more")
    second = save(tmp_path, "two", previous="one")
    assert second.copied_bytes < 20_000 < second.bytes
    sealed = "blobs/photos/000000000001.seg"
    inodes = [FS.stat(str(tmp_path / name / sealed)).inode for name in ("data", "one", "two")]
    assert inodes[0] != inodes[1] == inodes[2], "erasing writes over the node's own file"
    sealed = "topics/public/default/orders/log/000000000001.seg"
    assert FS.stat(str(tmp_path / "two" / sealed)).links == 3
    check_backup(FS, str(tmp_path / "two"))


class OtherDisk(FaultyFileSystem):
    """The backup is on another file system than the data."""

    def link(self, source: str, target: str) -> None:
        if "/data/" in source:
            raise OSError(18, "Invalid cross-device link")
        super().link(source, target)


def test_on_another_file_system_files_are_copied_once(tmp_path: Path, node: Node) -> None:
    data, clock = str(tmp_path / "data"), SystemClock()
    first = run_backup(OtherDisk(FS), data, str(tmp_path / "one"), clock=clock)
    assert first.copied_bytes > 0.9 * first.bytes
    node.topics.get("orders").append(value=b"more")
    second = run_backup(
        OtherDisk(FS), data, str(tmp_path / "two"), clock=clock, previous=str(tmp_path / "one")
    )
    assert second.copied_bytes < 20_000
    expected = messages(node, "orders")
    restore(tmp_path, "two")
    with lithify.open(str(tmp_path / "again")) as again:
        assert messages(again, "orders") == expected


def test_one_topic_and_one_store_are_restored_beside_others(tmp_path: Path, node: Node) -> None:
    space = Namespace("public", "default")
    node.topics.definitions.change(
        lambda d: d.with_namespace(space, type(d.namespace(space))({"retention_ms": 5}))
    )
    save(tmp_path)
    expected = messages(node, "orders")
    with lithify.open(str(tmp_path / "again")) as again:
        again.topics.create("mine").append(value=b"stays")
    restore(tmp_path, topic="orders")
    restore(tmp_path, store="photos")
    with lithify.open(str(tmp_path / "again")) as again:
        assert messages(again, "mine") == [b"stays"]
        assert messages(again, "orders") == expected
        assert len(list(again.blobs.get("photos").list())) == 12
        assert not again.topics.exists("parts")
        assert again.topics.unclaimed() == ()
        settings = again.topics.definitions.current.namespace(space).settings
        assert settings == {}, "a namespace that is there keeps its settings"
    with pytest.raises(AlreadyExists, match="orders"):
        restore(tmp_path, topic="orders")
    with pytest.raises(AlreadyExists, match="photos"):
        restore(tmp_path, store="photos")
    with pytest.raises(AlreadyExists):
        restore(tmp_path)
    with pytest.raises(NotInBackup, match="nothing"):
        restore(tmp_path, topic="nothing")
    with pytest.raises(NotInBackup, match="nothing"):
        restore(tmp_path, store="nothing")


def test_a_restore_takes_the_settings_of_namespaces_into_an_empty_directory(
    tmp_path: Path, node: Node
) -> None:
    space = Namespace("public", "default")
    node.topics.definitions.change(
        lambda d: d.with_namespace(space, type(d.namespace(space))({"retention_ms": 5}))
    )
    save(tmp_path)
    restore(tmp_path, topic="orders")
    with lithify.open(str(tmp_path / "again")) as again:
        assert again.topics.definitions.current.namespace(space).settings == {"retention_ms": 5}


def test_a_restore_does_not_replace_what_no_definition_explains(tmp_path: Path, node: Node) -> None:
    save(tmp_path)
    restore(tmp_path)
    (tmp_path / "again" / "definitions").unlink()
    before = content(tmp_path, "again")
    with pytest.raises(UnclaimedDirectory):
        restore(tmp_path, topic="orders")
    with pytest.raises(UnclaimedDirectory):
        restore(tmp_path, store="photos")
    assert content(tmp_path, "again").items() >= before.items()


def test_a_damaged_backup_is_refused_by_the_name_of_the_file(tmp_path: Path, node: Node) -> None:
    save(tmp_path)
    files = read_list(FS, str(tmp_path / "one")).files
    restored = {"definitions", "blobs/photos/MANIFEST", next(n for n in files if "orders" in n)}
    for name in files:
        path = tmp_path / "one" / name
        good = path.read_bytes()
        path.unlink()  # The node has the same file under another name.
        for bad in (good[:-1], good + b"x", good[:-1] + bytes([good[-1] ^ 1])):
            path.write_bytes(bad)
            with pytest.raises(DamagedFile, match=name.rpartition("/")[2]):
                check_backup(FS, str(tmp_path / "one"))
        if name in restored:
            with pytest.raises(DamagedFile, match=name.rpartition("/")[2]):
                restore(tmp_path)
        path.unlink()
        with pytest.raises((Corrupt, FileNotFoundError)):
            check_backup(FS, str(tmp_path / "one"))
        path.write_bytes(good)
    assert sorted(p.name for p in (tmp_path / "again").rglob("*") if p.is_file()) == ["LOCK"]
    listing = tmp_path / "one" / "BACKUP"
    listing.write_bytes(listing.read_bytes().replace(b'"crc":"', b'"crc":"f', 1))
    with pytest.raises(DamagedFile, match="BACKUP"):
        restore(tmp_path)
    listing.unlink()
    with pytest.raises(NotABackup):
        restore(tmp_path)


def test_a_backup_needs_a_directory_of_its_own(tmp_path: Path, node: Node) -> None:
    save(tmp_path)
    with pytest.raises(BackupExists):
        save(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    with pytest.raises(BackupExists, match=r"thesis\.tex"):
        save(tmp_path, "full")
    assert (tmp_path / "full" / "thesis.tex").exists()
    with pytest.raises(InvalidInput, match="not a data directory"):
        run_backup(FS, str(tmp_path / "full"), str(tmp_path / "two"), clock=SystemClock())
    with pytest.raises(InvalidInput, match="inside"):
        save(tmp_path, "data/backup")
    with pytest.raises(LogLocked):
        run_restore(FS, str(tmp_path / "one"), str(tmp_path / "data"), clock=SystemClock())


def test_a_frame_that_a_crash_left_half_written_over_is_finished_in_the_copy(
    tmp_path: Path,
) -> None:
    data, clock = str(tmp_path / "data"), ManualClock()
    faulty = FaultyFileSystem(FS)
    node = Node(NodeSettings(data=data), fs=faulty, clock=clock)
    settings = {"deleted_retention_ms": 0}
    photos = node.blobs.create(
        "photos", capacity_bytes=16 * MIB, segment_bytes=MIB, settings=settings
    )
    for number in range(5):
        photos.put(b"secret" * 50_000, service="s", blob_id=f"{number}")
    photos.delete("0")
    clock.advance(60)
    # The header of a frame is written over, its body is not.
    faulty.add(Fault("overwrite", nth=2, kind="CRASH"))
    with pytest.raises(PowerCut):
        photos.erase.step(10**9)
    run_backup(FS, data, str(tmp_path / "one"), clock=clock)
    restore(tmp_path)
    with lithify.open(str(tmp_path / "again")) as again:
        store = again.blobs.get("photos")
        with pytest.raises(BlobDeleted):
            store.get("0", include=Include.ALL)
        assert store.get("1").read() == b"secret" * 50_000
    node.blobs.opened_store("photos").abandon()  # type: ignore[union-attr]


def test_data_without_definitions_is_not_saved_as_nothing(tmp_path: Path, node: Node) -> None:
    node.close()
    (tmp_path / "data" / "definitions.copy").unlink()
    with pytest.raises(InvalidInput, match="adopt"):
        save(tmp_path)


def test_the_list_has_the_crc_of_each_file(tmp_path: Path, node: Node) -> None:
    save(tmp_path)
    for name, file in read_list(FS, str(tmp_path / "one")).files.items():
        data = read_file(FS, str(tmp_path / "one" / name))
        assert (file.bytes, file.crc) == (len(data), crc32c(data))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_backup_names_damaged_files_and_saves_the_rest(tmp_path: Path, node: Node) -> None:
    for name in ("fine", "headless", "cut"):
        topic = node.topics.create(name)
        topic.append(value=b"one")
        topic.log.roll()
        topic.append(value=b"two")
    node.blobs.create("films", capacity_bytes=16 * MIB, segment_bytes=MIB)
    node.close()
    data = tmp_path / "data"
    topics = data / "topics/public/default"
    damaged = {
        "orders": topics / "orders/log/000000000002.seg",
        "headless": topics / "headless/log/MANIFEST",
        "cut": topics / "cut/log/000000000001.seg",
        "photos": data / "blobs/photos/000000000001.seg",
        "films": data / "blobs/films/MANIFEST",
    }
    flip(damaged["orders"])
    flip(damaged["photos"])
    flip(damaged["films"])
    for name in ("headless", "cut"):
        damaged[name].unlink()
    report = save(tmp_path)
    assert (report.topics, report.stores) == (2, 0)
    assert len(report.damaged) == len(damaged)
    for name, path in damaged.items():
        assert any(f"{name}: " in each and str(path) in each for each in report.damaged), name
    assert report.unclaimed == report.left_out == ()
    check_backup(FS, str(tmp_path / "one"))
    restore(tmp_path)
    with lithify.open(str(tmp_path / "again")) as again:
        assert messages(again, "fine") == [b"one", b"two"]
    done = CliRunner().invoke(app, ["backup", str(tmp_path / "two"), "--data", str(data)])
    assert done.exit_code == 1
    assert f"not saved, because it is damaged: photos: {damaged['photos']}" in done.stdout


def test_a_topic_that_has_lost_its_cursors_is_named(tmp_path: Path, node: Node) -> None:
    node.topics.create("unused")
    node.close()
    for name in ("orders", "unused"):
        shutil.rmtree(tmp_path / "data/topics/public/default" / name / "cursors")
    report = save(tmp_path)
    (damaged,) = report.damaged
    assert damaged.startswith("persistent://public/default/orders: ")
    assert "orders/cursors at byte 0: missing" in damaged
    check_backup(FS, str(tmp_path / "one"))
    restore(tmp_path)
    with lithify.open(str(tmp_path / "again")) as again:
        assert messages(again, "unused") == []
        assert messages(again, "parts-partition-1") == [b"one"]


def test_a_check_finds_damage_that_was_there_when_it_was_saved(tmp_path: Path, node: Node) -> None:
    save(tmp_path)
    target = tmp_path / "one"
    name = "topics/public/default/orders/log/000000000001.seg"
    path = target / name
    good = path.read_bytes()
    path.unlink()
    path.write_bytes(good)
    flip(path)
    files = read_list(FS, str(target))
    files.files[name] = checksum_file(FS, str(path))
    write_list(FS, str(target), files)
    with pytest.raises(Corrupt, match=r"000000000001\.seg"):
        check_backup(FS, str(target))
    assert CliRunner().invoke(app, ["restore", str(target), "--check"]).exit_code == 1


@pytest.mark.parametrize("operation", ["pread", "open_read"])
def test_a_file_that_cannot_be_read_is_named_and_everything_else_is_saved(
    tmp_path: Path, node: Node, operation: str
) -> None:
    node.topics.create("fine").append(value=b"one")
    data = tmp_path / "data"
    broken = data / "topics/public/default/orders/log/000000000002.seg"
    faults = [Fault(operation, path=f"*/{name}", count=None) for name in (broken.name,)]
    # It is linked, so that the copy has the same bad blocks.
    faulty = FaultyFileSystem(FS, faults)
    blobs = Fault("pread", path=f"{data}/blobs/photos/*.seg", count=None)
    faulty.add(blobs)
    report = run_backup(faulty, str(data), str(tmp_path / "one"), clock=SystemClock())
    assert (report.topics, report.stores) == (2, 0)
    names = [each.partition(": ")[0].rpartition("/")[2] for each in report.damaged]
    assert names == ["orders", "photos"]
    assert "Input/output error" in report.damaged[0]
    assert str(broken) in report.damaged[0] or operation == "pread"
    check_backup(FS, str(tmp_path / "one"))
    restore(tmp_path)
    with lithify.open(str(tmp_path / "again")) as again:
        assert messages(again, "fine") == [b"one"]


@pytest.mark.parametrize("work", ["backup", "check", "restore"])
def test_every_error_of_the_file_system_has_a_type_and_a_path(work: str) -> None:
    disk, _ = prepared()
    run_backup(disk, "/data", "/one", clock=ManualClock())
    nth, errors = 0, list[LithifyError]()
    while True:
        nth += 1
        fs = FaultyFileSystem(disk.kill_clone(), [Fault("*", nth=nth)])
        try:
            if work == "backup":
                run_backup(fs, "/data", "/new", clock=ManualClock(), previous="/one")
            elif work == "check":
                check_backup(fs, "/one")
            else:
                run_restore(fs, "/one", "/new", clock=ManualClock())
        except (ReadFailed, WriteFailed, Corrupt) as error:
            errors.append(error)
        if fs.operations < nth:
            break
    assert nth > 100
    assert all(str(error).startswith("/") for error in errors)
    types = {type(error) for error in errors}
    assert ReadFailed in types
    assert (WriteFailed in types) == (work != "check")


def test_a_target_that_cannot_be_written_ends_a_backup(tmp_path: Path, node: Node) -> None:
    for kind in ("EIO", "ENOSPC"):
        faulty = FaultyFileSystem(FS, [Fault("write", path=f"{tmp_path}/one/*.seg", kind=kind)])
        with pytest.raises(WriteFailed, match=f"{tmp_path}/one/"):
            run_backup(faulty, str(tmp_path / "data"), str(tmp_path / "one"), clock=SystemClock())
        assert not (tmp_path / "one" / "BACKUP").exists()


def test_a_store_that_is_not_of_its_shape_is_damaged(tmp_path: Path, node: Node) -> None:
    """Every CRC is right: only a check of the store as such finds it."""
    save(tmp_path)
    node.close()
    data = tmp_path / "data"
    for place in (data, tmp_path / "one"):
        store = str(place / "blobs/photos")
        manifest = read_manifest(FS, store)
        state = {**manifest.state, **StoreShape(16 * MIB, MIB // 2).to_state()}
        write_manifest(FS, store, replace(manifest, state=state))
    files = read_list(FS, str(tmp_path / "one"))
    name = "blobs/photos/MANIFEST"
    files.files[name] = checksum_file(FS, str(tmp_path / "one" / name))
    write_list(FS, str(tmp_path / "one"), files)
    with pytest.raises(Corrupt, match="segments of the store have 524288"):
        check_backup(FS, str(tmp_path / "one"))
    report = save(tmp_path, "two")
    assert report.stores == 0
    assert "photos: " in report.damaged[0]
