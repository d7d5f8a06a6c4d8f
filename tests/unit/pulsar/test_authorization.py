"""The gate of a session, without a socket: what it answers, holds back and refuses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import jwt
import numpy as np
import pytest

from lithify.clock import ManualClock
from lithify.errors import ProtocolError
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.pulsar.authorization import FREE, HELD_COMMANDS_MAX, NEEDS, REFRESH_S
from lithify.pulsar.broker import Broker
from lithify.pulsar.consumer_commands import LEAVING_A_STEP as CONSUMERS_A_STEP
from lithify.pulsar.producer_commands import LEAVING_A_STEP as PRODUCERS_A_STEP
from lithify.pulsar.session import Session
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.permissions import Permissions, with_grant
from lithify.topics.token_authentication import TokenKey
from lithify.topics.topics import Topics, TopicSettings
from tests.patience import PROCESS_S_MAX
from tests.unit.pulsar.frames import entry, send, split_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = b"a secret of more than thirty-two bytes"
TOPIC = "persistent://public/default/orders"
HIDDEN = "persistent://secret/plans/next"

Command = wire.BaseCommand


@pytest.fixture(autouse=True)
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """In which the sessions of a test run, and their alarms go off."""
    loop = Visit.loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Visit:
    """A session, its answers, and the clock it reads."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, *, secure: bool = True) -> None:
        self.clock = ManualClock()
        topics = Topics(
            MemoryFileSystem(),
            "data",
            settings=TopicSettings(),
            clock=self.clock,
            events=ignore_events,
            owner="test",
        )
        public = Namespace("public", "default")
        topics.definitions.change(lambda d: with_grant(d, public, "ann", ["produce", "consume"]))
        access = Permissions(
            TokenKey.secret(SECRET),
            superusers=[],
            definitions=lambda: topics.definitions.current,
            clock=self.clock,
        )
        self.broker = Broker(topics, name="n", version="v", access=access if secure else None)
        self._out = bytearray()
        self.session = Session(self.broker, self._out.extend)

    def token(self, name: str = "ann", valid_s: int = 60) -> bytes:
        expires_s = self.clock.now_ms() // 1000 + valid_s
        return jwt.encode({"sub": name, "exp": expires_s}, SECRET).encode()

    def sends(self, command: Any) -> list[Any]:
        """What is answered."""
        data = np.frombuffer(encode_command(command), dtype=np.uint8)

        async def receive() -> int:
            return self.session.receive(data, 0, len(data))

        assert self.loop.run_until_complete(receive()) == len(data)
        return self.answers()

    def hears(self, kinds: set[Command.Type]) -> list[Any]:
        """What comes by itself, once it is all of these kinds; the alarms look every second."""
        found: list[Any] = []

        async def wait() -> None:
            while not kinds <= {each.type for each in found}:
                found.extend(self.answers())
                await asyncio.sleep(0.01)

        self.loop.run_until_complete(asyncio.wait_for(wait(), PROCESS_S_MAX))
        return found

    def answers(self) -> list[Any]:
        frames, _ = split_frames(memoryview(bytes(self._out)), 2**20)
        self._out.clear()
        return [Command.FromString(bytes(frame.command)) for frame in frames]

    def connects(self, token: bytes, method: str = "token", *, refresh: bool = True) -> None:
        command = Command(type=Command.CONNECT)
        command.connect.client_version = "test"
        command.connect.auth_method_name = method
        command.connect.auth_data = token
        command.connect.feature_flags.supports_auth_refresh = refresh
        assert [each.type for each in self.sends(command)] == [Command.CONNECTED]

    def answers_challenge(self, token: bytes) -> list[Any]:
        command = Command(type=Command.AUTH_RESPONSE)
        command.authResponse.response.auth_method_name = "token"
        command.authResponse.response.auth_data = token
        return self.sends(command)


def request(kind: Command.Type, topic: str = TOPIC, request_id: int = 7) -> Any:
    command = Command(type=kind)
    part = getattr(command, NEEDS[kind][0])
    part.request_id = request_id
    if kind == Command.GET_TOPICS_OF_NAMESPACE:
        part.namespace = topic.removeprefix("persistent://").rpartition("/")[0]
        return command
    part.topic = topic
    if kind == Command.PRODUCER:
        part.producer_id = 1
    elif kind == Command.SUBSCRIBE:
        part.consumer_id = 1
        part.subscription = "s"
        part.subType = 0
    elif kind == Command.GET_OR_CREATE_SCHEMA:
        part.schema.name = ""
        part.schema.schema_data = b""
        part.schema.type = 1
    return command


def ping() -> Any:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return command


def refusal(answer: Any) -> tuple[str, str]:
    """The kind of the answer and the error in it."""
    (part,) = [value for field, value in answer.ListFields() if field.name != "type"]
    assert part.request_id == 7
    code = getattr(part, "error_code", None) or part.error
    return Command.Type.Name(answer.type), wire.ServerError.Name(code)


ANSWERS = {
    Command.PARTITIONED_METADATA: "PARTITIONED_METADATA_RESPONSE",
    Command.LOOKUP: "LOOKUP_RESPONSE",
    Command.GET_TOPICS_OF_NAMESPACE: "ERROR",
    Command.PRODUCER: "ERROR",
    Command.SUBSCRIBE: "ERROR",
}


def test_every_command_of_a_session_is_free_or_needs_something() -> None:
    handled = set(Visit().session.handlers)
    assert handled <= FREE | set(NEEDS)
    assert not FREE & set(NEEDS)
    assert set(ANSWERS) <= handled


@pytest.mark.parametrize("kind", ANSWERS)
def test_unknown_clients_and_clients_without_permission_are_refused_in_the_form_of_the_request(
    kind: Command.Type,
) -> None:
    stranger = Visit()
    stranger.connects(b"", method="none")
    (answer,) = stranger.sends(request(kind))
    assert refusal(answer) == (ANSWERS[kind], "AuthenticationError")
    known = Visit()
    known.connects(known.token())
    (answer,) = known.sends(request(kind, HIDDEN))
    assert refusal(answer) == (ANSWERS[kind], "AuthorizationError")
    assert list(known.broker.topics.opened()) == []


def test_permitted_clients_are_served() -> None:
    visit = Visit()
    visit.connects(visit.token())
    kinds = [answer.type for kind in ANSWERS for answer in visit.sends(request(kind))]
    assert Command.ERROR not in kinds


def test_a_token_by_another_method_does_not_count() -> None:
    visit = Visit()
    visit.connects(visit.token(), method="basic")
    (answer,) = visit.sends(request(Command.LOOKUP))
    assert refusal(answer)[1] == "AuthenticationError"
    assert "'basic'" in answer.lookupTopicResponse.message


def test_an_invalid_name_is_refused_before_any_lookup() -> None:
    visit = Visit()
    visit.connects(visit.token())
    for topic in ("", "persistent://..", "persistent://public/default/../../x"):
        (answer,) = visit.sends(request(Command.PRODUCER, topic))
        assert refusal(answer)[1] not in {"AuthorizationError", "AuthenticationError"}


def test_without_security_no_token_is_required() -> None:
    visit = Visit(secure=False)
    visit.connects(b"whatever", method="strange")
    visit.clock.advance(10**6)
    (answer,) = visit.sends(request(Command.PRODUCER, TOPIC))
    assert answer.type == Command.PRODUCER_SUCCESS


def test_an_expired_token_is_requested_once_and_commands_wait_for_it() -> None:
    visit = Visit()
    visit.connects(visit.token())
    visit.clock.advance(29)
    assert [each.type for each in visit.sends(ping())] == [Command.PONG]
    visit.clock.advance(1)
    answers = visit.sends(request(Command.LOOKUP))
    assert [each.type for each in answers] == [Command.AUTH_CHALLENGE, Command.LOOKUP_RESPONSE]
    visit.clock.advance(30)
    assert visit.sends(request(Command.LOOKUP)) == []
    assert [each.type for each in visit.sends(ping())] == [Command.PONG]
    assert visit.sends(request(Command.PRODUCER)) == []
    answers = visit.answers_challenge(visit.token(valid_s=60))
    assert [each.type for each in answers] == [Command.LOOKUP_RESPONSE, Command.PRODUCER_SUCCESS]
    visit.clock.advance(60)
    assert Command.AUTH_CHALLENGE in [each.type for each in visit.sends(ping())]


@pytest.mark.parametrize("answer", ["expired", "another principal", "nonsense", "none in time"])
def test_a_client_that_does_not_renew_its_token_is_disconnected(answer: str) -> None:
    visit = Visit()
    old = visit.token()
    visit.connects(old)
    visit.sends(request(Command.PRODUCER))
    visit.sends(request(Command.SUBSCRIBE))
    topic = visit.broker.topics.get(TOPIC)
    assert len(topic.producers.joined) == 1
    visit.clock.advance(60)
    asked, *closed = visit.sends(request(Command.LOOKUP))
    assert asked.type == Command.AUTH_CHALLENGE
    assert {each.type for each in closed} == {Command.CLOSE_PRODUCER, Command.CLOSE_CONSUMER}
    assert len(topic.producers.joined) == 0
    if answer == "none in time":
        visit.clock.advance(REFRESH_S)
        answers = visit.sends(request(Command.LOOKUP))
        (last,) = answers[-1:]
        answers = answers[:-1]
        assert refusal(last) == ("LOOKUP_RESPONSE", "AuthenticationError")
    else:
        tokens = {"expired": old, "another principal": visit.token("bob"), "nonsense": b"a.b.c"}
        answers = visit.answers_challenge(tokens[answer])
    (refused,) = answers
    assert refusal(refused) == ("LOOKUP_RESPONSE", "AuthenticationError")
    assert all(not each.consumers for each in topic.subscriptions.values())
    (again,) = visit.sends(request(Command.PRODUCER))
    assert refusal(again) == ("ERROR", "AuthenticationError")


def test_a_client_that_cannot_renew_its_token_is_not_challenged() -> None:
    visit = Visit()
    visit.connects(visit.token(), refresh=False)
    visit.clock.advance(60)
    (answer,) = visit.sends(request(Command.LOOKUP))
    assert refusal(answer) == ("LOOKUP_RESPONSE", "AuthenticationError")


CLOSED = {Command.CLOSE_PRODUCER, Command.CLOSE_CONSUMER}


def joined(*, refresh: bool = True, valid_s: int = 60) -> Visit:
    """A client with a producer and a consumer."""
    visit = Visit()
    visit.connects(visit.token(valid_s=valid_s), refresh=refresh)
    assert {each.type for each in visit.sends(request(Command.PRODUCER))} == {
        Command.PRODUCER_SUCCESS
    }
    assert {each.type for each in visit.sends(request(Command.SUBSCRIBE))} == {Command.SUCCESS}
    return visit


@pytest.mark.parametrize("move", ["advance", "jump"])
def test_a_silent_client_is_disconnected_when_its_token_expires(move: str) -> None:
    visit = joined(refresh=False)
    getattr(visit.clock, move)(60)
    assert {each.type for each in visit.hears(CLOSED)} == CLOSED
    (answer,) = visit.sends(request(Command.LOOKUP))
    assert refusal(answer) == ("LOOKUP_RESPONSE", "AuthenticationError")


@pytest.mark.parametrize("move", ["advance", "jump"])
def test_a_silent_client_is_challenged_in_time_and_disconnected_at_expiry(move: str) -> None:
    visit = joined()
    getattr(visit.clock, move)(30)
    assert [each.type for each in visit.hears({Command.AUTH_CHALLENGE})] == [Command.AUTH_CHALLENGE]
    getattr(visit.clock, move)(30)
    assert {each.type for each in visit.hears(CLOSED)} == CLOSED
    assert visit.sends(request(Command.PRODUCER)) == [], "it may still answer"
    answers = visit.answers_challenge(visit.token())
    assert [each.type for each in answers] == [Command.PRODUCER_SUCCESS]


def test_a_client_that_renews_its_token_in_time_continues() -> None:
    visit = joined()
    visit.clock.advance(30)
    visit.hears({Command.AUTH_CHALLENGE})
    assert visit.answers_challenge(visit.token(valid_s=300)) == []
    visit.clock.advance(60)
    assert [each.type for each in visit.sends(ping())] == [Command.PONG]
    visit.clock.advance(300 - 60 - 30)
    assert [each.type for each in visit.hears({Command.AUTH_CHALLENGE})] == [Command.AUTH_CHALLENGE]


def test_a_client_without_a_newer_token_is_challenged_again_at_expiry() -> None:
    visit = joined()
    same = visit.token()
    visit.clock.advance(30)
    visit.hears({Command.AUTH_CHALLENGE})
    assert visit.answers_challenge(same) == []
    visit.clock.advance(29)
    assert [each.type for each in visit.sends(ping())] == [Command.PONG]
    visit.clock.advance(1)
    found = visit.hears({Command.AUTH_CHALLENGE, *CLOSED})
    assert found[0].type == Command.AUTH_CHALLENGE, "before its producers are closed"


def test_a_clock_set_back_extends_the_token() -> None:
    visit = joined(refresh=False)
    visit.clock.jump(-100)
    visit.clock.advance(100)
    assert [each.type for each in visit.sends(ping())] == [Command.PONG]
    visit.clock.advance(60)
    assert {each.type for each in visit.hears(CLOSED)} == CLOSED


def test_the_time_to_answer_is_measured_by_the_monotonic_clock() -> None:
    visit = joined()
    visit.clock.advance(60)
    visit.hears(CLOSED)
    visit.clock.jump(10**6)
    assert visit.sends(request(Command.LOOKUP)) == [], "it still has time"
    visit.clock.jump(-(10**7))
    visit.clock.advance(REFRESH_S)
    answers = visit.sends(request(Command.LOOKUP))
    assert {refusal(each) for each in answers} == {("LOOKUP_RESPONSE", "AuthenticationError")}


PUBLIC = Namespace("public", "default")


@pytest.mark.parametrize(
    ("left", "closed"),
    [
        (["consume"], {Command.CLOSE_PRODUCER}),
        (["produce"], {Command.CLOSE_CONSUMER}),
        ([], CLOSED),
    ],
)
def test_a_revoked_permission_ends_at_once(left: list[str], closed: set[Command.Type]) -> None:
    visit = joined()
    change = visit.broker.topics.definitions.change

    async def revoke() -> None:
        await asyncio.to_thread(change, lambda d: with_grant(d, PUBLIC, "ann", left))

    visit.loop.run_until_complete(revoke())
    assert {each.type for each in visit.answers()} == closed, "without another frame"
    kinds = {Command.CLOSE_PRODUCER: Command.PRODUCER, Command.CLOSE_CONSUMER: Command.SUBSCRIBE}
    for each in closed:
        (answer,) = visit.sends(request(kinds[each]))
        assert refusal(answer) == ("ERROR", "AuthorizationError")


def test_granting_to_others_disconnects_no_client() -> None:
    visit = joined()
    change = visit.broker.topics.definitions.change

    async def grant() -> None:
        await asyncio.to_thread(change, lambda d: with_grant(d, PUBLIC, "bob", ["produce"]))
        await asyncio.to_thread(change, lambda d: with_grant(d, PUBLIC, "bob", []))

    visit.loop.run_until_complete(grant())
    assert visit.answers() == []
    visit.loop.call_soon(visit.session.close)
    visit.loop.run_until_complete(asyncio.sleep(0))
    assert visit.broker.gates == set()
    assert len(visit.broker.alarms) == 0


def test_the_number_of_waiting_requests_is_bounded() -> None:
    visit = Visit()
    visit.connects(visit.token())
    visit.clock.advance(60)
    for _ in range(HELD_COMMANDS_MAX):
        visit.sends(request(Command.LOOKUP))
    (answer,) = visit.sends(request(Command.LOOKUP))
    assert refusal(answer) == ("LOOKUP_RESPONSE", "AuthenticationError")


def test_an_unsolicited_auth_response_closes_the_connection() -> None:
    for secure in (True, False):
        visit = Visit(secure=secure)
        visit.connects(visit.token())
        with pytest.raises(ProtocolError, match="AUTH_RESPONSE"):
            visit.answers_challenge(visit.token("bob"))


def test_a_command_without_a_rule_is_refused() -> None:
    visit = Visit()
    visit.connects(visit.token())
    visit.session.handlers[Command.REACHED_END_OF_TOPIC] = lambda _: pytest.fail("let through")
    with pytest.raises(ProtocolError, match="has no permission rule"):
        visit.session.handle(Command(type=Command.REACHED_END_OF_TOPIC))


def test_many_clients_are_closed_some_at_a_time_and_get_nothing_from_the_first_on() -> None:
    """A session whose token has expired, with consumers and producers."""
    visit = Visit()
    visit.connects(visit.token(), refresh=False)
    consumers, producers = 5 * CONSUMERS_A_STEP, 2 * PRODUCERS_A_STEP
    for number in range(consumers):
        command = request(Command.SUBSCRIBE)
        command.subscribe.consumer_id, command.subscribe.subscription = number, f"s{number}"
        visit.sends(command)
    for number in range(producers):
        command = request(Command.PRODUCER)
        command.producer.producer_id = number
        visit.sends(command)
    topic = visit.broker.topics.get(TOPIC)
    visit.clock.jump(61)

    async def story() -> list[Any]:
        visit.session.receive(np.empty(0, dtype=np.uint8), 0, 0)
        first = [each.type for each in visit.answers()]
        assert first.count(Command.CLOSE_CONSUMER) == CONSUMERS_A_STEP
        assert first.count(Command.CLOSE_PRODUCER) == PRODUCERS_A_STEP
        left = [each for s in topic.subscriptions.values() for each in s.consumers]
        assert len(left) == consumers - CONSUMERS_A_STEP
        assert all(each.paused for each in left)
        frame = np.frombuffer(send(entry(), producer_id=producers - 1), dtype=np.uint8)
        visit.session.receive(frame, 0, len(frame))
        visit.session.resume()
        assert all(each.paused for each in left)
        found: list[Any] = []
        while len(found) < consumers + producers - len(first):
            await asyncio.sleep(0)
            found += visit.answers()
        return found

    last = visit.loop.run_until_complete(asyncio.wait_for(story(), PROCESS_S_MAX))
    assert {each.type for each in last} == {Command.CLOSE_CONSUMER, Command.CLOSE_PRODUCER}
    assert not topic.has_clients
    assert topic.writer.messages_in == 0
