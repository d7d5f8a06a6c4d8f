"""What the routes on tables share: the tables of the process, and parsed parameters.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Request

from lithify.errors import InvalidInput
from lithify.http.cluster.access import ClusterDep
from lithify.http.cluster.catalog import parse_time
from lithify.http.paths import decoded
from lithify.hybrid_time import MAX_TIMESTAMP
from lithify.raft.errors import MemberReadsOnly
from lithify.tables.tables import Tables

__all__ = ["TablePath", "TablesDep", "Utf8Query", "parse_at"]

MS_MAX = 2**47
DIGITS_MAX = 100


async def _tables(cluster: ClusterDep) -> Tables:
    if cluster.tables is None:
        raise MemberReadsOnly(cluster.name, cluster.node.others)
    return cluster.tables


async def _table(table: str) -> str:
    return decoded(table)


TablesDep = Annotated[Tables, Depends(_tables)]
TablePath = Annotated[str, Depends(_table)]


def parse_at(text: str | None) -> int:
    """A time to read at: ISO 8601, milliseconds, or the timestamp of an answer; 0 if none."""
    if text is None:
        return 0
    # The length first: a number of thousands of digits cannot be converted.
    if text.isdecimal() and len(text) <= DIGITS_MAX and int(text) > MS_MAX:
        if int(text) > MAX_TIMESTAMP:
            raise InvalidInput(f"time {text} is no timestamp")
        return int(text)
    return parse_time(text)


async def _utf8(request: Request) -> None:
    """Refuse a query that is not UTF-8: its bytes would be replaced, and name another row."""
    query: bytes = request.scope["query_string"]
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError as error:
        shown = query[:80].decode("latin-1")
        raise InvalidInput(f"the query {shown!r} is not UTF-8") from error


Utf8Query = Depends(_utf8)
