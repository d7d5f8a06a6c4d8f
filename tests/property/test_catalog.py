"""The catalog against one of plain dicts: batches, look-ups, snapshots, restarts.

Versions and ids begin below the numbers at which encodings have often gone wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.batch import CatalogCommand, plan_batch
from lithify.catalog.commands.blob_stores import CreateBlobStore, DropBlobStore
from lithify.catalog.commands.indexes import CreateIndex
from lithify.catalog.commands.tables import ColumnDefinition, CreateTable
from lithify.catalog.commands.tenants_and_namespaces import CreateNamespace, CreateTenant
from lithify.catalog.commands.topics import CreateTopic
from lithify.catalog.commands.zones import CreateZone, SetDefaultZone
from lithify.catalog.diff import diff_catalogs
from lithify.catalog.errors import CatalogVersionNotFound, CatalogVersionTrimmed
from lithify.catalog.format import (
    decode_snapshot,
    decode_update,
    encode_update,
    snapshot_chunks,
)
from lithify.catalog.versions import CatalogVersions
from lithify.errors import InvalidInput
from lithify.hybrid_time import add_ms, timestamp
from tests.property.naive_catalog import (
    COMMANDS,
    NaiveCatalog,
    RefusedCommand,
    execute,
    naive_rows,
    rows_of,
    with_known_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.catalog.objects import CatalogObject

FIRST = (
    CreateZone("a", 1),
    SetDefaultZone("a"),
    CreateTenant("a"),
    CreateNamespace("a/a"),
    CreateTopic("a/a", "a", 2, owners=("n1", "n2")),
    CreateBlobStore("a/a", "a", 8192, 4096, owner="n2"),
    CreateTable("a", (ColumnDefinition("id", "int8"), ColumnDefinition("x", "int8")), ("id",)),
    CreateIndex("a", "a", ("x",)),
)
SECOND = (CreateIndex("a", "b", ("id",)), DropBlobStore("a"))


class CatalogMachine(RuleBasedStateMachine):
    @initialize(start=st.sampled_from([0, 126, 127, 254, 255, 65_533, 65_534]))
    def begin(self, start: int) -> None:
        self.start = start
        self.versions = CatalogVersions(replace(Catalog(), version=start, next_id=start or 1))
        self.models = {start: NaiveCatalog(next_id=start or 1)}
        self.activations = {start: self.versions.latest.activation}
        self.time = timestamp(1_000)
        self.snapshot = list(snapshot_chunks(self.versions.latest))
        self.updates: list[tuple[bytes, int]] = []
        self.batch(list(FIRST), 0, 0)
        self.batch(list(SECOND), 0, 0)

    @rule(commands=st.lists(COMMANDS, min_size=5, max_size=20))
    def batches_of_one(self, commands: list[CatalogCommand]) -> None:
        for each in commands:
            self.batch([each], 0, 1)

    @rule(
        commands=st.lists(COMMANDS, min_size=1, max_size=4),
        delay_ms=st.sampled_from([0, 0, 500]),
        wait_ms=st.integers(0, 400),
    )
    def batch(self, commands: list[CatalogCommand], delay_ms: int, wait_ms: int) -> None:
        self.time = add_ms(self.time, wait_ms) + 1
        latest = self.versions.latest
        model = self.models[latest.version].copy()
        commands = [with_known_id(model, each) for each in commands]
        try:
            applied = [execute(model, each, latest.next_id) for each in commands]
        except RefusedCommand:
            with pytest.raises(InvalidInput):
                plan_batch(latest, commands, delay_ms)
            return
        planned = plan_batch(latest, commands, delay_ms)
        if planned is None:
            assert not any(applied)
            return
        assert list(planned.applied) == applied
        data = encode_update(planned.update)
        new = latest.with_update(decode_update(data), self.time)
        assert new == latest.with_update(planned.update, self.time)
        self.versions.append(new)
        self.updates.append((data, self.time))
        self.models[new.version] = model
        self.activations[new.version] = max(self.time + (delay_ms << 16), latest.activation + 1)

    @rule(data=st.data())
    def look_up_a_version(self, data: st.DataObject) -> None:
        earliest, latest = self.versions.earliest.version, self.versions.latest.version
        version = data.draw(st.integers(-1, latest + 1))
        if version < 0 or version > latest:
            with pytest.raises(CatalogVersionNotFound):
                self.versions.at_version(version)
        elif version < earliest:
            with pytest.raises(CatalogVersionTrimmed) as trimmed:
                self.versions.at_version(version)
            assert trimmed.value.earliest == earliest
        else:
            found = self.versions.at_version(version)
            assert found.version == version
            assert rows_of(found) == naive_rows(self.models[version])

    @rule(data=st.data())
    def look_up_a_time(self, data: st.DataObject) -> None:
        kept = {
            version: activation
            for version, activation in self.activations.items()
            if version >= self.versions.earliest.version
        }
        near = data.draw(st.sampled_from(sorted(self.activations.values())))
        time = max(near + data.draw(st.integers(-2, 2)), 1)
        active = [version for version, activation in kept.items() if activation <= time]
        if not active:
            with pytest.raises(CatalogVersionTrimmed):
                self.versions.at_time(time)
        else:
            assert self.versions.at_time(time).version == max(active)

    @rule(data=st.data(), chunk_bytes=st.sampled_from([1, 200, 1000, 2**18]))
    def snapshot_a_version(self, data: st.DataObject, chunk_bytes: int) -> None:
        first, last = self.versions.earliest.version, self.versions.latest.version
        version = data.draw(st.integers(first, last))
        old = self.versions.at_version(version)
        self.snapshot = list(snapshot_chunks(old, chunk_bytes=chunk_bytes))
        found = decode_snapshot(self.snapshot)
        assert found == old
        assert (found.directory, found.owned) == (old.directory, old.owned)
        assert self.versions.replace(found) == (version > first)
        self.updates = self.updates[len(self.updates) - (last - version) :]
        assert self.versions.earliest.version == version

    @rule()
    def restart(self) -> None:
        before = self.versions
        versions = CatalogVersions(decode_snapshot(self.snapshot))
        for data, time in self.updates:
            versions.append(versions.latest.with_update(decode_update(data), time))
        assert versions.earliest == before.earliest
        assert versions.latest == before.latest
        assert versions.latest.directory == before.latest.directory
        assert versions.latest.owned == before.latest.owned
        assert list(snapshot_chunks(versions.latest)) == list(snapshot_chunks(before.latest))
        self.versions = versions

    @rule(data=st.data())
    @precondition(lambda self: len(self.versions) > 1)
    def compare_two_versions(self, data: st.DataObject) -> None:
        numbers = st.integers(self.versions.earliest.version, self.versions.latest.version)
        a = self.versions.at_version(data.draw(numbers))
        b = self.versions.at_version(data.draw(numbers))
        before, after = naive_rows(self.models[a.version]), naive_rows(self.models[b.version])
        ids = {*before, *after}
        wanted = {number for number in ids if before.get(number) != after.get(number)}
        found = [each for each in diff_catalogs(a, b) if each.id > 0]
        assert {each.id for each in found} == wanted
        assert all(str(each) and each.row() for each in found)

    @invariant()
    def the_latest_version_is_the_naive_one(self) -> None:
        latest = self.versions.latest
        model = self.models[latest.version]
        assert rows_of(latest) == naive_rows(model)
        assert latest.activation == self.activations[latest.version]
        assert latest.next_id == model.next_id
        assert (latest.default_zone.name if latest.default_zone else "") == model.default
        owned: dict[tuple[str, str], int] = {}
        for row in model.rows.values():
            for node in [*row.get("owners", ()), *([row["owner"]] if "owner" in row else [])]:
                for zone in ("", row["zone"]):
                    owned[zone, node] = owned.get((zone, node), 0) + 1
        names = {zone.id: zone.name for zone in latest.zones()} | {0: ""}
        assert {(names[k[0]], k[1]): count for k, count in latest.owned.items()} == owned
        lists: tuple[Iterable[CatalogObject], ...] = (
            latest.zones(),
            latest.tenants(),
            latest.namespaces(),
            latest.topics(),
            latest.stores(),
            latest.tables(),
            latest.removals(),
            *(latest.indexes_of(table.id) for table in latest.tables()),
        )
        listed = {each.id for objects in lists for each in objects}
        assert listed == set(latest.objects)


CatalogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestCatalog = CatalogMachine.TestCase
