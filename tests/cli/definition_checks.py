"""What is left of a story, compared: catalogs, what listeners were told, directories.

Each function returns problems as text. Clients have ended, and all nodes run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from tests.cli.cluster_members import Member

    Objects = dict[tuple[str, str], dict[str, Any]]
    """By kind and name."""


def catalog_problems(
    nodes: list[Member], catalogs: list[dict[str, Any]], known: Collection[tuple[str, str]]
) -> Iterator[str]:
    """All nodes have one catalog, and that is what all versions add up to."""
    for node, found in zip(nodes, catalogs, strict=True):
        if found != catalogs[0]:
            yield f"{node.name} has another catalog than {nodes[0].name}"
    there = {(row["kind"], row["name"]) for row in catalogs[0]["objects"]}
    for each in sorted(there.symmetric_difference(known)):
        yield f"{each} is in the versions only, or in the catalog only"


def listener_problems(files: dict[str, Path], newest: int) -> Iterator[str]:
    """Each start of a process has told its listener every version once, in order."""
    told: dict[int, list[str]] = {}
    for node, file in files.items():
        at = -1
        for line in file.read_text().splitlines():
            if line == "start":
                at = -1
                continue
            before, after, has_update, *facts = line.split()
            step = int(after) - int(before)
            if at not in (-1, int(before)) or step < 1 or (has_update == "1" and step != 1):
                yield f"{node}: a listener that is at version {at} is told {line}"
            at = int(after)
            if told.setdefault(at, facts) != facts:
                yield f"{node}: a listener is told {line}, another one {told[at]}"
        if at != newest:
            yield f"{node}: the last version that its listener got is {at}, not {newest}"


def disk_problems(directory: Path, nodes: list[Member], objects: Objects) -> Iterator[str]:
    """Every directory is that of what is defined, at its owner; none is unclaimed or missing."""
    for node in nodes:
        for path in ("/admin/v2/unclaimed", "/admin/v2/missing"):
            for rows in node.get(path).values():
                yield from (f"{node.name}{path}: {row}" for row in rows)
    for place in sorted(directory.glob("n?/topics/*/*/*/OBJECT")):
        name, (tenant, namespace, topic) = place.parts[-6], place.parts[-4:-1]
        whole, _, number = topic.partition("-partition-")
        row = objects.get(("topic", f"persistent://{tenant}/{namespace}/{whole}"))
        owners = row["owners"] if row is not None else []
        yield from _owner_problems(place, row, name, owners[int(number or 0) :])
    for place in sorted(directory.glob("n?/blobs/*/OBJECT")):
        row = objects.get(("store", place.parts[-2]))
        yield from _owner_problems(place, row, place.parts[-4], [row["owner"]] if row else [])


def _owner_problems(
    place: Path, row: dict[str, Any] | None, node: str, owners: list[str]
) -> Iterator[str]:
    if row is None or owners[:1] != [node]:
        yield f"{place} is not of {row}"
    elif (named := json.loads(place.read_text().partition(" ")[2]))["id"] != row["id"]:
        yield f"{place} names {named}, not {row}"
