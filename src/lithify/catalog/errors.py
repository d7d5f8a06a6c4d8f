"""Errors of the catalog. Each names the object and the rule; nothing was changed.

InvalidInput
├── ObjectNotFound              no object has the name or id
├── ObjectExists                the name is in use
├── ObjectInUse                 others depend on it as it is
├── InvalidDefinition           a rule forbids the definition itself, or this change of it
├── UpdateTooLarge              the bytes of one update exceed the limit: split the batch
├── WrongIndexStatus            a status that does not follow the present one
├── InvalidDefinitionsText      a TOML text; has the place in it, and the error as its cause
├── CatalogVersionNotFound      a version, or the version at a time, that does not exist yet
└── CatalogVersionTrimmed       a version that was dropped; names the earliest one left

An update that does not follow the version before it is `OutOfOrder`: a defect, not a request.
"""

from __future__ import annotations

from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import CONFLICT, NOT_FOUND

__all__ = [
    "CatalogVersionNotFound",
    "CatalogVersionTrimmed",
    "InvalidDefinition",
    "InvalidDefinitionsText",
    "ObjectExists",
    "ObjectInUse",
    "ObjectNotFound",
    "OutOfOrder",
    "UpdateTooLarge",
    "WrongIndexStatus",
]


class ObjectNotFound(InvalidInput):
    """No object of the kind has the name or id."""

    exit_code = NOT_FOUND

    def __init__(self, kind: str, name: str | int) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"{kind} {name} does not exist")


class ObjectExists(InvalidInput):
    """The name is in use."""

    exit_code = CONFLICT

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"{kind} {name} exists already")


class ObjectInUse(InvalidInput):
    """Others depend on the object as it is."""

    exit_code = CONFLICT

    def __init__(self, kind: str, name: str, used_by: str) -> None:
        self.kind = kind
        self.name = name
        self.used_by = used_by
        super().__init__(f"{kind} {name} is in use: {used_by}")


class InvalidDefinition(InvalidInput):
    """A rule forbids the definition, or this change of it."""

    def __init__(self, kind: str, name: str, rule: str) -> None:
        self.kind = kind
        self.name = name
        self.rule = rule
        super().__init__(f"{kind} {name}: {rule}")


class UpdateTooLarge(InvalidInput):
    """The bytes of one update exceed the limit."""

    def __init__(self, size_bytes: int, limit_bytes: int, largest: str) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"a catalog update of {size_bytes} bytes is larger than the limit {limit_bytes}: split "
            f"the batch; its largest change is {largest}"
        )


class WrongIndexStatus(InvalidInput):
    """The status asked for does not follow the one that the index has."""

    exit_code = CONFLICT

    def __init__(self, index_id: int, actual: str, target: str, expected: str) -> None:
        self.index_id = index_id
        self.actual = actual
        self.target = target
        self.expected = expected
        super().__init__(f"index {index_id} is {actual}: it becomes {target} only from {expected}")


class InvalidDefinitionsText(InvalidInput):
    """An object in a TOML text of definitions is wrong; the exit code is that of the cause."""

    def __init__(self, place: str, line: int, cause: str, exit_code: int) -> None:
        self.place = place
        self.line = line
        self.exit_code = exit_code
        where = f"line {line}, {place}" if line else place
        super().__init__(f"{where}: {cause}")


class CatalogVersionNotFound(InvalidInput):
    """A version that does not exist, or not yet."""

    exit_code = NOT_FOUND

    def __init__(self, asked: str, latest: int) -> None:
        self.asked = asked
        self.latest = latest
        super().__init__(f"the catalog {asked} does not exist; the latest version is {latest}")


class CatalogVersionTrimmed(InvalidInput):
    """A version that was dropped."""

    exit_code = NOT_FOUND

    def __init__(self, asked: str, earliest: int) -> None:
        self.asked = asked
        self.earliest = earliest
        super().__init__(
            f"the catalog {asked} was dropped; the earliest version left is {earliest}"
        )


class OutOfOrder(LithifyError):
    """An update or a version that does not follow the one before it."""

    def __init__(self, version: int, after: int) -> None:
        self.version = version
        self.after = after
        super().__init__(f"catalog version {version} does not follow version {after}")
