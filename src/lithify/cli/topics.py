"""`lithify topics`: the topics of a node, or of a data directory that nobody serves.

    lithify topics list [--namespace TENANT/NAMESPACE | --unclaimed | --missing]
    lithify topics create TOPIC [--partitions N]
    lithify topics delete TOPIC [--yes]
    lithify topics stats TOPIC
    lithify topics produce TOPIC [VALUE…] [--key K] [--property NAME=VALUE]…
    lithify topics tail TOPIC [--limit N] [--from LEDGER:ENTRY] [--follow]

All take `--json`, and `--data DIR` or `--url URL`, see `admin.py`. The verbs of compaction are in
`topic_compaction.py`.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from lithify.cli.admin import NewMessage, Wanted, open_admin
from lithify.cli.output import (
    human_count,
    human_time,
    preview,
    print_json,
    print_line,
    print_table,
)
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "AsJson",
    "Data",
    "Name",
    "Unclaimed",
    "Url",
    "Yes",
    "app",
    "confirm_delete",
    "message_line",
    "pair",
]

app = typer.Typer(help="Create, look at, fill and delete topics.", no_args_is_help=True)

_PREVIEW_BYTES = 64
_TAIL_MESSAGES = 10
_STDIN_BYTES = 2**16
_REQUEST_MESSAGES_MAX = 1000
"""A node takes 10,000 messages per request (`http/produce.py`), of bounded size."""

Name = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="persistent://TENANT/NAMESPACE/NAME, or NAME in public/default."
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="Work on a data directory that no node serves."),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The node's HTTP address; else LITHIFY_URL, else http://127.0.0.1:8080.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Unclaimed = Annotated[
    bool,
    typer.Option("--unclaimed", help="Instead: directories that no definition explains, of all."),
]
Missing = Annotated[
    bool,
    typer.Option("--missing", help="Instead: those whose files were there and are gone, of all."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also on a terminal.")]


def confirm_delete(what: str, *, yes: bool) -> None:
    """Ask on a terminal before data is deleted; a program that runs the command is not asked."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {what}? This cannot be undone.", abort=True, err=True)


@app.command("list")
def list_topics(
    namespace: Annotated[
        str, typer.Option(metavar="TENANT/NAMESPACE", help="The namespace to look into.")
    ] = "public/default",
    unclaimed: Unclaimed = False,  # noqa: FBT002  an option
    missing: Missing = False,  # noqa: FBT002  an option
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print the names of all topics of a namespace, each partition by itself."""
    if unclaimed or missing:
        from lithify.cli.unclaimed import print_missing, print_unclaimed

        show = print_unclaimed if unclaimed else print_missing
        show("topics", data, url, as_json=as_json)
        return
    from lithify.topics.names import Namespace

    with open_admin(data, url) as admin:
        names = sorted(admin.list(Namespace.parse(namespace)))
    if as_json:
        print_json(names)
    else:
        for name in names:
            print_line(name)


@app.command()
def create(
    topic: Name,
    partitions: Annotated[
        int, typer.Option(metavar="N", min=0, help="0: one that is not partitioned.")
    ] = 0,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Create a topic, which must not exist."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_admin(data, url, create=True) as admin:
        admin.create(name, partitions)
    if as_json:
        print_json({"topic": str(name), "partitions": partitions})
    else:
        print_line(f"created {name}" + (f" with {partitions} partitions" if partitions else ""))


@app.command()
def delete(
    topic: Name,
    yes: Yes = False,  # noqa: FBT002  an option
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Delete a topic with all its messages, subscriptions and partitions."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    confirm_delete(f"{name} with all its messages and subscriptions", yes=yes)
    with open_admin(data, url) as admin:
        admin.delete(name)
    if as_json:
        print_json({"topic": str(name)})
    else:
        print_line(f"deleted {name}")


@app.command()
def stats(
    topic: Name,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show sizes, producers and subscriptions; counters begin when the node opens the topic."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_admin(data, url) as admin:
        found = admin.stats(name)
    if as_json:
        print_json(found)
    else:
        _print_stats(str(name), found)


def _print_stats(name: str, found: dict[str, Any]) -> None:
    from lithify.compaction.plan import human_bytes

    print_line(name)
    print_line(f"  storage    {human_bytes(found['storageSize'])}")
    for what, messages, size_bytes in (
        ("in", found["msgInCounter"], found["bytesInCounter"]),
        ("out", found["msgOutCounter"], found["bytesOutCounter"]),
    ):
        print_line(f"  {what:<9}  {human_count(messages)} messages, {human_bytes(size_bytes)}")
    print_line(f"  producers  {human_count(len(found['publishers']))}")
    rows = [
        [
            each,
            row["type"],
            human_count(row["msgBacklog"]),
            human_count(row["unackedMessages"]),
            human_count(len(row["consumers"])),
        ]
        for each, row in sorted(found["subscriptions"].items())
    ]
    if rows:
        print_line()
        columns = ("name", "type", "backlog>", "unacked>", "consumers>")
        print_table("Subscriptions", columns, rows)


@app.command()
def produce(
    topic: Name,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]...", help="One message each; none: each line of stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="Key of all the messages.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property of all the messages."),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Append messages to a topic and print their ids; creates the topic if that is allowed."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    pairs = dict(pair("property", text) for text in properties or [])
    parts = [[value.encode() for value in values]] if values else _lines()
    with open_admin(data, url, create=True) as admin:
        for part in _requests(parts):
            for done in admin.produce(name, [NewMessage(text, key, pairs) for text in part]):
                if as_json:
                    print_json({"id": done}, compact=True)
                else:
                    print_line(done)
            sys.stdout.flush()


def _requests(parts: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Split parts that have more messages than one request may have."""
    for part in parts:
        for start in range(0, len(part), _REQUEST_MESSAGES_MAX):
            yield part[start : start + _REQUEST_MESSAGES_MAX]


def pair(what: str, text: str) -> tuple[str, str]:
    """What an option `NAME=VALUE` says."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise InvalidInput(f"{what} {text!r} must be NAME=VALUE")
    return name, value


class _Stdin(Protocol):
    """What its declared type does not have: to be read without waiting for more than there is."""

    def read1(self, size: int, /) -> bytes:
        """Up to so many bytes, none at the end."""


def _lines() -> Iterator[list[bytes]]:
    """The lines of stdin, those together that are there together."""
    begun: list[bytes] = []
    stdin = cast("_Stdin", sys.stdin.buffer)
    while read := stdin.read1(_STDIN_BYTES):
        first, *rest = read.split(b"\n")
        begun.append(first)
        if rest:
            yield [b"".join(begun), *rest[:-1]]
            begun = [rest[-1]]
    if any(begun):
        yield [b"".join(begun)]


@app.command()
def tail(
    topic: Name,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The last so many, or the first with --from."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="LEDGER:ENTRY", help="Begin here, and go to the end."),
    ] = None,
    follow: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--follow", help="Go on with what comes later, until Ctrl-C.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print the last messages of a topic, by default 10."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    if start is None:
        wanted = Wanted(last=_TAIL_MESSAGES if limit is None else limit, follow=follow)
    else:
        wanted = Wanted(start=start, limit=limit, follow=follow)
    with open_admin(data, url) as admin, suppress(KeyboardInterrupt):
        for row in admin.read(name, wanted):
            if as_json:
                print_json(row, compact=True)
            else:
                print_line(message_line(row))
            if follow:
                sys.stdout.flush()


def message_line(row: dict[str, Any]) -> str:
    """A message for people."""
    from lithify.topics.tail import bytes_or_text_in

    if "error" in row:
        return f"{row['id']:<10}  ({row['error']})"
    key, value = bytes_or_text_in(row, "key"), bytes_or_text_in(row, "value")
    shown = [
        "-" if key is None else preview(key, _PREVIEW_BYTES),
        "(none)" if value is None else preview(value, _PREVIEW_BYTES),
    ]
    return f"{row['id']:<10}  {human_time(row['publish_time_ms'])}  {'  '.join(shown)}"
