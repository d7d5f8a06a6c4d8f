"""The bytes of requests for single rows in the client protocol. Pure.

    request   1  kind: 1 put, 2 delete, 3 get   1  length of the table's name   name
              JSON, an object: the row, or its key
    answer    of get: the row as JSON, nothing if there is none; of the others nothing

Texts are UTF-8. What is no request raises `InvalidInput`.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput
from lithify.json_values import count_json_values

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RowRequestKind", "decode_object", "encode_object", "encode_request", "parse_request"]

NAME_BYTES_MAX = 255
REQUEST_BYTES_MAX = 2**20 + 2**12
"""A row with a value of a mebibyte; escapes in its JSON leave room for less."""
VALUES_MAX = 5000
"""In the JSON: more than a table has columns."""
SMALL_BYTES = 2**14
"""As many values as fit into a smaller request are parsed in a fraction of a millisecond."""
_HEAD_BYTES = 2


class RowRequestKind(IntEnum):
    """What a request does."""

    PUT = 1
    DELETE = 2
    GET = 3


def encode_request(kind: RowRequestKind, table: str, given: Mapping[str, Any]) -> bytes:
    """A request; `given` is a row or a key."""
    name = table.encode()
    if len(name) > NAME_BYTES_MAX:
        raise InvalidInput(f"table {table:.40}… has a name of {len(name)} bytes, at most 255 fit")
    return bytes((kind, len(name))) + name + encode_object(given)


def parse_request(body: bytes) -> tuple[int, str, bytes]:
    """(kind, table, JSON) of a request; the kind and the JSON are not parsed."""
    if len(body) > REQUEST_BYTES_MAX:
        what = f"a request for a row has {len(body)} bytes"
        raise InvalidInput(f"{what}, at most {REQUEST_BYTES_MAX} fit")
    values = count_json_values(body, VALUES_MAX) if len(body) > SMALL_BYTES else 0
    if values > VALUES_MAX:
        what = f"a request for a row has {values} values or more"
        raise InvalidInput(f"{what}, at most {VALUES_MAX} fit")
    end = _HEAD_BYTES + body[1] if len(body) >= _HEAD_BYTES else 0
    if not end or len(body) < end:
        raise InvalidInput(f"a request of {len(body)} bytes is none for a row")
    try:
        return body[0], str(body[_HEAD_BYTES:end], "utf-8"), body[end:]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the name of a table is no UTF-8: {error}") from error


def decode_object(what: str, text: bytes | str) -> dict[str, Any]:
    """A JSON object, such as a row or a key."""
    try:
        value = json.loads(text if isinstance(text, str) else str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{what} must be a JSON object")
    return value


def encode_object(value: Mapping[str, Any]) -> bytes:
    """A row or a key as JSON."""
    return _encode(value).encode()


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Made once: `json.dumps` with these options makes an encoder for each value."""
