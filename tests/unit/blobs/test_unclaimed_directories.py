"""Directories of blob stores that no definition explains: they stay, and can be adopted."""

from __future__ import annotations

import pytest

from lithify.blobs.errors import (
    BlobStoreExists,
    BlobStoreNotFound,
    NotABlobStore,
    ShapeDiffers,
)
from lithify.errors import InvalidSetting, UnclaimedDirectory, WriteFailed
from lithify.fs import FileSystem, MemoryFileSystem, read_file, write_atomic
from lithify.log.file_names import CREATING, DELETED
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.crash.test_directories import DEFINITIONS, MIB, NODE, Stage, opened


def filled(fs: FileSystem, *names: str) -> Stage:
    node = opened(fs)
    for name in names:
        store = node.stores.create(name, capacity_bytes=4 * MIB, segment_bytes=MIB)
        store.put(name.encode(), service="s", blob_id="x")
    return node


def test_without_definitions_a_store_stays_is_not_served_and_can_be_adopted() -> None:
    fs = MemoryFileSystem()
    filled(fs, "photos").close()
    fs.remove(DEFINITIONS)
    node = opened(fs)
    assert node.stores.names() == []
    assert [each.row()["store"] for each in node.stores.unclaimed()] == ["photos"]
    assert node.stores.unclaimed_count == 1
    with pytest.raises(BlobStoreNotFound):
        node.stores.get("photos")
    with pytest.raises(UnclaimedDirectory, match="lithify blobs adopt photos"):
        node.stores.create("photos", capacity_bytes=4 * MIB, segment_bytes=MIB)
    with pytest.raises(InvalidSetting):
        node.stores.adopt("photos", settings={"no_such": 1})
    node.stores.adopt("photos", settings={"deleted_retention_ms": 7})
    assert node.stores.get("photos").get("x").read() == b"photos"
    assert node.stores.get("photos").settings.deleted_retention_ms == 7
    assert node.stores.definition("photos").capacity_bytes == 4 * MIB
    assert node.stores.unclaimed() == []
    with pytest.raises(BlobStoreExists):
        node.stores.adopt("photos")
    with pytest.raises(BlobStoreNotFound):
        node.stores.adopt("nothing")


def test_a_directory_that_holds_no_store_is_listed_with_the_reason() -> None:
    fs = MemoryFileSystem()
    filled(fs).close()
    fs.mkdir(f"{NODE}/blobs/holiday")
    fs.open_append(f"{NODE}/blobs/holiday/beach.jpg").close()
    node = opened(fs)
    [found] = node.stores.unclaimed()
    assert "no blob store" in found.problem
    with pytest.raises(NotABlobStore):
        node.stores.adopt("holiday")
    with pytest.raises(UnclaimedDirectory):
        node.stores.create("holiday", capacity_bytes=4 * MIB, segment_bytes=MIB)
    assert fs.exists(f"{NODE}/blobs/holiday/beach.jpg")


def test_a_deleted_store_does_not_come_back_with_older_definitions() -> None:
    fs = MemoryFileSystem()
    filled(fs, "photos").close()
    older = read_file(fs, DEFINITIONS)
    node = opened(FaultyFileSystem(fs, [Fault("remove", path="*.seg", kind="EIO")]))
    with pytest.raises(WriteFailed):
        node.stores.delete("photos")
    node.close()
    write_atomic(fs, DEFINITIONS, older)
    node = opened(fs)
    assert node.stores.names() == []
    assert not fs.exists(f"{NODE}/blobs/photos")


def test_a_delete_that_fails_leaves_the_store_in_use() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    node = filled(faulty, "photos")
    faulty.add(Fault("rename", path=DEFINITIONS, kind="EIO"))
    with pytest.raises(WriteFailed):
        node.stores.delete("photos")
    assert node.stores.get("photos").get("x").read() == b"photos"
    assert not fs.exists(f"{NODE}/blobs/photos/{DELETED}")


def test_a_delete_that_can_neither_finish_nor_roll_back_closes_the_store() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    node = filled(faulty, "photos")
    faulty.add(Fault("rename", path=DEFINITIONS, kind="EIO"))
    faulty.add(Fault("remove", path=f"*/{DELETED}", kind="EIO"))
    with pytest.raises(WriteFailed):
        node.stores.delete("photos")
    with pytest.raises(BlobStoreNotFound):
        node.stores.get("photos")
    node.stores.delete("photos")
    assert not fs.exists(f"{NODE}/blobs/photos")


def test_a_leftover_mark_of_creation_is_removed_by_the_next_use() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    node = filled(faulty)
    faulty.add(Fault("remove", path=f"*/{CREATING}", kind="EIO"))
    with pytest.raises(WriteFailed):
        node.stores.create("photos", capacity_bytes=4 * MIB, segment_bytes=MIB)
    node.stores.get("photos").put(b"content", service="s", blob_id="y")
    assert not fs.exists(f"{NODE}/blobs/photos/{CREATING}")
    node.close()
    assert opened(fs).stores.get("photos").get("y").read() == b"content"


def test_a_copy_does_not_remove_a_store_that_has_the_name_of_its_unfinished_directory() -> None:
    fs = MemoryFileSystem()
    filled(fs, "photos", "x.copying").close()
    node = opened(fs)
    with pytest.raises(BlobStoreExists, match=r"x\.copying"):
        node.stores.copy("photos", "x", capacity_bytes=8 * MIB, segment_bytes=MIB)
    assert node.stores.get("x.copying").get("x").read() == b"x.copying"


def test_a_store_of_another_shape_than_its_definition_is_neither_opened_nor_deleted() -> None:
    fs, other = MemoryFileSystem(), MemoryFileSystem()
    filled(fs, "photos").close()
    node = opened(other)
    node.stores.create("photos", capacity_bytes=8 * MIB, segment_bytes=2 * MIB)
    node.close()
    write_atomic(fs, DEFINITIONS, read_file(other, DEFINITIONS))
    node = opened(fs)
    before = sorted(fs.list(f"{NODE}/blobs/photos"))
    both = rf"{8 * MIB}.*{2 * MIB}.*{4 * MIB}.*{MIB}"
    with pytest.raises(ShapeDiffers, match=both):
        node.stores.get("photos")
    assert sorted(fs.list(f"{NODE}/blobs/photos")) == before
    # Only the definition goes, which is how the store can be adopted as it is.
    node.stores.delete("photos")
    assert [each.name for each in node.stores.unclaimed()] == ["photos"]
    node.stores.adopt("photos")
    assert node.stores.get("photos").get("x").read() == b"photos"
