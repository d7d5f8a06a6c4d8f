"""`lithify blobs`, the verbs of compaction: compact, compaction-status, -history, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.blobs.paths import store_path, with_query
from lithify.cli.client import open_client
from lithify.cli.options import (
    RUNS_SHOWN,
    Archives,
    AsJson,
    Conf,
    Data,
    DryRun,
    Limit,
    Master,
    NoWait,
    SparkOptions,
    Store,
    Url,
    Watch,
)
from lithify.cli.output import print_result
from lithify.cli.run_progress import STORES, run_continues

if TYPE_CHECKING:
    from lithify.cli.client import Client

__all__ = ["cancel_compaction", "compact", "compaction_history", "compaction_status"]


def _path(store: str) -> str:
    return f"{store_path(store)}/compaction"


def _rows(client: Client, path: str) -> list[dict[str, Any]]:
    return [client.call("GET", path)]


def compact(
    store: Store,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    policy: Annotated[
        str | None,
        typer.Option(metavar="P", help="all, stats or hybrid; default: a setting of the store."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    archives: Archives = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compact a store: free the space of deleted and expired blobs. Waits for the run."""
    path = _path(store)
    asked = with_query(path, wait="false") if no_wait else path
    with open_client(data, url, spark=SparkOptions(master, conf, archives)) as client:
        client.start_spark(path)
        if dry_run:
            body = {"dry_run": True, "policy": policy}
            row = client.call("POST", asked, body, timeout_s=None)
            STORES.print_plans([row], as_json=as_json)
            return
        with run_continues("blobs", store, data):
            row = client.call("POST", asked, {"policy": policy})
            status_path = with_query(path, request=row["request"])
            rows = STORES.wait(lambda: _rows(client, status_path), [row])
    STORES.print_statuses(rows, as_json=as_json)


def compaction_status(
    store: Store,
    watch: Watch = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of the last run on a store, or the progress of the current one."""
    path = _path(store)
    with open_client(data, url) as client:
        rows = _rows(client, path)
        if watch:
            rows = STORES.wait(lambda: _rows(client, path), rows)
    STORES.print_statuses(rows, as_json=as_json)


def cancel_compaction(
    store: Store, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Cancel the run on a store and the requests that wait; the store stays as it was."""
    with open_client(data, url) as client:
        client.call("DELETE", _path(store))
    print_result({"store": store}, f"the run on {store} is being cancelled", as_json=as_json)


def compaction_history(
    store: Store,
    limit: Limit = RUNS_SHOWN,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the last runs on a store, newest first."""
    with open_client(data, url) as client:
        rows = client.call("GET", with_query(f"{_path(store)}/history", limit=limit))
    STORES.print_history(f"Runs on {store}", rows, as_json=as_json)
