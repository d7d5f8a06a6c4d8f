"""`lithify config`: the effective settings of a node, and the source of each.

    lithify config show [--config FILE] [--origin] [--json]

Without `--json` the output is a settings file.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from lithify.cli.options import AsJson, ConfigFile
from lithify.cli.output import print_json, print_line

__all__ = ["app"]

app = typer.Typer(help="Show the settings of a node.", no_args_is_help=True)


@app.callback()
def _noun() -> None:
    """Show the settings of a node."""


@app.command()
def show(
    config: ConfigFile = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Show where each value comes from.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print all settings as a TOML file."""
    from lithify.fs import LocalFileSystem
    from lithify.node.settings import read_settings

    found = read_settings(LocalFileSystem(), config=config, environ=os.environ, flags={})
    rows = list(found.rows())
    if as_json:
        print_json(
            {n: {"value": v, "origin": o} for n, v, o in rows}
            if origin
            else {n: v for n, v, _ in rows}
        )
        return
    # Strings, numbers and booleans are written as in JSON.
    lines = [f"{name} = {json.dumps('off' if value is None else value)}" for name, value, _ in rows]
    width = max(map(len, lines))
    for line, (_, _, where) in zip(lines, rows, strict=True):
        print_line(f"{line:<{width}}  # {where}" if origin else line)
