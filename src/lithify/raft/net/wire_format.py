"""The bytes that Raft nodes and their clients send each other.

    frame       little-endian
         0     4  length    of the body
         4     4  crc       CRC-32C of the body
         8        body: messages without a gap between them
    message
         0     1  kind      its place in `KINDS`
         1     1  length    of the group's name
         2        name of the group; empty where none is meant
                  fixed fields: each integer 8 bytes, each truth value 1, in the class's order
                  other fields, in the class's order
    other fields
        text, bytes         4 bytes length, then these
        entries             4 bytes count, then of each 21 bytes (index, term, length, kind) and its
                            payload
        head of a snapshot  text: JSON
        state of a transfer 1 byte

All messages to one peer within one turn of the event loop share a frame, so that heartbeats of a
thousand groups cost one checksum, one write and one wake-up.

Sender and receiver are not part of a message: a connection starts with `Hello`, after which
everything on it is from that node to this one. So no node can speak in the name of another.

A new message is a dataclass at the end of `KINDS`; its fields define its bytes. Bytes that violate
the format raise `ProtocolError`, after which the connection is closed. Nothing is allocated because
of a length that a peer claims: a frame is copied once, out of the received bytes, and payloads out
of the frame.

A run of requests is read as one `ClientRequests`, and `ClientResponses` are written as one
`ClientResponse` each. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from itertools import chain, count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lithify.checksum import crc32c
from lithify.errors import ProtocolError
from lithify.raft.core.messages import (
    AppendReply,
    AppendRequest,
    Commit,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    ReadReply,
    ReadRequest,
    Sleep,
    SleepReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    WakeUp,
)
from lithify.raft.entry import make_entry
from lithify.raft.group.removed_members import EndKnown, MemberQuery, MemberRemoved
from lithify.raft.net.control_frames import (
    Challenge,
    ClientEvent,
    ClientRequest,
    ClientRequests,
    ClientResponse,
    ClientResponses,
    Credentials,
    Hello,
    Introduction,
    NodeAlive,
    Proof,
    Welcome,
)
from lithify.raft.repair.messages import EntriesFound, EntriesWanted
from lithify.raft.snapshots.messages import (
    SnapshotAck,
    SnapshotEntries,
    SnapshotOffer,
    SnapshotPiece,
    TransferState,
)
from lithify.raft.storage.snapshots.snapshot_file import Head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.checksum import Buffer
    from lithify.raft.entry import Entry

    Put = Callable[[Any, list[Buffer]], None]
    Take = Callable[[bytes, int], tuple[Any, int]]

__all__ = [
    "FRAME_HEADER_BYTES",
    "KINDS",
    "decode_frame",
    "encode_frame",
    "encode_message",
    "frame_bytes",
    "join_frame",
]

FRAME_HEADER_BYTES = 8
PREFIXES_MAX = 4096
REQUESTS_MAX = 4096
"""In a frame, so that reading it is short; a client sends a frame when it has 64 KiB, or less."""

_FRAME = struct.Struct("<II")
_KIND = struct.Struct("<BB")
_LENGTH = struct.Struct("<I")
_ENTRY = struct.Struct("<QQIB")
_PAYLOAD = attrgetter("payload")
_ASK = struct.Struct("<qqI")
_ANSWER = struct.Struct("<qqqI")


KINDS: tuple[type, ...] = (
    Hello,
    Welcome,
    ClientRequest,
    ClientResponse,
    AppendRequest,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    VoteRequest,
    VoteReply,
    TimeoutNow,
    ReadRequest,
    ReadReply,
    SnapshotOffer,
    SnapshotEntries,
    SnapshotPiece,
    SnapshotAck,
    ClientEvent,
    MemberQuery,
    MemberRemoved,
    EndKnown,
    Introduction,
    EntriesWanted,
    EntriesFound,
    Credentials,
    Challenge,
    Proof,
    Commit,
    NodeAlive,
    Sleep,
    SleepReply,
    WakeUp,
)
"""All messages; the position of one is its kind, so append new ones."""


# --- other fields -----------------------------------------------------------------------------


def _put_bytes(value: bytes, pieces: list[Buffer]) -> None:
    pieces += (_LENGTH.pack(len(value)), value)


def _take_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + 4
    end = start + _LENGTH.unpack_from(data, at)[0]
    if end > len(data):
        raise ProtocolError(f"a field ends at byte {end} of a body of {len(data)}")
    return data[start:end], end


def _put_text(value: str, pieces: list[Buffer]) -> None:
    _put_bytes(value.encode(), pieces)


def _take_text(data: bytes, at: int) -> tuple[str, int]:
    value, at = _take_bytes(data, at)
    return value.decode(), at


def _put_entries(entries: list[Entry], pieces: list[Buffer]) -> None:
    pack = _ENTRY.pack
    headers = [pack(index, term, len(payload), kind) for index, term, payload, kind in entries]
    pieces.append(_LENGTH.pack(len(entries)))
    pieces += chain.from_iterable(zip(headers, map(_PAYLOAD, entries), strict=True))


def _take_entries(data: bytes, at: int) -> tuple[list[Entry], int]:
    count = _LENGTH.unpack_from(data, at)[0]
    at += 4
    entries: list[Entry] = []
    unpack, header_bytes, limit = _ENTRY.unpack_from, _ENTRY.size, len(data)
    # Each entry needs bytes of its own, so a false count ends with the body.
    for _ in range(count):
        index, term, length, kind = unpack(data, at)
        start = at + header_bytes
        at = start + length
        if at > limit:
            raise ProtocolError(f"an entry ends at byte {at} of a body of {limit}")
        entries.append(make_entry((index, term, data[start:at], kind)))
    return entries, at


def _put_head(head: Head, pieces: list[Buffer]) -> None:
    _put_bytes(head.to_json(), pieces)


def _take_head(data: bytes, at: int) -> tuple[Head, int]:
    value, at = _take_bytes(data, at)
    head = Head.from_json(value)
    if not all(isinstance(n, int) for n in (head.meta.index, head.meta.term, head.machine_version)):
        raise ProtocolError("the head of a snapshot has no numbers where they should be")
    return head, at


def _put_state(state: TransferState, pieces: list[Buffer]) -> None:
    pieces.append(bytes((state,)))


def _take_state(data: bytes, at: int) -> tuple[TransferState, int]:
    return TransferState(data[at]), at + 1


_FIXED = {"int": "q", "bool": "?"}
_OTHER: dict[str, tuple[Put, Take]] = {
    "bytes": (_put_bytes, _take_bytes),
    "str": (_put_text, _take_text),
    "list[Entry]": (_put_entries, _take_entries),
    "Head": (_put_head, _take_head),
    "TransferState": (_put_state, _take_state),
}


# --- messages ---------------------------------------------------------------------------------


def _types(cls: Any) -> list[tuple[str, str]]:
    """The fields of a class and the texts of their types."""
    if issubclass(cls, tuple):
        return [(name, type_.__forward_arg__) for name, type_ in cls.__annotations__.items()]
    return [(field.name, str(field.type)) for field in fields(cls)]


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these fields of a message."""
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda message: (get(message),)


class _Codec:
    """The encoding of one class of messages, derived from its fields."""

    def __init__(self, kind: int, cls: type) -> None:
        self.kind = kind
        self.cls = cls
        self.between_nodes = issubclass(cls, RaftMessage)
        of_connection = ("sender", "to") if self.between_nodes else ()
        types = {name: type_ for name, type_ in _types(cls) if name not in of_connection}
        self.fixed = tuple(name for name, type_ in types.items() if type_ in _FIXED)
        self.struct = struct.Struct("<" + "".join(_FIXED[types[name]] for name in self.fixed))
        others = [name for name in types if name not in self.fixed]
        self.puts = tuple((name, _OTHER[types[name]][0]) for name in others)
        self.takes = tuple(_OTHER[types[name]][1] for name in others)
        read = [*self.fixed, *others]
        self.order = tuple(read.index(name) for name in types)
        self.in_order = list(types) == read
        self.values: Callable[[Any], tuple[Any, ...]] = _getter(self.fixed)
        self.prefixes: dict[str, bytes] = {}
        """By group; nearly always the same few."""

    def encode(self, group: str, message: Any, pieces: list[Buffer]) -> None:
        pieces.append(self.prefix(group) + self.struct.pack(*self.values(message)))
        for name, put in self.puts:
            put(getattr(message, name), pieces)

    def prefix(self, group: str) -> bytes:
        """The bytes before the fields."""
        found = self.prefixes.get(group)
        if found is not None:
            return found
        if len(self.prefixes) >= PREFIXES_MAX:
            self.prefixes.clear()
        name = group.encode()
        prefix = self.prefixes[group] = _KIND.pack(self.kind, len(name)) + name
        return prefix

    def decode(self, data: bytes, at: int, names: tuple[str, ...]) -> tuple[Any, int]:
        values: list[Any] = list(self.struct.unpack_from(data, at))
        at += self.struct.size
        for take in self.takes:
            value, at = take(data, at)
            values.append(value)
        if not self.in_order:
            values = [values[place] for place in self.order]
        return self.cls(*names, *values) if self.between_nodes else self.cls(*values), at


_CODECS = tuple(_Codec(kind, cls) for kind, cls in enumerate(KINDS))
_BY_CLASS = {codec.cls: codec for codec in _CODECS}
_KIND_ASK = KINDS.index(ClientRequest)


def encode_message(group: str, message: object, pieces: list[Buffer]) -> int:
    """Append a message to the pieces of a frame; returns its size."""
    before = len(pieces)
    if isinstance(message, ClientResponses):
        pieces += _encode_answers(group, message)
    else:
        _BY_CLASS[type(message)].encode(group, message, pieces)
    return sum(map(len, pieces[before:]))


def _encode_answers(group: str, answers: ClientResponses) -> list[bytes]:
    """One `ClientResponse` for each of the run."""
    prefix = _BY_CLASS[ClientResponse].prefix(group)
    pack, outcome = _ANSWER.pack, answers.outcome
    rows = zip(answers.numbers, count(answers.log_index), answers.bodies, strict=False)
    return [
        prefix + pack(number, outcome, log_index, len(body)) + body
        for number, log_index, body in rows
    ]


def join_frame(pieces: list[Buffer]) -> bytearray:
    """The frame of these messages: the only copy of their payloads."""
    frame = bytearray().join((bytes(FRAME_HEADER_BYTES), *pieces))
    with memoryview(frame)[FRAME_HEADER_BYTES:] as body:
        _FRAME.pack_into(frame, 0, len(body), crc32c(body))
    return frame


def encode_frame(messages: Iterable[tuple[str, object]]) -> bytearray:
    """A frame of messages, each with the name of its group."""
    pieces: list[Buffer] = []
    for group, message in messages:
        encode_message(group, message, pieces)
    return join_frame(pieces)


def frame_bytes(data: memoryview, limit: int) -> int:
    """The size of the frame that starts with these bytes; 0 if its header is incomplete."""
    if len(data) < FRAME_HEADER_BYTES:
        return 0
    length: int = _FRAME.unpack_from(data)[0]
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes is larger than the limit {limit}")
    return FRAME_HEADER_BYTES + length


def decode_frame(frame: memoryview, sender: str, to: str) -> list[tuple[str, Any]]:
    """The messages of a complete frame, each with the name of its group."""
    body = bytes(frame[FRAME_HEADER_BYTES:])
    crc: int = _FRAME.unpack_from(frame)[1]
    if crc32c(body) != crc:
        raise ProtocolError("the checksum of a frame is wrong")
    try:
        return _messages(body, (sender, to))
    except (
        struct.error,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ProtocolError(f"a message cannot be read: {error}") from error


def _messages(body: bytes, names: tuple[str, str]) -> list[tuple[str, Any]]:
    messages: list[tuple[str, Any]] = []
    at = requests = 0
    while at < len(body):
        kind, length = _KIND.unpack_from(body, at)
        if kind >= len(_CODECS):
            raise ProtocolError(f"kind {kind} of message is not known")
        fields_at = at + _KIND.size + length
        group = str(body[fields_at - length : fields_at], "utf-8")
        message: Any
        if kind == _KIND_ASK:
            message, at = _decode_requests(body, at, fields_at, REQUESTS_MAX - requests)
            requests += len(message.numbers)
        else:
            message, at = _CODECS[kind].decode(body, fields_at, names)
        messages.append((group, message))
    return messages


def _decode_requests(
    body: bytes, at: int, fields_at: int, count_max: int
) -> tuple[ClientRequests, int]:
    """The run of requests that starts here; it ends before another kind, group or operation."""
    prefix = body[at:fields_at]
    prefix_bytes, header_bytes, limit = len(prefix), len(prefix) + _ASK.size, len(body)
    operation = _ASK.unpack_from(body, fields_at)[1]
    numbers: list[int] = []
    bodies: list[bytes] = []
    unpack = _ASK.unpack_from
    while body.startswith(prefix, at):
        number, wanted, length = unpack(body, at + prefix_bytes)
        if wanted != operation:
            break
        start = at + header_bytes
        at = start + length
        if at > limit:
            raise ProtocolError(f"a request ends at byte {at} of a body of {limit}")
        if len(numbers) >= count_max:
            raise ProtocolError(f"a frame has more requests than the limit {REQUESTS_MAX}")
        numbers.append(number)
        bodies.append(body[start:at])
    return ClientRequests(operation, numbers, bodies), at
