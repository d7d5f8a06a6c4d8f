"""Directories of blob stores, and the objects of the catalog that they name."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.errors import BlobStoreExists, BlobStoreNotFound, ShapeDiffers
from lithify.errors import UnclaimedDirectory
from lithify.fs import MemoryFileSystem, write_atomic
from lithify.log.directory_marks import Deletion, log_id_in, write_deletion
from lithify.log.object_file import ObjectIdentity, WrongObject, read_object, write_object
from lithify.ownership import NotOwner
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.crash.test_directories import MIB, NODE
from tests.crash.test_import_definitions import opened_in
from tests.definitions_cluster import MemoryCluster
from tests.property.test_directories import copy_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import FileSystem
    from tests.crash.test_directories import Stage

PHOTOS = f"{NODE}/blobs/photos"


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as opened:
        yield opened


def used(cluster: MemoryCluster, fs: FileSystem, segment_bytes: int = MIB) -> Stage:
    """A node whose store has one blob, whose content is the size of its segments."""
    fs.mkdir(NODE)
    cluster.clock.advance(1)
    node = opened_in(fs, cluster.member())
    store = node.stores.create("photos", capacity_bytes=4 * MIB, segment_bytes=segment_bytes)
    store.put(str(segment_bytes).encode(), service="s", blob_id="x")
    return node


def content(node: Stage) -> bytes:
    return node.stores.get("photos").get("x").read()


def other_shape() -> MemoryFileSystem:
    """Has the directory of a store of another shape, which names no object, at /other."""
    fs = MemoryFileSystem()
    with MemoryCluster() as other:
        used(other, fs, MIB // 2).close()
    copy_tree(fs, PHOTOS, "/other")
    fs.remove("/other/OBJECT")
    fs.rename(NODE, "/gone")
    return fs


def check_kept(fs: FileSystem, cluster: MemoryCluster) -> None:
    """After two starts the directory is there, and nothing is to be removed."""
    for _ in range(2):
        cluster.clock.advance(1)
        node = opened_in(fs, cluster.member())
        assert node.topics.definitions.removals() == []
        assert log_id_in(fs, PHOTOS)
        node.close()


def test_deleting_a_store_keeps_a_directory_of_another_shape(cluster: MemoryCluster) -> None:
    fs = other_shape()
    node = used(cluster, fs)
    wanted = read_object(fs, PHOTOS)
    assert wanted == node.topics.definitions.store_identity("photos")
    node.close()
    fs.rename(PHOTOS, "/right")
    copy_tree(fs, "/other", PHOTOS)
    # As an earlier start may have written it.
    assert wanted is not None
    write_object(fs, PHOTOS, wanted)

    left = fs.kill_clone()
    node = opened_in(left, cluster.member())
    with pytest.raises(ShapeDiffers):
        node.stores.get("photos")
    node.stores.delete("photos")
    assert node.topics.definitions.removals() == []
    assert read_object(left, PHOTOS) is None
    node.close()
    # Even if it is not confirmed.
    check_kept(left, cluster)
    node = opened_in(left, cluster.member())
    node.stores.adopt("photos")
    assert content(node) == str(MIB // 2).encode()
    node.close()


def test_a_power_cut_while_a_store_of_another_shape_is_deleted_keeps_the_directory() -> None:
    start = other_shape()
    cuts = 0
    for nth in range(1, 100):
        fs = start.kill_clone()
        with MemoryCluster() as cluster:
            node = used(cluster, fs)
            wanted = read_object(fs, PHOTOS)
            node.close()
            fs.rename(PHOTOS, "/right")
            copy_tree(fs, "/other", PHOTOS)
            assert wanted is not None
            write_object(fs, PHOTOS, wanted)
            node = opened_in(fs, cluster.member())
            node.close()
            disk = fs.kill_clone()
            done = False
            with suppress(PowerCut):
                faults = [Fault("mutating", nth=nth, kind="CRASH")]
                node = opened_in(FaultyFileSystem(disk, faults), cluster.member())
                node.stores.delete("photos")
                done = True
            check_kept(disk.crash_clone(random.Random(nth)), cluster)
        cuts += 1
        if done:
            break
    assert cuts > 3


def test_deleting_a_store_confirms_the_removal_and_keeps_a_directory_of_another_object(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    other = ObjectIdentity(77, "photos", 3)
    write_object(fs, PHOTOS, other)
    node = opened_in(fs, cluster.member())
    with pytest.raises(WrongObject):
        node.stores.get("photos")
    with pytest.raises(WrongObject):
        node.stores.adopt("photos")
    (unclaimed,) = node.stores.unclaimed()
    assert "id 77" in unclaimed.problem
    node.stores.delete("photos")
    assert node.topics.definitions.removals() == []
    assert read_object(fs, PHOTOS) == other
    node.close()
    check_kept(fs, cluster)


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_store_whose_directory_names_no_object_is_not_served_until_it_is_adopted(
    cluster: MemoryCluster, damage: str
) -> None:
    fs = MemoryFileSystem()
    node = used(cluster, fs)
    wanted = node.topics.definitions.store_identity("photos")
    node.close()
    if damage == "lost":
        fs.remove(f"{PHOTOS}/OBJECT")
    else:
        write_atomic(fs, f"{PHOTOS}/OBJECT", b"?")
    node = opened_in(fs, cluster.member())
    with pytest.raises(UnclaimedDirectory, match="lithify blobs adopt photos"):
        node.stores.get("photos")
    assert read_object(fs, PHOTOS) is None
    assert [each.problem for each in node.stores.unclaimed()] == [""]
    assert len(node.stores.damage_found()) == 1
    node.stores.adopt("photos")
    assert node.stores.damage_found() == ()
    assert read_object(fs, PHOTOS) == wanted
    assert content(node) == b"%d" % MIB
    assert node.stores.unclaimed() == []
    with pytest.raises(BlobStoreExists):
        node.stores.adopt("photos")
    with pytest.raises(BlobStoreNotFound):
        node.stores.adopt("nothing")
    node.close()


def test_deleting_a_store_keeps_a_directory_that_names_no_object(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    fs.remove(f"{PHOTOS}/OBJECT")
    node = opened_in(fs, cluster.member())
    node.stores.delete("photos")
    assert node.topics.definitions.removals() == []
    node.close()
    check_kept(fs, cluster)


def test_a_directory_of_another_shape_is_not_adopted_by_a_defined_store(
    cluster: MemoryCluster,
) -> None:
    fs = other_shape()
    used(cluster, fs).close()
    fs.rename(PHOTOS, "/right")
    copy_tree(fs, "/other", PHOTOS)
    node = opened_in(fs, cluster.member())
    with pytest.raises(ShapeDiffers):
        node.stores.adopt("photos")
    (unclaimed,) = node.stores.unclaimed()
    assert "segments" in unclaimed.problem
    assert read_object(fs, PHOTOS) is None
    node.close()


def test_a_store_of_another_node_is_not_adopted(cluster: MemoryCluster) -> None:
    theirs, fs = MemoryFileSystem(), MemoryFileSystem()
    used(cluster, theirs).close()
    fs.mkdir(NODE)
    copy_tree(theirs, PHOTOS, "/copy")
    for each in list(theirs.list("/copy")):
        with theirs.open_read(f"/copy/{each}") as file:
            fs.mkdir(PHOTOS)
            write_atomic(fs, f"{PHOTOS}/{each}", file.pread(2**23, 0))
    fs.remove(f"{PHOTOS}/OBJECT")
    node = opened_in(fs, cluster.member("n2"))
    with pytest.raises(NotOwner, match="node n1"):
        node.stores.adopt("photos")
    (unclaimed,) = node.stores.unclaimed()
    assert "node n1" in unclaimed.problem
    assert read_object(fs, PHOTOS) is None
    node.close()


def test_an_adopted_store_and_a_copied_one_name_their_objects(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    with MemoryCluster() as new:
        new.clock.advance(100)
        node = opened_in(fs, new.member())
        node.stores.adopt("photos")
        node.stores.copy("photos", "wide", capacity_bytes=8 * MIB, segment_bytes=2 * MIB)
        for name in ("photos", "wide"):
            wanted = node.topics.definitions.store_identity(name)
            assert wanted is not None
            assert read_object(fs, f"{NODE}/blobs/{name}") == wanted
            assert node.stores.get(name).get("x").read() == b"%d" % MIB
        node.close()


@pytest.mark.parametrize("act", ["create", "copy", "adopt"])
def test_a_power_cut_at_any_operation_leaves_a_store_that_is_served_unclaimed_or_absent(
    act: str,
) -> None:
    for nth in range(1, 1000):
        disk = MemoryFileSystem()
        done = False
        with MemoryCluster() as cluster:
            with MemoryCluster() as other:
                used(other if act == "adopt" else cluster, disk).close()
            with suppress(PowerCut):
                faults = [Fault("mutating", nth=nth, kind="CRASH")]
                node = opened_in(FaultyFileSystem(disk, faults), cluster.member())
                if act == "create":
                    node.stores.create("new", capacity_bytes=4 * MIB, segment_bytes=MIB)
                elif act == "copy":
                    node.stores.copy("photos", "new", capacity_bytes=8 * MIB, segment_bytes=MIB)
                else:
                    node.stores.adopt("photos")
                done = True
            left = disk.crash_clone(random.Random(nth))
            node = opened_in(left, cluster.member())
            if act == "adopt":
                for each in node.stores.unclaimed():
                    node.stores.adopt(each.name)
                assert content(node) == b"%d" % MIB
            for name in node.stores.names():
                node.stores.get(name)
                wanted = node.topics.definitions.store_identity(name)
                assert read_object(left, f"{NODE}/blobs/{name}") == wanted
            assert act == "adopt" or content(node) == b"%d" % MIB
            assert ("new" in node.stores.names()) or not done or act == "adopt"
            assert node.stores.unclaimed() == []
            node.close()
        if done:
            assert nth > 3
            return
    raise AssertionError


def test_an_old_mark_does_not_delete_a_store_that_was_created_again(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    node = used(cluster, fs)
    defined = node.topics.definitions.store_identity("photos")
    node.close()
    # Version 0.1 marks a directory whose log could not be read.
    write_deletion(fs, PHOTOS, Deletion("photos", 1, {"": ""}))
    fs.rename(f"{PHOTOS}/MANIFEST", "/manifest")
    node = opened_in(fs, cluster.member())
    assert node.topics.definitions.store_identity("photos") == defined
    node.close()
    fs.rename("/manifest", f"{PHOTOS}/MANIFEST")
    node = opened_in(fs, cluster.member())
    assert content(node) == b"%d" % MIB
    node.close()


def test_an_old_mark_of_exactly_this_log_removes_it_and_not_the_definition(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    node = used(cluster, fs)
    defined = node.topics.definitions.store_identity("photos")
    node.close()
    fs.remove(f"{PHOTOS}/OBJECT")
    write_deletion(fs, PHOTOS, Deletion("photos", 1, {"": log_id_in(fs, PHOTOS)}))
    node = opened_in(fs, cluster.member())
    assert not fs.exists(PHOTOS)
    assert node.topics.definitions.store_identity("photos") == defined
    node.close()
