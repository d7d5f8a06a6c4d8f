"""Errors of the metastore.

LithifyError
├── RevisionCompacted       (also InvalidInput) the history up to a revision is gone
├── RevisionNotReached      (also InvalidInput) a revision that does not exist yet
├── TimeCompacted           (also InvalidInput) the history at a time is gone
├── LeaseFull               (also InvalidInput) more keys than a lease can have
├── LeaseNotFound           the lease has expired, was revoked, or never existed
└── MetastoreUnavailable    no member could serve the request; nothing was changed

A transaction whose outcome is not known raises `MayHaveHappened` or `OutcomeUnknown` of the Raft
packages.
"""

from __future__ import annotations

from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import NOT_FOUND, UNREACHABLE
from lithify.hybrid_time import describe
from lithify.metastore.transaction import LEASE_KEYS_MAX

__all__ = [
    "LeaseFull",
    "LeaseNotFound",
    "MetastoreUnavailable",
    "RevisionCompacted",
    "RevisionNotReached",
    "TimeCompacted",
]


class RevisionCompacted(InvalidInput):
    """The history up to a revision was compacted, and the request needs some of it."""

    exit_code = NOT_FOUND

    def __init__(self, revision: int, floor: int) -> None:
        self.revision = revision
        self.floor = floor
        super().__init__(f"revision {revision} was compacted; the history starts above {floor}")


class RevisionNotReached(InvalidInput):
    """A request names a revision above the newest one."""

    exit_code = NOT_FOUND

    def __init__(self, revision: int, newest: int) -> None:
        self.revision = revision
        self.newest = newest
        super().__init__(f"revision {revision} does not exist yet; the newest one is {newest}")


class TimeCompacted(InvalidInput):
    """What was there at a time is no longer known."""

    exit_code = NOT_FOUND

    def __init__(self, time: int) -> None:
        self.time = time
        super().__init__(f"the history at {describe(time)} was compacted")


class LeaseFull(InvalidInput):
    """A put with a lease that has the maximum of keys."""

    def __init__(self, lease: int) -> None:
        self.lease = lease
        super().__init__(f"lease {lease} has {LEASE_KEYS_MAX} keys, the maximum")


class LeaseNotFound(LithifyError):
    """The lease has expired, was revoked, or never existed."""

    exit_code = NOT_FOUND

    def __init__(self, lease: int) -> None:
        self.lease = lease
        super().__init__(f"lease {lease} does not exist; it may have expired")


class MetastoreUnavailable(LithifyError):
    """No member could serve the request: no leader in time, or none here; nothing was changed."""

    exit_code = UNREACHABLE

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"the metastore is not available: {why}")
