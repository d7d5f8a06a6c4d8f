"""The hash of keys, against SipHash as its authors define it, and base64 against Python's."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from lithify.topics.messages.key_siphash import decode_base64, key_hash

WORD = 2**64 - 1


def rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & WORD


def siphash128(data: bytes, key: bytes, rounds: int, final_rounds: int) -> tuple[int, int]:
    """By the book, one step a line."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def mix(times: int) -> None:
        for _ in range(times):
            v[0], v[2] = (v[0] + v[1]) & WORD, (v[2] + v[3]) & WORD
            v[1], v[3] = rotate(v[1], 13) ^ v[0], rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2], v[0] = (v[2] + v[1]) & WORD, (v[0] + v[3]) & WORD
            v[1], v[3] = rotate(v[1], 17) ^ v[2], rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    for word in (*words, int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56):
        v[3] ^= word
        mix(rounds)
        v[0] ^= word
    v[2] ^= 0xEE
    mix(final_rounds)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    mix(final_rounds)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_book_agrees_with_the_published_vectors_of_siphash_2_4() -> None:
    key = bytes(range(16))
    for data, expected in (
        (b"", "a3817f04ba25a8e66df67214c7550293"),
        (b"\0", "da87c1d86b99af44347659119b22fc45"),
    ):
        words = siphash128(data, key, 2, 4)
        assert b"".join(word.to_bytes(8, "little") for word in words).hex() == expected


@pytest.mark.parametrize("length", [*range(26), 255, 256, 257, 1000])
def test_the_hash_of_a_key_is_siphash_1_3(length: int) -> None:
    key, log_id = bytes(i * 37 & 0xFF for i in range(length)), bytes(range(100, 112))
    assert key_hash(key, log_id) == siphash128(key, log_id + bytes(4), 1, 3)


def test_other_logs_have_other_hashes() -> None:
    assert key_hash(b"key", bytes(12)) != key_hash(b"key", bytes(11) + b"\1")


def decoded(text: bytes) -> bytes | None:
    data, out = np.frombuffer(bytearray(b"<" + text + b">"), np.uint8), np.zeros(99, np.uint8)
    count = decode_base64(data, 1, len(data) - 1, out)
    return None if count < 0 else out[:count].tobytes()


@pytest.mark.parametrize("length", range(20))
def test_base64_decodes_what_was_encoded(length: int) -> None:
    key = bytes(255 - i * 11 & 0xFF for i in range(length))
    assert decoded(base64.b64encode(key)) == key


@pytest.mark.parametrize(
    "text", [b"Q", b"QQ", b"QQ=", b"QUI", b"Q===", b"====", b"QQ=Q", b"Q Q=", b"QUI\x80", b"a-_b"]
)
def test_invalid_base64_is_not_decoded(text: bytes) -> None:
    assert decoded(text) is None
