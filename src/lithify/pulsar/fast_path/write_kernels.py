"""Compiled loops that write SEND_RECEIPT and MESSAGE frames.

`frames.py` documents them, checks the size of `out`, and is the only caller. Numbers are int64,
written as varints of the uint64 with the same bits.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import copy_bytes
from lithify.positions import PACKED_ENTRY_BITS

__all__ = [
    "MESSAGE_HEADER_BYTES_MAX",
    "RECEIPT_BYTES_MAX",
    "write_header",
    "write_messages",
    "write_receipts",
]

_ENTRY_MASK = 2**PACKED_ENTRY_BITS - 1

RECEIPT_BYTES_MAX = 72
"""Sizes: 8; leading tags and lengths: 4; 5 numbers of up to 11 bytes; tag and length of the id: 2.
69 together."""

MESSAGE_HEADER_BYTES_MAX = 96
"""Without an ack set. Sizes: 8; leading tags and lengths: 8; 6 numbers of up to 11 bytes; tag and
length of the id: 2. 84 together."""


@njit(nogil=True)
def _put_u32(out, at, value):  # type: ignore[no-untyped-def]
    for byte in range(4):
        out[at + byte] = (value >> (24 - 8 * byte)) & 0xFF
    return at + 4


@njit(nogil=True)
def _put(out, at, tag, value):  # type: ignore[no-untyped-def]
    """Write a varint field with a tag of one byte; returns its end."""
    out[at] = tag
    at += 1
    left = np.uint64(value)
    while left >= np.uint64(0x80):
        out[at] = np.uint8(left & np.uint64(0x7F)) | np.uint8(0x80)
        left >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(left)
    return at + 1


@njit(nogil=True)
def _size(value):  # type: ignore[no-untyped-def]
    """The number of bytes that `_put` writes."""
    size, left = 2, np.uint64(value)
    while left >= np.uint64(0x80):
        left >>= np.uint64(7)
        size += 1
    return size


@njit(nogil=True)
def write_receipts(out, producers, sequences, highest, ledger, first_entry):  # type: ignore[no-untyped-def]
    """Write a SEND_RECEIPT frame per row, consecutively; returns the bytes written.

    `out` has room for `RECEIPT_BYTES_MAX` per row. Lengths are one byte: no receipt reaches 128.
    """
    at = 0
    for row in range(producers.size):
        body = at + 12
        end = _put(out, body, 0x08, producers[row])
        end = _put(out, end, 0x10, sequences[row])
        out[end] = 0x1A
        identity = end + 2
        end = _put(out, identity, 0x08, ledger)
        end = _put(out, end, 0x10, first_entry + row)
        out[identity - 1] = end - identity
        end = _put(out, end, 0x20, highest[row])
        _put_u32(out, at, end - at - 4)
        _put_u32(out, at + 4, end - at - 8)
        out[at + 8], out[at + 9], out[at + 10], out[at + 11] = 0x08, 0x07, 0x3A, end - body
        at = end
    return at


@njit(nogil=True)
def write_header(  # type: ignore[no-untyped-def]
    out, at, consumer, ledger, entry, partition, redeliveries, words, epoch, entry_bytes
):
    """Write the part of a MESSAGE frame before its entry; returns the offset of the entry.

    A negative partition or epoch and a redelivery count of zero are omitted. `out` has room for
    `MESSAGE_HEADER_BYTES_MAX` and 11 bytes per word of the ack set.
    """
    id_bytes = _size(ledger) + _size(entry) + (_size(partition) if partition >= 0 else 0)
    size = _size(consumer) + 2 + id_bytes
    size += _size(redeliveries) if redeliveries > 0 else 0
    size += _size(epoch) if epoch >= 0 else 0
    for word in words:
        size += _size(word)
    command_bytes = 2 + _size(size) + size
    at = _put_u32(out, at, 4 + command_bytes + entry_bytes)
    at = _put_u32(out, at, command_bytes)
    at = _put(out, at, 0x08, 0x09)
    at = _put(out, at, 0x4A, size)
    at = _put(out, at, 0x08, consumer)
    at = _put(out, at, 0x12, id_bytes)
    at = _put(out, at, 0x08, ledger)
    at = _put(out, at, 0x10, entry)
    if partition >= 0:
        at = _put(out, at, 0x18, partition)
    if redeliveries > 0:
        at = _put(out, at, 0x18, redeliveries)
    for word in words:
        at = _put(out, at, 0x20, word)
    if epoch >= 0:
        at = _put(out, at, 0x28, epoch)
    return at


@njit(nogil=True)
def write_messages(out, data, offsets, lengths, positions, consumer, partition, words):  # type: ignore[no-untyped-def]
    """Write MESSAGE frames of entries consecutively, until one does not fit.

    Returns (bytes written, count), or (-1, row) if a row's entry is not inside `data`.
    """
    at = 0
    for row in range(offsets.size):
        begin, length = offsets[row], lengths[row]
        if begin < 0 or length < 0 or length > data.size - begin:
            return -1, row
        if length > out.size - at - MESSAGE_HEADER_BYTES_MAX:
            return at, row
        ledger = positions[row] >> PACKED_ENTRY_BITS
        entry = positions[row] & _ENTRY_MASK
        at = write_header(out, at, consumer, ledger, entry, partition, 0, words, -1, length)
        copy_bytes(out, at, data, begin, length)
        at += length
    return at, offsets.size
