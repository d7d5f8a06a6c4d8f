"""Definitions are lost, aged or damaged in every way: nothing is deleted.

Each test starts a real node in a data directory, twice. The node refuses with an error that names
the file, or it opens. Then each topic and store is served, or is set aside and can be brought back
by what its error says. Every file of every topic and store has the bytes that it had.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lithify
from lithify.errors import LithifyError
from lithify.fs import LocalFileSystem
from lithify.fs.checked_lines import encode_line
from lithify.log.object_file import ObjectIdentity, write_object
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.raft.node.lost_node_file import NodeFileLost
from lithify.topics.definitions.definitions_file import read_definitions, write_definitions
from tests.old_directory import BLOBS, MESSAGES, data_files, extract, messages_of, served

if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN = "persistent://public/default/again"
YOUNG = "persistent://public/default/young"
TOPICS = {*MESSAGES, AGAIN, YOUNG}
NEW_VALUES = {AGAIN: [b"new"], YOUNG: [b"young"]}
OLD_RAFT = "older-raft"
"""A copy of `raft` from before the topic `again` was deleted and created again."""
OBJECTS = ("topics/public/default/orders", "topics/acme/shop/carts", "blobs/photos")
PART = "topics/public/default/parts-partition-2"


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node that has imported a directory of version 0.1, and was used since."""
    data = extract(tmp_path_factory.mktemp("lived"))
    with lithify.open(str(data)) as node:
        node.topics.create(AGAIN).append(value=b"old")
        # From here on each has a directory.
        assert messages_of(node, "parts-partition-1") == []
    shutil.copytree(data / "raft", data / OLD_RAFT)
    with lithify.open(str(data)) as node:
        node.topics.delete(AGAIN)
        node.topics.create(AGAIN).append(value=b"new")
        node.topics.create(YOUNG).append(value=b"young")
        assert node.topics.definitions.removals() == []
    return data


def copied(data: Path, tmp_path: Path) -> Path:
    return shutil.copytree(data, tmp_path / "data", symlinks=True)


def all_served(node: Node) -> tuple[set[str], set[str]]:
    topics, stores = served(node)
    for name, values in NEW_VALUES.items():
        try:
            found = messages_of(node, name)
        except LithifyError:
            continue
        if found != values:
            # An older catalog defines it, and its directory is of a newer topic, or is not here.
            assert found == []
            continue
        topics.add(name)
    return topics, stores


def bring_back(node: Node) -> None:
    """What an administrator does: adopt; if another object is in the way, delete it before."""
    for topic in node.topics.unclaimed():
        if topic.problem:
            node.topics.delete(topic.name)
        node.topics.adopt(topic.name)
    for store in node.blobs.unclaimed():
        if store.problem:
            node.blobs.delete(store.name)
        node.blobs.adopt(store.name)


def set_aside(node: Node) -> set[str]:
    """What is not served; the reports have all of it."""
    topics, stores = all_served(node)
    root = f"{node.topics.directory}/topics/"
    unclaimed = {
        f"persistent://{path.removeprefix(root)}"
        for topic in node.topics.unclaimed()
        for path in topic.directories
    }
    lost = wanted(node.topics.directory) - topics
    lost_stores = set(BLOBS) - stores
    assert lost <= unclaimed
    assert lost_stores <= {each.name for each in node.blobs.unclaimed()}
    return lost | lost_stores


def wanted(data: Path | str) -> set[str]:
    """The topics of a directory."""
    is_new = (Path(data) / "topics/public/default/young").exists()
    return TOPICS if is_new else set(MESSAGES) - {"persistent://public/default/parts-partition-1"}


def check(data: Path, names: str = "") -> str:
    """The outcome: refused, served, or set aside; `names` must be in the error of a refusal."""
    before = data_files(data)
    topics = wanted(data)
    outcomes = []
    for _ in range(2):
        reason = ""
        try:
            with lithify.open(str(data)) as node:
                assert kept(data, before) == before
                outcomes.append("set aside" if set_aside(node) else "served")
        except LithifyError as error:
            reason = str(error)
            outcomes.append("refused")
        assert kept(data, before) == before
        assert not reason or (names and names in reason)
    assert outcomes[0] == outcomes[1]
    if outcomes[0] != "refused":
        with lithify.open(str(data)) as node:
            bring_back(node)
            assert node.topics.unclaimed() == ()
            assert node.blobs.unclaimed() == []
        with lithify.open(str(data)) as node:
            found, stores = all_served(node)
            assert (topics - found, stores) == (set(), set(BLOBS))
        assert kept(data, before) == before
    return outcomes[0]


def kept(data: Path, before: dict[str, bytes]) -> dict[str, bytes | None]:
    after = data_files(data)
    return {path: after.get(path) for path in before}


def test_without_a_loss_all_is_served(lived: Path, tmp_path: Path) -> None:
    assert check(copied(lived, tmp_path)) == "served"


# --- the metastore ------------------------------------------------------------------------------


def replace_raft(data: Path) -> None:
    shutil.rmtree(data / "raft")
    shutil.copytree(data / OLD_RAFT, data / "raft")


def lose(data: Path, *names: str) -> None:
    for name in names:
        path = data / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


METASTORE: dict[str, tuple[Callable[[Path], object], str]] = {
    "lost": (lambda data: lose(data, "raft"), "set aside"),
    "lost, with the copy": (lambda data: lose(data, "raft", "definitions.copy"), "set aside"),
    "lost, with the copy and the inventory": (
        lambda data: lose(data, "raft", "definitions.copy", "inventory"),
        "set aside",
    ),
    "older": (replace_raft, "set aside"),
    "lock lost": (lambda data: lose(data, "raft/LOCK"), "served"),
}


@pytest.mark.parametrize("loss", METASTORE)
def test_a_metastore_that_is_lost_or_older_deletes_nothing(
    lived: Path, tmp_path: Path, loss: str
) -> None:
    data = copied(lived, tmp_path)
    change, outcome = METASTORE[loss]
    change(data)
    assert check(data) == outcome


def flip(path: Path, part: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * part)] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, part: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "lost": lambda path: path.unlink(),
    "empty": partial(cut, part=0),
    "cut": partial(cut, part=0.5),
    "without its end": partial(cut, part=0.98),
    **{f"damaged at {part}": partial(flip, part=part) for part in (0.03, 0.4, 0.7, 0.97)},
}


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (file, damage)
        for file in ("NODE", "MANIFEST", "oldest of wal", "newest of wal")
        for damage in DAMAGE
        if (file, damage) != ("NODE", "lost")
    ],
)
def test_raft_files_that_are_cut_or_damaged_delete_nothing(
    lived: Path, tmp_path: Path, file: str, damage: str
) -> None:
    data = copied(lived, tmp_path)
    path = data / "raft" / file
    if "wal" in file:
        path = sorted((data / "raft/wal").iterdir())[-1 if "newest" in file else 0]
    DAMAGE[damage](path)
    outcome = check(data, names=f"{data}/raft")
    # A power cut leaves such an end, too: the catalog is older then.
    is_torn = "newest" in file and damage in ("cut", "without its end")
    assert outcome == "refused" or is_torn


def test_a_node_without_its_identity_is_refused_until_its_name_is_given(
    lived: Path, tmp_path: Path
) -> None:
    data = copied(lived, tmp_path)
    path = data / "raft/NODE"
    name = json.loads(path.read_text().partition(" ")[2])["node"]
    before = data_files(data)
    path.unlink()
    for _ in range(2):
        with pytest.raises(NodeFileLost, match=rf"of {name}, not of node-.* with --node"):
            lithify.open(str(data))
        assert kept(data, before) == before
        assert not path.exists()
    Node(NodeSettings(str(data), node=name)).close()
    assert check(data) == "served"


def test_a_lost_cluster_id_deletes_nothing(lived: Path, tmp_path: Path) -> None:
    data = copied(lived, tmp_path)
    path = data / "raft/NODE"
    row = json.loads(path.read_text().partition(" ")[2])
    assert row["cluster_id"]
    path.write_bytes(encode_line(json.dumps({**row, "cluster_id": ""})))
    assert check(data) == "served"


# --- the file `definitions` ---------------------------------------------------------------------


def older_definitions(data: Path) -> None:
    fs, path = LocalFileSystem(), str(data / "definitions")
    found = read_definitions(fs, path)
    assert found is not None
    topics = {name: each for name, each in found.topics.items() if "orders" not in name}
    write_definitions(fs, path, replace(found, topics=topics, stores={}))


def damaged(data: Path, name: str) -> None:
    DAMAGE[name](data / "definitions")


BEFORE_IMPORT: dict[str, tuple[Callable[[Path], object], str]] = {
    "as it was": (lambda data: data, "served"),
    "lost": (lambda data: lose(data, "definitions"), "set aside"),
    "lost with the inventory": (lambda data: lose(data, "definitions", "inventory"), "set aside"),
    "older": (older_definitions, "set aside"),
    "newer": (
        lambda data: (data / "definitions").write_bytes(encode_line('{"version":9}')),
        "refused",
    ),
    **{name: (partial(damaged, name=name), "refused") for name in DAMAGE if name != "lost"},
}


@pytest.mark.parametrize("loss", BEFORE_IMPORT)
def test_definitions_of_version_0_1_that_are_lost_or_damaged_delete_nothing(
    tmp_path: Path, loss: str
) -> None:
    data = extract(tmp_path)
    change, outcome = BEFORE_IMPORT[loss]
    change(data)
    assert check(data, names=f"{data}/definitions") == outcome


def returned(data: Path, *lost: str, name: str = "definitions.taken-over") -> None:
    shutil.copy(data / name, data / "definitions")
    lose(data, *lost)


def returned_and_damaged(data: Path) -> None:
    returned(data)
    flip(data / "definitions", 0.5)


AFTER_IMPORT: dict[str, tuple[Callable[[Path], object], str]] = {
    "returned": (returned, "served"),
    "returned, and the metastore lost": (lambda data: returned(data, "raft"), "set aside"),
    "the copy in its place": (lambda data: returned(data, name="definitions.copy"), "served"),
    "the copy in its place, and the metastore lost": (
        lambda data: returned(data, "raft", name="definitions.copy"),
        "served",
    ),
    "taken-over lost": (lambda data: lose(data, "definitions.taken-over"), "served"),
    "copy lost": (lambda data: lose(data, "definitions.copy"), "served"),
    "copy damaged": (lambda data: flip(data / "definitions.copy", 0.5), "served"),
    "returned and damaged": (returned_and_damaged, "refused"),
}


@pytest.mark.parametrize("loss", AFTER_IMPORT)
def test_definitions_that_are_lost_damaged_or_returned_after_the_import_delete_nothing(
    lived: Path, tmp_path: Path, loss: str
) -> None:
    data = copied(lived, tmp_path)
    change, outcome = AFTER_IMPORT[loss]
    change(data)
    assert check(data, names=f"{data}/definitions") == outcome


# --- the file `OBJECT` --------------------------------------------------------------------------


def of_another(directory: Path) -> None:
    write_object(LocalFileSystem(), str(directory), ObjectIdentity(77, "other", 5))


OBJECT_LOSS: dict[str, Callable[[Path], object]] = {
    "lost": lambda directory: (directory / "OBJECT").unlink(),
    "empty": lambda directory: cut(directory / "OBJECT", 0),
    "damaged": lambda directory: flip(directory / "OBJECT", 0.6),
    "of another object": of_another,
}


@pytest.mark.parametrize("loss", OBJECT_LOSS)
def test_directories_that_name_no_object_or_another_one_are_kept(
    lived: Path, tmp_path: Path, loss: str
) -> None:
    data = copied(lived, tmp_path)
    # A partition of another object is brought back by deleting all partitions before.
    for each in OBJECTS if loss == "of another object" else (*OBJECTS, PART):
        OBJECT_LOSS[loss](data / each)
    assert check(data) == "set aside"


@pytest.mark.parametrize("catalog", ["lost", "older"])
def test_without_a_catalog_and_without_any_object_file_nothing_is_deleted(
    lived: Path, tmp_path: Path, catalog: str
) -> None:
    data = copied(lived, tmp_path)
    METASTORE[catalog][0](data)
    for path in data.rglob("OBJECT"):
        path.unlink()
    assert check(data) == "set aside"
