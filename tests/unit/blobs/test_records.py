from __future__ import annotations

import pytest

from lithify.blobs.records import (
    ID_BYTES_MAX,
    META_BYTES_MAX,
    NEVER_MS,
    PART_BYTES,
    BlobRecordKind,
    PutRecord,
    decode_id,
    decode_put,
    encode_change,
    encode_put,
    flags_of,
    hash_id,
    part_bytes,
    parts_of,
)
from lithify.errors import DamagedFrame, InvalidInput

LOG_ID = bytes(range(12))


def a_put(**other: object) -> PutRecord:
    fields: dict[str, object] = {
        "blob_id": "ünique",
        "service": "camera",
        "owner": "me",
        "content_type": "image/jpeg",
        "created_ms": 5,
        "expiry_ms": NEVER_MS,
        "size": 4,
        "content_crc": 7,
        "metadata": {"place": "Ålesund", "": "empty name"},
        "life_version": 3,
    }
    return PutRecord(**{**fields, **other})  # type: ignore[arg-type]


def test_a_put_is_read_back_with_the_offset_of_its_content() -> None:
    body = encode_put(a_put(), bytes(16)) + b"rock"
    put, at = decode_put(body, "file", 0)
    assert put == a_put()
    assert body[at:] == b"rock"


def test_small_content_has_no_parts_and_large_content_as_many_as_it_needs() -> None:
    sizes = [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 2 * PART_BYTES + 1]
    assert [parts_of(size) for size in sizes] == [0, 0, 0, 2, 2, 3]
    assert part_bytes(PART_BYTES) == 0
    assert part_bytes(PART_BYTES + 1) == PART_BYTES + 1 + 2 * 32


def test_a_change_holds_an_id() -> None:
    body = encode_change(BlobRecordKind.DELETE, "some id", 2, 99, hash_id("some id", LOG_ID))
    assert decode_id(body) == "some id"
    assert flags_of(BlobRecordKind.DELETE) == 0x0201
    assert flags_of(BlobRecordKind.TTL) == 0x0300


def test_the_hash_of_an_id_depends_on_the_log() -> None:
    assert len({hash_id("a", LOG_ID), hash_id("b", LOG_ID), hash_id("a", bytes(12))}) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"blob_id": ""},
        {"blob_id": "x" * (ID_BYTES_MAX + 1)},
        {"service": "x" * 1025},
        {"owner": "half a character: \ud83d"},
        {"expiry_ms": -1},
        {"expiry_ms": NEVER_MS + 1},
        {"metadata": {"k": "v" * META_BYTES_MAX}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_values_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        encode_put(a_put(**wrong), bytes(16))


@pytest.mark.parametrize("cut", [0, 10, 40, 71, 75, 90, -1])
def test_a_put_that_is_cut_short_is_damage(cut: int) -> None:
    body = encode_put(a_put(), bytes(16)) + b"rock"
    with pytest.raises(DamagedFrame):
        decode_put(body[:cut], "file", 0)
