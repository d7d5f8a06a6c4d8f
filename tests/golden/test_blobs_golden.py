"""The bytes of blob records version 1, as they were first written. They never change.

`python tests/golden/test_blobs_golden.py` writes the file if it is missing.
"""

from __future__ import annotations

from pathlib import Path

from lithify.blobs.records import (
    NEVER_MS,
    BlobRecordKind,
    PutRecord,
    decode_put,
    encode_change,
    encode_put,
    hash_id,
)

RECORDS = Path(__file__).parent / "blob_records_v1.txt"
LOG_ID = bytes(range(12))
ID = "sediment/ä"
SMALL = PutRecord(
    ID,
    "camera",
    "me",
    "image/jpeg",
    1_700_000_000_000,
    1_700_000_100_000,
    5,
    0x12345678,
    {"place": "Ålesund", "empty": ""},
)
LARGE = PutRecord(ID, "", "", "", 0, NEVER_MS, 10**9, 2**32 - 1, {}, 7)


def bodies() -> dict[str, bytes]:
    """One of each kind, every field with a value of its own."""
    id_hash = hash_id(ID, LOG_ID)
    return {
        "put": encode_put(SMALL, id_hash) + b"stone",
        "put-in-parts": encode_put(LARGE, id_hash),
        "delete": encode_change(BlobRecordKind.DELETE, ID, 1, 1_700_000_100_000, id_hash),
        "ttl": encode_change(BlobRecordKind.TTL, ID, 2, NEVER_MS, id_hash),
        "undelete": encode_change(BlobRecordKind.UNDELETE, ID, 2**31 - 1, 0, id_hash),
    }


def written() -> str:
    return "".join(f"{name} {body.hex()}\n" for name, body in bodies().items())


def test_records_of_version_1_are_still_written() -> None:
    assert written() == RECORDS.read_text()


def test_puts_of_version_1_are_still_read() -> None:
    lines = dict(line.split() for line in RECORDS.read_text().splitlines())
    small, large = bytes.fromhex(lines["put"]), bytes.fromhex(lines["put-in-parts"])
    put, at = decode_put(small, str(RECORDS), 0)
    assert (put, small[at:]) == (SMALL, b"stone")
    assert decode_put(large, str(RECORDS), 0) == (LARGE, len(large))


if __name__ == "__main__" and not RECORDS.exists():
    RECORDS.write_text(written())
