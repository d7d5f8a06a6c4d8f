"""`lithify log`: inspect the directory of a log without changing it.

    lithify log stat PATH [--json]
    lithify log dump PATH [--from P] [--limit N] [--compacted] [--json]
    lithify log verify PATH [--json]

All three can read a log that is in use: they pin its generation while they read, if permissions
allow it. They use the library on the files; no node is involved.
"""

from __future__ import annotations

import typer

from lithify.cli.log.inspect import check_log, dump, stat, verify

__all__ = ["app", "check_log"]

app = typer.Typer(help="Inspect a log: its files, entries and damage.", no_args_is_help=True)
for verb in (stat, dump, verify):
    app.command()(verb)
