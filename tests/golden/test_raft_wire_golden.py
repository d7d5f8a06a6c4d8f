"""The bytes of version 1 of what Raft nodes send, and of the file NODE. They never change.

`python tests/golden/test_raft_wire_golden.py` writes the files if they are missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.raft.core.configuration import Config
from lithify.raft.core.messages import (
    AppendReply,
    AppendRequest,
    Commit,
    Heartbeat,
    HeartbeatReply,
    ReadReply,
    ReadRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from lithify.raft.core.values import SnapshotMeta
from lithify.raft.entry import Entry
from lithify.raft.group.removed_members import (
    EndKnown,
    MemberQuery,
    MemberRemoved,
    RemovedMembership,
)
from lithify.raft.net.control_frames import (
    Challenge,
    ClientEvent,
    ClientRequest,
    ClientRequests,
    ClientResponse,
    Credentials,
    Hello,
    Introduction,
    Proof,
    Welcome,
)
from lithify.raft.net.peer_recognition import KnownStart, Standing, Starts
from lithify.raft.net.wire_format import KINDS, decode_frame, encode_frame
from lithify.raft.node.identity import NodeIdentity
from lithify.raft.repair.messages import EntriesFound, EntriesWanted
from lithify.raft.snapshots.messages import (
    SnapshotAck,
    SnapshotEntries,
    SnapshotOffer,
    SnapshotPiece,
    TransferState,
)
from lithify.raft.storage.snapshots.snapshot_file import Head

FRAMES = Path(__file__).parent / "raft_wire_v1.txt"
NODE_1 = Path(__file__).parent / "raft_node_v1.txt"
NODE_2 = Path(__file__).parent / "raft_node_v2.txt"
NODE_3 = Path(__file__).parent / "raft_node_v3.txt"
NODE_4 = Path(__file__).parent / "raft_node_v4.txt"
NODE = Path(__file__).parent / "raft_node_v5.txt"

WAY = ("n1", "n2", 7)
ENTRIES = [Entry(11, 6, b"stone"), Entry(12, 7, b"", 1)]
HEAD = Head(SnapshotMeta(9, 5, Config(frozenset(("n1", "n2")), learners=frozenset(("n3",)))), 2)
MESSAGES: tuple[Any, ...] = (
    Hello(1, "raft", "n1", "n2", '{"n1": "127.0.0.1:7001"}'),
    Welcome(1, "n2", "", "{}"),
    ClientRequest(3, 1, b"put"),
    ClientResponse(3, 0, 12, b"done"),
    AppendRequest(*WAY, 10, 6, ENTRIES, 9),
    AppendReply(*WAY, 12, rejected=True, hint_index=4, hint_term=3),
    Heartbeat(*WAY, 9, 8),
    HeartbeatReply(*WAY, 8),
    VoteRequest(*WAY, 12, 6, pre=True, forced=False),
    VoteReply(*WAY, granted=True, pre=False),
    TimeoutNow(*WAY),
    ReadRequest(*WAY, 2**40),
    ReadReply(*WAY, 2**40, 9),
    SnapshotOffer(*WAY, 99, 0, HEAD),
    SnapshotEntries(*WAY, 99, 1, ENTRIES[:1]),
    SnapshotPiece(*WAY, 99, 2, b"state", last=True),
    SnapshotAck(*WAY, 99, 2, 8, TransferState.DONE),
    ClientEvent(3, b"news"),
    MemberQuery(*WAY),
    MemberRemoved(*WAY, 12, ended=True),
    EndKnown(*WAY),
    Introduction(2, "0b" * 16, "", '{"n3": "0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c"}'),
    EntriesWanted.of(*WAY, [7, 9]),
    EntriesFound(*WAY, 12, ENTRIES[:1]),
    Credentials(
        3, "0b" * 16, "", "{}", "0d" * 16, '[2, ["a1b2c3d4", "e5f60718"]]', '{"n3": ["0c", 1, "d"]}'
    ),
    Challenge(b"\x0e" * 32, "raft", "n2"),
    Proof(b"\x0f" * 32, b"\x10" * 32),
    Commit(*WAY, 12),
)


def written() -> str:
    frames = {type(each).__name__: encode_frame([("orders", each)]) for each in MESSAGES}
    return "".join(f"{name} {frame.hex()}\n" for name, frame in frames.items())


def node_file() -> bytes:
    fs = MemoryFileSystem()
    fs.mkdir("d")
    identity = NodeIdentity(fs, "d", "n1", "raft", draw=lambda size: b"\x0b" * size)
    identity.recognition.record_met("n2", "0c" * 16)
    identity.recognition.record_start("n2", KnownStart("0c" * 16, 3, "e5f60718"))
    identity.recognition.cluster_id = "0d" * 16
    identity.start(is_seen=True)
    identity.stop("old@5f0c93a1e2b47d86", "two histories")
    identity.begin("default", ["n1", "n2"])
    for key in ("orders@5f0c93a1e2b47d86", "jobs@0a51cc23f08e9b17"):
        identity.begin(key, [])
    identity.left["orders@5f0c93a1e2b47d86"] = RemovedMembership(1, 4, 3, 271)
    del identity.groups["orders@5f0c93a1e2b47d86"]
    identity.drop("jobs@0a51cc23f08e9b17", ["n3"])
    identity.learn({"n2": "127.0.0.1:7002"})
    return read_file(fs, "d/NODE")


def test_every_message_is_here() -> None:
    assert tuple(type(each) for each in MESSAGES) == KINDS


def test_messages_of_version_1_are_still_sent() -> None:
    assert written() == FRAMES.read_text()


def test_messages_of_version_1_are_still_decoded() -> None:
    frames = [bytes.fromhex(line.split()[1]) for line in FRAMES.read_text().splitlines()]
    found = [decode_frame(memoryview(frame), "n1", "n2") for frame in frames]
    as_read = [
        ClientRequests(each.operation, [each.number], [each.body])
        if isinstance(each, ClientRequest)
        else each
        for each in MESSAGES
    ]
    assert found == [[("orders", each)] for each in as_read]


def read_back(golden: Path) -> NodeIdentity:
    fs = MemoryFileSystem()
    fs.mkdir("d")
    write_atomic(fs, "d/NODE", golden.read_bytes())
    return NodeIdentity(fs, "d", "n1", "raft")


def test_a_node_file_of_version_1_is_still_read() -> None:
    identity = read_back(NODE_1)
    assert (identity.book, identity.groups, identity.is_new) == (
        {"n2": "127.0.0.1:7002"},
        {"default": ["n1", "n2"]},
        False,
    )


def test_a_node_file_of_version_2_is_still_read() -> None:
    identity = read_back(NODE_2)
    assert identity.left == {"orders@5f0c93a1e2b47d86": RemovedMembership(1, 4, 3, 271)}
    assert identity.dropped == {"jobs@0a51cc23f08e9b17": ["n2"]}, "all that are known"


def test_a_node_file_of_version_3_is_still_read_and_gets_an_identity() -> None:
    identity = read_back(NODE_3)
    assert identity.dropped == {"jobs@0a51cc23f08e9b17": ["n3"]}
    assert len(identity.recognition.own) == 32
    assert identity.recognition.standing is Standing.ACCEPTED
    assert (identity.recognition.known, identity.stopped) == ({}, {})


def test_a_node_file_of_version_5_is_still_written_and_read() -> None:
    assert node_file() == NODE.read_bytes()
    identity = read_back(NODE)
    recognition = identity.recognition
    assert recognition.cluster_id == "0d" * 16
    assert recognition.starts == Starts(1, ("0b0b0b0b",))
    assert recognition.met_starts == {"n2": KnownStart("0c" * 16, 3, "e5f60718")}
    assert identity.is_listed


def test_a_node_file_of_version_4_is_still_read() -> None:
    identity = read_back(NODE_4)
    recognition = identity.recognition
    assert (recognition.cluster_id, recognition.starts) == ("", Starts())
    assert not identity.is_listed
    assert (recognition.own, recognition.standing) == ("0b" * 16, Standing.NEW)
    assert recognition.known == {"n2": "0c" * 16}
    assert identity.stopped == {"old@5f0c93a1e2b47d86": "two histories"}
    assert (identity.book, identity.groups) == ({"n2": "127.0.0.1:7002"}, {"default": ["n1", "n2"]})
    assert identity.left == {"orders@5f0c93a1e2b47d86": RemovedMembership(1, 4, 3, 271)}
    assert identity.dropped == {"jobs@0a51cc23f08e9b17": ["n3"]}
