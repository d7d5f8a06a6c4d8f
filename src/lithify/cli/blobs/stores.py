"""`lithify blobs`, the verbs on stores: create, drop, list, adopt, stats, update and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.blobs.content import Include
from lithify.cli.blobs.paths import store_path, with_query
from lithify.cli.client import TIMEOUT_S, open_client
from lithify.cli.input import confirm_delete, pair
from lithify.cli.options import (
    NAMESPACE,
    All,
    AsJson,
    Data,
    DataAlone,
    Missing,
    Settings,
    Store,
    StoreNamespace,
    Unclaimed,
    Url,
    Yes,
)
from lithify.cli.output import (
    human_count,
    human_time,
    print_json,
    print_line,
    print_result,
    print_table,
)
from lithify.cli.unclaimed import adopted_names, print_adopted, print_missing, print_unclaimed
from lithify.exit_codes import FAILED
from lithify.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.cli.client import Client

__all__ = [
    "adopt",
    "copy",
    "create",
    "drop",
    "erase_status",
    "list_blobs",
    "replicas",
    "stats",
    "update",
    "verify",
]

PAGE_BLOBS = 1000

Capacity = Annotated[
    str, typer.Option(metavar="SIZE", help="Such as 16GiB or 16GB; cannot be changed.")
]
Segment = Annotated[str, typer.Option(metavar="SIZE", help="Must divide the capacity.")]


def _settings_of(texts: list[str] | None) -> dict[str, Any]:
    """Parse the settings in `--set NAME=VALUE`; a value that is not JSON is text."""
    from lithify.blobs.definition import named_settings, parse_value

    pairs = (pair("setting", text) for text in texts or [])
    return named_settings((name, parse_value(value)) for name, value in pairs)


def create(
    store: Store,
    capacity: Capacity,
    segment: Segment,
    namespace: StoreNamespace = NAMESPACE,
    settings: Settings = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a store; fails if it exists."""
    shape = {
        "capacity_bytes": parse_bytes(capacity),
        "segment_bytes": parse_bytes(segment),
        "settings": _settings_of(settings),
    }
    with open_client(data, url, create=True) as client:
        row = client.call("PUT", with_query(store_path(store), namespace=namespace), shape)
    warning = f"; {row['warning']}" if "warning" in row else ""
    print_result(row, f"created {store}{warning}", as_json=as_json)


def drop(
    store: Store,
    yes: Yes = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete a store with all its blobs."""
    confirm_delete(f"store {store} with all its blobs", yes=yes)
    with open_client(data, url) as client:
        client.call("DELETE", store_path(store))
    print_result({"store": store}, f"deleted {store}", as_json=as_json)


def list_blobs(
    store: Annotated[str | None, typer.Argument(metavar="[STORE]")] = None,
    namespace: StoreNamespace = NAMESPACE,
    include: Include = "none",
    unclaimed: Unclaimed = False,
    missing: Missing = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the stores of a namespace, or the blobs of a store, one per line."""
    with open_client(data, url) as client:
        if unclaimed or missing:
            show = print_unclaimed if unclaimed else print_missing
            show(client, "stores", as_json=as_json)
        elif store is None:
            rows = client.call("GET", with_query("/blobs", namespace=namespace))
            _print_stores(namespace, rows, as_json=as_json)
        else:
            for row in _blobs(client, store, include):
                if as_json:
                    print_json(row, compact=True)
                else:
                    size, created = human_count(row["size"]), human_time(row["created_ms"])
                    print_line(f"{row['id']}  {created}  {size:>15}  {row['content_type']}")


def _blobs(client: Client, store: str, include: str) -> Iterator[dict[str, Any]]:
    after: int | None = -1
    while after is not None:
        query = {"include": include, "after": after, "limit": PAGE_BLOBS}
        page = client.call("GET", with_query(f"{store_path(store)}/list", **query))
        yield from page["blobs"]
        after = page["next"]


def _print_stores(namespace: str, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from lithify.compaction.planning.plan import human_bytes

    broken = [row for row in rows if "error" in row]
    if as_json:
        print_json(rows)
    else:
        sizes = [[row[f"{what}_bytes"] for what in _SIZES] for row in rows]
        shown = [
            [
                row["store"],
                *(_shown(row) if each is None else human_bytes(each) for each in of_row),
            ]
            for row, of_row in zip(rows, sizes, strict=True)
        ]
        columns = ("name", *(f"{what}>" for what in _SIZES))
        print_table(f"Blob stores of {namespace}", columns, shown)
        for row in broken:
            print_line(f"  {row['store']}: {row['error']}")
    if broken:
        raise typer.Exit(FAILED)


def _shown(row: dict[str, Any]) -> str:
    """Why the size of a store is not known."""
    return f"on {row['node']}" if "node" in row else "damaged"


_SIZES = ("used", "capacity", "segment")


def adopt(
    store: Annotated[str | None, typer.Argument(metavar="[STORE]")] = None,
    every: All = False,
    namespace: StoreNamespace = NAMESPACE,
    settings: Settings = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Define a blob store from its directory."""
    given = {"namespace": namespace, "settings": _settings_of(settings)}
    with open_client(data, url) as client:
        names = adopted_names(client, "stores", store, every=every)
        for name in names:
            client.call("POST", "/admin/v2/unclaimed/stores", {"store": name, **given})
    print_adopted("stores", names, as_json=as_json)


def stats(
    store: Store,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Show valid bytes, and what runs would free when.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the size, shape and settings of a store."""
    from lithify.compaction.planning.plan import human_bytes

    path = store_path(store)
    if forecast:
        path += "/statistics?forecast=true"
    with open_client(data, url) as client:
        row = client.call("GET", path, timeout_s=None if forecast else TIMEOUT_S)
    if as_json:
        print_json(row)
    elif forecast:
        print_line(row["text"])
    else:
        used, capacity = row["used_bytes"], row["capacity_bytes"]
        print_line(store)
        print_line(f"  used       {human_bytes(used)} of {human_bytes(capacity)}")
        print_line(f"  segments   of {human_bytes(row['segment_bytes'])}")
        print_line(f"  namespace  {row['namespace']}")
        print_line(f"  created    {human_time(row['created_ms'])}")
        for name, value in row["settings"].items():
            print_line(f"  {name} = {value}")
        if "warning" in row:
            print_line(f"  {row['warning']}")


def update(
    store: Store,
    settings: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Use the value of the node; repeatable."),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a store and show all settings that apply to it."""
    changes = {"set": _settings_of(settings), "unset": unset or []}
    with open_client(data, url) as client:
        row = client.call("PATCH", f"{store_path(store)}/settings", changes)
    if as_json:
        print_json(row)
        return
    own = _names(row["own"])
    for name, value in row["applied"].items():
        print_line(f"{name} = {value}{'' if name in own else '  (of the node)'}")


def _names(settings: dict[str, object]) -> set[str]:
    """The names of settings; a part of a setting has a dot in its name."""
    names: set[str] = set()
    for name, value in settings.items():
        names |= {f"{name}.{part}" for part in value} if isinstance(value, dict) else {name}
    return names


def erase_status(
    store: Store,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show how far the content of permanently deleted blobs is erased."""
    from lithify.compaction.planning.plan import human_bytes

    with open_client(data, url) as client:
        row = client.call("GET", f"{store_path(store)}/erase")
    state = "paused" if row["paused"] else "working" if row["working"] else "idle"
    as_of = "nothing yet" if row["as_of_ms"] is None else f"up to {human_time(row['as_of_ms'])}"
    line = (
        f"{store}: {state}, {human_count(row['blobs'])} blobs "
        f"({human_bytes(row['bytes'])}) since the start; erased {as_of}"
    )
    damage = row["first_damage"]
    print_result(row, line if damage is None else f"{line}; damaged: {damage}", as_json=as_json)


def replicas(
    store: Store,
    urls: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PEER",
            help='Replace all replicas: a peer or a URL; repeatable; "" for none.',
        ),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the replicas of a store and how far it has read them; with --set, replace them first."""
    from lithify.compaction.planning.plan import human_bytes

    path = f"{store_path(store)}/replicas"
    with open_client(data, url) as client:
        if urls is not None:
            client.call("PUT", path, [each for each in urls if each])
        rows = client.call("GET", path)
    if as_json:
        print_json(rows)
        return
    shown = [
        [
            row["url"],
            row["state"],
            "?" if row["behind"] < 0 else human_count(row["behind"]),
            human_time(row["caught_up_ms"], "seconds") if row["caught_up_ms"] else "never",
            human_bytes(row["content_bytes"]),
            human_count(row["errors"]),
        ]
        for row in rows
    ]
    columns = ("replica", "state", "behind>", "caught up", "pulled>", "errors>")
    print_table(f"Replicas of {store}", columns, shown)
    for row in rows:
        if row["error"]:
            print_line(f"  {row['error']}")


def copy(
    store: Store,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The new store.")],
    capacity: Capacity,
    segment: Segment,
    data: DataAlone,
    as_json: AsJson = False,
) -> None:
    """Copy the valid blobs of a store to a new store of another shape; the old store stays."""
    from dataclasses import asdict

    from lithify.cli.client.in_process_client import open_data
    from lithify.compaction.planning.plan import human_bytes

    with open_data(data) as node:
        report = node.blobs.copy(
            store, target, capacity_bytes=parse_bytes(capacity), segment_bytes=parse_bytes(segment)
        )
    line = (
        f"copied {human_count(report.blobs)} blobs ({human_bytes(report.content_bytes)}) to "
        f"{target}; {human_count(report.left_out)} records were no longer valid"
    )
    print_result(asdict(report), line, as_json=as_json)


def verify(
    store: Store,
    data: DataAlone,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a store, and its index against a naive replay of its log."""
    from dataclasses import asdict

    from lithify.cli.client.in_process_client import open_data
    from lithify.compaction.planning.plan import human_bytes

    with open_data(data) as node:
        found = node.blobs.verify(store)
    line = (
        f"{store}: {human_count(found.blobs)} blobs in {human_count(found.records)} records, "
        f"{human_bytes(found.bytes)} checked"
    )
    print_result({**asdict(found), "ok": found.ok}, line, as_json=as_json)
    if not as_json:
        for warning in found.warnings:
            print_line(f"  warning  {warning}")
        for problem in found.problems:
            print_line(f"  {problem}")
        print_line("no damage" if found.ok else f"{human_count(found.problems_found)} problems")
    if not found.ok:
        raise typer.Exit(1)
