"""Selects the client for the requests of the verbs on topics and blob stores.

    --data DIR                      the HTTP application in this process, on that directory
    --url URL, or LITHIFY_URL       the node at that address
    neither                         the node at http://127.0.0.1:8080

Both clients accept the same requests and return the same responses, so a verb is written once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.cli.client.errors import AnswerLost, NodeNotReached, Refused
from lithify.cli.client.interface import TIMEOUT_S, Answer, Client
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.cli.options import SparkOptions

__all__ = [
    "TIMEOUT_S",
    "Answer",
    "AnswerLost",
    "Client",
    "NodeNotReached",
    "Refused",
    "open_client",
]


@contextmanager
def open_client(
    data: str | None,
    url: str | None,
    *,
    create: bool = False,
    spark: SparkOptions | None = None,
) -> Iterator[Client]:
    """The client for the options; `create` creates a data directory that does not exist.

    A command that may run a compaction passes its `spark` options.
    """
    if data is None:
        if spark is not None and (option := spark.first_given):
            setting = option.replace("--", "compaction_")
            raise InvalidInput(f"{option} is for --data; a node's is its setting {setting}")
        from lithify.cli.client.http_client import NodeClient

        yield NodeClient(url)
        return
    if url is not None:
        raise InvalidInput("--data and --url name two different places: give one of them")
    # Validate the options before the directory is opened.
    target = None if spark is None else spark.target()
    from lithify.cli.client.in_process_client import ProcessClient, open_data

    with open_data(data, create=create) as node, ProcessClient(node, target) as client:
        yield client
