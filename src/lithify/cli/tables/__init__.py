"""`lithify tables`: replicated tables, their rows, indexes and transactions.

    lithify tables list
    lithify tables create NAME --column NAME:TYPE… --key COLUMN… [--zone ZONE]
    lithify tables show NAME
    lithify tables alter NAME [--add NAME:TYPE] [--drop COLUMN]
    lithify tables drop NAME
    lithify tables partitions
    lithify tables put NAME [COLUMN=VALUE… | FILE with --lines]
    lithify tables get|delete NAME COLUMN=VALUE…
    lithify tables scan NAME [COLUMN=VALUE…] [--index INDEX] [--at TIME]
    lithify tables index create|drop NAME INDEX
    lithify tables tx begin|commit|rollback

All take `--json`, and `--data DIR` or `--url URL` (`client/`).
"""

from __future__ import annotations

import typer

from lithify.cli.tables import definitions, partitions, rows, transactions

__all__ = ["app"]

app = typer.Typer(help="Create and use replicated tables.", no_args_is_help=True)
app.command("list")(definitions.list_tables)
app.command()(definitions.create)
app.command()(definitions.show)
app.command()(definitions.alter)
app.command()(definitions.drop)
app.command("partitions")(partitions.list_partitions)
app.command()(rows.put)
app.command()(rows.get)
app.command()(rows.scan)
app.command()(rows.delete)
app.add_typer(definitions.indexes, name="index")
app.add_typer(transactions.app, name="tx")
