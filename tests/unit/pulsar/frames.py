"""Entries and SEND frames as a client makes them, with the generated code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lithify.checksum import crc32c
from lithify.errors import ProtocolError
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import FRAME_MARGIN_BYTES, Frame, encode_payload, next_frame
from lithify.topics.messages.message_pb2 import MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LIMIT_BYTES = 5 * 2**20 + FRAME_MARGIN_BYTES


def array(data: bytes) -> NDArray[np.uint8]:
    """A writable copy, as a receive buffer is."""
    return np.frombuffer(bytearray(data), dtype=np.uint8)


def metadata(**fields: object) -> MessageMetadata:
    given = {"producer_name": "p", "sequence_id": 7, "publish_time": 1_700_000_000_000, **fields}
    return MessageMetadata(**given)  # type: ignore[arg-type]


def entry_of(head: bytes, payload: bytes, *, crc: bool = True) -> bytes:
    body = len(head).to_bytes(4, "big") + head + payload
    return b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body if crc else body


def entry(payload: bytes = b"payload", *, crc: bool = True, **fields: object) -> bytes:
    return entry_of(metadata(**fields).SerializeToString(), payload, crc=crc)


def send(data: bytes, **fields: object) -> bytes:
    given = {"producer_id": 3, "sequence_id": 7, **fields}
    command = wire.BaseCommand(type=wire.BaseCommand.SEND, send=wire.CommandSend(**given))  # type: ignore[arg-type]
    return b"".join(encode_payload(command, data))


def framed(command: bytes, data: bytes) -> bytes:
    size = len(command).to_bytes(4, "big")
    return (4 + len(command) + len(data)).to_bytes(4, "big") + size + command + data


def batch(payloads: Sequence[bytes]) -> bytes:
    singles = [SingleMessageMetadata(payload_size=len(p)).SerializeToString() for p in payloads]
    return b"".join(
        len(single).to_bytes(4, "big") + single + payload
        for single, payload in zip(singles, payloads, strict=True)
    )


def split_frames(buffer: memoryview, limit_bytes: int) -> tuple[list[Frame], int]:
    """Every complete frame of `buffer`, and how many bytes they are.

    Raises `ProtocolError` when the first frame is a bad one. A bad frame behind good ones is met by
    the next call, so a caller asks again until nothing is consumed.
    """
    frames: list[Frame] = []
    consumed = 0
    while True:
        try:
            found = next_frame(buffer[consumed:], limit_bytes)
        except ProtocolError:
            if not frames:
                raise
            return frames, consumed
        if found is None:
            return frames, consumed
        frames.append(found[0])
        consumed += found[1]
