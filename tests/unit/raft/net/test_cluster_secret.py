"""Only who has the cluster secret gets in, whatever a stranger has read or is sent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from lithify.errors import InvalidInput, ProtocolError
from lithify.raft.client.client import RaftClient
from lithify.raft.net import transport as transport_module
from lithify.raft.net.client_operations import ClientOperation
from lithify.raft.net.cluster_secret import (
    NONCE_BYTES,
    SECRET_BYTES_MIN,
    ClusterSecret,
    ClusterSecretRefused,
    Side,
)
from lithify.raft.net.control_frames import (
    WIRE_VERSION,
    Challenge,
    ClientRequest,
    Hello,
    Proof,
    Welcome,
)
from lithify.raft.net.wire_format import decode_frame, encode_frame, frame_bytes
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.net.nodes import (
    Node,
    beat,
    closed,
    frames,
    greeted,
    has_failed,
    running,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lithify.raft.net.peer_link import PeerLink

OURS = ClusterSecret(b"the secret of this cluster")
THEIRS = ClusterSecret(b"another one, of a stranger")
NONCE, OTHER = b"n" * NONCE_BYTES, b"o" * NONCE_BYTES
HELLO = Hello(WIRE_VERSION, "raft", "b", "a", "{}")
CHALLENGE = Challenge(OTHER, "raft", "a")


# --- proofs -------------------------------------------------------------------------------------


def test_a_proof_is_for_one_side_of_one_greeting_between_two_nodes() -> None:
    proof = OURS.proof(Side.CONNECTING, HELLO, CHALLENGE, NONCE)
    assert OURS.accepts(proof, Side.CONNECTING, HELLO, CHALLENGE, NONCE)
    others: list[tuple[Side, Hello, Challenge, bytes]] = [
        (Side.ACCEPTING, HELLO, CHALLENGE, NONCE),
        (Side.CONNECTING, HELLO, CHALLENGE, OTHER),
        (Side.CONNECTING, HELLO, replace(CHALLENGE, nonce=NONCE), NONCE),
        (Side.CONNECTING, HELLO, replace(CHALLENGE, node="c"), NONCE),
        (Side.CONNECTING, HELLO, replace(CHALLENGE, cluster="other"), NONCE),
        (Side.CONNECTING, replace(HELLO, node=""), CHALLENGE, NONCE),
        (Side.CONNECTING, replace(HELLO, node="c"), CHALLENGE, NONCE),
        (Side.CONNECTING, replace(HELLO, to="c"), CHALLENGE, NONCE),
        (Side.CONNECTING, replace(HELLO, cluster="other"), CHALLENGE, NONCE),
        (Side.CONNECTING, replace(HELLO, book='{"c": "h:1"}'), CHALLENGE, NONCE),
        # The same bytes, cut elsewhere.
        (Side.CONNECTING, replace(HELLO, node="ba", to=""), CHALLENGE, NONCE),
    ]
    for given in others:
        assert not OURS.accepts(proof, *given), given
    assert not THEIRS.accepts(proof, Side.CONNECTING, HELLO, CHALLENGE, NONCE)
    assert not OURS.accepts(b"", Side.CONNECTING, HELLO, CHALLENGE, NONCE)
    with pytest.raises(ProtocolError, match="nonce"):
        OURS.accepts(proof, Side.CONNECTING, HELLO, CHALLENGE, b"short")


def test_a_secret_is_long_and_does_not_show_itself() -> None:
    with pytest.raises(InvalidInput, match="has 15 bytes, must have at least 16"):
        ClusterSecret(bytes(SECRET_BYTES_MIN - 1))
    assert "secret of this" not in repr(OURS)


# --- connections --------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Any:
    with structlog.testing.capture_logs() as lines:
        yield lines


def is_another(link: PeerLink, before: object) -> bool:
    return link._opening is not before


def told(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PROCESS_S_MAX):
            await story()

    asyncio.run(limited())


def refusals(logged: list[Any], event: str) -> list[Any]:
    return [line for line in logged if line["event"] == event]


def test_nodes_with_the_same_secret_talk_and_so_do_their_clients() -> None:
    async def story() -> None:
        a, b = (
            Node("a", secret=OURS),
            Node("b", secret=ClusterSecret(b"the secret of this cluster")),
        )
        async with running(a, b):
            b.transport.learn({"a": a.at})
            await until(lambda: a.transport.connected == ["b"] and b.transport.connected == ["a"])
            a.transport.send("g", beat("a", "b"))
            await until(lambda: b.heard == [("g", beat("a", "b"))])
            async with RaftClient([a.transport.address], secret=OURS) as client:
                assert await client.ask("g", ClientOperation.PROPOSE, b"x") == (0, b"x")

    told(story)


@pytest.mark.parametrize(
    ("own", "reason", "event_there"),
    [
        (THEIRS, "node a has another cluster secret", "connection refused"),
        (None, "node a requires the cluster secret, and none is given here", "connection refused"),
    ],
)
def test_a_node_with_another_secret_or_none_stays_outside_and_is_logged_once(
    own: ClusterSecret | None, reason: str, event_there: str, logged: list[Any]
) -> None:
    async def story() -> None:
        a, b = Node("a", secret=OURS), Node("b", secret=own)
        async with running(a, b):
            b.transport.learn({"a": a.at})
            await until(lambda: has_failed(b, "a") == reason)
            link = b.transport.links["a"]
            for _ in range(2):
                await until(partial(is_another, link, link._opening))
                link.hurry()
            assert a.transport.connected == b.transport.connected == []
            assert a.identity.book == {}, "a stranger's addresses"
        assert len(refusals(logged, event_there)) == 1
        assert len(refusals(logged, "not connected")) == 1
        assert not refusals(logged, "connection closed")

    told(story)


def test_a_node_whose_peer_has_no_secret_does_not_talk_to_it() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b", secret=OURS)
        async with running(a, b):
            b.transport.learn({"a": a.at})
            await until(lambda: "does not prove the cluster secret" in has_failed(b, "a"))
            assert b.transport.connected == []

    told(story)


@pytest.mark.parametrize(
    ("theirs", "own", "why"),
    [
        (OURS, None, "requires the cluster secret, and none is given"),
        (OURS, THEIRS, "node a has another cluster secret"),
        (None, OURS, "does not prove the cluster secret: it has none"),
    ],
)
def test_a_client_gets_a_typed_error_at_once(
    theirs: ClusterSecret | None, own: ClusterSecret | None, why: str
) -> None:
    async def story() -> None:
        a = Node("a", secret=theirs)
        async with running(a), RaftClient([a.transport.address], secret=own) as client:
            with pytest.raises(ClusterSecretRefused, match=why):
                await client.ask("g", ClientOperation.PROPOSE, b"x")

    told(story)


async def challenged(
    target: Node, **changed: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Challenge]:
    """A connection made by hand, up to the challenge."""
    reader, writer = await greeted(target, **changed)
    return reader, writer, await one(reader)


async def messages_of(reader: asyncio.StreamReader) -> list[tuple[str, Any]]:
    """The messages of the next frame."""
    head = await reader.readexactly(8)
    data = head + await reader.readexactly(frame_bytes(memoryview(head), 2**20) - 8)
    return decode_frame(memoryview(data), "", "")


async def one(reader: asyncio.StreamReader) -> Any:
    """The only message of the next frame."""
    [(_, message)] = await messages_of(reader)
    return message


def test_a_proof_that_is_reflected_to_its_maker_is_refused() -> None:
    """A stranger has the node prove the secret to it, and shows that proof to the node."""

    async def story() -> None:
        a = Node("a", secret=OURS)
        shown: asyncio.Queue[tuple[Proof, asyncio.StreamWriter]] = asyncio.Queue()
        given: list[Challenge] = []

        async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await one(reader)
            writer.write(encode_frame([("", given[0])]))
            await shown.put((await one(reader), writer))

        server = await asyncio.start_server(stranger, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with running(a):
            reader, writer, challenge = await challenged(a, node="b", to="a")
            # As the node's own challenge, under the name that the node expects.
            given.append(replace(challenge, node="b"))
            a.transport.learn({"b": f"127.0.0.1:{port}"})
            proof, other = await shown.get()
            writer.write(encode_frame([("", proof)]))
            found, hung_up = await frames(reader)
            assert hung_up
            assert "another cluster secret" in found[-1][-1][1].refusal
            # Nor is it taken for the answer to itself.
            other.write(
                encode_frame([("", Proof(b"", proof.proof)), ("", Welcome(1, "b", "", "{}"))])
            )
            await until(lambda: "proves another cluster secret" in has_failed(a, "b"))
            assert a.transport.connected == []
            await closed(writer)
            await closed(other)
        server.close()

    told(story)


def test_a_greeting_that_was_recorded_is_worth_nothing_again() -> None:
    async def story() -> None:
        a = Node("a", secret=OURS)
        async with running(a):
            reader, writer, challenge = await challenged(a)
            hello = Hello(WIRE_VERSION, "raft", "", "", "{}")
            proof = Proof(NONCE, OURS.proof(Side.CONNECTING, hello, challenge, NONCE))
            writer.write(encode_frame([("", proof)]))
            [(_, own), (_, welcome)] = await messages_of(reader)
            assert OURS.accepts(own.proof, Side.ACCEPTING, hello, challenge, NONCE)
            assert welcome.refusal == ""
            again, other, _ = await challenged(a)
            other.write(encode_frame([("", proof)]))
            found, hung_up = await frames(again)
            assert hung_up
            assert "another cluster secret" in found[-1][-1][1].refusal
            await closed(writer)
            await closed(other)

    told(story)


@pytest.mark.parametrize(
    "sent",
    [
        Proof(b"short", b"x"),
        Proof(NONCE, b""),
        Hello(WIRE_VERSION, "raft", "", "", "{}"),
        ClientRequest(1, ClientOperation.PROPOSE, b"x"),
    ],
)
def test_only_a_proof_of_the_right_size_is_read_before_it(sent: Any) -> None:
    async def story() -> None:
        a = Node("a", secret=OURS)
        async with running(a):
            reader, writer, _ = await challenged(a)
            writer.write(encode_frame([("g", sent)]))
            found, hung_up = await frames(reader)
            assert hung_up
            assert all(message.refusal for frame in found for _, message in frame)
            await closed(writer)

    told(story)


def test_a_request_sent_with_the_greeting_is_not_read() -> None:
    async def story() -> None:
        a = Node("a", secret=OURS)
        async with running(a):
            at = a.transport.address
            reader, writer = await asyncio.open_connection(at.host, at.port)
            hello = Hello(WIRE_VERSION, "raft", "", "", "{}")
            request = ClientRequest(1, ClientOperation.PROPOSE, b"x")
            writer.write(encode_frame([("", hello), ("g", request)]))
            assert await frames(reader) == ([], True)
            await closed(writer)

    told(story)


def test_a_client_that_does_not_answer_a_challenge_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport_module, "HELLO_S", 0.05)

    async def story() -> None:
        a = Node("a", secret=OURS)
        async with running(a):
            reader, writer, _ = await challenged(a)
            assert await frames(reader) == ([], True)
            await until(lambda: not a.transport.channels)
            assert not a.transport._admission._challenged
            await closed(writer)

    told(story)
