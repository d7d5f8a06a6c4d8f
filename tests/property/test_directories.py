"""Definitions and directories are lost, aged and restored at random, against a model.

Whatever an operator does to them: what was acknowledged and not deleted is on disk, and is served
or can be adopted with all that is in it. What was deleted is not served and cannot be adopted,
unless a copy of its directory was restored.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from lithify.errors import InvalidInput, MissingFile, UnclaimedDirectory
from lithify.fs import FileSystem, MemoryFileSystem, read_file, write_atomic
from lithify.fs.remove_tree import remove_tree
from lithify.log.directory_marks import log_id_in
from tests.crash.test_directories import DEFINITIONS, MIB, NODE, Stage, found_in, opened

NAMES = ("a", "b", "p")
STEPS = 60


def copy_tree(fs: FileSystem, source: str, target: str) -> None:
    fs.mkdir(target)
    for name in fs.list(source):
        if fs.stat(f"{source}/{name}").is_dir:
            copy_tree(fs, f"{source}/{name}", f"{target}/{name}")
        else:
            write_atomic(fs, f"{target}/{name}", read_file(fs, f"{source}/{name}"))


@dataclass
class World:
    """A node, its operator, and what the model says must be there."""

    rng: random.Random
    fs: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    there: dict[str, list[bytes]] = field(default_factory=dict)
    """By what `found_in` calls it: acknowledged and not deleted."""
    saved: list[bytes] = field(default_factory=list)
    """Definitions that were copied."""
    copies: dict[str, list[bytes]] = field(default_factory=dict)
    """What was in a directory when it was copied to /copies."""
    count: int = 0

    def __post_init__(self) -> None:
        self.node: Stage = opened(self.fs)

    def restart(self, *, crash: bool = False) -> None:
        if crash:
            self.fs = self.fs.crash_clone(self.rng)
        else:
            self.node.close()
        self.node = opened(self.fs)

    def path(self, what: str) -> str:
        kind, _, name = what.rpartition(" ")
        return f"{NODE}/blobs/{name}" if kind else f"{NODE}/topics/public/default/{name}"

    # --- what users do ----------------------------------------------------------------------

    def write(self, what: str) -> None:
        kind, _, name = what.rpartition(" ")
        self.count += 1
        value = b"%d" % self.count
        try:
            if kind:
                if name not in self.node.stores.names():
                    self.node.stores.create(name, capacity_bytes=4 * MIB, segment_bytes=MIB)
                self.node.stores.get(name).put(value, service="s")
            else:
                if name == "p" and not self.node.topics.exists("p"):
                    self.node.topics.create_partitioned("p", 2)
                part = "p-partition-1" if name == "p" else name
                self.node.topics.get(part, create=True).append(value=value)
        except UnclaimedDirectory:
            assert what in self.there
            return
        except MissingFile:
            # Older definitions have it, and it was deleted.
            assert what not in self.there
            return
        self.there.setdefault(what, []).append(value)

    def delete(self, what: str) -> None:
        kind, _, name = what.rpartition(" ")
        try:
            (self.node.stores if kind else self.node.topics).delete(name)
        except InvalidInput:
            return
        self.there.pop(what, None)
        assert not self.fs.exists(self.path(what))

    # --- what operators do ------------------------------------------------------------------

    def save_definitions(self) -> None:
        if self.fs.exists(DEFINITIONS):
            self.saved.append(read_file(self.fs, DEFINITIONS))

    def age_definitions(self) -> None:
        self.node.close()
        if self.saved and self.rng.random() < 0.7:
            # Deleted things that these define are empty, or damaged, but never what they were.
            write_atomic(self.fs, DEFINITIONS, self.rng.choice(self.saved))
        elif self.fs.exists(DEFINITIONS):
            self.fs.remove(DEFINITIONS)
            self.fs.sync_dir(NODE)
        self.node = opened(self.fs)

    def copy_directory(self, what: str) -> None:
        if what in self.there and what != "p":
            self.node.close()
            remove_tree(self.fs, f"/copies/{what}")
            copy_tree(self.fs, self.path(what), f"/copies/{what}")
            self.copies[what] = list(self.there[what])
            self.node = opened(self.fs)

    def put_back(self, what: str) -> None:
        if what in self.copies and not self.fs.exists(self.path(what)):
            self.node.close()
            copy_tree(self.fs, f"/copies/{what}", self.path(what))
            self.there[what] = list(self.copies[what])
            self.node = opened(self.fs)

    def adopt(self) -> None:
        for topic in self.node.topics.unclaimed():
            self.node.topics.adopt(topic.name)

    # --- the model --------------------------------------------------------------------------

    def check(self) -> None:
        """On a copy, so that what is unclaimed stays so."""
        disk = self.fs.kill_clone()
        defined = set(self.node.stores.names())
        for name in defined:
            if not log_id_in(disk, f"{NODE}/blobs/{name}"):
                # Older definitions have a store that was deleted: that is told as damage.
                assert f"store {name}" not in self.there
                node = opened(disk)
                node.topics.definitions.remove_store(name)
                node.close()
        found = found_in(opened(disk))
        for what, values in self.there.items():
            assert found[what] == values, what
        for what in found.keys() - self.there.keys():
            # Defined by older definitions, and empty.
            assert found[what] == [], what


@pytest.mark.parametrize(
    "seed", [*range(30), *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 300))]
)
def test_nothing_vanishes_and_nothing_deleted_comes_back(seed: int) -> None:
    world = World(random.Random(seed))
    rng = world.rng
    names = [*NAMES, *(f"store {name}" for name in NAMES[:2])]
    for _ in range(STEPS):
        what = rng.choice(names)
        act = rng.choices(
            [
                lambda: world.write(what),  # noqa: B023  (called at once)
                lambda: world.delete(what),  # noqa: B023
                world.restart,
                lambda: world.restart(crash=True),
                world.save_definitions,
                world.age_definitions,
                lambda: world.copy_directory(what),  # noqa: B023
                lambda: world.put_back(what),  # noqa: B023
                world.adopt,
            ],
            [10, 2, 1, 1, 1, 2, 1, 2, 1],
        )[0]
        act()
        if rng.random() < 0.3:
            world.check()
    world.check()
