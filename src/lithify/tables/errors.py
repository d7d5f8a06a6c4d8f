"""Errors of tables. Each names the table and the rule; nothing was changed.

InvalidInput
├── InvalidRow              a row, key or bound does not fit the columns of the table
├── WrongPartition          a transaction on rows of two partitions
├── WrongTransaction        a request that a transaction of this kind does not serve
├── IndexNotAvailable       an index that is still being built
└── TransactionTooLarge     more reads and writes than one command has
LithifyError
├── RowNotFound             no row has the key
├── PartitionUnavailable    a partition has no group yet, or its group is being ended
├── TransactionConflict     another transaction has changed what this one has read
├── UniqueViolation         a unique index has an entry with the same values
├── SchemaChanged           the table or its indexes have changed since the transaction began
├── TransactionExpired      it was open for longer than it may be
├── TransactionEnded        it was committed or rolled back
├── TooManyTransactions     more open transactions than a node has
└── RowDamaged              stored bytes are no row of the table

After an error of a transaction, begin another one. An outcome that is not known is
`MayHaveHappened`, of the Raft packages.
"""

from __future__ import annotations

from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import CONFLICT, NOT_FOUND, UNREACHABLE

__all__ = [
    "IndexNotAvailable",
    "InvalidRow",
    "PartitionUnavailable",
    "RowDamaged",
    "RowNotFound",
    "SchemaChanged",
    "TooManyTransactions",
    "TransactionConflict",
    "TransactionEnded",
    "TransactionExpired",
    "TransactionTooLarge",
    "UniqueViolation",
    "WrongPartition",
    "WrongTransaction",
]


class InvalidRow(InvalidInput):
    """A row, key or bound does not fit the columns of the table."""

    def __init__(self, table: str, rule: str) -> None:
        self.table = table
        self.rule = rule
        super().__init__(f"table {table}: {rule}")


class WrongPartition(InvalidInput):
    """A transaction has rows of one partition."""

    def __init__(self, table: str, partition: str, first: str) -> None:
        self.table = table
        what = f"the row of table {table} is in partition {partition}"
        super().__init__(f"{what}, the transaction in {first}: it has rows of one partition only")


class WrongTransaction(InvalidInput):
    """A request that a transaction of this kind does not serve."""


class IndexNotAvailable(InvalidInput):
    """An index that is still being built."""

    exit_code = CONFLICT

    def __init__(self, table: str, index: str, status: str) -> None:
        super().__init__(f"index {index} of table {table} is {status}, not available yet")


class TransactionTooLarge(InvalidInput):
    """More reads and writes than one command has."""

    def __init__(self, limit: str) -> None:
        super().__init__(f"the transaction is too large: {limit}")


class RowNotFound(LithifyError):
    """No row has the key."""

    exit_code = NOT_FOUND

    def __init__(self, table: str, key: object) -> None:
        self.table = table
        super().__init__(f"table {table} has no row with key {key}")


class PartitionUnavailable(LithifyError):
    """A partition has no group yet, or its group is being ended."""

    exit_code = UNREACHABLE

    def __init__(self, partition: str, why: str) -> None:
        super().__init__(f"partition {partition} is not available: {why}")


class TransactionConflict(LithifyError):
    """Another transaction has changed what this one has read."""

    exit_code = CONFLICT

    def __init__(self, table: str) -> None:
        self.table = table
        what = "another transaction has changed what this one has read"
        super().__init__(f"table {table}: {what}; begin again")


class UniqueViolation(LithifyError):
    """A unique index has an entry with the same values."""

    exit_code = CONFLICT

    def __init__(self, table: str, index: str) -> None:
        self.table = table
        self.index = index
        super().__init__(f"table {table}: another row has the same values in unique index {index}")


class SchemaChanged(LithifyError):
    """The table or its indexes have changed since the transaction began."""

    exit_code = CONFLICT

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"table {table} has changed since the transaction began; begin again")


class TransactionExpired(LithifyError):
    """It was open for longer than it may be."""

    exit_code = CONFLICT

    def __init__(self, life_ms: int) -> None:
        super().__init__(f"the transaction was open for more than {life_ms} ms; begin again")


class TransactionEnded(LithifyError):
    """It was committed or rolled back."""

    exit_code = NOT_FOUND

    def __init__(self, handle: str = "") -> None:
        named = f"transaction {handle:.80}" if handle else "the transaction"
        super().__init__(f"{named} has ended, or never began")


class TooManyTransactions(LithifyError):
    """More open transactions than a node has, or more bytes in them."""

    exit_code = UNREACHABLE

    def __init__(self, limit: int, what: str = "open transactions") -> None:
        super().__init__(f"this node has {limit} {what}, the maximum; end some, or wait")


class RowDamaged(LithifyError):
    """Stored bytes are no row of the table."""

    def __init__(self, table: str, why: str) -> None:
        self.table = table
        super().__init__(f"a row of table {table} is damaged: {why}")
