"""Directories without a definition, and the reverse: `list --unclaimed`, `list --missing`, `adopt`.

Shared by the modules of `lithify topics` and `lithify blobs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.cli.output import print_json, print_line
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from lithify.cli.client import Client

__all__ = ["adopted_names", "print_adopted", "print_missing", "print_unclaimed"]


def print_unclaimed(client: Client, kind: str, *, as_json: bool) -> None:
    """List the unclaimed `topics` or `stores`."""
    rows = client.call("GET", "/admin/v2/unclaimed")[kind]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        problem = f"  ({row['problem']})" if row["problem"] else ""
        if kind == "topics":
            parts = f" ({row['partitions']} partitions)" if row["partitions"] else ""
            print_line(f"{row['topic']}{parts}  {row['directories'][0]}{problem}")
        else:
            print_line(f"{row['store']}  {row['directory']}{problem}")


def print_missing(client: Client, kind: str, *, as_json: bool) -> None:
    """List the `topics` or `stores` whose files are gone."""
    rows = client.call("GET", "/admin/v2/missing")[kind]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        no_definition = "" if row["defined"] else "  (not defined either)"
        print_line(f"{row.get('topic') or row['store']}  {row['directory']}{no_definition}")


def adopted_names(client: Client, kind: str, name: str | None, *, every: bool) -> list[str]:
    """The given name, or with `--all` the names of all intact unclaimed directories."""
    if (name is None) is not every:
        raise InvalidInput("name what to adopt, or give --all")
    if name is not None:
        return [name]
    word = "topic" if kind == "topics" else "store"
    rows = client.call("GET", "/admin/v2/unclaimed")[kind]
    return [row[word] for row in rows if not row["problem"]]


def print_adopted(kind: str, names: list[str], *, as_json: bool) -> None:
    """Print what was adopted."""
    if as_json:
        print_json({kind: names})
        return
    for name in names:
        print_line(f"adopted {name}")
