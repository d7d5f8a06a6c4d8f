"""Data without a definition, and the reverse: `list --unclaimed`, `adopt`, `list --missing`.

    lithify topics list --unclaimed
    lithify topics list --missing
    lithify topics adopt TOPIC | --all
    lithify blobs list --unclaimed
    lithify blobs list --missing
    lithify blobs adopt STORE [--namespace T/N] [--set NAME=VALUE]… | --all

All work at a node (`http/unclaimed.py`) or, with `--data`, on a data directory nobody serves.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.admin import RemoteNode, open_place
from lithify.cli.blobs import NAMESPACE, Namespace, Settings, settings_of
from lithify.cli.output import print_json, print_line
from lithify.cli.topics import AsJson, Data, Url  # noqa: TC001  (typer reads them at run time)
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from lithify.node.node import Node

__all__ = ["adopt_stores", "adopt_topics", "print_missing", "print_unclaimed"]

All = Annotated[bool, typer.Option("--all", help="Adopt everything that is unclaimed.")]


def print_unclaimed(kind: str, data: str | None, url: str | None, *, as_json: bool) -> None:
    """List the unclaimed topics or stores."""
    with open_place(data, url) as place:
        rows = _unclaimed(place)[kind]
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


def print_missing(kind: str, data: str | None, url: str | None, *, as_json: bool) -> None:
    """List the topics or stores that had files, which are gone."""
    with open_place(data, url) as place:
        if isinstance(place, RemoteNode):
            rows = place.call("GET", "missing")[kind]
        elif kind == "topics":
            rows = [each.row() for each in place.topics.missing()]
        else:
            rows = place.blobs.missing()
    if as_json:
        print_json(rows)
        return
    for row in rows:
        no_definition = "" if row["defined"] else "  (not defined either)"
        print_line(f"{row.get('topic') or row['store']}  {row['directory']}{no_definition}")


def _unclaimed(place: RemoteNode | Node) -> dict[str, list[dict[str, Any]]]:
    if isinstance(place, RemoteNode):
        return dict(place.call("GET", "unclaimed"))
    return {
        "topics": [each.row() for each in place.topics.unclaimed()],
        "stores": [each.row() for each in place.blobs.unclaimed()],
    }


def adopt_topics(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]")] = None,
    every: All = False,  # noqa: FBT002  an option
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Define a topic from its directory; it keeps everything until retention is set."""
    from lithify.topics.names import TopicName

    _check_one(topic, every=every)
    with open_place(data, url) as place:
        found = _unclaimed(place)["topics"] if topic is None else []
        whole = [row["topic"] for row in found if not row["problem"]]
        names = whole if topic is None else [topic]
        adopted = [str(TopicName.parse(name)) for name in names]
        for name in adopted:
            if isinstance(place, RemoteNode):
                place.call("POST", "unclaimed/topics", {"topic": name})
            else:
                place.topics.adopt(name)
    _print_adopted("topics", adopted, as_json=as_json)


def adopt_stores(
    store: Annotated[str | None, typer.Argument(metavar="[STORE]")] = None,
    every: All = False,  # noqa: FBT002  an option
    namespace: Namespace = NAMESPACE,
    settings: Settings = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Define a blob store from its directory."""
    _check_one(store, every=every)
    given = settings_of(settings)
    with open_place(data, url) as place:
        found = _unclaimed(place)["stores"]
        whole = [row["store"] for row in found if not row["problem"]]
        names = whole if store is None else [store]
        for name in names:
            if isinstance(place, RemoteNode):
                body = {"store": name, "namespace": namespace, "settings": given}
                place.call("POST", "unclaimed/stores", body)
            else:
                place.blobs.adopt(name, namespace=namespace, settings=given)
    _print_adopted("stores", names, as_json=as_json)


def _check_one(name: str | None, *, every: bool) -> None:
    if (name is None) is not every:
        raise InvalidInput("name what to adopt, or give --all")


def _print_adopted(kind: str, names: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({kind: names})
        return
    for name in names:
        print_line(f"adopted {name}")
