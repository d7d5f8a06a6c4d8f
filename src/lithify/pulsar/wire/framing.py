"""Frames of the Pulsar binary protocol: encoding and incremental decoding.

Integers are big-endian. A frame is

    total size  u32   bytes after this field
    command size u32
    command           a BaseCommand of wire.proto
    entry             to the end of the frame; only SEND and MESSAGE have one

Decoding is incremental:

1. The caller keeps received bytes in one buffer and passes a view of the unread part.
2. `next_frame` returns a complete frame as views; the payload is not copied.
3. The caller handles the frame, drops its bytes, and repeats.

A malformed frame is refused as soon as its two sizes have arrived, without waiting for the rest.
The valid frames before it are returned first, so the replies to a peer do not depend on how TCP
splits its bytes.

Pure. Used by sessions, and by tests that act as a client.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from lithify.errors import ProtocolError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

    from lithify.checksum import Buffer
    from lithify.pulsar.wire.wire_pb2 import BaseCommand

__all__ = [
    "FRAME_MARGIN_BYTES",
    "Frame",
    "check_text",
    "encode_command",
    "encode_payload",
    "next_frame",
]

FRAME_MARGIN_BYTES = 10 * 1024
"""Allowance of a frame above the largest message: its sizes, its command, its metadata."""


VALUES_MAX = 1000
"""Limit of a repeated field with text, such as properties: a check takes 1 µs per value."""

_SIZES = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, as views of the receive buffer: valid until the buffer is overwritten."""

    command: memoryview
    entry: memoryview | None


def check_text(message: Message) -> None:
    """Raise `ProtocolError` if a text field is not UTF-8, or a repeated one has too many values.

    The generated code accepts invalid UTF-8, and returns bytes where callers expect str.
    """
    with_text = _fields_with_text(message.DESCRIPTOR)
    for field, found in message.ListFields():
        if field.number not in with_text:
            continue
        single = isinstance(found, str | bytes | Message)
        if not single and len(found) > VALUES_MAX:
            raise ProtocolError(
                f"{field.full_name} has {len(found)} values, the limit is {VALUES_MAX}"
            )
        for each in (found,) if single else found:
            if isinstance(each, Message):
                check_text(each)
            elif isinstance(each, bytes):
                raise ProtocolError(f"{field.full_name} is not text: {each!r:.100}")


@cache
def _fields_with_text(of: Descriptor) -> frozenset[int]:
    """The numbers of the fields that are text or contain text."""
    return frozenset(
        field.number
        for field in of.fields
        if field.type == field.TYPE_STRING
        # A message id may contain another one: do not recurse.
        or (field.message_type not in (None, of) and _fields_with_text(field.message_type))
    )


def encode_command(command: BaseCommand) -> bytes:
    """Encode the frame of a command without an entry."""
    body: bytes = command.SerializeToString()
    return _SIZES.pack(4 + len(body), len(body)) + body


def encode_payload(command: BaseCommand, entry: Buffer) -> list[Buffer]:
    """Encode the frame of a command and its entry, in pieces to send consecutively."""
    body: bytes = command.SerializeToString()
    return [_SIZES.pack(4 + len(body) + len(entry), len(body)) + body, entry]


def next_frame(buffer: memoryview, limit_bytes: int) -> tuple[Frame, int] | None:
    """The frame at the start of `buffer` and its size; None while it is incomplete.

    `limit_bytes` is the frame size limit, including the size fields: the largest message plus
    `FRAME_MARGIN_BYTES`.
    """
    if len(buffer) < 4:
        return None
    total = int.from_bytes(buffer[:4], "big")
    end = 4 + total
    if total < 4:
        raise ProtocolError(f"frame of {total} bytes has no room for its command's size")
    if end > limit_bytes:
        raise ProtocolError(f"frame of {end} bytes is larger than the limit {limit_bytes}")
    if len(buffer) < 8:
        return None
    command_end = 8 + int.from_bytes(buffer[4:8], "big")
    if command_end > end:
        raise ProtocolError(
            f"command of {command_end - 8} bytes reaches past its frame of {total} bytes"
        )
    if len(buffer) < end:
        return None
    entry = buffer[command_end:end] if command_end < end else None
    return Frame(buffer[8:command_end], entry), end
