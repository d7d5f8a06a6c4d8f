"""`lithify topics`, the verbs on messages: produce, tail, get."""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.client import Refused, open_client
from lithify.cli.input import line_groups, pair, stdin_pieces
from lithify.cli.options import AsJson, Data, Topic, Url
from lithify.cli.output import human_time, preview, print_json, print_line, print_result
from lithify.cli.topics.manage import topic_path
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from lithify.cli.client import Client

__all__ = ["get", "produce", "tail"]

PREVIEW_BYTES = 64
TAIL_MESSAGES = 10
STDIN_BYTES = 2**16
REQUEST_MESSAGES_MAX = 1000
"""A node takes 10,000 messages per request (`http/messages/produce.py`), of bounded size."""


def produce(
    topic: Topic,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE]...", help="One message each; without any, each line of stdin is one."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="Key of all messages.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="NAME=VALUE", help="Property of all messages; repeatable."
        ),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Append messages to a topic and print their ids; creates the topic if that is allowed."""
    from lithify.topics.definitions.topic_names import TopicName

    name = TopicName.parse(topic)
    common = {
        "key": key,
        "properties": dict(pair("property", text) for text in properties or []),
    }
    groups: Iterable[list[bytes]] = line_groups(stdin_pieces(STDIN_BYTES))
    if values:
        groups = [[value.encode() for value in values]]
    path = f"/topics/{topic_path(name)}"
    with open_client(data, url, create=True) as client:
        for group in _requests(groups):
            rows = [{**common, **_payload(value)} for value in group]
            for message_id in _produced(client, path, rows):
                if as_json:
                    print_json({"id": message_id}, compact=True)
                else:
                    print_line(message_id)
            sys.stdout.flush()


def _requests(groups: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Split groups that have more messages than one request may have."""
    for group in groups:
        for start in range(0, len(group), REQUEST_MESSAGES_MAX):
            yield group[start : start + REQUEST_MESSAGES_MAX]


def _produced(client: Client, path: str, rows: list[dict[str, Any]]) -> list[str]:
    """Append messages and wait until they are durable; returns their ids."""
    results = client.call("POST", path, {"messages": rows})["messagePublishResults"]
    failed = [row["errorMsg"] for row in results if row["errorCode"]]
    if failed:
        reason = f"{len(failed)} of {len(results)} messages: {failed[0]}"
        raise Refused(reason, HTTPStatus.CONFLICT)
    return [":".join(row["messageId"].split(":")[:2]) for row in results]


def _payload(value: bytes) -> dict[str, str | None]:
    from lithify.topics.messages.message_json import bytes_or_text

    [(name, text)] = bytes_or_text("payload", value).items()
    return {"payloadBase64" if name.endswith("base64") else name: text}


def tail(
    topic: Topic,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Number of messages: the last, or with --from the first."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="LEDGER:ENTRY", help="Start at this message id."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print new messages until Ctrl-C; at a node only.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the last messages of a topic, 10 by default."""
    from urllib.parse import urlencode

    from lithify.topics.definitions.topic_names import TopicName

    name = TopicName.parse(topic)
    if follow and data is not None:
        raise InvalidInput("nothing writes to a data directory that no node serves: no --follow")
    query = {"start": start, "limit": limit}
    if start is None:
        query = {"last": TAIL_MESSAGES if limit is None else limit}
    given = {key: value for key, value in query.items() if value is not None}
    path = (
        f"/topics/{topic_path(name)}/messages?{urlencode(given | {'follow': json.dumps(follow)})}"
    )
    with (
        open_client(data, url) as client,
        suppress(KeyboardInterrupt),
        closing(_rows(client, path, follow=follow)) as rows,
    ):
        for row in rows:
            if as_json:
                print_json(row, compact=True)
            else:
                print_line(_message_line(row))
            if follow:
                sys.stdout.flush()


def _rows(client: Client, path: str, *, follow: bool) -> Generator[dict[str, Any]]:
    options: dict[str, Any] = {"timeout_s": None} if follow else {}
    with client.open("GET", path, **options) as answer:
        for group in line_groups(answer.pieces()):
            for line in group:
                row = json.loads(line)
                if "id" not in row:
                    raise Refused(row["error"], HTTPStatus.INTERNAL_SERVER_ERROR)
                yield row


def get(
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY")],
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the newest message of a key, without reading the topic."""
    from urllib.parse import quote

    from lithify.topics.definitions.topic_names import TopicName

    path = f"/topics/{topic_path(TopicName.parse(topic))}/keys/{quote(key, safe='')}"
    with open_client(data, url) as client:
        row = client.call("GET", path)
    print_result(row, _message_line(row), as_json=as_json)


def _message_line(row: dict[str, Any]) -> str:
    """A message for people."""
    from lithify.topics.messages.message_json import bytes_or_text_in

    if "error" in row:
        return f"{row['id']:<10}  ({row['error']})"
    key, value = bytes_or_text_in(row, "key"), bytes_or_text_in(row, "value")
    shown = [
        "-" if key is None else preview(key, PREVIEW_BYTES),
        "(none)" if value is None else preview(value, PREVIEW_BYTES),
    ]
    return f"{row['id']:<10}  {human_time(row['publish_time_ms'])}  {'  '.join(shown)}"
