"""`lithify blobs`, the verbs on whole stores: sizes, forecast, compaction, erasing, replicas.

    lithify blobs stats STORE [--forecast]
    lithify blobs compact STORE [--dry-run] [--no-wait] [--policy P] [--master M]…
    lithify blobs compaction-status STORE [--watch]
    lithify blobs compaction-history STORE [--limit N]
    lithify blobs cancel-compaction STORE
    lithify blobs update STORE [--set NAME=VALUE]… [--unset NAME]…
    lithify blobs erase-status STORE
    lithify blobs replicas STORE [--set PEER]…
    lithify blobs copy STORE TARGET --capacity SIZE --segment SIZE --data DIR
    lithify blobs verify STORE --data DIR

All take `--json`, and `--data DIR` or `--url URL`, see `blob_admin.py`; the last two work on a
directory that nobody serves. How runs are shown is in `runs.py`. A run that failed, and damage that
was found, end the command with exit code 1.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.admin import open_data
from lithify.cli.blob_admin import open_blobs
from lithify.cli.blobs import Capacity, Segment, Settings, Store, print_result, settings_of
from lithify.cli.output import human_count, human_time, print_json, print_line, print_table
from lithify.cli.runs import (  # typer reads NoWait at run time
    STORES,
    NoWait,
    run_continues,
)
from lithify.cli.spark_options import (  # typer reads them at run time
    Archives,
    Conf,
    Master,
    SparkOptions,
)
from lithify.cli.topics import AsJson, Data, Url  # noqa: TC001  (typer reads them at run time)
from lithify.units import parse_bytes

__all__ = [
    "cancel_compaction",
    "compact",
    "compaction_history",
    "compaction_status",
    "copy",
    "erase_status",
    "replicas",
    "stats",
    "update",
    "verify",
]

HISTORY_RUNS = 10


def stats(
    store: Store,
    forecast: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--forecast", help="What is valid, and what a run gives back when.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show what a store is and holds."""
    from lithify.compaction.plan import human_bytes

    with open_blobs(data, url) as admin:
        row = admin.statistics(store) if forecast else admin.store(store)
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


def compact(
    store: Store,
    dry_run: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--dry-run", help="Print what a run would do, and do nothing.")
    ] = False,
    policy: Annotated[
        str | None, typer.Option(metavar="P", help="all, stats, hybrid; else the store's own.")
    ] = None,
    no_wait: NoWait = False,  # noqa: FBT002  an option
    master: Master = None,
    conf: Conf = None,
    archives: Archives = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Compact a store, and wait for it: give back what is deleted and expired."""
    with open_blobs(data, url, SparkOptions(master, conf, archives)) as admin:
        if dry_run:
            STORES.print_plans([admin.plan(store, policy, waits=not no_wait)], as_json=as_json)
            return
        with STORES.progress() as watch, run_continues("blobs", store, data):
            row = admin.run(store, policy, watch, waits=not no_wait)
    STORES.print_statuses([row], as_json=as_json)


def compaction_status(
    store: Store,
    watch: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--watch", "-w", help="Until the run that is going on has ended.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show how the last run on a store went, or how far it is."""
    import time

    from lithify.cli.compaction_admin import POLL_S

    with open_blobs(data, url) as admin, STORES.progress() as tell:
        row = admin.status(store)
        while watch and row["status"] == "RUNNING":
            tell(row)
            time.sleep(POLL_S)
            row = admin.status(store)
    STORES.print_statuses([row], as_json=as_json)


def cancel_compaction(
    store: Store,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Stop the run on a store, and forget those that wait; everything stays as it was."""
    with open_blobs(data, url) as admin:
        admin.cancel(store)
    print_result({"store": store}, f"the run on {store} is being cancelled", as_json=as_json)


def update(
    store: Store,
    settings: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="A setting that is to be the node's."),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Change settings of a store, and show all that hold for it."""
    changes = {"set": settings_of(settings), "unset": unset or []}
    with open_blobs(data, url) as admin:
        row = admin.update(store, changes)
    if as_json:
        print_json(row)
        return
    own = _names(row["own"])
    for name, value in row["applied"].items():
        print_line(f"{name} = {value}{'' if name in own else '  (of the node)'}")


def _names(settings: dict[str, object]) -> set[str]:
    """The names of settings, those of parts with a dot."""
    names: set[str] = set()
    for name, value in settings.items():
        names |= {f"{name}.{part}" for part in value} if isinstance(value, dict) else {name}
    return names


def compaction_history(
    store: Store,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=1000, help="The last so many runs.")
    ] = HISTORY_RUNS,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """List the last runs on a store, newest first."""
    with open_blobs(data, url) as admin:
        rows = admin.history(store, limit)
    STORES.print_history(f"Runs on {store}", rows, as_json=as_json)


def erase_status(
    store: Store,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show how erasing of blobs that are deleted for good stands."""
    from lithify.compaction.plan import human_bytes

    with open_blobs(data, url) as admin:
        row = admin.erase(store)
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
            help='All others, each by --set: peers or URLs; "": none.',
        ),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show how far a store has read its replicas, after setting which ones these are."""
    from lithify.compaction.plan import human_bytes

    with open_blobs(data, url) as admin:
        if urls is not None:
            admin.set_replicas(store, [each for each in urls if each])
        rows = admin.replicas(store)
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


Directory = Annotated[
    str, typer.Option("--data", metavar="DIR", help="The data directory, which no node serves.")
]


def copy(
    store: Store,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The new store.")],
    capacity: Capacity,
    segment: Segment,
    data: Directory,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Make a store of another shape from what is valid in one; the old one stays."""
    from dataclasses import asdict

    from lithify.compaction.plan import human_bytes

    with open_data(data) as node:
        report = node.blobs.copy(
            store, target, capacity_bytes=parse_bytes(capacity), segment_bytes=parse_bytes(segment)
        )
    line = (
        f"copied {human_count(report.blobs)} blobs ({human_bytes(report.content_bytes)}) to "
        f"{target}; {human_count(report.left_out)} records were not valid any more"
    )
    print_result(asdict(report), line, as_json=as_json)


def verify(
    store: Store,
    data: Directory,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Check every byte of a store, and its index against a naive replay of its log."""
    from dataclasses import asdict

    from lithify.compaction.plan import human_bytes

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
