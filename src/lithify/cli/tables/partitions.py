"""`lithify tables partitions`: where the partitions of tables are, and where they are moved."""

from __future__ import annotations

from lithify.cli.client import open_client
from lithify.cli.options import AsJson, Data, Url
from lithify.cli.output import print_json, print_line, print_table

__all__ = ["list_partitions"]


def list_partitions(data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the partitions of all zones with tables and their nodes, as one node knows them."""
    with open_client(data, url) as client:
        found = client.call("GET", "/cluster/partitions")
    if as_json:
        print_json(found)
        return
    rows = [
        [
            each["zone"],
            str(each["partition"]),
            each["state"],
            " ".join(each["nodes"]),
            " ".join(each["pending"]) or "-",
            each["leader"] or "-",
        ]
        for each in found["partitions"]
    ]
    columns = ("zone", "partition>", "state", "nodes", "moves to", "leader")
    print_table("Partitions", columns, rows)
    if found["leaving"]:
        print_line(f"leaving: {' '.join(found['leaving'])}")
