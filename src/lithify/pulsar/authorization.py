"""The gate of a session: which commands of a client are carried out.

The C++ client does not understand a refusal before CONNECTED, and tries again until it times out.
So everybody is connected, and a client that nobody knows is refused in the answers to its first
requests, each in the form that the client turns into an exception at once.

1. CONNECT brings a token, which makes the session's principal, or the reason why there is none.
2. A command that names a topic or a namespace needs a principal who may do it (`NEEDS`). A producer
   that creates a subscription (`initial_subscription_name`) must be allowed to consume too.
   Commands about a producer or a consumer of the session need nothing (`FREE`): whoever joined was
   allowed to. A command in neither table is refused: what nobody thought about is not allowed.
3. `REFRESH_S` before the token expires, or later if it is short-lived, the client is asked for a
   new one. A client that answers notices nothing else.
4. When the token expires, the session's producers and consumers are closed at once, and the client
   is asked if it was not before. Until it answers, commands of step 2 wait. A good answer carries
   them out; a bad one, another principal's, or none within `REFRESH_S`, refuses them and leaves the
   session without a principal. A client that cannot renew its token is not asked.
5. When permissions change, producers and consumers that may not go on are closed at once.
6. A command that has waited for the disk is checked again (`still_admits`) before it creates a
   subscription and before its producer or consumer joins.

Permissions are looked up when a producer or consumer joins and when they change, not for each
message. When a token expires is a time of the wall clock, how long an answer takes is not.

Sans-I/O, as the session is, which calls it; the broker calls `look_at_clock` and `review`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import LithifyError, ProtocolError
from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.error_codes import error_code
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.permissions import Action, NotAuthenticated

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.session import Handler, Session
    from lithify.topics.disk_steps import Steps
    from lithify.topics.permissions import Permissions, Principal

__all__ = ["FREE", "NEEDS", "Gate"]

REFRESH_S = 30.0
HELD_COMMANDS_MAX = 1000

_Type = wire.BaseCommand
_ANY = tuple(Action)

NEEDS: dict[int, tuple[str, tuple[Action, ...]]] = {
    _Type.PARTITIONED_METADATA: ("partitionMetadata", _ANY),
    _Type.LOOKUP: ("lookupTopic", _ANY),
    _Type.GET_TOPICS_OF_NAMESPACE: ("getTopicsOfNamespace", _ANY),
    _Type.GET_SCHEMA: ("getSchema", _ANY),
    _Type.GET_OR_CREATE_SCHEMA: ("getOrCreateSchema", (Action.PRODUCE,)),
    _Type.PRODUCER: ("producer", (Action.PRODUCE,)),
    _Type.SUBSCRIBE: ("subscribe", (Action.CONSUME,)),
}
"""The part of the command that names a topic or a namespace; the actions, one of which will do."""

FREE = frozenset(
    (
        _Type.ACK,
        _Type.AUTH_RESPONSE,
        _Type.CLOSE_CONSUMER,
        _Type.CLOSE_PRODUCER,
        _Type.CONSUMER_STATS,
        _Type.FLOW,
        _Type.GET_LAST_MESSAGE_ID,
        _Type.PING,
        _Type.PONG,
        _Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        _Type.SEEK,
        _Type.SEND,
        _Type.UNSUBSCRIBE,
    )
)


class Gate:
    """Who the client of one session is, and which of its commands get through."""

    def __init__(self, session: Session, access: Permissions | None) -> None:
        """`access` is None where everybody may do everything."""
        self._session = session
        self._access = access
        self._principal: Principal | None = None
        self._why_nobody = NotAuthenticated("the session has not begun")
        self._can_refresh = False
        self._asked = False
        """Was the client asked for a token that it has not sent yet?"""
        self._ask_ms = 0
        """When it is to be asked."""
        self._expired_s: float | None = None
        """Since when it is without a valid token, by the monotonic clock."""
        self._stop_waiting: Callable[[], None] | None = None
        self._held: list[wire.BaseCommand] = []

    @property
    def knows_client(self) -> bool:
        """Is there a principal, or is none asked for?"""
        return self._access is None or self._principal is not None

    @property
    def client_name(self) -> str:
        """The name in the client's token; empty if there is none."""
        return "" if self._principal is None else self._principal.name

    def handlers(self) -> dict[int, Handler]:
        """The commands that this takes."""
        return {_Type.AUTH_RESPONSE: self._response}

    def connect(self, connect: wire.CommandConnect) -> None:
        """Take a client's word, and its token, for who it is."""
        if self._access is not None:
            self._can_refresh = connect.feature_flags.supports_auth_refresh
            self._authenticate(self._access, connect.auth_method_name, connect.auth_data)
            self._begin()

    def _authenticate(self, access: Permissions, method: str, token: bytes) -> None:
        self._principal = None
        if method != "token":
            why = f"authentication method must be 'token', is {method or 'none'!r}"
            self._why_nobody = NotAuthenticated(why)
            return
        try:
            self._principal = access.authenticate(token)
        except NotAuthenticated as error:
            self._why_nobody = error

    # --- commands ---------------------------------------------------------------------------

    def admits(self, command: wire.BaseCommand) -> bool:
        """May it be carried out now? If not, it was answered, or waits for the client's token."""
        access = self._access
        if access is None or command.type in FREE:
            return True
        if command.type not in NEEDS:
            raise ProtocolError(f"command {command.type} is not one that can be permitted")
        if self._expired_s is not None and len(self._held) < HELD_COMMANDS_MAX:
            self._held.append(command)
            return False
        try:
            self._check(access, command)
        except LithifyError as error:
            self._session.send(_refusal(command, error))
            return False
        return True

    def still_admits(self, command: wire.BaseCommand) -> bool:
        """May a command go on that was admitted and has waited? If not, `admits` answers it."""
        self.look_at_clock()
        if self._access is None:
            return True
        try:
            self._check(self._access, command)
        except LithifyError:
            return False
        return True

    def _check(self, access: Permissions, command: wire.BaseCommand) -> None:
        if self._principal is None or self._expired_s is not None:
            raise self._why_nobody
        part, actions = NEEDS[command.type]
        request = getattr(command, part)
        if command.type == _Type.GET_TOPICS_OF_NAMESPACE:
            namespace = Namespace.parse(request.namespace)
        else:
            namespace = TopicName.parse(request.topic).namespace
        access.check(self._principal, namespace, *actions)
        if command.type == _Type.PRODUCER and request.initial_subscription_name:
            # It creates a subscription, as SUBSCRIBE does.
            access.check(self._principal, namespace, Action.CONSUME)

    # --- expiry and revocation --------------------------------------------------------------

    def _begin(self, before: Principal | None = None) -> None:
        """The client has shown a token, the first one or one that follows that of `before`."""
        access, principal = self._access, self._principal
        if access is None or principal is None:
            return
        host = self._session.host
        host.gate_opened(self)
        if principal.expires_ms is None:
            host.at_time(self, None)
            return
        lead_ms = min(REFRESH_S * 1000, (principal.expires_ms - access.now_ms()) / 2)
        if before is not None and before.expires_ms == principal.expires_ms:
            # It has no newer one yet.
            lead_ms = 0
        self._ask_ms = principal.expires_ms - int(lead_ms) if self._can_refresh else 0
        host.at_time(self, self._ask_ms or principal.expires_ms)

    def look_at_clock(self) -> None:
        """Ask for a new token in time; let go when this one has expired; give up if none comes."""
        access, principal = self._access, self._principal
        if access is None or principal is None or principal.expires_ms is None:
            return
        now_ms = access.now_ms()
        if self._expired_s is not None:
            if access.monotonic_s() >= self._expired_s + REFRESH_S:
                self._give_up()
        elif now_ms >= principal.expires_ms:
            self._expire(access, principal)
        elif self._can_refresh and not self._asked and now_ms >= self._ask_ms:
            self._ask()
            self._session.host.at_time(self, principal.expires_ms)
        else:
            # The clock was set back.
            waits = self._can_refresh and not self._asked
            self._session.host.at_time(self, self._ask_ms if waits else principal.expires_ms)

    def _ask(self) -> None:
        self._asked = True
        self._session.send(_challenge(self._session.host.server_version))

    def _expire(self, access: Permissions, principal: Principal) -> None:
        self._expired_s = access.monotonic_s()
        self._why_nobody = NotAuthenticated(f"token of {principal.name!r} has expired")
        if not self._can_refresh:
            self._give_up()
            return
        if not self._asked:
            self._ask()
        host = self._session.host
        host.at_time(self, None)
        self._stop_waiting = host.after(REFRESH_S, self._give_up)
        self._session.close_unauthorized(_nothing_may)

    def _response(self, command: wire.BaseCommand) -> Steps[None]:
        access, before = self._access, self._principal
        if access is None or before is None or not self._asked:
            raise ProtocolError("AUTH_RESPONSE to no AUTH_CHALLENGE")
        answer = command.authResponse.response
        self._authenticate(access, answer.auth_method_name, answer.auth_data)
        if self._principal is not None and self._principal.name != before.name:
            self._why_nobody = NotAuthenticated(
                f"token of {before.name!r} cannot be followed by one of {self._principal.name!r}"
            )
            self._principal = None
        if self._principal is None:
            self._give_up()
            return
        held = self._release()
        self._begin(before)
        for each in held:
            steps = self._session.handle(each)
            yield None
            if steps is not None:
                yield from steps

    def review(self) -> None:
        """Permissions have changed: close what may not go on."""
        access, principal = self._access, self._principal
        if access is not None and principal is not None:
            self._session.close_unauthorized(
                lambda where, action: access.may(principal, where, action)
            )

    def _give_up(self) -> None:
        self._principal = None
        self._session.host.gate_closed(self)
        # Refusals first: a client whose producer is closed looks the topic up again.
        for command in self._release():
            self.admits(command)
        self._session.close_unauthorized(_nothing_may)

    def _release(self) -> list[wire.BaseCommand]:
        """Commands wait no longer; those that did."""
        self._asked = False
        self._expired_s = None
        self._wait_no_more()
        held, self._held = self._held, []
        return held

    def _wait_no_more(self) -> None:
        if self._stop_waiting is not None:
            self._stop_waiting()
            self._stop_waiting = None

    def close(self) -> None:
        """The connection is gone."""
        self._wait_no_more()
        self._held.clear()
        self._session.host.gate_closed(self)


def _nothing_may(_where: Namespace, _action: Action) -> bool:
    return False


def _challenge(server_version: str) -> bytes:
    command = wire.BaseCommand(type=_Type.AUTH_CHALLENGE)
    command.authChallenge.server_version = server_version
    command.authChallenge.challenge.auth_method_name = "token"
    command.authChallenge.challenge.auth_data = b""
    return encode_command(command)


def _refusal(command: wire.BaseCommand, error: LithifyError) -> bytes:
    """The answer that the client takes for the end of this request."""
    code, why = error_code(error), str(error)
    request_id = getattr(command, NEEDS[command.type][0]).request_id
    if command.type == _Type.PARTITIONED_METADATA:
        return replies.partitions_response(request_id, 0, code, why)
    if command.type == _Type.LOOKUP:
        return replies.lookup_response(request_id, "", "", code, why)
    reply = wire.BaseCommand()
    if command.type == _Type.GET_SCHEMA:
        reply.type = _Type.GET_SCHEMA_RESPONSE
        answer = reply.getSchemaResponse
    elif command.type == _Type.GET_OR_CREATE_SCHEMA:
        reply.type = _Type.GET_OR_CREATE_SCHEMA_RESPONSE
        answer = reply.getOrCreateSchemaResponse
    else:
        return replies.error(request_id, code, why)
    answer.request_id = request_id
    answer.error_code = wire.ServerError.ValueType(code)
    answer.error_message = why
    return encode_command(reply)
