"""`lithify topics`, the verbs on whole topics: list, create, delete, stats, adopt."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.client import Refused, open_client
from lithify.cli.input import confirm_delete
from lithify.cli.options import (
    NAMESPACE,
    All,
    AsJson,
    Data,
    Missing,
    Topic,
    Unclaimed,
    Url,
    Yes,
)
from lithify.cli.output import human_count, print_json, print_line, print_result, print_table
from lithify.cli.unclaimed import adopted_names, print_adopted, print_missing, print_unclaimed

if TYPE_CHECKING:
    from lithify.topics.definitions.topic_names import TopicName

__all__ = ["adopt", "create", "delete", "list_topics", "stats", "topic_path"]


def topic_path(name: TopicName) -> str:
    """The part of a path that names a topic."""
    from urllib.parse import quote

    return f"persistent/{name.namespace}/{quote(name.local, safe='')}"


def list_topics(
    namespace: Annotated[
        str, typer.Option(metavar="TENANT/NAMESPACE", help="The namespace to list.")
    ] = NAMESPACE,
    unclaimed: Unclaimed = False,
    missing: Missing = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the topics of a namespace; a partitioned topic by its partitions."""
    from lithify.topics.definitions.topic_names import Namespace

    if unclaimed or missing:
        with open_client(data, url) as client:
            show = print_unclaimed if unclaimed else print_missing
            show(client, "topics", as_json=as_json)
        return
    path = f"/admin/v2/persistent/{Namespace.parse(namespace)}"
    with open_client(data, url) as client:
        names = sorted(client.call("GET", path))
    if as_json:
        print_json(names)
    else:
        for name in names:
            print_line(name)


def create(
    topic: Topic,
    partitions: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of partitions; 0: not partitioned.")
    ] = 0,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic; fails if it exists."""
    from lithify.topics.definitions.topic_names import TopicName

    name = TopicName.parse(topic)
    path = f"/admin/v2/{topic_path(name)}"
    with open_client(data, url, create=True) as client:
        if partitions:
            client.call("PUT", f"{path}/partitions", partitions)
        else:
            client.call("PUT", path)
    line = f"created {name}" + (f" with {partitions} partitions" if partitions else "")
    print_result({"topic": str(name), "partitions": partitions}, line, as_json=as_json)


def delete(
    topic: Topic,
    yes: Yes = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with its messages, subscriptions and partitions."""
    from lithify.topics.definitions.topic_names import TopicName

    name = TopicName.parse(topic)
    path = f"/admin/v2/{topic_path(name)}"
    confirm_delete(f"{name} with all its messages and subscriptions", yes=yes)
    with open_client(data, url) as client:
        try:
            partitions = client.call("GET", f"{path}/partitions")["partitions"]
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            # A defined topic may have no files; it can still be deleted.
            partitions = 0
        client.call("DELETE", f"{path}/partitions" if partitions else path)
    print_result({"topic": str(name)}, f"deleted {name}", as_json=as_json)


def stats(topic: Topic, data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """Show sizes, producers and subscriptions; counters start when the topic is opened."""
    from lithify.topics.definitions.topic_names import TopicName

    name = TopicName.parse(topic)
    path = f"/admin/v2/{topic_path(name)}"
    with open_client(data, url) as client:
        partitioned = client.call("GET", f"{path}/partitions")["partitions"]
        found = client.call("GET", f"{path}/{'partitioned-stats' if partitioned else 'stats'}")
    if as_json:
        print_json(found)
    else:
        _print_stats(str(name), found)


def _print_stats(name: str, found: dict[str, Any]) -> None:
    from lithify.compaction.planning.plan import human_bytes

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


def adopt(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]")] = None,
    every: All = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Define a topic from its directory; it keeps all messages until retention is set."""
    from lithify.topics.definitions.topic_names import TopicName

    with open_client(data, url) as client:
        names = [
            str(TopicName.parse(name))
            for name in adopted_names(client, "topics", topic, every=every)
        ]
        for name in names:
            client.call("POST", "/admin/v2/unclaimed/topics", {"topic": name})
    print_adopted("topics", names, as_json=as_json)
