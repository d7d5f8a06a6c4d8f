"""Every error Lithify raises on purpose.

Each names the thing (a file, a position, a setting), the value found and the limit or the expected
value. It changes nothing. Code catches the class, people read the text, and a command that fails
with it exits with its `exit_code`.

    LithifyError
    ├── InvalidInput            the request of the caller is impossible
    │   ├── InvalidSetting      a setting is negative, too large or contradicts another
    │   ├── NoSuchLog           the directory of a log does not exist
    │   ├── PositionOutOfRange  a position that the log does not and cannot have
    │   ├── EntryTooLarge       a body above the limit
    │   └── UnclaimedDirectory  data without a definition is in the way
    ├── Corrupt                 bytes on disk differ from what was written
    │   ├── NotASegment         no magic: some other file
    │   ├── DamagedFrame        CRC, length or order wrong inside a segment
    │   ├── DamagedFile         manifest, journal, history, dead set, footer or side file
    │   └── MissingFile         the manifest names a file that does not exist
    ├── ProtocolError           a peer sent bytes that violate the protocol
    ├── UnsupportedVersion      written by a newer Lithify
    ├── OpenFailed              the file system refused to create or open a topic or store
    ├── LogLocked               another process writes to this directory
    ├── LogClosed               used after close
    ├── ReadFailed              the file system failed a read
    ├── WriteFailed             the file system refused a write; nothing was acknowledged
    ├── RunRefused              a compaction run cannot start now; names the limit
    ├── RunFailed               the file system failed a run; the log is unchanged
    ├── JobFailed               Spark or a worker process could not finish a job of a run
    ├── ExecutorUnfit           an executor of a cluster cannot access the files or run tasks
    ├── SparkNotStarted         Spark did not start
    ├── SparkUnreachable        no Spark master answers at the address
    ├── RunCancelled            a run was asked to stop and left the log unchanged
    │   └── RunSuspended        it kept its journal, so that the next run resumes it
    └── PlanStale               the log changed under a plan, so it was not applied
"""

from __future__ import annotations

from typing import Self

from lithify.exit_codes import CONFLICT, FAILED, NOT_FOUND, OUTCOME_UNKNOWN, UNREACHABLE, USAGE

__all__ = [
    "Corrupt",
    "DamagedFile",
    "DamagedFrame",
    "EntryTooLarge",
    "ExecutorUnfit",
    "InvalidInput",
    "InvalidSetting",
    "IsABackup",
    "JobFailed",
    "LithifyError",
    "LogClosed",
    "LogLocked",
    "MissingCursors",
    "MissingFile",
    "MissingLog",
    "NoSuchLog",
    "NotASegment",
    "OpenFailed",
    "PlanStale",
    "PositionOutOfRange",
    "ProtocolError",
    "ReadFailed",
    "RunCancelled",
    "RunFailed",
    "RunRefused",
    "RunSuspended",
    "SparkNotStarted",
    "SparkUnreachable",
    "UnclaimedDirectory",
    "UnsupportedVersion",
    "WriteFailed",
    "is_outcome_unknown",
]


class LithifyError(Exception):
    """The root: catches everything Lithify raises on purpose. Supports pickle and copy."""

    exit_code: int = FAILED

    @property
    def details(self) -> dict[str, object]:
        """The fields that `--json` prints beside the text."""
        return {}

    def __new__(cls, *given: object) -> Self:
        """Record the arguments for `__reduce__`."""
        error = super().__new__(cls, *given)
        error._given = given
        return error

    _given: tuple[object, ...]

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        """Recreate the error from its arguments, not from its text."""
        return type(self), self._given


class InvalidInput(LithifyError, ValueError):
    """The request of the caller is impossible."""

    exit_code = USAGE


class InvalidSetting(InvalidInput):
    """A setting is outside its limits."""

    def __init__(self, name: str, value: object, limit: str) -> None:
        self.name = name
        self.value = value
        self.limit = limit
        super().__init__(f"setting {name} is {value!r}, must be {limit}")


class NoSuchLog(InvalidInput):
    """The directory of a log does not exist."""

    exit_code = NOT_FOUND


class PositionOutOfRange(InvalidInput):
    """A position that the log does not and cannot have."""

    def __init__(self, position: int, limit: str) -> None:
        self.position = position
        self.limit = limit
        super().__init__(f"position {position} is out of range, must be {limit}")


class EntryTooLarge(InvalidInput):
    """A body above the limit."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"entry of {size_bytes} bytes is larger than the limit {limit_bytes}")


class UnclaimedDirectory(InvalidInput):
    """A directory that belongs to no definition is in the way; the command `adopt` claims it."""

    exit_code = CONFLICT

    def __init__(self, what: str, directory: str, adopt: str, why: str = "is not defined") -> None:
        self.directory = directory
        super().__init__(
            f"{what} {why}, but {directory} holds data: adopt it with "
            f"'{adopt}', or move the directory away"
        )


class IsABackup(InvalidInput):
    """A backup was named as a data directory; it was not changed."""

    exit_code = CONFLICT

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory} is a backup: using it as a data directory would destroy "
            f"it; restore it with 'lithify restore {directory} --data DATA'"
        )


class Corrupt(LithifyError):
    """Bytes on disk differ from what was written."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        self.path = path
        self.offset = offset
        self.what = what
        super().__init__(f"{path} at byte {offset}: {what}")


class NotASegment(Corrupt):
    """The file does not begin like a segment."""


class DamagedFrame(Corrupt):
    """A frame's CRC, length or order is wrong; `after` is the last good position before it."""

    def __init__(self, path: str, offset: int, what: str, after: int | None = None) -> None:
        self.after = after
        place = "" if after is None else f" (after position {after})"
        super().__init__(path, offset, what + place)


class DamagedFile(Corrupt):
    """A manifest, journal, history, dead set, footer or side file is damaged."""


class MissingFile(Corrupt):
    """The manifest names a file that does not exist."""

    def __init__(self, path: str, named_by: str) -> None:
        super().__init__(path, 0, f"missing, but {named_by} names it")


class MissingLog(MissingFile):
    """The log of a topic is missing: a new one would reuse its positions."""

    def __init__(self, path: str, topic: str, known_by: str) -> None:
        Corrupt.__init__(
            self,
            path,
            0,
            f"missing, but {known_by}: topic {topic} is not served; mount its "
            "disk, restore its files, or delete the topic",
        )


class MissingCursors(MissingFile):
    """The subscriptions of a topic are missing: without them nothing keeps what they need."""

    def __init__(self, path: str, topic: str) -> None:
        Corrupt.__init__(
            self,
            path,
            0,
            f"missing, but the log beside it has entries: topic {topic} is not served, because its "
            "subscriptions would be lost; restore the directory, or create an empty one to serve "
            "the topic without them",
        )


class ProtocolError(LithifyError):
    """A peer sent bytes that violate the protocol; its connection is closed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class UnsupportedVersion(LithifyError):
    """Written by a newer Lithify, or not by Lithify."""

    def __init__(self, path: str, version: int, newest: int) -> None:
        self.path = path
        self.version = version
        self.newest = newest
        super().__init__(f"{path} has format version {version}, this build reads up to {newest}")


class LogLocked(LithifyError):
    """Another process has the directory open for writing."""

    exit_code = CONFLICT

    def __init__(self, path: str, owner: str) -> None:
        self.path = path
        self.owner = owner
        super().__init__(f"{path} is open for writing by {owner}")


class OpenFailed(LithifyError):
    """The file system refused to create or open something; nothing of it was used."""

    def __init__(self, what: str, cause: OSError) -> None:
        self.what = what
        self.cause = cause
        place = f"{cause.filename}: " if cause.filename else ""
        super().__init__(f"{what} cannot be opened: {place}{cause.strerror or cause}")


class LogClosed(LithifyError):
    """The log was used after close."""


class ReadFailed(LithifyError):
    """The file system failed a read."""

    def __init__(self, path: str, offset: int, cause: OSError) -> None:
        self.path = path
        self.offset = offset
        self.cause = cause
        super().__init__(f"{path} at byte {offset}: {cause.strerror or cause}")


class WriteFailed(LithifyError):
    """The file system refused a write. Entries that were not acknowledged are not in the log."""

    def __init__(self, path: str, cause: OSError) -> None:
        self.path = path
        self.cause = cause
        super().__init__(f"{path}: {cause.strerror or cause} (errno {cause.errno})")


class RunRefused(LithifyError):
    """A compaction run cannot start now; `limit` names the reason."""

    exit_code = CONFLICT

    def __init__(self, limit: str, detail: str) -> None:
        self.limit = limit
        self.detail = detail
        super().__init__(f"compaction refused ({limit}): {detail}")

    @property
    def waits_for(self) -> str:
        """What a waiting run shows as the reason."""
        return f"{self.limit}: {self.detail}"


class RunFailed(LithifyError):
    """The file system failed a run. The log is unchanged, or as published by the run."""

    def __init__(self, directory: str, cause: OSError) -> None:
        self.directory = directory
        self.cause = cause
        super().__init__(f"compaction of {directory} failed: {cause}")


class RunCancelled(LithifyError):
    """A run was asked to stop."""


class RunSuspended(RunCancelled):
    """A run was asked to stop in such a way that the next one resumes it."""


class PlanStale(LithifyError):
    """The log changed under a plan."""

    exit_code = CONFLICT


class JobFailed(LithifyError):
    """Spark, or its worker process, could not finish a job; the log is unchanged."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"job {name} failed: {reason}")
        self.name = name


class ExecutorUnfit(LithifyError):
    """An executor cannot run tasks, or its files are not visible here; the log is unchanged."""

    def __init__(self, host: str, problem: str) -> None:
        self.host = host
        super().__init__(f"the executor on {host} {problem}")


class SparkNotStarted(LithifyError):
    """Spark did not start; `options` may be the cause, `detail` is Java's output."""

    def __init__(self, master: str, reason: str, options: str = "", detail: str = "") -> None:
        self.detail = detail
        given = f" and {options}" if options else ""
        super().__init__(f"Spark did not start with master {master}{given}: {reason}")


class SparkUnreachable(LithifyError):
    """No Spark master answers."""

    exit_code = UNREACHABLE

    def __init__(self, master: str, reason: str) -> None:
        super().__init__(f"no Spark master answers at {master}: {reason}")


def is_outcome_unknown(error: BaseException) -> bool:
    """May the change that raised the error have been made, or still be made?

    So may one that was interrupted, for instance by `KeyboardInterrupt`.
    """
    if not isinstance(error, Exception):
        return True
    return isinstance(error, LithifyError) and error.exit_code == OUTCOME_UNKNOWN
