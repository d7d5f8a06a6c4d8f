"""Data directories as version 0.1 writes them are imported into the catalog; nothing is lost.

The power is cut at every operation of the file system, and the node stops after each change of the
catalog. The metastore has its own storage, and has whatever was committed. Then the directory is
opened again: everything that was there is served.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.clock import ManualClock
from lithify.errors import DamagedFile, UnclaimedDirectory, UnsupportedVersion
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.fs.checked_lines import encode_line
from lithify.log.directory_marks import Deletion, log_id_in, write_deletion
from lithify.log.object_file import read_object
from lithify.node.backup.backup import run_backup
from lithify.node.backup.restore import run_restore
from lithify.node.catalog import import_definitions as module
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.node.catalog.import_definitions import IMPORTED, import_definitions
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition, TopicDefinition
from lithify.topics.definitions.definitions_file import COPY, DefinitionsFile, write_definitions
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.topics import Topics, TopicSettings
from tests.crash.test_directories import BEFORE, DEFINITIONS, MIB, NODE, Stage, found_in, prepared
from tests.definitions_cluster import MemoryCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem
    from tests.definitions_cluster import Member


class Stops(Exception):
    """The process ends here."""


class StoppingDefinitions(CatalogDefinitions):
    """The process ends before or after one of the changes."""

    left = 10_000
    after = False

    def change(self, edit: Callable[[Definitions], Definitions]) -> Definitions:
        self.left -= 1
        if not self.left and not self.after:
            raise Stops
        found = super().change(edit)
        if not self.left:
            raise Stops
        return found


def opened_in(fs: FileSystem, member: Member, *, stop: int = 0, after: bool = False) -> Stage:
    definitions = StoppingDefinitions(member, fs, NODE, ignore_events)
    definitions.left, definitions.after = stop or 10_000, after
    import_definitions(fs, NODE, definitions)
    more: dict[str, Any] = {"clock": ManualClock(), "events": ignore_events}
    topics = Topics(
        fs,
        NODE,
        settings=TopicSettings(log=LogSettings()),
        owner="pid 1",
        definitions=definitions,
        **more,
    )
    return Stage(topics, BlobStores(fs, NODE, definitions, settings=BlobSettings(), **more))


def old_directory() -> tuple[MemoryFileSystem, Definitions]:
    """With settings of all kinds, also of what every node begins with."""
    fs, _ = prepared()
    file = DefinitionsFile(fs, DEFINITIONS)
    public = Namespace("public", "default")
    settings = {"retention_ms": 5, "grants": {"a": ["x"]}}
    file.change(
        lambda d: (
            d.with_tenant("public", {"adminRoles": ["ann"]})
            .with_tenant("acme", {"adminRoles": []})
            .with_namespace(public, NamespaceDefinition(settings))
            .with_namespace(Namespace("acme", "shop"), NamespaceDefinition({"message_ttl_ms": 9}))
            .with_topic(
                TopicName.parse("kept"),
                TopicDefinition(0, 77, {"deduplication": True, "terminated": [-1]}),
            )
            .with_topic(TopicName.parse("unused"), TopicDefinition(7, 78))
            .with_store_changed("kept", lambda row: {**row, "settings": {"policy": "stats"}})
        )
    )
    assert file.current.logs
    return fs, file.current


EXPECTED = {**BEFORE, "unused": []}


def check(fs: MemoryFileSystem, member: Member, before: Definitions) -> None:
    node = opened_in(fs, member)
    assert node.topics.definitions.current == before
    assert node.topics.unclaimed() == ()
    assert node.stores.unclaimed() == []
    assert found_in(node) == EXPECTED
    assert not fs.exists(DEFINITIONS)
    assert fs.exists(f"{NODE}/{IMPORTED}")
    node.close()


@pytest.mark.parametrize("batch_bytes", [1, 256 * 1024])
def test_a_power_cut_at_any_operation_of_an_import_loses_nothing(
    batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", batch_bytes)
    start, before = old_directory()
    cuts = 0
    for nth in range(1, 1000):
        for seed in (None, 1, 2):
            disk = start.kill_clone()
            with MemoryCluster() as cluster:
                done = False
                with suppress(PowerCut):
                    faults = [Fault("mutating", nth=nth, kind="CRASH")]
                    opened_in(FaultyFileSystem(disk, faults), cluster.member())
                    done = True
                left = disk.kill_clone() if seed is None else disk.crash_clone(random.Random(seed))
                check(left, cluster.member(), before)
        cuts += 1
        if done:
            break
    assert cuts > 5


@pytest.mark.parametrize("batch_bytes", [1, 256 * 1024])
def test_a_stop_at_any_change_of_an_import_is_repeated_harmlessly(
    batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", batch_bytes)
    start, before = old_directory()
    stops = 0
    for number in range(1, 100):
        for after in (False, True):
            disk = start.kill_clone()
            with MemoryCluster() as cluster:
                done = False
                with suppress(Stops):
                    opened_in(disk, cluster.member(), stop=number, after=after)
                    done = True
                check(disk.kill_clone(), cluster.member(), before)
        stops += 1
        if done:
            break
    assert stops >= (10 if batch_bytes == 1 else 3)


def test_a_new_catalog_adds_nothing_to_an_old_directory() -> None:
    fs = MemoryFileSystem()
    fs.mkdir(NODE)
    acme = Definitions({"acme": {}}, {"acme/shop": NamespaceDefinition()})
    write_definitions(fs, DEFINITIONS, acme)
    with MemoryCluster() as cluster:
        node = opened_in(fs, cluster.member())
        assert node.topics.definitions.current == acme
        node.close()


def test_an_import_does_not_change_what_the_cluster_has() -> None:
    start, before = old_directory()
    with MemoryCluster() as cluster:
        other_fs = MemoryFileSystem()
        other_fs.mkdir(NODE)
        other = CatalogDefinitions(cluster.member("n2"), other_fs, NODE, ignore_events)
        public = Namespace("public", "default")
        theirs = TopicDefinition(0, 1, {"retention_ms": 1})
        other.change(
            lambda d: (
                d.with_namespace(public, NamespaceDefinition({"retention_ms": 1}))
                .with_new_topic(TopicName.parse("kept"), theirs)
                .with_new_topic(TopicName.parse("parts-partition-1"), TopicDefinition())
                .with_store("doomed", before.stores["doomed"])
            )
        )
        node = opened_in(start, cluster.member("n1"))
        current = node.topics.definitions.current
        kept = current.topics["persistent://public/default/kept"]
        assert (kept.owners, kept.settings) == (("n2",), {"retention_ms": 1})
        assert current.store_places["doomed"].owner == "n2"
        assert current.store_places["kept"].owner == "n1"
        # Its settings hold, and those that only the directory has are added.
        settings = current.namespace(public).settings
        assert settings == {"retention_ms": 1, "grants": {"a": ["x"]}}
        assert not current.defines(TopicName.parse("parts"))
        unclaimed = {each.name.local for each in node.topics.unclaimed()}
        assert "parts" in unclaimed
        assert read_file(start, f"{NODE}/topics/public/default/kept/log/MANIFEST")
        node.close()


@pytest.mark.parametrize("kind", ["damaged", "newer"])
def test_a_file_that_cannot_be_read_fails_the_start_and_stays(kind: str) -> None:
    fs, _ = old_directory()
    data = read_file(fs, DEFINITIONS)
    if kind == "newer":
        data = encode_line('{"version":9,"tenants":{},"namespaces":{},"topics":{}}')
    else:
        data = data[:50] + b"?" + data[51:]
    write_atomic(fs, DEFINITIONS, data)
    with MemoryCluster() as cluster:
        with pytest.raises(DamagedFile if kind == "damaged" else UnsupportedVersion):
            opened_in(fs, cluster.member())
        assert read_file(fs, DEFINITIONS) == data
        assert cluster.member().catalog.versions.latest.version == 1


def test_a_large_file_is_imported_in_batches() -> None:
    fs = MemoryFileSystem()
    fs.mkdir(NODE)
    topics = {f"persistent://public/default/t{n}": TopicDefinition(0, n) for n in range(4000)}
    topics |= {
        f"persistent://public/default/p{n}": TopicDefinition(9000, n, {"x": "y" * 60_000})
        for n in range(3)
    }
    large = Definitions({"public": {}}, {"public/default": NamespaceDefinition()}, topics)
    write_definitions(fs, DEFINITIONS, large)
    with MemoryCluster() as cluster:
        definitions = CatalogDefinitions(cluster.member("n" * 60), fs, NODE, ignore_events)
        import_definitions(fs, NODE, definitions)
        assert definitions.current == large
        assert definitions.catalog.version > 5


def test_a_backup_of_a_directory_with_a_catalog_is_restored_and_imported() -> None:
    start, before = old_directory()
    with MemoryCluster() as cluster:
        node = opened_in(start, cluster.member())
        node.close()
    assert start.exists(f"{NODE}/{COPY}")
    report = run_backup(start, NODE, "/backup", clock=ManualClock())
    assert (report.unclaimed, report.damaged, report.left_out) == ((), (), ())
    run_restore(start, "/backup", "/again", clock=ManualClock())
    with MemoryCluster() as cluster:
        restored = CatalogDefinitions(cluster.member(), start, "/again", ignore_events)
        import_definitions(start, "/again", restored)
        # That there are logs is noted when the topics are opened.
        assert restored.current == replace(before, logs=False)


def test_a_lost_catalog_deletes_nothing_and_everything_can_be_adopted() -> None:
    """Whatever is lost of definitions: all of them, also with the inventory, or the newest."""
    start, _ = old_directory()
    with MemoryCluster() as cluster:
        node = opened_in(start, cluster.member())
        node.topics.create("young").append(value=b"young")
        node.stores.create("young", capacity_bytes=4 * MIB, segment_bytes=MIB)
        node.close()
    for files in ([], [COPY], ["inventory"], [COPY, "inventory", IMPORTED]):
        disk = start.kill_clone()
        for name in files:
            disk.remove(f"{NODE}/{name}")
        with MemoryCluster() as cluster:
            node = opened_in(disk, cluster.member())
            assert len(node.topics.unclaimed()) == 4
            assert len(node.stores.unclaimed()) == 3
            found = found_in(node)
            assert found == {**BEFORE, "young": [b"young"], "store young": []}
            node.close()


PHOTOS = f"{NODE}/blobs/kept"


def test_an_import_claims_no_directory_of_another_shape() -> None:
    start, _ = old_directory()
    file = DefinitionsFile(start, DEFINITIONS)
    row = {**file.current.stores["kept"], "segment_bytes": 2 * MIB}
    file.change(lambda d: d.without_store("kept").with_store("kept", row))
    with MemoryCluster() as cluster:
        node = opened_in(start, cluster.member())
        assert read_object(start, PHOTOS) is None
        assert read_object(start, f"{NODE}/blobs/doomed") is not None
        node.stores.delete("kept")
        assert node.topics.definitions.removals() == []
        node.close()
        node = opened_in(start, cluster.member())
        node.stores.adopt("kept")
        assert node.stores.get("kept").get("kept").read() == b"kept"
        node.close()


def test_a_deletion_that_version_0_1_has_not_finished_is_finished() -> None:
    start, _ = old_directory()
    orders = f"{NODE}/topics/public/default"
    logs = {"": log_id_in(start, f"{orders}/kept/log")}
    write_deletion(start, f"{orders}/kept", Deletion("persistent://public/default/kept", 1, logs))
    write_deletion(start, PHOTOS, Deletion("kept", 1, {"": log_id_in(start, PHOTOS)}))
    with MemoryCluster() as cluster:
        node = opened_in(start, cluster.member())
        assert not node.topics.exists("kept")
        assert node.stores.names() == ["doomed"]
        assert not start.exists(f"{orders}/kept")
        assert not start.exists(PHOTOS)
        assert node.topics.definitions.removals() == []
        node.close()


def test_definitions_that_return_after_the_import_claim_only_what_they_define() -> None:
    """The file is renamed back, and all files `OBJECT` are lost."""
    start, _ = old_directory()
    topics = f"{NODE}/topics/public/default"
    with MemoryCluster() as cluster:
        node = opened_in(start, cluster.member())
        node.topics.delete("doomed-partition-x")
        cluster.clock.advance(5)
        again = TopicDefinition(0, 78, owners=("n1",))
        node.topics.definitions.change(
            lambda d: d.with_new_topic(TopicName.parse("doomed-partition-x"), again)
        )
        node.topics.get("doomed-partition-x").append(value=b"again")
        node.close()
        start.rename(f"{NODE}/{IMPORTED}", DEFINITIONS)
        for name in ("kept", "doomed-partition-x"):
            start.remove(f"{topics}/{name}/OBJECT")
        node = opened_in(start, cluster.member())
        assert [m.value for m in node.topics.get("kept").read()] == [b"kept"]
        # What the file defines with this name was deleted.
        with pytest.raises(UnclaimedDirectory):
            node.topics.get("doomed-partition-x")
        node.topics.adopt("doomed-partition-x")
        assert [m.value for m in node.topics.get("doomed-partition-x").read()] == [b"again"]
        node.close()


def test_a_restored_directory_of_a_defined_topic_or_store_is_served() -> None:
    """Neither a backup nor version 0.1 has the file `OBJECT`."""
    start, _ = old_directory()
    with MemoryCluster() as cluster:
        opened_in(start, cluster.member()).close()
        run_backup(start, NODE, "/backup", clock=ManualClock())
        for path in ("topics/public/default/kept", "topics/public/default/parts-partition-2"):
            start.rename(f"{NODE}/{path}", f"/{path.rpartition('/')[2]}")
        start.rename(PHOTOS, "/photos")
        for name in ("kept", "parts"):
            run_restore(start, "/backup", NODE, clock=ManualClock(), topic=name)
        run_restore(start, "/backup", NODE, clock=ManualClock(), store="kept")
        node = opened_in(start, cluster.member())
        assert node.topics.unclaimed() == ()
        assert node.stores.unclaimed() == []
        assert found_in(node) == EXPECTED
        node.close()
