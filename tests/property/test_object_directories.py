"""Catalogs and directories are lost, aged, copied back and created again at random.

A log is known by its random id. One that has messages vanishes from the disk only if a delete of
exactly it was asked for. What a topic serves are the messages of one log, all of them. A deleted
log whose directory was copied back is not served, unless an older catalog still has its object.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lithify.errors import InvalidInput, LithifyError
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem, write_atomic
from lithify.log.directory_marks import log_id_in
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.settings import LogSettings
from lithify.testing.memory_metastore import MemoryMetastoreCluster
from lithify.topics.definitions.definitions import TopicDefinition
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.topics import Topics, TopicSettings
from tests.crash.test_directories import NODE
from tests.definitions_cluster import MemoryCluster
from tests.property.test_directories import copy_tree

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("a", "b")
STEPS = 80


@dataclass
class World:
    rng: random.Random
    cluster: MemoryCluster
    fs: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    values: dict[str, list[bytes]] = field(default_factory=dict)
    """Acknowledged messages by log id."""
    doomed: set[str] = field(default_factory=set)
    """Logs of which a delete was asked for."""
    deleted: set[str] = field(default_factory=set)
    """Those of them whose directories were copied back, until they are adopted."""
    copies: dict[str, tuple[str, list[bytes]]] = field(default_factory=dict)
    is_aged: bool = False
    count: int = 0

    def __post_init__(self) -> None:
        self.fs.mkdir(NODE)
        self.topics = self.opened()

    def opened(self) -> Topics:
        # The time of creation belongs to the identity of an object.
        self.cluster.clock.advance(1)
        member = self.cluster.member()
        return Topics(
            self.fs,
            NODE,
            settings=TopicSettings(log=LogSettings()),
            clock=self.cluster.clock,
            events=ignore_events,
            owner="pid 1",
            definitions=CatalogDefinitions(member, self.fs, NODE, ignore_events),
        )

    def path(self, name: str) -> str:
        return f"{NODE}/topics/public/default/{name}"

    def log_of(self, name: str) -> str:
        return log_id_in(self.fs, f"{self.path(name)}/log")

    def on_disk(self) -> set[str]:
        return {self.log_of(name) for name in NAMES} - {""}

    # --- steps ------------------------------------------------------------------------------

    def append(self, name: str) -> None:
        self.count += 1
        value = b"%d" % self.count
        with suppress(InvalidInput, LithifyError):
            self.topics.get(name, create=True).append(value=value)
            self.values.setdefault(self.log_of(name), []).append(value)

    def doom(self, name: str) -> None:
        """A delete of what the name serves is asked for."""
        with suppress(InvalidInput, LithifyError):
            self.topics.get(name)
            self.doomed.add(self.log_of(name))

    def delete(self, name: str) -> None:
        self.doom(name)
        with suppress(InvalidInput, LithifyError):
            self.topics.delete(name)

    def restart(self) -> None:
        self.topics.close()
        self.topics = self.opened()

    def crash(self) -> None:
        self.fs = self.fs.crash_clone(self.rng)
        self.topics = self.opened()

    def copy(self, name: str) -> None:
        log = self.log_of(name)
        if log in self.values:
            self.topics.close()
            copy_tree(self.fs, self.path(name), f"/copies/{self.count}-{name}")
            self.copies[f"/copies/{self.count}-{name}"] = log, list(self.values[log])
            self.topics = self.opened()

    def put_back(self, name: str) -> None:
        found = [path for path in self.copies if path.endswith(f"-{name}")]
        if found and not self.fs.exists(self.path(name)):
            self.topics.close()
            path = self.rng.choice(found)
            copy_tree(self.fs, path, self.path(name))
            log, values = self.copies[path]
            self.values[log] = list(values)
            self.deleted |= {log} & self.doomed
            self.doomed.discard(log)
            self.topics = self.opened()

    def drop_elsewhere(self, name: str) -> None:
        """The definition goes while this node is not open; another node may create it again."""
        full = f"persistent://public/default/{name}"
        found = self.topics.definitions.current.topics.get(full)
        if found is None:
            return
        self.doom(name)
        self.topics.close()
        parsed = TopicName.parse(name)
        other = MemoryFileSystem()
        other.mkdir(NODE)
        definitions = CatalogDefinitions(self.cluster.member(), other, NODE, ignore_events)
        definitions.change(lambda d: d.without_topic(parsed))
        if self.rng.random() < 0.5:
            new = TopicDefinition(0, self.cluster.clock.now_ms() + 1, owners=("n1",))
            definitions.change(lambda d: d.with_new_topic(parsed, new))
        self.topics = self.opened()

    def age(self) -> None:
        """The catalog is replaced by an older copy of it, or is lost."""
        self.is_aged = True
        self.topics.close()
        commands = self.cluster.metastores.commands_above(0)
        kept = self.rng.choice([0, self.rng.randrange(len(commands) + 1)])
        older = MemoryMetastoreCluster(self.cluster.clock)
        for _, command in commands[:kept]:
            with suppress(LithifyError):
                older.propose(command)
        self.cluster.metastores = older
        self.topics = self.opened()

    def forget_object(self, name: str) -> None:
        """The file that names the object is lost or damaged."""
        path = f"{self.path(name)}/OBJECT"
        if self.fs.exists(path):
            self.topics.close()
            if self.rng.random() < 0.5:
                self.fs.remove(path)
            else:
                write_atomic(self.fs, path, b"?")
            self.topics = self.opened()

    def adopt(self) -> None:
        for each in self.topics.unclaimed():
            with suppress(InvalidInput):
                self.topics.adopt(each.name)
                self.deleted.discard(self.log_of(each.name.local))

    # --- the model --------------------------------------------------------------------------

    def check(self, before: set[str]) -> None:
        gone = before - self.on_disk()
        lost = {log for log in gone if self.values.get(log)} - self.doomed
        assert not lost
        for name in NAMES:
            if not self.topics.exists(name) or not self.fs.exists(self.path(name)):
                # The check does not create directories.
                continue
            try:
                served = [m.value for m in self.topics.get(name).read()]
            except (InvalidInput, LithifyError):
                continue
            log = self.log_of(name)
            assert served == self.values.get(log, []), name
            if not self.is_aged:
                assert log not in self.deleted, "a deleted log is back"


@pytest.mark.parametrize("ages", [False, True])
@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 300))]
)
def test_only_exactly_the_deleted_object_goes(seed: int, *, ages: bool) -> None:
    with MemoryCluster() as cluster:
        world = World(random.Random(seed), cluster)
        for _ in range(STEPS):
            name = world.rng.choice(NAMES)
            steps: list[Callable[[], None]] = [
                partial(world.append, name),
                partial(world.delete, name),
                world.restart,
                world.crash,
                partial(world.copy, name),
                partial(world.put_back, name),
                partial(world.drop_elsewhere, name),
                partial(world.forget_object, name),
                world.adopt,
            ]
            weights = [8, 3, 1, 1, 3, 6, 4, 1, 1]
            if ages:
                steps.append(world.age)
                weights.append(1)
            before = world.on_disk()
            world.rng.choices(steps, weights)[0]()
            world.check(before)
        world.topics.close()
