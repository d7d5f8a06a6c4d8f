"""Errors of tables. Each names the table and the rule; nothing was changed.

InvalidInput
└── InvalidRow          a row, key or bound does not fit the columns of the table

`RowDamaged` is stored bytes that are no row of the table.
"""

from __future__ import annotations

from lithify.errors import InvalidInput, LithifyError

__all__ = ["InvalidRow", "RowDamaged"]


class InvalidRow(InvalidInput):
    """A row, key or bound does not fit the columns of the table."""

    def __init__(self, table: str, rule: str) -> None:
        self.table = table
        self.rule = rule
        super().__init__(f"table {table}: {rule}")


class RowDamaged(LithifyError):
    """Stored bytes are no row of the table."""

    def __init__(self, table: str, why: str) -> None:
        self.table = table
        super().__init__(f"a row of table {table} is damaged: {why}")
