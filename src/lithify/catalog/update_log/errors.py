"""Errors of the update log.

LithifyError
├── UpdateLogDamaged        an update or the snapshot is missing or damaged
│   ├── UpdateMissing       a version between the snapshot and the newest one is not there
│   └── SnapshotDamaged     the chunks of the snapshot are not those that were written
├── SnapshotMismatch        a snapshot differs from the replay; it was not published
├── SnapshotTooLarge        (also InvalidInput) more chunks than one transaction can compare
├── SnapshotRefused         what the snapshot was decided on has changed; it was not published
├── SnapshotContention      other snapshots were written all the time; nothing is lost
└── AppendOutcomeUnknown    an append happened, or did not, or still may
"""

from __future__ import annotations

from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import CONFLICT, OUTCOME_UNKNOWN

__all__ = [
    "AppendOutcomeUnknown",
    "SnapshotContention",
    "SnapshotDamaged",
    "SnapshotMismatch",
    "SnapshotRefused",
    "SnapshotTooLarge",
    "UpdateLogDamaged",
    "UpdateMissing",
]


class UpdateLogDamaged(LithifyError):
    """An update or the snapshot is missing or damaged."""

    def __init__(self, version: int, what: str) -> None:
        self.version = version
        self.what = what
        super().__init__(f"update log of the catalog: version {version} {what}")


class UpdateMissing(UpdateLogDamaged):
    """A version between the snapshot and the newest one is not there."""

    def __init__(self, version: int, newest: int) -> None:
        self.newest = newest
        super().__init__(version, f"is missing, and the newest one is {newest}")

    def __reduce__(self) -> tuple[type[UpdateMissing], tuple[int, int]]:
        return type(self), (self.version, self.newest)


class SnapshotDamaged(UpdateLogDamaged):
    """The chunks of the snapshot are not those that were written."""

    def __init__(self, version: int) -> None:
        super().__init__(version, "has a snapshot whose chunks do not match its digest")


class SnapshotMismatch(LithifyError):
    """A snapshot differs from the replay of the log; it was not published."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(
            f"the snapshot of version {version} differs from the replay of the update log; "
            "it was not published, and nothing was removed"
        )


class SnapshotTooLarge(InvalidInput):
    """A snapshot has more chunks than one transaction can compare."""

    def __init__(self, version: int, chunks_max: int) -> None:
        self.version = version
        self.chunks_max = chunks_max
        super().__init__(f"the snapshot of version {version} has more than {chunks_max} chunks")


class SnapshotRefused(LithifyError):
    """What the snapshot was decided on has changed; it was not published."""

    exit_code = CONFLICT

    def __init__(self, version: int) -> None:
        self.version = version
        what = f"the snapshot of version {version} was not published"
        super().__init__(f"{what}: what it was decided on has changed; run it again")


class SnapshotContention(LithifyError):
    """Each try to publish a snapshot met another one; nothing is lost."""

    exit_code = CONFLICT

    def __init__(self, version: int, tries: int) -> None:
        self.version = version
        self.tries = tries
        super().__init__(
            f"the snapshot of version {version} was not published: during each of {tries} tries "
            "another snapshot was written"
        )


class AppendOutcomeUnknown(LithifyError):
    """An append happened, or did not, or still may."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(
            f"the outcome of version {version} of the catalog is unknown: the change may have "
            "been made, or may be made later"
        )
