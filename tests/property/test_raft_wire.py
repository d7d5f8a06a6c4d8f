"""What is sent is what is received, and nothing else that is received does harm."""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lithify.checksum import crc32c
from lithify.errors import ProtocolError
from lithify.raft.core.configuration import Config
from lithify.raft.core.messages import AppendRequest, Heartbeat, RaftMessage
from lithify.raft.core.values import SnapshotMeta
from lithify.raft.entry import Entry
from lithify.raft.net.control_frames import (
    ClientRequest,
    ClientRequests,
    ClientResponse,
    ClientResponses,
    Hello,
)
from lithify.raft.net.wire_format import (
    FRAME_HEADER_BYTES,
    KINDS,
    _types,
    decode_frame,
    encode_frame,
    encode_message,
    frame_bytes,
)
from lithify.raft.snapshots.messages import TransferState
from lithify.raft.storage.snapshots.snapshot_file import Head

NUMBERS = st.integers(-(2**63), 2**63 - 1)
PLACES = st.integers(0, 2**63 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
CONFIGS = st.builds(Config, st.frozensets(NAMES), learners=st.frozensets(NAMES))
HEADS = st.builds(Head, st.builds(SnapshotMeta, PLACES, PLACES, CONFIGS), PLACES)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "int": NUMBERS,
    "bool": st.booleans(),
    "bytes": st.binary(max_size=50),
    "str": st.text(max_size=20),
    "list[Entry]": st.lists(
        st.builds(Entry, PLACES, PLACES, st.binary(max_size=50), st.integers(0, 255)), max_size=5
    ),
    "Head": HEADS,
    "TransferState": st.sampled_from(TransferState),
}


def of(kind: type) -> st.SearchStrategy[Any]:
    names = {"sender": st.just("n1"), "to": st.just("n2")} if issubclass(kind, RaftMessage) else {}
    return st.builds(kind, **{n: names.get(n, BY_TYPE[type_]) for n, type_ in _types(kind)})


MESSAGES = st.one_of(*(of(kind) for kind in KINDS))
GROUPS = st.text(max_size=60).filter(lambda name: len(name.encode()) < 256)


def received(frame: memoryview) -> list[tuple[str, Any]]:
    """The messages of a frame, with the requests of each run one by one."""
    found: list[tuple[str, Any]] = []
    for group, message in decode_frame(frame, "n1", "n2"):
        if isinstance(message, ClientRequests):
            rows = zip(message.numbers, message.bodies, strict=True)
            found += (
                (group, ClientRequest(number, message.operation, body)) for number, body in rows
            )
        else:
            found.append((group, message))
    return found


@given(st.lists(st.tuples(GROUPS, MESSAGES), max_size=6))
def test_sent_messages_are_received_unchanged(sent: list[tuple[str, Any]]) -> None:
    frame = encode_frame(sent)
    assert frame_bytes(memoryview(frame), 2**20) == len(frame)
    assert received(memoryview(frame)) == sent
    for size in range(8):
        assert frame_bytes(memoryview(frame)[:size], 2**20) == 0


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_each_kind_of_message_is_decoded(kind: type, data: st.DataObject) -> None:
    message = data.draw(of(kind))
    frame = encode_frame([("orders", message)])
    assert received(memoryview(frame)) == [("orders", message)]
    pieces: list[Any] = []
    assert encode_message("orders", message, pieces) == len(frame) - FRAME_HEADER_BYTES


ASKS = st.builds(ClientRequest, NUMBERS, st.integers(1, 2), st.binary(max_size=5))


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), ASKS), max_size=12))
def test_requests_for_the_same_thing_are_one_run(sent: list[tuple[str, ClientRequest]]) -> None:
    frame = memoryview(encode_frame(sent))
    assert received(frame) == sent
    runs = [(group, asks.operation) for group, asks in decode_frame(frame, "n1", "n2")]
    assert all(run != after for run, after in pairwise(runs))


@given(st.lists(st.tuples(NUMBERS, st.binary(max_size=5)), min_size=1), st.integers(0, 2**40))
def test_the_answers_to_a_run_are_received_one_by_one(
    rows: list[tuple[int, bytes]], index: int
) -> None:
    numbers, bodies = map(list, zip(*rows, strict=True))
    frame = encode_frame([("g", ClientResponses(numbers, 0, index, bodies))])
    expected = [
        ClientResponse(number, 0, at, body) for at, (number, body) in enumerate(rows, index)
    ]
    assert received(memoryview(frame)) == [("g", answer) for answer in expected]


def with_right_checksum(body: bytes) -> memoryview:
    return memoryview(struct.pack("<II", len(body), crc32c(body)) + body)


@settings(max_examples=500)
@given(st.binary(max_size=200))
@example(bytes((4, 0)) + bytes(32) + b"\xff\xff\xff\xff")
@example(bytes((13, 0)) + bytes(24) + b"\x02\0\0\0[]")
def test_any_bytes_are_messages_or_a_protocol_error(body: bytes) -> None:
    with suppress(ProtocolError):
        decode_frame(with_right_checksum(body), "n1", "n2")


@settings(max_examples=300)
@given(st.lists(st.tuples(GROUPS, MESSAGES), min_size=1, max_size=3), st.data())
def test_a_changed_body_is_messages_or_a_protocol_error(
    sent: list[tuple[str, Any]], data: st.DataObject
) -> None:
    body = bytearray(encode_frame(sent)[8:])
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    cut = body[: data.draw(st.integers(0, len(body)))]
    for changed in (body, cut):
        with suppress(ProtocolError):
            decode_frame(with_right_checksum(bytes(changed)), "n1", "n2")


def test_a_flipped_bit_is_found_by_the_checksum() -> None:
    frame = encode_frame([("g", Heartbeat("n1", "n2", 3, 4, 5))])
    for place in range(4, len(frame)):
        damaged = bytearray(frame)
        damaged[place] ^= 1
        with pytest.raises(ProtocolError, match="checksum"):
            decode_frame(memoryview(damaged), "n1", "n2")


def test_a_frame_above_the_limit_is_refused_by_its_header() -> None:
    with pytest.raises(ProtocolError, match="4294967295 bytes is larger than the limit 100"):
        frame_bytes(memoryview(b"\xff" * 8), 100)


def test_a_claimed_count_of_entries_allocates_nothing() -> None:
    request = AppendRequest("n1", "n2", 1, 0, 0, [], 0)
    body = bytearray(encode_frame([("", request)])[8:])
    body[-4:] = b"\xff" * 4
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode_frame(with_right_checksum(bytes(body)), "n1", "n2")


def test_no_node_can_send_in_the_name_of_another() -> None:
    frame = encode_frame([("g", Heartbeat("n9", "n8", 3, 4, 5))])
    assert decode_frame(memoryview(frame), "n1", "n2") == [("g", Heartbeat("n1", "n2", 3, 4, 5))]


def test_kinds_keep_their_numbers() -> None:
    assert encode_frame([("", Hello(1, "", "", "", ""))])[8] == 0
    assert encode_frame([("", ClientRequest(1, 1, b""))])[8] == 2
    assert encode_frame([("", Heartbeat("a", "b", 1, 1, 1))])[8] == 6
