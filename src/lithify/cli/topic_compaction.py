"""`lithify topics`, the verbs of compaction: run, look, list, and what it leaves of one key.

    lithify topics compact TOPIC [--dry-run] [--no-wait] [--master M] [--conf K=V]… [--archives F]
    lithify topics compaction-status TOPIC [--watch]
    lithify topics compaction-history TOPIC [--limit N]
    lithify topics cancel-compaction TOPIC
    lithify topics get TOPIC KEY

All take `--json`, and `--data DIR` or `--url URL`, see `compaction_admin.py`. How runs are shown is
in `runs.py`. A run that failed ends the command with exit code 1.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.compaction_admin import open_compaction
from lithify.cli.output import print_json, print_line
from lithify.cli.runs import (  # typer reads NoWait at run time
    TOPICS,
    NoWait,
    run_continues,
)
from lithify.cli.spark_options import (  # typer reads them at run time
    Archives,
    Conf,
    Master,
    SparkOptions,
)
from lithify.cli.topics import (  # typer reads them at run time
    AsJson,
    Data,
    Name,
    Url,
    message_line,
)
from lithify.errors import NOT_FOUND, LithifyError

__all__ = ["cancel_compaction", "compact", "compaction_history", "compaction_status", "get"]

HISTORY_RUNS = 10


class KeyNotFound(LithifyError):
    """The topic has no message of a key."""

    exit_code = NOT_FOUND


def compact(
    topic: Name,
    dry_run: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--dry-run", help="Print what a run would do, and do nothing.")
    ] = False,
    no_wait: NoWait = False,  # noqa: FBT002  an option
    master: Master = None,
    conf: Conf = None,
    archives: Archives = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Compact a topic, and wait for it: keep the newest message of each key."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url, SparkOptions(master, conf, archives)) as admin:
        if dry_run:
            TOPICS.print_plans(admin.plan(name, waits=not no_wait), as_json=as_json)
            return
        with TOPICS.progress() as watch, run_continues("topics", topic, data):
            rows = admin.run(name, watch, waits=not no_wait)
    TOPICS.print_statuses(rows, as_json=as_json)


def compaction_status(
    topic: Name,
    watch: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--watch", "-w", help="Until the run that is going on has ended.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show how the last run on a topic went, or how far it is."""
    import time

    from lithify.cli.compaction_admin import POLL_S
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url) as admin, TOPICS.progress() as tell:
        rows = admin.status(name)
        while watch and any(row["status"] == "RUNNING" for row in rows):
            for row in rows:
                tell(row)
            time.sleep(POLL_S)
            rows = admin.status(name)
    TOPICS.print_statuses(rows, as_json=as_json)


def cancel_compaction(
    topic: Name,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Stop the run on a topic, and forget those that wait; everything stays as it was."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url) as admin:
        admin.cancel(name)
    if as_json:
        print_json({"topic": str(name)})
    else:
        print_line(f"the run on {name} is being cancelled")


def compaction_history(
    topic: Name,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=1000, help="The last so many runs.")
    ] = HISTORY_RUNS,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """List the last runs on a topic, newest first."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url) as admin:
        rows = admin.history(name, limit)
    TOPICS.print_history(f"Runs on {name}", rows, as_json=as_json)


def get(
    topic: Name,
    key: Annotated[str, typer.Argument(metavar="KEY")],
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print the newest message of a key, found without reading the topic."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url) as admin:
        row = admin.get(name, key)
    if row is None:
        raise KeyNotFound(f"topic {name} has no message of key {key!r}")
    if as_json:
        print_json(row)
    else:
        print_line(message_line(row))
