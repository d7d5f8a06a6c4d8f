"""Definitions that are wanted, as TOML, and the commands that lead from a catalog to them. Pure.

    [zones.default]                        partitions, replicas, default
    [tenants.acme]                         settings, unset
    [namespaces."acme/orders"]             settings, unset
    [topics."acme/orders/incoming"]        partitions, zone, settings, unset
    [stores.pictures]                      namespace, capacity_bytes, segment_bytes, zone, settings,
                                           unset
    [tables.people]                        columns, key, partition_key, zone
    [tables.people.indexes.by_name]        columns, unique

`columns` of a table is a list of tables with name, type, nullable, default. Every entry, also a
column or an index, may be `absent = true` and nothing else but its name: it is dropped.

What the text does not name stays: objects, fields, settings, columns. So the same text applied
again changes nothing. A field that is fixed must be as it is. `unset` lists settings to remove.

Entries are applied in the order above, then the absent ones in the reverse order. Errors are
`InvalidDefinitionsText`: they have the entry, and the line of its header.

`ApplyDefinitions` is one command, planned against the catalog it changes, so that it is right also
if another change came first.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lithify.catalog.commands.batch import NewIds
from lithify.catalog.errors import InvalidDefinitionsText
from lithify.catalog.toml_entries import apply_entry, drop_entry
from lithify.errors import InvalidInput
from lithify.exit_codes import USAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import CatalogCommand

__all__ = ["ApplyDefinitions", "definition_commands"]

TEXT_CHARACTERS_MAX = 8 * 2**20
KEY_PARTS_MAX = 32
"""TOML's parser needs time and memory for the square of them: 100,000 take all memory."""
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{KEY_PARTS_MAX}}}")

SECTIONS = ("zones", "tenants", "namespaces", "topics", "stores", "tables")


def accept(command: CatalogCommand, catalog: Catalog) -> None:
    """Check nothing more of a command."""


@dataclass(frozen=True, slots=True)
class ApplyDefinitions:
    """Change the catalog to what a text defines."""

    text: str
    nodes: tuple[str, ...] = ()
    """The live nodes, which own what is created."""
    created_ms: int = 0
    check: Callable[[CatalogCommand, Catalog], None] = field(default=accept)
    """Gets a command and the catalog that it is planned on.

    It raises `InvalidInput` for settings that their package refuses.
    """

    def changes(self, catalog: Catalog, ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `commands/batch.py`."""
        plan = _Plan(self, catalog, ids)
        plan.run()
        return tuple(plan.changes)


def definition_commands(wanted: ApplyDefinitions, catalog: Catalog) -> tuple[CatalogCommand, ...]:
    """The commands that change a catalog to what a text defines; none if it is that."""
    plan = _Plan(wanted, catalog, NewIds(catalog.next_id))
    plan.run()
    return tuple(plan.commands)


class _Plan:
    """Executes the commands of a text on a catalog of its own."""

    def __init__(self, wanted: ApplyDefinitions, catalog: Catalog, ids: NewIds) -> None:
        self.catalog = catalog
        self.nodes = wanted.nodes
        self.created_ms = wanted.created_ms
        self.commands: list[CatalogCommand] = []
        self.changes: list[CatalogChange] = []
        self._wanted = wanted
        self._ids = ids

    def run(self) -> None:
        text = self._wanted.text
        entries = list(_entries(text))
        for section, name, entry in entries:
            if entry.get("absent") is not True:
                self._run_entry(apply_entry, section, name, entry)
        for section, name, entry in reversed(entries):
            self._run_entry(drop_entry, section, name, entry)

    def _run_entry(
        self, step: Callable[..., None], section: str, name: str, entry: dict[str, Any]
    ) -> None:
        try:
            step(self, section, name, entry)
        except InvalidInput as error:
            place, line = _place(self._wanted.text, (section, name))
            raise InvalidDefinitionsText(place, line, str(error), error.exit_code) from error

    def do(self, command: CatalogCommand) -> None:
        """Execute a command; one without effect is left out."""
        self._wanted.check(command, self.catalog)
        found = command.changes(self.catalog, self._ids)
        if found:
            self.commands.append(command)
            self.changes += found
            self.catalog = self.catalog.with_changes(found)


def _entries(text: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Section, name and fields of all entries, in the order in which they are applied."""
    if len(text) > TEXT_CHARACTERS_MAX:
        cause = f"has {len(text)} characters, more than the limit {TEXT_CHARACTERS_MAX}"
        raise InvalidDefinitionsText("the text", 0, cause, USAGE)
    # Without escapes, so that every quote begins or ends a part.
    plain = text.replace("\\\\", "").replace('\\"', "")
    long_key = _LONG_KEY.search(plain)
    if long_key is not None:
        cause = f"has a key of more than {KEY_PARTS_MAX} parts"
        line = plain.count("\n", 0, long_key.start()) + 1
        raise InvalidDefinitionsText("the text", line, cause, USAGE)
    try:
        sections = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else 0
        raise InvalidDefinitionsText("the text", line, f"is not TOML: {error}", USAGE) from error
    except ValueError as error:
        # An integer of thousands of digits.
        raise InvalidDefinitionsText(
            "the text", 0, f"has an invalid value: {error}", USAGE
        ) from error
    except RecursionError as error:
        cause = "is nested too deeply"
        raise InvalidDefinitionsText("the text", 0, cause, USAGE) from error
    _check_integers(sections)
    for section, entries in sections.items():
        if section not in SECTIONS or not isinstance(entries, dict):
            place, line = _place(text, (section,))
            cause = f"unknown; the sections are {', '.join(SECTIONS)}, each with entries by name"
            raise InvalidDefinitionsText(place, line, cause, USAGE)
    for section in SECTIONS:
        for name, entry in sections.get(section, {}).items():
            if not isinstance(entry, dict):
                place, line = _place(text, (section, name))
                cause = "must be a table of fields"
                raise InvalidDefinitionsText(place, line, cause, USAGE)
            yield section, name, entry


def _check_integers(sections: dict[str, Any]) -> None:
    """Raise unless all are of TOML's range; others may be too long for the text of an error."""
    left: list[Any] = [sections]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            cause = f"has an integer of {value.bit_length()} bits, more than 64 with its sign"
            raise InvalidDefinitionsText("the text", 0, cause, USAGE)


def _place(text: str, path: tuple[str, ...]) -> tuple[str, int]:
    """The path as TOML has it, and the line of its header or that of the table it is in; or 0.

    TOML's parser does not say where it found a key, so the headers are parsed one by one.
    """
    place = ".".join(
        each if re.fullmatch(r"[\w-]+", each, re.ASCII) else f'"{each}"' for each in path
    )
    headers = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.lstrip().startswith("[")
    ]
    for depth in range(len(path), 0, -1):
        for number, line in headers:
            if _is_at(line, path[:depth]):
                return place, number
    return place, 0


def _is_at(header: str, path: tuple[str, ...]) -> bool:
    """Is the header that of the path, or of something in it?"""
    try:
        found: Any = tomllib.loads(header)
    except (tomllib.TOMLDecodeError, RecursionError):
        return False
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found is not None
