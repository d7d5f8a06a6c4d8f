"""Frames of the Pulsar binary protocol: bytes in, commands out, and back.

Integers are big-endian. A frame is

    total size  u32   bytes after this field
    command size u32
    command           a BaseCommand of wire.proto
    entry             to the end of the frame; SEND and MESSAGE have one, nothing else does

Reading goes on in steps, whatever pieces the bytes arrive in:

1. The caller keeps what it received in one buffer and gives a view of the unread part.
2. Every complete frame is cut out, as views: payload is never copied.
3. The caller handles the frames, drops the consumed bytes, and comes back with more.

A frame that cannot be one is refused as soon as its two sizes are there, before its bytes are
waited for. The good frames in front of it are given out first, so what a peer gets answered does
not depend on how its bytes were cut into pieces.

Pure. For sessions, and for whoever plays a client against one.
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
    "CONNECT_BYTES_MAX",
    "FRAME_MARGIN_BYTES",
    "Frame",
    "check_text",
    "encode_command",
    "encode_payload",
    "next_frame",
]

FRAME_MARGIN_BYTES = 10 * 1024
"""How much larger than the largest message a frame may be: its sizes, its command, its metadata."""

CONNECT_BYTES_MAX = 32 * 2**10
"""The largest frame of a client that nobody knows yet: a token has 16 KiB at most."""

VALUES_MAX = 1000
"""Of a repeated field with text in it, such as properties: each costs a microsecond to check."""

_SIZES = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, as views of the buffer it arrived in: valid as long as that is not used again."""

    command: memoryview
    entry: memoryview | None


def check_text(message: Message) -> None:
    """Raise `ProtocolError` if a text in a command is not UTF-8, or there are too many.

    The generated code takes it for one, and gives bytes to whoever expects text.
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
    """The numbers of the fields that are text or have text in them."""
    return frozenset(
        field.number
        for field in of.fields
        if field.type == field.TYPE_STRING
        # A message id may have another one in it, which is no news.
        or (field.message_type not in (None, of) and _fields_with_text(field.message_type))
    )


def encode_command(command: BaseCommand) -> bytes:
    """The frame of a command that has no entry."""
    body: bytes = command.SerializeToString()
    return _SIZES.pack(4 + len(body), len(body)) + body


def encode_payload(command: BaseCommand, entry: Buffer) -> list[Buffer]:
    """The frame of a command and its entry, in pieces to send one after the other."""
    body: bytes = command.SerializeToString()
    return [_SIZES.pack(4 + len(body) + len(entry), len(body)) + body, entry]


def next_frame(buffer: memoryview, limit_bytes: int) -> tuple[Frame, int] | None:
    """The frame at the start of `buffer` and its size, or nothing while it is not complete.

    `limit_bytes` is the largest frame taken, its sizes included: the largest message and
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
