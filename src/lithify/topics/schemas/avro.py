"""Avro schemas and their compatibility, by the rules of Avro's schema resolution.

A definition is JSON: the name of a type, an object, or a list of branches (a union). Parsed, it is
a graph of `AvroType`. Each use of a named type is the same object, so a record may contain itself.

`unreadable(reader, writer)` returns why a reader with one definition could not read data written
with another one, or None if it could. The rules:

1. A writer's union is readable if all its branches are. For any other type, a branch of a reader's
   union must be able to read it.
2. Primitives: the same type or a promotion: int to long, float or double, long to float or double,
   float to double, string and bytes to each other.
3. Arrays and maps: their items and values must be readable.
4. Fixed: the same name and size. Enum: the same name, and the reader has every symbol of the
   writer, or a default.
5. Record: the same name, and each field of the reader is readable in the writer's record or has a
   default. Fields that only the writer has are ignored.

Names are compared without their namespace; aliases of the reader count. Logical types are ignored:
they define the meaning of bytes, not their encoding.

Pure. For `schemas.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AvroField", "AvroType", "parse_avro", "unreadable"]

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = frozenset(("record", "error", "enum", "fixed"))
_WIDER = frozenset(
    (
        ("int", "long"),
        ("int", "float"),
        ("int", "double"),
        ("long", "float"),
        ("long", "double"),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
    )
)

_STEPS_MAX = 20_000
"""Limit of compared pairs of types, about 20 ms. A record of 1,000 fields takes 1,000."""
_TYPES_MAX = 10_000
"""Limit of types and symbols in one definition."""
_TOKENS_MAX = 50_000
"""Limit of JSON tokens, checked before parsing: the JSON parser takes 4 ms for them."""
_REASON_CHARACTERS_MAX = 1_000


@dataclass(slots=True, eq=False)
class AvroType:
    """One type of a definition; the fields that do not apply to its kind are empty."""

    kind: str
    name: str = ""
    """Without the namespace."""
    aliases: frozenset[str] = frozenset()
    fields: dict[str, AvroField] = field(default_factory=dict)
    symbols: frozenset[str] = frozenset()
    has_default: bool = False
    size: int = 0
    inner: list[AvroType] = field(default_factory=list)
    """The items of an array, the values of a map, the branches of a union."""


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    has_default: bool
    aliases: tuple[str, ...] = ()


def parse_avro(definition: bytes) -> AvroType:
    """Parse a definition; raises `InvalidInput` if it is invalid or too complex."""
    tokens = sum(definition.count(token) for token in (b"[", b"{", b","))
    if tokens > _TOKENS_MAX:
        raise InvalidInput(
            f"schema definition has {tokens} brackets, braces and commas, "
            f"the limit is {_TOKENS_MAX}"
        )
    try:
        return _Parser().parse(json.loads(definition), "")
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"schema definition is not JSON: {error}") from error


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._count = 0

    def _add(self, count: int) -> None:
        self._count += count
        if self._count > _TYPES_MAX:
            raise InvalidInput(f"schema definition has more than {_TYPES_MAX} types and symbols")

    def parse(self, value: Any, namespace: str) -> AvroType:
        self._add(1)
        if isinstance(value, list):
            return AvroType("union", inner=[self.parse(each, namespace) for each in value])
        if isinstance(value, str):
            return self._reference(value, namespace)
        if not isinstance(value, dict):
            raise InvalidInput(f"schema definition has {value!r} in place of a type")
        kind = value.get("type")
        if kind == "array":
            return AvroType("array", inner=[self.parse(value.get("items"), namespace)])
        if kind == "map":
            return AvroType("map", inner=[self.parse(value.get("values"), namespace)])
        if isinstance(kind, str) and kind in _NAMED:
            return self._define(value, kind, namespace)
        return self.parse(kind, namespace)

    def _reference(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name)
        avro_type = self._named.get(_full(name, namespace)) or self._named.get(name)
        if avro_type is None:
            raise InvalidInput(f"schema definition uses type {name!r}, which it does not define")
        return avro_type

    def _define(self, value: dict[str, Any], kind: str, namespace: str) -> AvroType:
        name = value.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"schema definition has a type {kind} without a name")
        full = _full(name, value.get("namespace", namespace) or "")
        if full in self._named:
            raise InvalidInput(f"schema definition defines {full} twice")
        aliases = frozenset(_short(alias) for alias in _texts(value, "aliases"))
        avro_type = AvroType("record" if kind == "error" else kind, _short(name), aliases)
        # Registered before its fields are parsed: they may refer to this type.
        self._named[full] = avro_type
        if kind == "enum":
            symbols = _texts(value, "symbols")
            self._add(len(symbols))
            avro_type.symbols = frozenset(symbols)
            avro_type.has_default = "default" in value
        elif kind == "fixed":
            if not isinstance(value.get("size"), int):
                raise InvalidInput(f"schema definition has a fixed type {full} without a size")
            avro_type.size = value["size"]
        else:
            fields = value.get("fields")
            if not isinstance(fields, list):
                raise InvalidInput(f"schema definition has a record {full} without fields")
            for each in fields:
                self._add_field(avro_type, each, full.rpartition(".")[0])
        return avro_type

    def _add_field(self, record: AvroType, value: Any, namespace: str) -> None:
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or "type" not in value:
            raise InvalidInput(f"record {record.name} has a field without a name or a type")
        if name in record.fields:
            raise InvalidInput(f"record {record.name} has two fields {name}")
        record.fields[name] = AvroField(
            name,
            self.parse(value["type"], namespace),
            "default" in value,
            tuple(_texts(value, "aliases")),
        )


def _texts(value: dict[str, Any], key: str) -> list[str]:
    names = value.get(key) or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise InvalidInput(f"schema definition has {key} that are not a list of names")
    return names


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def unreadable(reader: AvroType, writer: AvroType) -> str | None:
    """Why `reader` cannot read data written with `writer`; None if it can."""
    try:
        reason = _Comparison().why(reader, writer)
    except RecursionError:
        return "the definition is nested too deeply"
    except _TooLong:
        return f"comparing the definitions takes more than {_STEPS_MAX} steps"
    return None if reason is None else reason[:_REASON_CHARACTERS_MAX]


class _TooLong(Exception):
    """The comparison exceeds its limit of steps."""


class _Comparison:
    """Compares pairs of types, each once. Types may be recursive."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[int, int], str | None] = {}
        self._readable: list[tuple[int, int]] = []
        """The readable pairs, in the order in which their comparison started."""
        self._steps = 0

    def why(self, reader: AvroType, writer: AvroType) -> str | None:
        pair = id(reader), id(writer)
        if pair in self._reasons:
            # A pair whose comparison is in progress is readable if everything else is.
            return self._reasons[pair]
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise _TooLong
        readable_before = len(self._readable)
        self._reasons[pair] = None
        self._readable.append(pair)
        reason = self._compare(reader, writer)
        if reason is not None:
            # Pairs avro_type readable since then may depend on this one.
            for each in self._readable[readable_before:]:
                del self._reasons[each]
            del self._readable[readable_before:]
            self._reasons[pair] = reason
        return reason

    def _compare(self, reader: AvroType, writer: AvroType) -> str | None:
        if writer.kind == "union":
            return _first(self.why(reader, branch) for branch in writer.inner)
        if reader.kind == "union":
            readable = any(self.why(branch, writer) is None for branch in reader.inner)
            return None if readable else f"no branch of the union can read {_text(writer)}"
        if reader.kind != writer.kind:
            wider = (writer.kind, reader.kind) in _WIDER
            return None if wider else f"{_text(writer)} cannot be read as {_text(reader)}"
        if reader.name != writer.name and writer.name not in reader.aliases:
            return f"{_text(writer)} cannot be read as {_text(reader)}: the names differ"
        return self._compare_inside(reader, writer)

    def _compare_inside(self, reader: AvroType, writer: AvroType) -> str | None:
        """Compare types of the same kind and name."""
        if reader.kind in {"array", "map"}:
            return self.why(reader.inner[0], writer.inner[0])
        if reader.kind == "fixed" and reader.size != writer.size:
            return f"{_text(writer)} has {writer.size} bytes, the reader expects {reader.size}"
        if reader.kind == "enum" and not reader.has_default:
            missing = sorted(writer.symbols - reader.symbols)
            return f"{_text(reader)} has no symbol {missing[0]}" if missing else None
        return _first(self._field(each, reader, writer) for each in reader.fields.values())

    def _field(self, wanted: AvroField, reader: AvroType, writer: AvroType) -> str | None:
        for name in (wanted.name, *wanted.aliases):
            if name in writer.fields:
                reason = self.why(wanted.type, writer.fields[name].type)
                return None if reason is None else f"field {wanted.name} of {reader.name}: {reason}"
        if wanted.has_default:
            return None
        return f"field {wanted.name} of {reader.name} is new and has no default"


def _first(reasons: Iterator[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _text(of: AvroType) -> str:
    return f"{of.kind} {of.name}".rstrip()
