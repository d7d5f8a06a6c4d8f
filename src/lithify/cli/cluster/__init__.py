"""`lithify cluster`: the nodes of a cluster, and the Raft groups that they share.

    lithify cluster status
    lithify cluster join NAME HOST:PORT [--learner]
    lithify cluster leave NAME
    lithify cluster compact [GROUP] [--dry-run] [--wait | --no-wait]
    lithify cluster compaction-status [GROUP] [--watch]
    lithify cluster compaction-history [GROUP] [--limit N]
    lithify cluster cancel-compaction [GROUP]
    lithify cluster holds

All take `--json`, and `--data DIR` or `--url URL` (`client/`). Any node accepts them. The verbs of
compaction are about the history of the metastore; with a GROUP they are about the files of a Raft
group on the node that is asked, because each node compacts its own.
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
    compaction.holds,
):
    app.command()(verb)
