"""The blob stores of a node: definitions and files are in step, whatever is interrupted."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import lithify
from lithify.blobs.definition import (
    parse_value,
    setting_names,
    with_settings,
)
from lithify.blobs.errors import (
    BlobDeletedForever,
    BlobStoreExists,
    BlobStoreNotFound,
)
from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.clock import ManualClock
from lithify.errors import (
    InvalidInput,
    InvalidSetting,
    LogClosed,
    MissingFile,
    RunRefused,
    WriteFailed,
)
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.names import check_store_name
from lithify.settings import Durability
from lithify.topics.definitions.definitions_file import DefinitionsFile
from tests.patience import PROCESS_S_MAX

SHAPE: dict[str, Any] = {"capacity_bytes": 2**20, "segment_bytes": 2**18}


def open_stores(fs: MemoryFileSystem) -> BlobStores:
    fs.mkdir("data")
    return BlobStores(
        fs,
        "data",
        DefinitionsFile(fs, "data/definitions"),
        settings=BlobSettings(),
        clock=ManualClock(),
        events=ignore_events,
    )


def test_a_node_has_stores_that_are_there_again_when_it_is_opened_again(tmp_path: Path) -> None:
    with lithify.open(str(tmp_path)) as node:
        photos = node.blobs.create("photos", **SHAPE, settings={"policy": "stats"})
        blob_id = photos.put(b"cat", service="camera").blob_id
        assert node.blobs.get("photos") is photos
        with pytest.raises(BlobStoreExists, match="photos"):
            node.blobs.create("photos", **SHAPE)
    with lithify.open(str(tmp_path)) as node:
        assert (node.blobs.names(), node.blobs.opened()) == (["photos"], {})
        photos = node.blobs.get("photos")
        assert photos.settings.policy == "stats"
        with photos.get(blob_id) as blob:
            assert blob.read() == b"cat"


def test_a_store_that_is_deleted_is_closed_and_its_name_is_free() -> None:
    fs = MemoryFileSystem()
    stores = open_stores(fs)
    photos = stores.create("photos", **SHAPE)
    large = photos.put(bytes(100_000), service="s").blob_id
    with photos.get(large) as reading:
        stores.delete("photos")
        assert reading.read() == bytes(100_000)
    with pytest.raises(LogClosed):
        photos.put(b"x", service="s")
    for look in (stores.get, stores.definition, stores.delete):
        with pytest.raises(BlobStoreNotFound, match="photos"):
            look("photos")
    assert fs.list("data/blobs") == []
    assert list(stores.create("photos", **SHAPE).list()) == []


def test_settings_of_a_store_are_changed_at_once_and_for_good() -> None:
    fs = MemoryFileSystem()
    stores = open_stores(fs)
    photos = stores.create("photos", **SHAPE, settings={"policy": "stats"})
    deleted = photos.put(b"cat", service="s").blob_id
    photos.delete(deleted)
    assert isinstance(stores.clock, ManualClock)
    stores.clock.advance(2)
    stores.update("photos", {"deleted_retention_ms": 1000, "budget": {"memory_bytes": 2**25}})
    stores.update("photos", {"durability": "none", "budget": {"scratch_bytes": 5}, "triggers": []})
    with pytest.raises(BlobDeletedForever):
        photos.undelete(deleted)
    with pytest.raises(RunRefused, match="triggers"):
        stores.compactions.request(photos)
    assert photos.settings.durability is Durability.NONE
    photos.put(b"dog", service="s")
    stores.update("photos", {"deleted_retention_ms": 3000}, ["policy", "durability", "triggers"])
    photos.undelete(deleted)
    stores.close()
    stores = open_stores(fs)
    budget = {"memory_bytes": 2**25, "scratch_bytes": 5}
    own = {"deleted_retention_ms": 3000, "budget": budget}
    assert stores.definition("photos").settings == own
    settings = stores.get("photos").settings
    assert (settings.policy, settings.durability) == ("all", Durability.ALWAYS)
    assert (settings.budget.scratch_bytes, settings.budget.memory_bytes) == (5, 2**25)
    stores.update("photos", {}, ["budget.scratch_bytes", "deleted_retention_ms"])
    assert stores.definition("photos").settings == {"budget": {"memory_bytes": 2**25}}


@pytest.mark.parametrize(
    ("given", "unset"),
    [
        ({"capacity_bytes": 2**21}, []),
        ({"policy": "some"}, []),
        ({"every_ms": 0}, []),
        ({"budget": 5}, []),
        ({"budget": {"some": 5}}, []),
        ({}, ["segment_bytes"]),
        ({}, ["budget.some"]),
    ],
)
def test_a_change_of_settings_that_cannot_be_changes_nothing(
    given: dict[str, Any], unset: list[str]
) -> None:
    stores = open_stores(MemoryFileSystem())
    photos = stores.create("photos", **SHAPE, settings={"policy": "stats"})
    before = photos.settings
    with pytest.raises(InvalidSetting):
        stores.update("photos", {"deleted_retention_ms": 5, **given}, unset)
    assert photos.settings is before
    assert stores.definition("photos").settings == {"policy": "stats"}


def test_the_table_of_settings_in_the_docs_is_what_there_is() -> None:
    page = Path("docs/blobs.md").read_text()
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \| ([^|]+?) \|", section, re.MULTILINE)
    told = {name: parse_value(value) for name, value in rows}
    known = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in setting_names(BlobSettings()).items()
    }
    assert told == known


class Slow(MemoryFileSystem):
    """Holds an erase until the store is being deleted, and writes down who came first."""

    def __init__(self) -> None:
        super().__init__()
        self.erasing, self.deleting, self.removed = (threading.Event() for _ in range(3))
        self.order: list[str] = []

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> Any:
        if path.endswith(".seg") and threading.current_thread().name == "erase":
            self.erasing.set()
            assert self.deleting.wait(PROCESS_S_MAX)
            # A file that is removed under it would be removed now.
            self.removed.wait(0.2)
            self.order.append("erased")
        return super().open_append(path, exclusive=exclusive, uncached=uncached)

    def remove(self, path: str) -> None:
        if path.endswith(".seg"):
            self.order.append("removed")
            self.removed.set()
        super().remove(path)


def test_files_are_deleted_when_the_last_writer_has_closed_them() -> None:
    """Else it might be those of the next store of that name that are written to."""
    fs = Slow()
    stores = open_stores(fs)
    photos = stores.create("photos", **SHAPE, settings={"deleted_retention_ms": 0})
    for _ in range(5):
        photos.delete(photos.put(bytes(60_000), service="s").blob_id)
    assert isinstance(stores.clock, ManualClock)
    stores.clock.advance(1)
    erasing = threading.Thread(target=photos.erase.step, args=(2**20,), name="erase")
    erasing.start()
    assert fs.erasing.wait(PROCESS_S_MAX)
    deleting = threading.Thread(target=stores.delete, args=("photos",))
    deleting.start()
    while stores.names():
        deleting.join(0.001)
    fs.deleting.set()
    erasing.join()
    deleting.join()
    assert fs.order[0] == "erased"
    assert "erased" not in fs.order[fs.order.index("removed") :]
    assert photos.closed
    assert photos.erase.step(2**20).idle
    assert photos.compaction.reclaim() == 0


def test_an_undefined_directory_is_removed_and_others_stay() -> None:
    fs = MemoryFileSystem()
    stores = open_stores(fs)
    stores.create("kept", **SHAPE)
    for name in ("half-created", "lost+found"):
        fs.mkdir(f"data/blobs/{name}")
    stores.close()
    assert open_stores(fs).names() == ["kept"]
    assert sorted(fs.list("data/blobs")) == ["kept", "lost+found"]


def test_a_definition_that_cannot_be_written_leaves_no_store() -> None:
    class Refusing(DefinitionsFile):
        def add_store(self, name: str, row: dict[str, Any]) -> None:
            raise WriteFailed(name, OSError(28, "No space left on device"))

    fs = MemoryFileSystem()
    fs.mkdir("data")
    definitions = Refusing(fs, "data/definitions")
    more: Any = {"settings": BlobSettings(), "clock": ManualClock(), "events": ignore_events}
    stores = BlobStores(fs, "data", definitions, **more)
    with pytest.raises(WriteFailed):
        stores.create("photos", **SHAPE)
    assert (stores.names(), stores.opened(), fs.list("data/blobs")) == ([], {}, [])


def test_a_defined_store_without_its_files_is_reported_and_not_recreated() -> None:
    fs = MemoryFileSystem()
    stores = open_stores(fs)
    stores.create("photos", **SHAPE)
    stores.close()
    fs.rename("data/blobs/photos", "data/elsewhere")
    opened = open_stores(fs)
    with pytest.raises(MissingFile, match="photos/MANIFEST"):
        opened.get("photos")
    assert "blob store photos cannot be opened" in opened.damage_found()[0]
    fs.rename("data/elsewhere", "data/blobs/photos")
    opened.get("photos")
    assert opened.damage_found() == ()


def test_a_store_is_copied_into_one_of_another_shape() -> None:
    stores = open_stores(MemoryFileSystem())
    photos = stores.create("photos", **SHAPE, settings={"policy": "stats"})
    kept, gone = (photos.put(bytes([n]) * 1000, service="s").blob_id for n in range(2))
    photos.delete(gone)
    report = stores.copy("photos", "wide", capacity_bytes=2**21, segment_bytes=2**19)
    assert report.blobs == 2
    wide = stores.get("wide")
    assert (wide.shape.segment_bytes, wide.settings.policy) == (2**19, "stats")
    assert wide.head(kept).size == 1000
    assert stores.verify("wide").ok
    with pytest.raises(BlobStoreExists, match="wide"):
        stores.copy("photos", "wide", capacity_bytes=2**21, segment_bytes=2**19)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-x", ".x", "ä", "a b", "x" * 129])
def test_a_name_is_a_valid_path_or_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="name of a blob store"):
        check_store_name(name)
    check_store_name("2026-photos_EU.v2")


def test_settings_come_from_json_and_are_checked_by_kind() -> None:
    values = {
        "durability": "none",
        "triggers": ["admin"],
        "used_percent_min": 50,
        "budget": {"write_bytes_per_s": 1_000_000},
    }
    found = with_settings(BlobSettings(), values)
    assert (found.durability, found.triggers) == (Durability.NONE, ("admin",))
    assert found.budget.write_bytes_per_s == 1_000_000
    for wrong in (
        {"durability": "often"},
        {"triggers": "admin"},
        {"policy": 1},
        {"every_ms": True},
        {"every_ms": 1.5},
        {"budget": 7},
        {"budget": {"speed": 1}},
        {"nothing": 1},
    ):
        [name] = wrong
        with pytest.raises(InvalidSetting, match=name):
            with_settings(BlobSettings(), wrong)
