"""The hash that spreads keys, against known values."""

from __future__ import annotations

import pytest

from lithify.topics.subscriptions.key_shared_hash import HASH_SLOTS, key_hash, key_slot


@pytest.mark.parametrize(
    ("key", "murmur"),
    [
        (b"", 0),
        (b"a", 0x3C2569B2),
        (b"test", 0xBA6BD213),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        # Of each length modulo 4, with bytes above 127.
        (b"\xff", 0x7D6CF10D),
        (b"\xff\xfe", 0x16C86850),
        (b"\x00\x80\xff", 0x71CE3A98),
        (bytes(range(256)), 0x640A0E56),
        ("sch\u00f6n".encode(), 0x30433D6D),
    ],
)
def test_it_is_murmur3_without_its_sign_bit(key: bytes, murmur: int) -> None:
    assert key_hash(key) == murmur & 0x7FFFFFFF
    assert key_slot(key) == (murmur & 0x7FFFFFFF) % HASH_SLOTS
