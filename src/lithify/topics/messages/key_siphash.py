"""The hash of message keys: SipHash-1-3 with 128 bits, keyed with the log's id.

Key indexes compare hashes instead of keys. The log's id is random and never sent to clients, so a
producer cannot construct colliding keys. The probability of a random collision among 10^10 keys is
10^-19.

1. The log id of 12 bytes, zero-padded to 16, gives the two words of the hash key.
2. Words of 8 bytes are mixed in with one round each. The top byte of the last word is the length.
3. Three rounds give the upper 64 bits, three more the lower 64.

Producers send a binary key in Base64; `decode_base64` restores its bytes.

Pure. `key_hash` may be called from anywhere, the others from compiled loops.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import _u64

__all__ = ["decode_base64", "key_hash", "key_words", "sip128"]

_V0, _V1 = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D)
_V2, _V3 = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)
_FIRST, _SECOND = np.uint64(0xEE), np.uint64(0xDD)
_KEY_BYTES = 16


def key_words(log_id: bytes) -> tuple[np.uint64, np.uint64]:
    """The two words of the hash key of a log."""
    first, second = np.frombuffer(log_id.ljust(_KEY_BYTES, b"\0"), dtype="<u8")
    return np.uint64(first), np.uint64(second)


def key_hash(key: bytes, log_id: bytes) -> tuple[int, int]:
    """(upper, lower) 64 bits of the hash of a message key in a log."""
    # The loop is compiled for writable arrays only, and `bytes` give a read-only one.
    data = np.frombuffer(bytearray(key), dtype=np.uint8)
    high, low = sip128(data, 0, len(key), *key_words(log_id))
    return int(high), int(low)


def _base64_values() -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    values = np.full(256, -1, dtype=np.int8)
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    for value, letter in enumerate(alphabet):
        values[letter] = value
    return values


_BASE64_VALUES = _base64_values()


@njit(nogil=True)
def decode_base64(data, start, stop, out):  # type: ignore[no-untyped-def]
    """Decode padded Base64 in `data[start:stop]` to `out`; the number of bytes, -1 if invalid."""
    if (stop - start) % 4 != 0:
        return np.int64(-1)
    end = stop
    while end > start and end > stop - 2 and data[end - 1] == 0x3D:
        end -= 1
    bits, held, count = np.int64(0), 0, np.int64(0)
    for at in range(start, end):
        value = np.int64(_BASE64_VALUES[data[at]])
        if value < 0:
            return np.int64(-1)
        bits = (bits << 6 | value) & 0xFFFF
        held += 6
        if held >= 8:
            held -= 8
            out[count] = (bits >> held) & 0xFF
            count += 1
    return count


@njit(nogil=True)
def _rotate(word, bits):  # type: ignore[no-untyped-def]
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)


@njit(nogil=True)
def _round(v0, v1, v2, v3):  # type: ignore[no-untyped-def]
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@njit(nogil=True)
def sip128(data, start, stop, k0, k1):  # type: ignore[no-untyped-def]
    """(upper, lower) 64 bits of the hash of `data[start:stop]`."""
    v0, v1, v2, v3 = k0 ^ _V0, k1 ^ _V1 ^ _FIRST, k0 ^ _V2, k1 ^ _V3
    at = start
    while stop - at >= 8:
        word = _u64(data, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    word = np.uint64(stop - start) << np.uint64(56)
    shift = np.uint64(0)
    while at < stop:
        word |= np.uint64(data[at]) << shift
        shift += np.uint64(8)
        at += 1
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _FIRST
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    high = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _SECOND
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return high, v0 ^ v1 ^ v2 ^ v3
