"""Counts the values in a JSON body before it is parsed.

A parser and a validator take time for each value, and a validator more for each invalid one: one
mebibyte of `0,0,0,…` takes seconds. The contents of strings cost nothing. So values are counted by
the brackets, braces and commas outside of strings:

1. Remove escaped backslashes and quotes, so that every quote begins or ends a string.
2. The pieces between quotes are alternately outside and inside of strings.

Pure. Called by `paths.py` and `messages/produce.py`.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import HTTPException

__all__ = ["check_json_values"]


def check_json_values(body: bytes, limit: int) -> None:
    """Raise `HTTPException` if a body has more than `limit` values, or keys and texts."""
    text = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    count = text.count(b'"') // 2
    if count <= limit:
        outside = b"".join(text.split(b'"')[::2])
        count = sum(outside.count(mark) for mark in (b"[", b"{", b","))
    if count > limit:
        reason = f"the body has {count} values or more, the limit is {limit}"
        # FastAPI reports any other error while it reads a body as invalid JSON.
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
