"""The schemas of one topic: versions and compatibility.

A schema is a type of the protocol and a definition. Each new schema becomes the next version, 0, 1,
2, …; a schema equal to an earlier one has that version. Partitions share the schemas of their
topic. One file of checked lines (`fs/checked_lines.py`) has one line per version:

    {"version":0,"created_ms":…,"type":"JSON","name":"…","definition":"base64","properties":{…}}
    {"version":1,"created_ms":…,"deleted":true}

A deletion uses a version number. Schemas after it are not compared with those before it.

A new schema must be able to read data written with the newest one (backward compatibility): the
type must be the same, and an Avro definition (JSON, AVRO, PROTOBUF) must be readable by the rules
in `avro.py`. Other definitions are not parsed.

Two schemas are equal if their types and definitions are. JSON definitions are compared by value. A
hash of each version makes the lookup independent of the number of versions.

Parsing and comparing definitions takes milliseconds, so an event loop must do it in a thread. The
outcome is cached until the next version is added (`decided`).

Any thread may call; a change is durable when the call returns.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from lithify.errors import DamagedFile, InvalidInput
from lithify.exit_codes import CONFLICT
from lithify.fs.checked_lines import append_line, encode_line, read_lines
from lithify.topics.schemas.avro import AvroType, parse_avro, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.clock import Clock
    from lithify.fs import FileSystem

__all__ = [
    "SCHEMA_BYTES_MAX",
    "VERSIONS_MAX",
    "IncompatibleSchema",
    "Schema",
    "SchemaType",
    "SchemaVersion",
    "Schemas",
    "version_from_bytes",
    "version_to_bytes",
]

SCHEMA_BYTES_MAX = 256 * 2**10
VERSIONS_MAX = 1000
"""Limit per topic, including deleted versions."""

_VERSION_BYTES = 8
_DECISIONS_MAX = 100


class IncompatibleSchema(InvalidInput):
    """The new schema cannot read messages of the topic's newest schema."""

    exit_code = CONFLICT


class SchemaType(IntEnum):
    """Schema types with their protocol numbers."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


_AVRO = frozenset((SchemaType.JSON, SchemaType.AVRO, SchemaType.PROTOBUF))


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a producer's messages."""

    type: SchemaType
    definition: bytes = b""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.definition) > SCHEMA_BYTES_MAX:
            raise InvalidInput(
                f"schema definition of {len(self.definition)} bytes is larger than the limit "
                f"{SCHEMA_BYTES_MAX}"
            )

    def identity(self) -> tuple[SchemaType, bytes]:
        """The identity of a schema: equal schemas share a version."""
        definition = self.definition
        if self.type in _AVRO:
            definition = json.dumps(json.loads(definition), sort_keys=True).encode()
        return self.type, _digest(definition)


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version; `schema` is None if it is a deletion of all earlier versions."""

    version: int
    created_ms: int
    schema: Schema | None

    def to_json(self) -> str:
        """Encode as a line of the file."""
        row: dict[str, object] = {"version": self.version, "created_ms": self.created_ms}
        if self.schema is None:
            row["deleted"] = True
        else:
            row["type"] = self.schema.type.name
            row["name"] = self.schema.name
            row["definition"] = base64.b64encode(self.schema.definition).decode()
            row["properties"] = dict(self.schema.properties)
        return json.dumps(row, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: bytes) -> SchemaVersion:
        """Decode a line of the file."""
        row = json.loads(text)
        schema = None
        if not row.get("deleted"):
            definition = base64.b64decode(row["definition"])
            schema = Schema(SchemaType[row["type"]], definition, row["name"], row["properties"])
        return cls(row["version"], row["created_ms"], schema)


class Schemas:
    """The schema versions of one topic; see the module."""

    def __init__(self, fs: FileSystem, directory: str, *, clock: Clock) -> None:
        """Open the schemas in `directory`; the first new version creates it."""
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/schemas"
        self._clock = clock
        self._versions: list[SchemaVersion] = []
        self._numbers: dict[tuple[SchemaType, bytes], int] = {}
        """The active versions by identity, among the first `_numbered` versions."""
        self._numbered = 0
        self._decisions: dict[tuple[SchemaType, bytes], SchemaVersion | str | None] = {}
        """By type and definition: the version, None if it is compatible, or why it is not."""
        self._lock = threading.RLock()
        if not fs.exists(self._path):
            return
        for offset, text in read_lines(fs, self._path)[0]:
            version = SchemaVersion.from_json(text)
            if version.version != len(self._versions):
                what = f"version is {version.version}, expected {len(self._versions)}"
                raise DamagedFile(self._path, offset, what)
            self._versions.append(version)

    def all(self) -> list[SchemaVersion]:
        """The active versions: all after the last deletion, oldest first."""
        begin = 0
        for each in self._versions:
            if each.schema is None:
                begin = each.version + 1
        return self._versions[begin:]

    def latest(self) -> SchemaVersion | None:
        """The newest active version."""
        return next(reversed(self.all()), None)

    def get(self, version: int) -> SchemaVersion | None:
        """A version by its number; also one before a deletion, which old messages may refer to."""
        if not 0 <= version < len(self._versions) or self._versions[version].schema is None:
            return None
        return self._versions[version]

    def find(self, schema: Schema) -> SchemaVersion | None:
        """The active version that equals the schema."""
        _check_definition(schema)
        with self._lock:
            for each in self._versions[self._numbered :]:
                if each.schema is None:
                    self._numbers.clear()
                else:
                    self._numbers.setdefault(each.schema.identity(), each.version)
            self._numbered = len(self._versions)
            number = self._numbers.get(schema.identity())
            return None if number is None else self._versions[number]

    def check(self, schema: Schema) -> None:
        """Raise `IncompatibleSchema` if it cannot read data of the newest version."""
        reader = _check_definition(schema)
        latest = self.latest()
        if latest is None or latest.schema is None:
            return
        old = latest.schema
        reason: str | None = None
        if schema.type is not old.type:
            reason = f"it is {schema.type.name}, the topic's is {old.type.name}"
        elif reader is not None and schema.definition != old.definition:
            reason = unreadable(reader, parse_avro(old.definition))
        if reason is not None:
            raise IncompatibleSchema(
                f"schema is not compatible with version {latest.version}: {reason}"
            )

    def decided(self, schema: Schema) -> SchemaVersion | None:
        """The cached outcome of `decide`, None without one; never blocks."""
        decision = self._decisions.get((schema.type, _digest(schema.definition)))
        if isinstance(decision, str):
            raise IncompatibleSchema(decision)
        return decision

    def decide(self, schema: Schema) -> SchemaVersion | None:
        """The active version that equals the schema, None if it may become the next version.

        Raises `IncompatibleSchema` if it may not.
        """
        key = schema.type, _digest(schema.definition)
        with self._lock:
            if key not in self._decisions:
                if len(self._decisions) >= _DECISIONS_MAX:
                    self._decisions.clear()
                self._decisions[key] = self._decision(schema)
            decision = self._decisions[key]
        if isinstance(decision, str):
            raise IncompatibleSchema(decision)
        return decision

    def _decision(self, schema: Schema) -> SchemaVersion | str | None:
        try:
            existing = self.find(schema)
            if existing is None:
                self.check(schema)
        except IncompatibleSchema as error:
            return str(error)
        return existing

    def register(self, schema: Schema) -> SchemaVersion:
        """The version of a schema; adds a new one if needed. Raises `IncompatibleSchema`."""
        existing = self.decide(schema)
        if existing is not None:
            return existing
        with self._lock:
            # Another thread may have added this schema, or an incompatible one, in the meantime.
            return self.decide(schema) or self._add(schema)

    def delete(self) -> int:
        """Delete all versions; returns the version number of the deletion."""
        with self._lock:
            return self._add(None).version

    def _add(self, schema: Schema | None) -> SchemaVersion:
        if len(self._versions) >= VERSIONS_MAX:
            raise IncompatibleSchema(
                f"schema refused: the limit is {VERSIONS_MAX} versions per topic"
            )
        new = SchemaVersion(len(self._versions), self._clock.now_ms(), schema)
        self._fs.mkdir(self._directory)
        append_line(self._fs, self._path, encode_line(new.to_json()))
        self._versions.append(new)
        self._decisions.clear()
        return new


def _digest(definition: bytes) -> bytes:
    return hashlib.blake2b(definition, digest_size=16).digest()


def _check_definition(schema: Schema) -> AvroType | None:
    """Parse the definition if its type is Avro's; raises `IncompatibleSchema` if invalid."""
    if schema.type not in _AVRO:
        return None
    try:
        return parse_avro(schema.definition)
    except InvalidInput as error:
        raise IncompatibleSchema(str(error)) from error


def version_to_bytes(version: int) -> bytes:
    """Encode for the wire."""
    return version.to_bytes(_VERSION_BYTES, "big")


def version_from_bytes(data: bytes) -> int:
    """Decode from the wire; -1, which no schema has, for other lengths."""
    return int.from_bytes(data, "big") if len(data) == _VERSION_BYTES else -1
