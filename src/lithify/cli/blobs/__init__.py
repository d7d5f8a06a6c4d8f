"""`lithify blobs`: the blob stores of a node, or of a data directory that no node serves.

    lithify blobs create STORE --capacity SIZE --segment SIZE [--namespace T/N] [--set NAME=VALUE]…
    lithify blobs drop STORE [--yes]
    lithify blobs list [STORE] [--include WHAT] | --unclaimed | --missing
    lithify blobs adopt STORE [--namespace T/N] [--set NAME=VALUE]… | --all
    lithify blobs put STORE [FILE] [--service S] [--owner O] [--content-type T] [--ttl S] [--meta …]
    lithify blobs get STORE ID [--out FILE] [--include WHAT]
    lithify blobs head|delete|undelete STORE ID
    lithify blobs ttl STORE ID SECONDS
    lithify blobs stats STORE [--forecast]
    lithify blobs update STORE [--set NAME=VALUE]… [--unset NAME]…
    lithify blobs erase-status STORE
    lithify blobs replicas STORE [--set PEER]…
    lithify blobs compact STORE [--dry-run] [--policy P] [--master M] [--conf K=V]… [--archives F]
    lithify blobs compaction-status STORE [--watch]
    lithify blobs compaction-history STORE [--limit N]
    lithify blobs cancel-compaction STORE
    lithify blobs copy STORE TARGET --capacity SIZE --segment SIZE --data DIR
    lithify blobs verify STORE --data DIR

All take `--json`, and `--data DIR` or `--url URL` (`client/`). The last two need a directory that
no node serves, and use the library: a node has no such request.
"""

from __future__ import annotations

import typer

from lithify.cli.blobs import compaction, content, stores

__all__ = ["app"]

app = typer.Typer(
    help="Create blob stores; put, get, change and delete blobs.", no_args_is_help=True
)
app.command("list")(stores.list_blobs)
app.command(context_settings={"ignore_unknown_options": True})(content.ttl)
for verb in (
    stores.create,
    stores.drop,
    stores.adopt,
    content.put,
    content.get,
    content.head,
    content.delete,
    content.undelete,
    stores.stats,
    stores.update,
    stores.erase_status,
    stores.replicas,
    compaction.compact,
    compaction.compaction_status,
    compaction.compaction_history,
    compaction.cancel_compaction,
    stores.copy,
    stores.verify,
):
    app.command()(verb)
