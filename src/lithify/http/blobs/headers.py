"""The headers of blobs, in requests and in answers.

| header                    | of a put                            | of an answer                   |
|---------------------------|-------------------------------------|--------------------------------|
| `x-lithify-service-id`    | the service that stores it          | the same                       |
| `x-lithify-owner-id`      | the owner                           | the same                       |
| `x-lithify-content-type`  | default: Content-Type               | the same, and in Content-Type  |
| `x-lithify-ttl`           | seconds; -1: never, the default     | the remaining seconds          |
| `x-lithify-um-NAME`       | an item of user metadata            | the same                       |

Values are UTF-8. Names of headers are case-insensitive, so names of metadata are in lower case. A
blob that was not put over HTTP may have metadata that no header can hold: characters that cannot be
printed are written as %XX, and an item whose name is not valid in a header is omitted. `…/info` has
all metadata unchanged.

`conditions_and_ranges.py` has the headers of conditional requests and ranges. Pure. Called by the
routes of blobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from lithify.blobs.blob_json import etag_of, ttl_ms_of, ttl_s_of
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import Headers

    from lithify.blobs.content.reader import BlobInfo

__all__ = ["TTL", "PutOptions", "headers_of", "put_options"]

TTL = "x-lithify-ttl"

_SERVICE = "x-lithify-service-id"
_OWNER = "x-lithify-owner-id"
_TYPE = "x-lithify-content-type"
_METADATA = "x-lithify-um-"
_ANY_TYPE = "application/octet-stream"
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9a-z]+")


@dataclass(frozen=True, slots=True)
class PutOptions:
    """The options of a put, from its headers."""

    service: str
    owner: str
    content_type: str
    metadata: Mapping[str, str]
    ttl_ms: int | None
    """Time to live from the creation of the blob; None: it never expires."""


def put_options(headers: Headers) -> PutOptions:
    """Parse the headers of a put; raises `InvalidInput`."""
    options: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for raw_name, raw_value in headers.raw:
        name = raw_name.decode("latin-1").lower()
        if not name.startswith("x-lithify-") and name != "content-type":
            continue
        try:
            value = raw_value.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"header {name} is not UTF-8") from error
        if name.startswith(_METADATA):
            _put(metadata, name.removeprefix(_METADATA), value, name)
        elif name in (_SERVICE, _OWNER, _TYPE, TTL, "content-type"):
            _put(options, name, value, name)
        else:
            raise InvalidInput(f"header {name} is unknown: blobs have no such header")
    ttl = options.get(TTL)
    return PutOptions(
        options.get(_SERVICE, ""),
        options.get(_OWNER, ""),
        options.get(_TYPE) or options.get("content-type") or _ANY_TYPE,
        metadata,
        None if ttl is None else ttl_ms_of(ttl),
    )


def _put(values: dict[str, str], name: str, value: str, header: str) -> None:
    if not name or name in values:
        what = "twice" if name else "without a name"
        raise InvalidInput(f"header {header} is given {what}")
    values[name] = value


def headers_of(info: BlobInfo, now_ms: int) -> list[tuple[bytes, bytes]]:
    """The headers of the answer to a get or head."""
    put = info.put
    content_type = _printed(put.content_type)
    pairs = [
        ("content-type", content_type),
        ("etag", etag_of(info)),
        ("accept-ranges", "bytes"),
        # The content is user data: a browser must not interpret it as another type.
        ("x-content-type-options", "nosniff"),
        (_TYPE, content_type),
        (_SERVICE, _printed(put.service)),
        (TTL, str(ttl_s_of(info, now_ms))),
    ]
    if put.owner:
        pairs.append((_OWNER, _printed(put.owner)))
    for name, value in put.metadata.items():
        if _TOKEN.fullmatch(name.lower()):
            pairs.append((_METADATA + name.lower(), _printed(value)))
    return [(name.encode(), value.encode()) for name, value in pairs]


def _printed(text: str) -> str:
    shown = "".join(c if c.isprintable() else quote(c, safe="") for c in text)
    return shown.strip()
