"""Counts the values in JSON before it is parsed. Pure.

A parser takes time for each value, and a validator more; the contents of strings cost nothing. So
values are counted by the brackets, braces and commas outside of strings:

1. Remove escaped backslashes and quotes, so that every quote begins or ends a string.
2. The pieces between quotes are alternately outside and inside of strings.
"""

from __future__ import annotations

__all__ = ["count_json_values"]


def count_json_values(body: bytes, limit: int) -> int:
    """The number of values, or of keys and texts if these are more than the limit."""
    text = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    count = text.count(b'"') // 2
    if count > limit:
        return count
    outside = b"".join(text.split(b'"')[::2])
    return sum(outside.count(mark) for mark in (b"[", b"{", b","))
