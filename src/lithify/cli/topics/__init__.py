"""`lithify topics`: the topics of a node, or of a data directory that no node serves.

    lithify topics list [--namespace TENANT/NAMESPACE | --unclaimed | --missing]
    lithify topics create TOPIC [--partitions N]
    lithify topics delete TOPIC [--yes]
    lithify topics stats TOPIC
    lithify topics adopt TOPIC | --all
    lithify topics produce TOPIC [VALUE…] [--key K] [--property NAME=VALUE]…
    lithify topics tail TOPIC [--limit N] [--from LEDGER:ENTRY] [--follow]
    lithify topics get TOPIC KEY
    lithify topics compact TOPIC [--dry-run] [--master M] [--conf K=V]… [--archives F]
    lithify topics compaction-status TOPIC [--watch]
    lithify topics compaction-history TOPIC [--limit N]
    lithify topics cancel-compaction TOPIC

All take `--json`, and `--data DIR` or `--url URL` (`client/`).
"""

from __future__ import annotations

import typer

from lithify.cli.topics import compaction, manage, messages

__all__ = ["app"]

app = typer.Typer(help="Create, inspect, fill, compact and delete topics.", no_args_is_help=True)
app.command("list")(manage.list_topics)
for verb in (
    manage.create,
    manage.delete,
    manage.stats,
    manage.adopt,
    messages.produce,
    messages.tail,
    messages.get,
    compaction.compact,
    compaction.compaction_status,
    compaction.compaction_history,
    compaction.cancel_compaction,
):
    app.command()(verb)
