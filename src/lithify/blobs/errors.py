"""Errors of a blob store.

    LithifyError
    ├── BlobError               about one blob; names its id
    │   ├── BlobNotFound        never put, or compacted away
    │   ├── BlobDeleted         deleted; it can be undeleted within the retention
    │   ├── BlobDeletedForever  undelete after the retention: the content is gone or will be
    │   ├── BlobExpired         the expiry time has passed
    │   ├── BlobNotDeleted      undelete of a blob that is not deleted
    │   └── BlobExists          put with an id that is in use
    ├── BlobStoreFull           no room for the record; a compaction may free some
    ├── ReplicaUnreachable      another replica does not answer, or answers with an error
    │   └── ReplicaNoPeer       its URL belongs to no peer of the node; no request is sent
    ├── ReplicaNotCurrent       another replica may have missed deletes that were purged
    ├── ProtocolError
    │   └── ReplicaAnswerInvalid another replica's answer is invalid or damaged
    └── InvalidInput
        ├── ShapeDiffers        the shape of a store differs from its definition
        ├── BlobTooLarge        larger than a segment can hold
        ├── TargetTooSmall      a copy does not fit into its target store
        ├── RangeNotSatisfiable a range outside the content
        ├── NotABlobStore       the directory holds something else, or nothing
        ├── BlobStoreNotFound   no store of a node has this name
        └── BlobStoreExists     create with a name that is in use

Any caller may catch them.
"""

from __future__ import annotations

from lithify.errors import InvalidInput, LithifyError, ProtocolError
from lithify.exit_codes import CONFLICT, NOT_FOUND

__all__ = [
    "BlobDeleted",
    "BlobDeletedForever",
    "BlobError",
    "BlobExists",
    "BlobExpired",
    "BlobNotDeleted",
    "BlobNotFound",
    "BlobStoreExists",
    "BlobStoreFull",
    "BlobStoreNotFound",
    "BlobTooLarge",
    "NotABlobStore",
    "RangeNotSatisfiable",
    "ReplicaAnswerInvalid",
    "ReplicaNoPeer",
    "ReplicaNotCurrent",
    "ReplicaUnreachable",
    "ShapeDiffers",
    "TargetTooSmall",
]


class BlobError(LithifyError):
    """An error about one blob."""

    what = "cannot be used"

    def __init__(self, blob_id: str) -> None:
        self.blob_id = blob_id
        super().__init__(f"blob {blob_id!r} {self.what}")


class BlobNotFound(BlobError):
    """Never put, or compacted away."""

    exit_code = NOT_FOUND
    what = "is not in the store"


class BlobDeleted(BlobError):
    """The newest record of the blob is a delete."""

    exit_code = NOT_FOUND
    what = "is deleted"


class BlobDeletedForever(BlobError):
    """Undelete after the retention, or of erased content."""

    exit_code = NOT_FOUND
    what = "is deleted longer than the retention, or its content is gone"


class BlobExpired(BlobError):
    """The clock has passed the expiry of the blob."""

    exit_code = NOT_FOUND
    what = "is expired"


class BlobNotDeleted(BlobError):
    """Undelete of a blob that is not deleted."""

    exit_code = CONFLICT
    what = "is not deleted"


class BlobExists(BlobError):
    """An id can be put once. It is free again when compaction has dropped its last record."""

    exit_code = CONFLICT
    what = "is in the store already"


class BlobStoreFull(LithifyError):
    """A record needs more room than is left."""

    def __init__(self, directory: str, size_bytes: int, capacity_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.capacity_bytes = capacity_bytes
        super().__init__(
            f"{directory} has no room for a record of {size_bytes} bytes, "
            f"its capacity is {capacity_bytes}"
        )


class ReplicaUnreachable(LithifyError):
    """The replica does not answer, or answers with an error."""

    def __init__(self, url: str, why: str) -> None:
        self.url = url
        super().__init__(f"replica {url} cannot be asked: {why}")


class ReplicaNoPeer(ReplicaUnreachable):
    """The node's settings do not name the replica: no request is sent to it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "no peer in the setting blob_peers of the node has this URL")


class ReplicaNotCurrent(LithifyError):
    """The replica was offline while deletes were purged, here or there, and has not caught up."""

    def __init__(self, url: str, where: str) -> None:
        self.url = url
        super().__init__(
            f"replica {url} may have missed deletes that were purged {where}: it "
            "is not read before it has caught up there"
        )


class ReplicaAnswerInvalid(ProtocolError):
    """An answer of a replica that is invalid, or was damaged in transit."""


class BlobTooLarge(InvalidInput):
    """A record does not span segments, so a segment is the limit."""

    def __init__(self, size_bytes: int, limit_bytes: int, blob_id: str | None = None) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        record = "record" if blob_id is None else f"blob {blob_id!r}: its record"
        super().__init__(
            f"{record} of {size_bytes} bytes or more is larger than a segment takes, {limit_bytes}"
        )


class TargetTooSmall(InvalidInput):
    """A store does not fit into the target of its copy."""

    def __init__(self, target: str, needed_bytes: int, capacity_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        self.capacity_bytes = capacity_bytes
        super().__init__(
            f"{target} has a capacity of {capacity_bytes} bytes, the copy needs "
            f"more than {needed_bytes}"
        )


class RangeNotSatisfiable(InvalidInput):
    """A range outside the content."""

    def __init__(self, start: int, stop: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(f"range {start} … {stop} is not in a content of {size_bytes} bytes")


class NotABlobStore(InvalidInput):
    """The directory does not hold a blob store."""


class ShapeDiffers(InvalidInput):
    """The definition is of another store: from elsewhere, or from another time."""

    exit_code = CONFLICT

    def __init__(
        self, name: str, directory: str, defined: tuple[int, int], found: tuple[int, int]
    ) -> None:
        self.directory = directory
        super().__init__(
            f"blob store {name} is defined with {defined[0]} bytes in segments of {defined[1]}, "
            f"but {directory} holds a store of {found[0]} bytes in segments of {found[1]}: restore "
            "the file definitions of this data directory, or delete the store, which leaves this "
            f"directory in place, and adopt it with 'lithify blobs adopt {name}'"
        )


class BlobStoreNotFound(InvalidInput):
    """No store of a node has this name."""

    exit_code = NOT_FOUND


class BlobStoreExists(InvalidInput):
    """A store of this name exists."""

    exit_code = CONFLICT
