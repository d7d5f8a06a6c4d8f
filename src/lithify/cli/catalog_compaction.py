"""`lithify catalog`, the verbs of compaction and pins.

    lithify catalog compact [--dry-run] [--wait | --no-wait]
    lithify catalog compaction-status [--watch]
    lithify catalog compaction-history [--limit N]
    lithify catalog cancel-compaction
    lithify catalog holds
    lithify catalog snapshot VERSION [--force]
    lithify catalog pin NAME [--at-version N] [--owner TEXT] [--reason TEXT] [--for-s SECONDS]
    lithify catalog unpin NAME
    lithify catalog pins

The leader of the metastore compacts for all nodes; any node accepts the commands.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from lithify.cli.client import open_client
from lithify.cli.leader_runs import LogVerbs
from lithify.cli.options import RUNS_SHOWN, AsJson, Data, DryRun, Limit, Url, Watch
from lithify.cli.output import human_time, print_json, print_result, print_table
from lithify.cli.run_progress import VERSIONS

__all__ = [
    "cancel_compaction",
    "compact",
    "compaction_history",
    "compaction_status",
    "holds",
    "pin",
    "pins",
    "snapshot",
    "unpin",
]

SNAPSHOT_S = 60.0

_LOG = LogVerbs("catalog", "the history of the catalog", "/catalog/compaction", VERSIONS)

PinName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the pin.")]


def compact(
    dry_run: DryRun = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            help="Wait for other runs; otherwise exit with code 4 if one has the log or its disk.",
        ),
    ] = True,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Drop the versions of the catalog that nothing needs. Waits for the run."""
    _LOG.compact(dry_run=dry_run, wait=wait, data=data, url=url, as_json=as_json)


def compaction_status(
    watch: Watch = False, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show the outcome of the last run, or the progress of the current one."""
    _LOG.status(watch=watch, data=data, url=url, as_json=as_json)


def compaction_history(
    limit: Limit = RUNS_SHOWN, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """List the last runs of the node that compacts, newest first."""
    _LOG.history(limit=limit, data=data, url=url, as_json=as_json)


def cancel_compaction(data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """Cancel the run in progress and those that wait; what is published stays."""
    print_result({"log": "catalog"}, _LOG.cancel(data=data, url=url), as_json=as_json)


def holds(data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """List what keeps the history of the catalog, the lowest version first."""
    _LOG.holds("/catalog/holds", "version", data=data, url=url, as_json=as_json)


def snapshot(
    version: Annotated[int, typer.Argument(metavar="VERSION", min=0)],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Although nodes or replicas do not answer; not against a named hold.",
        ),
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Have a version become the earliest one, if nothing needs an earlier one."""
    query = f"version={version}" + ("&force=true" if force else "")
    with open_client(data, url) as client:
        found = client.call("POST", f"/catalog/snapshot?{query}", timeout_s=SNAPSHOT_S)
    done = f"version {version} is the earliest one left"
    line = done if found["made"] else f"there is a snapshot as new as version {version}"
    print_result(found, line, as_json=as_json)


def pin(
    name: PinName,
    version: Annotated[
        int | None,
        typer.Option("--at-version", metavar="N", min=0, help="Default: the one in force."),
    ] = None,
    owner: Annotated[str, typer.Option(metavar="TEXT", help="Default: the node.")] = "",
    reason: Annotated[str, typer.Option(metavar="TEXT")] = "",
    for_s: Annotated[int, typer.Option(metavar="SECONDS", min=1, help="When it expires.")] = 86_400,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Keep a version of the catalog and all later ones, until the pin is released or expires."""
    row = {"version": version, "owner": owner, "reason": reason, "ttl_ms": for_s * 1000}
    with open_client(data, url) as client:
        found = client.call("PUT", f"/catalog/pins/{quote(name, safe='')}", row)
    until = human_time(found["expires_ms"], "seconds")
    print_result(found, f"version {found['version']} is pinned until {until}", as_json=as_json)


def unpin(name: PinName, data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """Release a pin."""
    with open_client(data, url) as client:
        client.call("DELETE", f"/catalog/pins/{quote(name, safe='')}")
    print_result({"name": name}, f"pin {name} is released", as_json=as_json)


def pins(data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the pins."""
    with open_client(data, url) as client:
        found = client.call("GET", "/catalog/pins")
    if as_json:
        print_json(found)
        return
    rows = [
        [
            each["name"],
            str(each["version"]),
            each["owner"],
            each["reason"] or "-",
            human_time(each["expires_ms"], "seconds"),
        ]
        for each in found
    ]
    print_table("Pins", ("pin", "version>", "owner", "reason", "expires"), rows)
