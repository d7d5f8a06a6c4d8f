"""`lithify config`: which settings a node would have, and why.

    lithify config show [--config FILE] [--origin] [--json]

What it prints without `--json` is a settings file.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from lithify.cli.output import print_json, print_line
from lithify.cli.serve import ConfigFile  # noqa: TC001  (typer reads it at run time)

__all__ = ["app"]

app = typer.Typer(help="Look at the settings of a node.", no_args_is_help=True)


@app.callback()
def _noun() -> None:
    """Look at the settings of a node."""


@app.command()
def show(
    config: ConfigFile = None,
    origin: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--origin", help="Tell where each value comes from.")
    ] = False,
    as_json: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--json", help="For programs.")
    ] = False,
) -> None:
    """Print every setting, as a TOML file."""
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
    # JSON's text, numbers and truth values are also TOML's.
    lines = [f"{name} = {json.dumps('off' if value is None else value)}" for name, value, _ in rows]
    width = max(map(len, lines))
    for line, (_, _, where) in zip(lines, rows, strict=True):
        print_line(f"{line:<{width}}  # {where}" if origin else line)
