"""Conditional requests and ranges of blobs.

The tags are the ETags of contents (`etag_of` in `blobs/blob_json.py`):

1. `If-Match` must have the tag, otherwise 412. `If-None-Match` must not, otherwise 304.
2. `Range` is used if `If-Range` has the tag or is absent, and if it is one range of bytes. Other
   ranges are ignored, which HTTP allows.

Pure. Called by the routes of blobs.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from lithify.http.error_responses import RequestRefused

if TYPE_CHECKING:
    from starlette.datastructures import Headers

__all__ = ["is_known", "range_of"]

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,100})\s*-\s*(\d{0,100})", re.ASCII | re.IGNORECASE)


def is_known(headers: Headers, tag: str) -> bool:
    """Whether the client has this content. Raises if it requires another one."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is not None and not _names_tag(match, tag, weak=False):
        raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, f"the tag of the blob is {tag}")
    return none_match is not None and _names_tag(none_match, tag, weak=True)


def _names_tag(condition: str, tag: str, *, weak: bool) -> bool:
    """Whether a condition header names this tag; `weak` accepts tags that are marked as weak."""
    if condition.strip() == "*":
        return True
    for each in condition.split(","):
        name = each.strip()
        if (name.removeprefix("W/") if weak else name) == tag:
            return True
    return False


def range_of(headers: Headers, tag: str, size: int) -> tuple[int, int] | None:
    """The requested half-open range of bytes; None: all. It may lie outside the content."""
    requested, only_if = headers.get("range"), headers.get("if-range")
    if requested is None or (only_if is not None and only_if.strip() != tag):
        return None
    found = _RANGE.fullmatch(requested.strip())
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        # A suffix range; with a length of zero no content satisfies it.
        return (max(0, size - int(last)), size) if int(last) else (size, size)
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size
