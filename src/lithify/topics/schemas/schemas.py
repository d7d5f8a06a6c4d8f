"""The schemas of one topic: what its producers say their messages are, in versions.

A schema is a type of the protocol and a definition. Every new one becomes the next version, 0, 1,
2, …; one that is the same as an earlier one has that one's version. Partitions share the schemas
of their topic. They are in one file of checked lines (`fs/checked_lines.py`), a line a version:

    {"version":0,"created_ms":…,"type":"JSON","name":"…","definition":"base64","properties":{…}}
    {"version":1,"created_ms":…,"deleted":true}

What is deleted leaves its number behind: what follows begins anew, compared with nothing before.

A new schema must be able to read what was written with the newest one (backward compatibility):
the type must be the same, and a definition that is Avro's (JSON, AVRO, PROTOBUF) must be readable
by the rules in `avro.py`. Other definitions are not looked into.

Two schemas are the same if their types and definitions are, a JSON definition by its values. Values
are compared by a hash of each version, so that the number of versions does not matter.

Parsing and comparing definitions takes milliseconds, so an event loop has it done in a thread. The
outcome is remembered until the next version is added (`decided`): asked again, it costs nothing.

Any thread may call; a change is durable when it returns.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from lithify.errors import CONFLICT, DamagedFile, InvalidInput
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
"""Of one topic, deleted ones included."""

_VERSION_BYTES = 8
_DECISIONS_MAX = 100


class IncompatibleSchema(InvalidInput):
    """The topic has another schema, and the new one could not read its messages."""

    exit_code = CONFLICT


class SchemaType(IntEnum):
    """By the numbers of the protocol."""

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
    """What the messages of a producer are."""

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
        """Equal to that of another one if it would not be a version of its own beside it."""
        definition = self.definition
        if self.type in _AVRO:
            definition = json.dumps(json.loads(definition), sort_keys=True).encode()
        return self.type, _digest(definition)


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A schema with its number; `schema` is None where all before it were deleted."""

    version: int
    created_ms: int
    schema: Schema | None

    def to_json(self) -> str:
        """For the file."""
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
        """Read back."""
        row = json.loads(text)
        schema = None
        if not row.get("deleted"):
            definition = base64.b64decode(row["definition"])
            schema = Schema(SchemaType[row["type"]], definition, row["name"], row["properties"])
        return cls(row["version"], row["created_ms"], schema)


class Schemas:
    """The versions of one topic; see the module."""

    def __init__(self, fs: FileSystem, directory: str, *, clock: Clock) -> None:
        """Open those kept in `directory`, which need not be there before the first is added."""
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/schemas"
        self._clock = clock
        self._versions: list[SchemaVersion] = []
        self._numbers: dict[tuple[SchemaType, bytes], int] = {}
        """The versions in force by identity, of the first `_numbered` versions."""
        self._numbered = 0
        self._decisions: dict[tuple[SchemaType, bytes], SchemaVersion | str | None] = {}
        """By type and definition: the version, None if it may become one, or why it may not."""
        self._lock = threading.RLock()
        if not fs.exists(self._path):
            return
        for offset, text in read_lines(fs, self._path)[0]:
            found = SchemaVersion.from_json(text)
            if found.version != len(self._versions):
                what = f"version is {found.version}, expected {len(self._versions)}"
                raise DamagedFile(self._path, offset, what)
            self._versions.append(found)

    def all(self) -> list[SchemaVersion]:
        """Those in force: what came after the last deletion, oldest first."""
        begin = 0
        for each in self._versions:
            if each.schema is None:
                begin = each.version + 1
        return self._versions[begin:]

    def latest(self) -> SchemaVersion | None:
        """The newest one in force."""
        return next(reversed(self.all()), None)

    def get(self, version: int) -> SchemaVersion | None:
        """One by its number; also one before a deletion, which old messages may name."""
        if not 0 <= version < len(self._versions) or self._versions[version].schema is None:
            return None
        return self._versions[version]

    def find(self, schema: Schema) -> SchemaVersion | None:
        """The one in force that is the same."""
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
        """Raise `IncompatibleSchema` if it could not read what the newest one wrote."""
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
        """The same as `decide` if that is known already, else None; waits for no other thread."""
        decision = self._decisions.get((schema.type, _digest(schema.definition)))
        if isinstance(decision, str):
            raise IncompatibleSchema(decision)
        return decision

    def decide(self, schema: Schema) -> SchemaVersion | None:
        """The version in force that is the same, None if it may be the next one.

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
            found = self.find(schema)
            if found is None:
                self.check(schema)
        except IncompatibleSchema as error:
            return str(error)
        return found

    def register(self, schema: Schema) -> SchemaVersion:
        """The version of a schema, a new one if need be; raises `IncompatibleSchema`."""
        found = self.decide(schema)
        if found is not None:
            return found
        with self._lock:
            # Another thread may have added it meanwhile, or one that it is not compatible with.
            return self.decide(schema) or self._add(schema)

    def delete(self) -> int:
        """Let what follows begin anew; the version that says so."""
        with self._lock:
            return self._add(None).version

    def _add(self, schema: Schema | None) -> SchemaVersion:
        if len(self._versions) >= VERSIONS_MAX:
            raise IncompatibleSchema(f"the topic has {VERSIONS_MAX} versions of schemas, the limit")
        new = SchemaVersion(len(self._versions), self._clock.now_ms(), schema)
        self._fs.mkdir(self._directory)
        append_line(self._fs, self._path, encode_line(new.to_json()))
        self._versions.append(new)
        self._decisions.clear()
        return new


def _digest(definition: bytes) -> bytes:
    return hashlib.blake2b(definition, digest_size=16).digest()


def _check_definition(schema: Schema) -> AvroType | None:
    """A definition that says it is Avro's has to be."""
    if schema.type not in _AVRO:
        return None
    try:
        return parse_avro(schema.definition)
    except InvalidInput as error:
        raise IncompatibleSchema(str(error)) from error


def version_to_bytes(version: int) -> bytes:
    """As it goes over the wire."""
    return version.to_bytes(_VERSION_BYTES, "big")


def version_from_bytes(data: bytes) -> int:
    """Read back; -1, which no schema has, for what cannot be a version."""
    return int.from_bytes(data, "big") if len(data) == _VERSION_BYTES else -1
