"""`lithify cluster`, the verbs on nodes: status, join, leave."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lithify.cli.client import open_client
from lithify.cli.options import AsJson, Data, Url
from lithify.cli.output import (
    print_error_line,
    print_json,
    print_line,
    print_result,
    print_table,
)

__all__ = ["join", "leave", "status"]

JOIN_S = 60.0
"""A node that joins first receives the log."""

NodeName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the node.")]


def status(data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """Show the nodes, the leader, the metastore and the catalog, as one node knows them."""
    with open_client(data, url) as client:
        found = client.call("GET", "/cluster")
    if as_json:
        print_json(found)
        return
    leader = f"leader {found['leader'] or 'unknown'}, term {found['term']}"
    print_line(f"cluster {found['cluster']}, asked {found['node']}; {leader}")
    _print_numbers(found)
    for problem in found["problems"]:
        print_line(f"  problem: {problem}")
    rows = [
        [
            each["name"],
            each["role"] + (", leads" if each["leads"] else ""),
            "alive" if each["alive"] else "silent",
            *(each[name] or "-" for name in ("cluster", "pulsar", "http", "version")),
        ]
        for each in found["nodes"]
    ]
    for row, each in zip(rows, found["nodes"], strict=True):
        row[4] = each["pulsar"] or each["pulsar_tls"] or "-"
    columns = ("node", "role", "state", "cluster", "pulsar", "http", "version")
    print_table("Nodes", columns, rows)


def _print_numbers(found: dict[str, Any]) -> None:
    from lithify.hybrid_time import describe

    store, catalog = found["metastore"], found["catalog"]
    if store is not None:
        numbers = f"revision {store['revision']}, floor {store['floor']}"
        print_line(f"  metastore  {numbers}, time {describe(store['time'])}")
    in_force = f"version {catalog['current']}"
    if catalog["version"] != catalog["current"]:
        in_force += f"; version {catalog['version']} from {describe(catalog['activation'])}"
    print_line(f"  catalog    {in_force}, earliest {catalog['earliest']}")


def join(
    name: NodeName,
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Its cluster port; it runs with --join.")
    ],
    learner: Annotated[bool, typer.Option("--learner", help="Add it without a vote.")] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Add a node to the cluster; a learner becomes a voter, and a voter a learner.

    The node is a learner until it has the log. Nothing changes if it does not answer at its
    address, has another name, or has the data of another cluster.
    """
    row = {"name": name, "address": address, "voter": not learner}
    with open_client(data, url) as client:
        client.call("POST", "/cluster/join", row, timeout_s=JOIN_S)
    role = "learner" if learner else "voter"
    print_result(row, f"{name} is a {role} of the cluster", as_json=as_json)


def leave(name: NodeName, data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """Remove a node from the cluster; refused if too few of the remaining voters answer.

    Its partitions of tables are moved to other nodes first; the command waits for that, and can be
    repeated. The topics and blob stores that it owns stay in its data directory. A node that has
    lost its disk must leave, and join again with an empty directory.
    """
    waits: list[str] = []
    with open_client(data, url) as client:
        while True:
            found = client.call("POST", "/cluster/leave", {"name": name}, timeout_s=JOIN_S)
            if not found:
                break
            for line in found["waits"]:
                if line not in waits:
                    print_error_line(f"{name} waits: {line}")
            waits = found["waits"]
    print_result({"name": name}, f"{name} has left the cluster", as_json=as_json)
