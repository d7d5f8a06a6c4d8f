"""What a blob store refuses, and how it says so.

    LithifyError
    ├── BlobError               about one blob; names its id
    │   ├── BlobNotFound        never put, or compacted away
    │   ├── BlobDeleted         deleted; it can be undeleted within the retention
    │   ├── BlobDeletedForever  undelete came too late: the content is gone or about to go
    │   ├── BlobExpired         its time is over
    │   ├── BlobNotDeleted      undelete of a blob that is there
    │   └── BlobExists          a put with an id that is taken
    ├── BlobStoreFull           no room for the record; a compaction may make some
    ├── ReplicaUnreachable      another replica does not answer, or with an error
    │   └── ReplicaNoPeer       it belongs to no peer of the node, and is not asked
    ├── ReplicaNotCurrent       another replica may have blobs whose deletes are forgotten
    ├── ProtocolError
    │   └── ReplicaTalksNonsense another replica's answer cannot be, or was damaged on its way
    └── InvalidInput
        ├── ShapeDiffers        a store has another shape than its definition says
        ├── BlobTooLarge        larger than a segment can hold
        ├── TargetTooSmall      a copy does not fit into the store that is to be made
        ├── RangeNotSatisfiable a range outside the content
        ├── NotABlobStore       the directory holds something else, or nothing
        ├── BlobStoreNotFound   no store of a node has this name
        └── BlobStoreExists     create where a store is

Anybody may catch them.
"""

from __future__ import annotations

from lithify.errors import CONFLICT, NOT_FOUND, InvalidInput, LithifyError, ProtocolError

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
    "ReplicaNoPeer",
    "ReplicaNotCurrent",
    "ReplicaTalksNonsense",
    "ReplicaUnreachable",
    "ShapeDiffers",
    "TargetTooSmall",
]


class BlobError(LithifyError):
    """About one blob."""

    what = "cannot be used"

    def __init__(self, blob_id: str) -> None:
        self.blob_id = blob_id
        super().__init__(f"blob {blob_id!r} {self.what}")


class BlobNotFound(BlobError):
    """Never put, or compacted away."""

    exit_code = NOT_FOUND
    what = "is not in the store"


class BlobDeleted(BlobError):
    """Its newest record is a delete."""

    exit_code = NOT_FOUND
    what = "is deleted"


class BlobDeletedForever(BlobError):
    """An undelete that came too late."""

    exit_code = NOT_FOUND
    what = "is deleted longer than the retention, or its content is gone"


class BlobExpired(BlobError):
    """The clock has passed its expiry."""

    exit_code = NOT_FOUND
    what = "is expired"


class BlobNotDeleted(BlobError):
    """There is nothing to undelete."""

    exit_code = CONFLICT
    what = "is not deleted"


class BlobExists(BlobError):
    """An id is put once; it is free again when compaction has dropped its last record."""

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
    """It does not answer, or with an error."""

    def __init__(self, url: str, why: str) -> None:
        self.url = url
        super().__init__(f"replica {url} cannot be asked: {why}")


class ReplicaNoPeer(ReplicaUnreachable):
    """The operator of the node does not name it: nothing is sent to it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "no peer in the setting blob_peers of the node has this URL")


class ReplicaNotCurrent(LithifyError):
    """It was away while deletes were forgotten, here or elsewhere, and has not made that good."""

    def __init__(self, url: str, where: str) -> None:
        self.url = url
        super().__init__(
            f"replica {url} may have missed deletes that are forgotten {where}: "
            "nothing is read from it until it has read on there"
        )


class ReplicaTalksNonsense(ProtocolError):
    """An answer that cannot be, or was damaged on its way."""


class BlobTooLarge(InvalidInput):
    """A record never spans segments, so a segment is the limit."""

    def __init__(self, size_bytes: int, limit_bytes: int, blob_id: str | None = None) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        record = "record" if blob_id is None else f"blob {blob_id!r}: its record"
        super().__init__(
            f"{record} of {size_bytes} bytes or more is larger than a segment takes, {limit_bytes}"
        )


class TargetTooSmall(InvalidInput):
    """A store that is copied needs more room than its copy is to have."""

    def __init__(self, target: str, needed_bytes: int, capacity_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        self.capacity_bytes = capacity_bytes
        super().__init__(
            f"{target} is to have {capacity_bytes} bytes, "
            f"what is to be copied needs more than {needed_bytes}"
        )


class RangeNotSatisfiable(InvalidInput):
    """A range that the content does not have."""

    def __init__(self, start: int, stop: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(f"range {start} … {stop} is not in a content of {size_bytes} bytes")


class NotABlobStore(InvalidInput):
    """Nothing was created here, or not a blob store."""


class ShapeDiffers(InvalidInput):
    """The definition of a store is of another store, from elsewhere or of another time."""

    exit_code = CONFLICT

    def __init__(
        self, name: str, directory: str, defined: tuple[int, int], found: tuple[int, int]
    ) -> None:
        self.directory = directory
        super().__init__(
            f"blob store {name} is defined with {defined[0]} bytes in segments of {defined[1]}, "
            f"but {directory} holds a store of {found[0]} bytes in segments of {found[1]}: put the "
            "file definitions of this data directory back, or delete the store, which leaves this "
            f"directory in place, and adopt it with 'lithify blobs adopt {name}'"
        )


class BlobStoreNotFound(InvalidInput):
    """No store of a node has this name."""

    exit_code = NOT_FOUND


class BlobStoreExists(InvalidInput):
    """A store is created once."""

    exit_code = CONFLICT
