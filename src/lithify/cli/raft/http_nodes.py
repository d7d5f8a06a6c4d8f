"""The requests of `lithify raft` to `lithify serve` nodes, which offer them over HTTP.

    lithify raft compact metastore --nodes http://127.0.0.1:8080,http://127.0.0.1:8081

Used for addresses that begin with http:// or https://, by `options.py`. The answers have the form
of those over the Raft client protocol. A node has no keys and no other groups of this kind, and its
members change by `lithify cluster`: these operations are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.cli.client.interface import Client
    from lithify.raft.net.client_operations import ClientOperation

__all__ = ["ask_http", "is_http"]

RAFT = "/cluster/raft"


def is_http(address: str) -> bool:
    """Is it the address of a node's HTTP port?"""
    return address.startswith(("http://", "https://"))


def ask_http(
    url: str,
    group: str,
    operation: ClientOperation,
    given: Mapping[str, object],
    timeout_s: float,
) -> dict[str, Any]:
    """The answer of a node to an operation."""
    from lithify.cli.client.http_client import NodeClient
    from lithify.raft.net.client_operations import ClientOperation

    client = NodeClient(url)
    of_group = f"{RAFT}/{quote(group, safe='')}"
    answer: dict[str, Any]
    if operation is ClientOperation.OVERVIEW:
        answer = client.call("GET", RAFT, timeout_s=timeout_s)
    elif operation is ClientOperation.MEMBERS:
        answer = client.call("GET", f"{of_group}/members", timeout_s=timeout_s)
    elif operation is ClientOperation.SNAPSHOT:
        answer = client.call("POST", f"{of_group}/snapshot", timeout_s=timeout_s)
    elif operation is ClientOperation.TRANSFER:
        query = urlencode({"to": given["to"]})
        answer = client.call("POST", f"{of_group}/transfer?{query}", timeout_s=timeout_s)
    elif operation is ClientOperation.COMPACT:
        query = urlencode({name: str(value).lower() for name, value in given.items()})
        path = f"{of_group}/compaction?{query}"
        with client.open("PUT", path, timeout_s=timeout_s) as response:
            answer = {"request": response.headers["x-lithify-request"]}
    elif operation is ClientOperation.COMPACTION:
        answer = _compaction(client, of_group, given, timeout_s)
    else:
        what = f"{operation.name.lower()} is not an operation of the HTTP port of {url}"
        raise InvalidInput(f"{what}: its members change by 'lithify cluster join' and 'leave'")
    return answer


def _compaction(
    client: Client, of_group: str, given: Mapping[str, object], timeout_s: float
) -> dict[str, Any]:
    path, asked = f"{of_group}/compaction", given["ask"]
    if asked == "history":
        query = urlencode({"limit": given["limit"]})
        return {"runs": client.call("GET", f"{path}/history?{query}", timeout_s=timeout_s)}
    if asked == "cancel":
        [row] = client.call("GET", f"{path}/progress", timeout_s=timeout_s)
        client.call("DELETE", path, timeout_s=timeout_s)
        return {name: row[name] for name in ("node", "group")}
    if asked == "plan":
        [row] = client.call("POST", f"{path}/plan", timeout_s=timeout_s)
    else:
        request = given.get("request")
        query = f"?request={request}" if request else ""
        [row] = client.call("GET", f"{path}/progress{query}", timeout_s=timeout_s)
    found: dict[str, Any] = row
    return found
