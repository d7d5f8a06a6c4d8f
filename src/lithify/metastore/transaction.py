"""Transactions of the metastore: compare, then, otherwise. Values only; pure.

    Transaction(
        compares=(Compare(b"leader", Condition.ABSENT),),
        then=(Put(b"leader", b"n1"),),
        otherwise=(),
    )

All compares must hold for `then` to be executed, otherwise `otherwise` is: one atomic step, which
makes one revision if it changes anything. A transaction without compares executes `then`.

The operations of a branch apply in order. A later one on the same key replaces an earlier one, so
a revision has at most one change of a key.

A transaction is checked when it is created; `InvalidInput` names the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lithify.errors import InvalidInput
from lithify.raft.ordered_key_set import prefix_end

__all__ = [
    "KEY_BYTES_MAX",
    "LEASE_KEYS_MAX",
    "OPERATIONS_MAX",
    "TRANSACTION_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "Compare",
    "Condition",
    "Delete",
    "DeleteRange",
    "Operation",
    "Put",
    "Transaction",
    "check_key",
    "prefix_range",
]

KEY_BYTES_MAX = 4096
VALUE_BYTES_MAX = 2**20
OPERATIONS_MAX = 1024
"""Compares and operations of a transaction; also the keys that one `DeleteRange` deletes."""
TRANSACTION_BYTES_MAX = 4 * 2**20
LEASE_KEYS_MAX = 4096
"""Keys of a lease; they are deleted in one revision: 16 MiB of the longest keys."""


class Condition(IntEnum):
    """What a compare demands of a key."""

    ABSENT = 0
    PRESENT = 1
    REVISION = 2
    """The key has a value that this revision has set; 0 holds for an absent key."""
    REVISION_AT_MOST = 3
    """The key is absent, or was last changed by this revision or an earlier one."""
    VALUE = 4
    """The key has this value."""
    RANGE_UNCHANGED = 5
    """No key from `key` up to `end` was changed above this revision, which is not below the floor;
    an empty `end` is no limit."""
    TIME_BELOW = 6
    """The time of the transaction is below this one; the key is empty."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition; what follows it is for the conditions that name it."""

    key: bytes
    condition: Condition
    revision: int = 0
    value: bytes = b""
    end: bytes = b""
    time: int = 0

    def __post_init__(self) -> None:
        check_key(self.key)
        check_key(self.end)
        _check_value(self.key, self.value)
        for what, number in (("revision", self.revision), ("time", self.time)):
            if not 0 <= number < 2**63:
                raise InvalidInput(f"{what} {number} must be from 0 to 2**63 - 1")


@dataclass(frozen=True, slots=True)
class Put:
    """Set the value of a key; `lease` is the id of the lease that it ends with, 0 for none."""

    key: bytes
    value: bytes
    lease: int = 0

    def __post_init__(self) -> None:
        check_key(self.key)
        _check_value(self.key, self.value)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key; no change if it is absent."""

    key: bytes

    def __post_init__(self) -> None:
        check_key(self.key)


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Delete the first keys from `start` up to `end`; an empty `end` is no limit."""

    start: bytes
    end: bytes
    keys_max: int = OPERATIONS_MAX

    def __post_init__(self) -> None:
        for key in (self.start, self.end):
            check_key(key)
        if not 1 <= self.keys_max <= OPERATIONS_MAX:
            raise InvalidInput(f"keys_max is {self.keys_max}, must be from 1 to {OPERATIONS_MAX}")


Operation = Put | Delete | DeleteRange


@dataclass(frozen=True, slots=True)
class Transaction:
    """See the module."""

    compares: tuple[Compare, ...] = ()
    then: tuple[Operation, ...] = ()
    otherwise: tuple[Operation, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.compares) + len(self.then) + len(self.otherwise)
        if count > OPERATIONS_MAX:
            raise InvalidInput(f"transaction has {count} parts, at most {OPERATIONS_MAX} fit")
        size = sum(_size(each) for each in (*self.compares, *self.then, *self.otherwise))
        if size > TRANSACTION_BYTES_MAX:
            raise InvalidInput(f"transaction has {size} bytes, at most {TRANSACTION_BYTES_MAX} fit")


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """The start and the end of the range of all keys with a prefix."""
    return prefix, prefix_end(prefix)


def _size(part: Compare | Operation) -> int:
    if isinstance(part, DeleteRange):
        return len(part.start) + len(part.end)
    if isinstance(part, Compare):
        return len(part.key) + len(part.end) + len(part.value)
    return len(part.key) + (0 if isinstance(part, Delete) else len(part.value))


def check_key(key: bytes) -> None:
    """Raise `InvalidInput` if a key is too long."""
    if len(key) > KEY_BYTES_MAX:
        raise InvalidInput(f"key {key[:40]!r}… has {len(key)} bytes, at most {KEY_BYTES_MAX} fit")


def _check_value(key: bytes, value: bytes) -> None:
    if len(value) > VALUE_BYTES_MAX:
        what = f"value of key {key[:40]!r} has {len(value)} bytes"
        raise InvalidInput(f"{what}, at most {VALUE_BYTES_MAX} fit")
