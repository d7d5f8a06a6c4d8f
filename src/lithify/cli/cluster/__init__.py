"""`lithify cluster`: the nodes of a cluster, and the Raft groups that they share.

    lithify cluster status
    lithify cluster join NAME HOST:PORT [--learner]
    lithify cluster leave NAME
    lithify cluster compact [GROUP] [--dry-run] [--no-wait]
    lithify cluster compaction-status [GROUP] [--watch]
    lithify cluster compaction-history [GROUP] [--limit N]
    lithify cluster cancel-compaction [GROUP]

All take `--json`, and `--data DIR` or `--url URL` (`client/`). Any node accepts `join` and `leave`.
Each node compacts its own files: the verbs of compaction are about the node that is asked.
"""

from __future__ import annotations

import typer

from lithify.cli.cluster import compaction, members

__all__ = ["app"]

app = typer.Typer(help="Show and change the nodes of a cluster.", no_args_is_help=True)
for verb in (
    members.status,
    members.join,
    members.leave,
    compaction.compact,
    compaction.compaction_status,
    compaction.compaction_history,
    compaction.cancel_compaction,
):
    app.command()(verb)
