"""Errors of the catalog of a running node.

LithifyError
├── CatalogStopped          the node is shutting down; the change was not made
├── CatalogFailed           this node cannot read the catalog; names the reason
└── CatalogBusy             other nodes were faster each time; the change was not made

A change whose outcome is not known raises `AppendOutcomeUnknown` of the update log.
"""

from __future__ import annotations

from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT, UNREACHABLE

__all__ = ["CatalogBusy", "CatalogFailed", "CatalogStopped"]


class CatalogStopped(LithifyError):
    """The node is shutting down; the change was not made."""

    exit_code = UNREACHABLE

    def __init__(self) -> None:
        super().__init__("the catalog of this node has been stopped")


class CatalogFailed(LithifyError):
    """The node cannot read the catalog."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"this node cannot follow the catalog: {why}")


class CatalogBusy(LithifyError):
    """Other nodes were faster each time; the change was not made."""

    exit_code = CONFLICT

    def __init__(self, tries: int) -> None:
        self.tries = tries
        super().__init__(
            f"the change was not made: in each of {tries} tries another node was faster; retry it"
        )
