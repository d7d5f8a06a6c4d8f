"""`lithify topics`: the topics of a node, or of a data directory that nobody serves.

    lithify topics list [--namespace TENANT/NAMESPACE]
    lithify topics create TOPIC [--partitions N]
    lithify topics delete TOPIC
    lithify topics stats TOPIC
    lithify topics produce TOPIC [VALUE…] [--key K] [--property NAME=VALUE]… --data DIR
    lithify topics tail TOPIC [--limit N | --from LEDGER:ENTRY] --data DIR

All take `--json`, and `--data DIR`; the first four also `--url URL`, see `admin.py`. Produce and
tail work on a data directory only: messages reach a node through its Pulsar port.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import base64
import sys
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.admin import open_admin, open_data
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

    from lithify.topics.message import Message, MessageId
    from lithify.topics.topic import Topic

__all__ = ["app"]

app = typer.Typer(help="Create, look at, fill and delete topics.", no_args_is_help=True)

_PREVIEW_BYTES = 64
_TAIL_MESSAGES = 10

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
DataOnly = Annotated[
    str,
    typer.Option("--data", metavar="DIR", help="The data directory, which no node may serve."),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command("list")
def list_topics(
    namespace: Annotated[
        str, typer.Option(metavar="TENANT/NAMESPACE", help="The namespace to look into.")
    ] = "public/default",
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print the names of all topics of a namespace, each partition by itself."""
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
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Delete a topic with all its messages, subscriptions and partitions."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
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
    data: DataOnly,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]...", help="One message each; none: each line of stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="Key of all the messages.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property of all the messages."),
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Append messages to a topic of a data directory and print their ids; creates the topic.

    For a node that runs use any Pulsar client: this command does not speak its protocol.
    """
    pairs = dict(map(_property, properties or []))
    texts = (value.encode() for value in values) if values else _lines()
    with open_data(data, create=True) as node:
        target = node.topics.get(topic, create=True)
        for text in texts:
            done = target.append(value=text, key=key, properties=pairs)
            if as_json:
                print_json({"id": str(done)}, compact=True)
            else:
                print_line(str(done))


def _property(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise InvalidInput(f"property {text!r} must be NAME=VALUE")
    return name, value


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")


@app.command()
def tail(
    topic: Name,
    data: DataOnly,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The last so many, or the first with --from."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="LEDGER:ENTRY", help="Begin here, and go to the end."),
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print the last messages of a topic of a data directory, by default 10.

    For a node that runs use any Pulsar client: this command does not speak its protocol.
    """
    with open_data(data) as node:
        target = node.topics.get(topic)
        messages: Iterable[Message]
        if start is not None:
            messages = islice(target.read(_message_id(start)), limit)
        else:
            count = _TAIL_MESSAGES if limit is None else limit
            messages = deque(target.read(_id_before_last(target, count)), count)
        for message in messages:
            if as_json:
                print_json(_message_json(message), compact=True)
            else:
                print_line(_message_line(message))


def _message_id(text: str) -> MessageId:
    from lithify.topics.message import MessageId

    parts = text.split(":")
    if len(parts) != 2 or not all(part.isdecimal() and part.isascii() for part in parts):
        raise InvalidInput(f"message id {text!r} must be LEDGER:ENTRY")
    return MessageId(int(parts[0]), int(parts[1]))


def _id_before_last(topic: Topic, count: int) -> MessageId:
    """Where to begin so that at least the last `count` messages are read, if there are as many."""
    from lithify.positions import unpack
    from lithify.topics.message import MessageId

    for segment in reversed(topic.log.manifest.segments):
        last = segment.last_position if segment.sealed else topic.log.last_position
        span = max(0, last - segment.first_position + 1)
        entries = segment.live_entries if segment.sealed else span
        if entries >= count:
            # Where positions are missing, counting back could skip what is wanted.
            first = segment.first_position if entries != span else last - count + 1
            return MessageId(*unpack(first))
        count -= entries
    return MessageId(0, 0)


def _message_line(message: Message) -> str:
    key = "-" if message.key is None else preview(message.key, _PREVIEW_BYTES)
    value = "(none)" if message.value is None else preview(message.value, _PREVIEW_BYTES)
    return f"{message.id!s:<10}  {human_time(message.publish_time_ms)}  {key}  {value}"


def _message_json(message: Message) -> dict[str, Any]:
    return {
        "id": str(message.id),
        "publish_time_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "producer": message.producer,
        "sequence_id": message.sequence_id,
        "properties": dict(message.properties),
        **_text_or_bytes("key", message.key),
        **_text_or_bytes("value", message.value),
    }


def _text_or_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """`name` has text, or nothing; what is no UTF-8 is under `name_base64` instead."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode("ascii")}
