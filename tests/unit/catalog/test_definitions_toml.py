from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.batch import CatalogCommand, plan_batch
from lithify.catalog.commands.blob_stores import CreateBlobStore
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.commands.topics import AddPartitions, AlterTopic
from lithify.catalog.definitions_toml import ApplyDefinitions, definition_commands
from lithify.catalog.diff import diff_catalogs
from lithify.catalog.errors import InvalidDefinitionsText
from lithify.catalog.objects import IndexStatus
from lithify.errors import InvalidSetting
from lithify.exit_codes import CONFLICT, NOT_FOUND, USAGE
from tests.catalog_stage import NODES, after, started

TEXT = """
[zones.default]
replicas = 3
[zones.archive]
partitions = 4
default = true

[tenants.acme]
settings = { plan = "gold" }

[namespaces."acme/orders"]
settings.retention_ms = 3_600_000

[topics."acme/orders/incoming"]
partitions = 4
settings = { compaction_enabled = true }
[topics."persistent://acme/orders/done.2026"]

[stores.pictures]
namespace = "acme/orders"
capacity_bytes = 8192
segment_bytes = 4096
zone = "default"
settings = { budget = { read_bytes_per_s = 5 } }

[tables.people]
columns = [
    { name = "id", type = "int64" },
    { name = "name", type = "string(100)" },
    { name = "age", type = "int16", nullable = true },
]
key = ["id"]

[tables.people.indexes.by_name]
columns = ["name", "id"]
unique = true
"""


def applied(catalog: Catalog, text: str) -> Catalog:
    return after(catalog, ApplyDefinitions(text, NODES, 77))


def test_all_kinds_of_objects_are_defined() -> None:
    catalog = applied(started(), TEXT)
    topic, store = catalog.topic("acme/orders", "incoming"), catalog.store("pictures")
    table, zone = catalog.table("people"), catalog.default_zone
    assert topic is not None
    assert store is not None
    assert table is not None
    assert zone is not None
    assert zone.name == "archive"
    assert (topic.partitions, topic.created_ms, topic.owners) == (4, 77, ("n1",) * 4)
    assert topic.zone_id == zone.id
    assert catalog.topic("acme/orders", "done.2026") is not None
    assert store.settings == {"budget": {"read_bytes_per_s": 5}}
    index = catalog.index(table.id, "by_name")
    assert index is not None
    assert (index.unique, index.columns, index.status) == (True, (2, 1), IndexStatus.AVAILABLE)


def test_the_same_text_changes_nothing_the_second_time() -> None:
    catalog = applied(started(), TEXT)
    assert definition_commands(ApplyDefinitions(TEXT, NODES), catalog) == ()
    assert plan_batch(catalog, [ApplyDefinitions(TEXT, NODES)]) is None


def test_the_commands_make_what_the_text_defines() -> None:
    commands = definition_commands(ApplyDefinitions(TEXT, NODES, 77), started())
    assert after(started(), *commands) == applied(started(), TEXT)


def test_only_what_the_text_names_is_changed() -> None:
    catalog = applied(started(), TEXT)
    text = """
        [topics."acme/orders/incoming"]
        partitions = 5
        settings = { retention_ms = 1 }
        unset = ["compaction_enabled"]
        [tables.people]
        columns = [
            { name = "age", type = "int32" },
            { name = "town", type = "string", default = "" },
        ]
    """
    commands = definition_commands(ApplyDefinitions(text, NODES), catalog)
    assert commands[:2] == (
        AddPartitions("acme/orders", "incoming", 5),
        AlterTopic("acme/orders", "incoming", {"retention_ms": 1}, ("compaction_enabled",)),
    )
    changed = after(catalog, *commands)
    table = changed.table("people")
    assert table is not None
    assert [f"{each.name} {each.type}" for each in table.columns] == [
        "id int64",
        "name string(100)",
        "age int32",
        "town string",
    ]
    assert {each.name for each in diff_catalogs(catalog, changed)} == {
        "persistent://acme/orders/incoming",
        "people",
    }
    assert plan_batch(changed, [ApplyDefinitions(text, NODES)]) is None


def test_an_object_is_dropped_only_if_it_is_absent() -> None:
    catalog = applied(started(), TEXT)
    assert applied(catalog, "") is catalog
    text = """
        [tenants.acme]
        absent = true
        [namespaces."acme/orders"]
        absent = true
        [topics."acme/orders/incoming"]
        absent = true
        [topics."acme/orders/done.2026"]
        absent = true
        [stores.pictures]
        absent = true
        [zones.other]
        absent = true
        [tables.people]
        columns = [{ name = "age", absent = true }]
        [tables.people.indexes.by_name]
        absent = true
    """
    changed = applied(catalog, text)
    assert changed.tenant("acme") is None
    assert len(changed.removals()) == 3
    table = changed.table("people")
    assert table is not None
    assert [each.name for each in table.columns] == ["id", "name"]
    assert [each.status for each in changed.indexes_of(table.id)] == [IndexStatus.STOPPING]
    assert applied(changed, text) is changed
    assert applied(changed, "[tables.people]\nabsent = true").table("people") is None


def test_absent_false_is_as_if_it_was_not_there() -> None:
    catalog = applied(
        started(),
        '[tenants.t]\nabsent = false\n[tables.t]\nkey = ["i"]\n'
        'columns = [{ name = "i", type = "int8", absent = false }]',
    )
    assert catalog.tenant("t") is not None
    assert applied(catalog, "[tenants.t]\nabsent = false") is catalog


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[zones.a]\nx = 1", "line 1, zones.a: zone a: unknown field x; the fields are part"),
        ("\n\n[zones.a]\npartitions = 0", "line 3, zones.a: zone a: partitions is 0"),
        ('[topics."a/b"]', 'line 1, topics."a/b": topic a/b: its name must be TENANT/NAMESPACE'),
        ('[topics."a/b/c"]', 'line 1, topics."a/b/c": namespace a/b does not exist'),
        ("[tenants.a]\nsettings = 1", "tenant a: settings must be a table, is 1"),
        ("[tenants.a]\nunset = [1]", "unset must be a list of texts"),
        ("[tenants.a]\nabsent = 1", "absent must be true or false"),
        ("[tenants.a]\nabsent = []", "absent must be true or false"),
        ("[tenants.a]\nabsent = true\nsettings = {}", "it is absent, but has settings"),
        ("[tenants.a]\nsettings = { a = 2026-01-01 }", "settings must be JSON"),
        ("[tenants]\na = 1", "line 1, tenants.a: must be a table"),
        ("tenants = 1", "tenants: unknown; the sections are zones, tenants"),
        ("[castles.a]", "line 1, castles: unknown; the sections are zones"),
        ("[zones.a]\n[zones.b\n", "line 2, the text: is not TOML"),
        (f"[zones.a]\npartitions = {'9' * 5000}", "the text: has an invalid value"),
        (f"[zones.a]\npartitions = 0x{'f' * 5000}", "the text: has an integer of 20000 bits"),
        ("[tenants.a]\nsettings = { a = [-9_223_372_036_854_775_809] }", "integer of 64 bits"),
        (f"[zones.a]\n{'a.' * 32}a = 1", "line 2, the text: has a key of more than 32 parts"),
        (f"[{'a . ' * 100_000}a]", "has a key of more than 32 parts"),
        ("x = {" + r'"\"".' * 100_000 + "a = 1}", "has a key of more than 32 parts"),
        ("x = {" + "'\"'.\"'\"." * 100_000 + "a = 1}", "has a key of more than 32 parts"),
        ("a = " + "[" * 100_000, "the text: is"),
        ("[stores.s]", "stores.s: store s: a new object needs namespace"),
        ("[tables.t]\nkey = []", "table t: a new object needs columns"),
        ("[tables.t]\nkey = []\ncolumns = [1]", "column t.1: must be a table"),
        ("[tables.t]\nkey = []\ncolumns = [{}]", "column t.1: a new object needs name"),
        ("[tables.t]\nkey = []\ncolumns = [{name='a'}]", "column t.a: a new object needs type"),
        ("[tables.t]\nkey = []\ncolumns = [{name='a',default=[1]}]", "a new object needs type"),
        ("[tables.t.indexes.i]\nx = 1", "line 1, tables.t: index t.i: unknown field x"),
        ("[tables.t.indexes]\ni = 1", "index t.i: must be a table"),
        ("[tables.t]\ncolumns = [{name='i',type='int8'}]\nkey = ['i']\n[tables.t.indexes.i]\n",
         "index t.i: a new object needs columns"),
    ],
)  # fmt: skip
def test_errors_name_the_entry_and_its_line(text: str, error: str) -> None:
    catalog = started()
    with pytest.raises(InvalidDefinitionsText) as found:
        applied(catalog, text)
    assert error in str(found.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[stores.pictures]\ncapacity_bytes = 4096", "capacity_bytes is fixed: it is 8192"),
        ("[stores.pictures]\nnamespace = 'public/default'", "namespace is fixed"),
        ("[topics.'acme/orders/incoming']\nzone = 'default'", "zone is fixed: it is 'archive'"),
        ("[topics.'acme/orders/incoming']\npartitions = 3", "their number only grows"),
        ("[tables.people]\nkey = ['name']", "key is fixed: it is ['id'], not ['name']"),
        ("[tables.people.indexes.by_name]\nunique = false", "unique is fixed: it is True"),
        ("[tables.people]\ncolumns=[{name='age',type='int8'}]", "not wider"),
        ("[tenants.acme]\nabsent = true", "tenant acme is in use: it has namespaces"),
    ],
)
def test_fixed_properties_must_be_equal(text: str, error: str) -> None:
    catalog = applied(started(), TEXT)
    with pytest.raises(InvalidDefinitionsText) as found:
        applied(catalog, text)
    assert error in str(found.value)
    assert str(found.value).startswith("line 1, ")


def test_the_exit_code_is_that_of_the_cause() -> None:
    catalog = applied(started(), TEXT)
    for text, code in (
        ("[zones.a]\nreplicas = 0", USAGE),
        ("[tenants.acme]\nabsent = true", CONFLICT),
        ('[topics."a/b/c"]', NOT_FOUND),
    ):
        with pytest.raises(InvalidDefinitionsText) as found:
            applied(catalog, text)
        assert found.value.exit_code == code


def test_a_text_with_an_error_changes_nothing() -> None:
    with pytest.raises(InvalidDefinitionsText):
        definition_commands(ApplyDefinitions("[tenants.a]\n[zones.'b c']"), started())


def test_the_caller_checks_settings_that_it_knows() -> None:
    def check(command: CatalogCommand, _catalog: Catalog) -> None:
        if isinstance(command, CreateBlobStore) and "speed" in command.settings:
            raise InvalidSetting("speed", 9, "lower")

    text = (
        TEXT
        + "[stores.other]\nsettings.speed = 9\n"
        + ('namespace = "acme/orders"\ncapacity_bytes = 8192\nsegment_bytes = 4096')
    )
    wanted = ApplyDefinitions(text, NODES, check=check)
    with pytest.raises(InvalidDefinitionsText, match=r"stores\.other: setting speed is 9, must be"):
        definition_commands(wanted, started())
    assert definition_commands(replace(wanted, text=TEXT), started())


def test_the_text_has_a_limit() -> None:
    with pytest.raises(InvalidDefinitionsText, match="more than the limit"):
        definition_commands(ApplyDefinitions("#" * (8 * 2**20 + 1)), Catalog())


def test_a_plan_is_repeated_on_a_newer_version() -> None:
    wanted = ApplyDefinitions(TEXT, NODES, 77)
    later = after(started(), *definition_commands(wanted, started())[:3])
    assert applied(later, TEXT).topic("acme/orders", "incoming") is not None
    assert plan_batch(after(Catalog(), *initial_commands()), [wanted]) is not None
