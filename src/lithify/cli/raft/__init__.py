"""`lithify raft`: a replicated key-value store on Raft, and the Raft groups of nodes.

    lithify raft serve --id n1 --listen 127.0.0.1:7001 --peer n2=127.0.0.1:7002 … --data DIR
    lithify raft put KEY VALUE | get KEY | delete KEY | cas KEY VALUE | scan [PREFIX]
    lithify raft watch [PREFIX]
    lithify raft members | add n4=HOST:PORT | remove n4 | move n2=HOST:PORT | transfer n2
    lithify raft create GROUP | drop GROUP
    lithify raft snapshot | overview
    lithify raft compact [GROUP] [--dry-run | --wait] [--rewrite]
    lithify raft compaction-status|compaction-history|cancel-compaction [GROUP]
    lithify raft backup DIR | verify-backup DIR
    lithify raft restore DIR --id n1 --data NEW
    lithify raft recover --from DIR --to NEW

`lithify raft serve` runs nodes of a key-value store, without topics, blobs or a catalog; a node of
those is `lithify serve`, whose Raft groups are the same code.

Requests to nodes use the Raft client protocol. All verbs except `serve` and the last three have
`--nodes host:port[,host:port…]`, of which one must run, `--group` and `--json`. The verbs members,
transfer, snapshot, overview and those of compaction also accept the HTTP addresses of `lithify
serve` nodes (`http_nodes.py`). Those change their members by `lithify cluster join|leave`.
"""

from __future__ import annotations

import typer

from lithify.cli.raft import compaction, keys, members, recovery
from lithify.cli.raft.serve import serve

__all__ = ["app"]

app = typer.Typer(
    help=(
        "Run and use a replicated key-value store on Raft, without topics or blobs; inspect and "
        "compact the Raft groups of 'lithify serve' nodes."
    ),
    no_args_is_help=True,
)
for verb in (
    serve,
    keys.put,
    keys.get,
    keys.delete,
    keys.cas,
    keys.scan,
    keys.watch,
    members.members,
    members.add,
    members.remove,
    members.move,
    members.transfer,
    members.create,
    members.drop,
    members.snapshot,
    members.overview,
    compaction.compact,
    compaction.compaction_status,
    compaction.compaction_history,
    compaction.cancel_compaction,
    recovery.backup,
    recovery.verify_backup,
    recovery.restore,
    recovery.recover,
):
    app.command()(verb)
