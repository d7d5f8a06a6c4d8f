"""Authenticates the client of a session and authorizes its commands.

The C++ client does not handle a refusal before CONNECTED: it retries until it times out. So CONNECT
always succeeds. The first requests of an unauthenticated client are refused, each in the form that
the client raises as an exception at once.

1. CONNECT contains a token, which is checked. The session stores the principal, or the reason why
   there is none.
2. A command with a topic or a namespace requires a principal with the permission (`NEEDS`). A
   producer that creates a subscription (`initial_subscription_name`) also needs permission to
   consume. Commands for an existing producer or consumer of the session need none (`FREE`): it was
   authorized when it joined. A command in neither table is refused, so a new command is denied by
   default.
3. The client is asked for a new token `REFRESH_S` before the token expires, or later for a
   short-lived token. If it sends one, nothing else happens.
4. When the token expires, the producers and consumers of the session are closed at once, and the
   client is asked for a token unless it was asked before. Commands of step 2 wait for the response.
   A valid token executes them. An invalid one, one of another principal, or no response within
   `REFRESH_S` refuses them and leaves the session without a principal. A client without support for
   token refresh is not asked.
5. When permissions change, producers and consumers without permission are closed at once.
6. A command that has waited for the disk is authorized again (`still_admits`) before it creates a
   subscription and before its producer or consumer joins.

Permissions are checked when a producer or consumer joins and when they change, not per message. The
expiry of a token uses the wall clock, the timeout of a response the monotonic clock.

Sans-I/O. Called by the session; the broker calls `check_clock` and `review`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import LithifyError, ProtocolError
from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.error_codes import error_code
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.permissions import Action
from lithify.topics.token_authentication import NotAuthenticated

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.session_interfaces import CommandSession, Handler
    from lithify.topics.disk_steps import Steps
    from lithify.topics.permissions import Permissions
    from lithify.topics.token_authentication import Principal

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
"""The field of the command with the topic or namespace; the actions, any of which is enough."""

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
    """The authentication and authorization state of one session."""

    def __init__(self, session: CommandSession, access: Permissions | None) -> None:
        """`access` is None if authorization is disabled."""
        self._session = session
        self.access = access
        self.principal: Principal | None = None
        self._denial = NotAuthenticated("the session has not begun")
        self._can_refresh = False
        self._challenged = False
        """Is an AUTH_CHALLENGE without a response?"""
        self._challenge_ms = 0
        """Time of the next AUTH_CHALLENGE."""
        self._expired_s: float | None = None
        """Time of the expiry, by the monotonic clock; None while the token is valid."""
        self._stop_waiting: Callable[[], None] | None = None
        self._held: list[wire.BaseCommand] = []

    @property
    def knows_client(self) -> bool:
        """Is the client authenticated, or is authorization disabled?"""
        return self.access is None or self.principal is not None

    @property
    def client_name(self) -> str:
        """The name in the client's token; empty if there is none."""
        return "" if self.principal is None else self.principal.name

    def handlers(self) -> dict[int, Handler]:
        """The handler of each command type of this class."""
        return {_Type.AUTH_RESPONSE: self._response}

    def connect(self, connect: wire.CommandConnect) -> None:
        """Authenticate the client with the token in CONNECT."""
        if self.access is not None:
            self._can_refresh = connect.feature_flags.supports_auth_refresh
            self._authenticate(self.access, connect.auth_method_name, connect.auth_data)
            self._begin()

    def _authenticate(self, access: Permissions, method: str, token: bytes) -> None:
        self.principal = None
        if method != "token":
            why = f"authentication method must be 'token', is {method or 'none'!r}"
            self._denial = NotAuthenticated(why)
            return
        try:
            self.principal = access.authenticate(token)
        except NotAuthenticated as error:
            self._denial = error

    # --- commands ---------------------------------------------------------------------------

    def admits(self, command: wire.BaseCommand) -> bool:
        """May the command be executed now? If not, it was refused, or waits for a new token."""
        access = self.access
        if access is None or command.type in FREE:
            return True
        if command.type not in NEEDS:
            raise ProtocolError(f"command {command.type} has no permission rule")
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
        """Is a command that was admitted and has waited still authorized? Sends no refusal."""
        self.check_clock()
        if self.access is None:
            return True
        try:
            self._check(self.access, command)
        except LithifyError:
            return False
        return True

    def _check(self, access: Permissions, command: wire.BaseCommand) -> None:
        if self.principal is None or self._expired_s is not None:
            raise self._denial
        part, actions = NEEDS[command.type]
        request = getattr(command, part)
        if command.type == _Type.GET_TOPICS_OF_NAMESPACE:
            namespace = Namespace.parse(request.namespace)
        else:
            namespace = TopicName.parse(request.topic).namespace
        access.check(self.principal, namespace, *actions)
        if command.type == _Type.PRODUCER and request.initial_subscription_name:
            # The command creates a subscription, like SUBSCRIBE.
            access.check(self.principal, namespace, Action.CONSUME)

    # --- expiry and revocation --------------------------------------------------------------

    def _begin(self, before: Principal | None = None) -> None:
        """Schedule the refresh or expiry of a new token; `before` had the previous token."""
        access, principal = self.access, self.principal
        if access is None or principal is None:
            return
        host = self._session.host
        host.gate_opened(self)
        if principal.expires_ms is None:
            host.at_time(self, None)
            return
        lead_ms = min(REFRESH_S * 1000, (principal.expires_ms - access.now_ms()) / 2)
        if before is not None and before.expires_ms == principal.expires_ms:
            # The client has no newer token yet: ask again only at the expiry.
            lead_ms = 0
        self._challenge_ms = principal.expires_ms - int(lead_ms) if self._can_refresh else 0
        host.at_time(self, self._challenge_ms or principal.expires_ms)

    def check_clock(self) -> None:
        """Check the wall clock: request a new token, expire the token, or end the wait for one."""
        access, principal = self.access, self.principal
        if access is None or principal is None or principal.expires_ms is None:
            return
        now_ms = access.now_ms()
        if self._expired_s is not None:
            if access.monotonic_s() >= self._expired_s + REFRESH_S:
                self._remove_principal()
        elif now_ms >= principal.expires_ms:
            self._expire(access, principal)
        elif self._can_refresh and not self._challenged and now_ms >= self._challenge_ms:
            self._send_challenge()
            self._session.host.at_time(self, principal.expires_ms)
        else:
            # The clock was set back.
            waits = self._can_refresh and not self._challenged
            self._session.host.at_time(self, self._challenge_ms if waits else principal.expires_ms)

    def _send_challenge(self) -> None:
        self._challenged = True
        self._session.send(_challenge(self._session.host.server_version))

    def _expire(self, access: Permissions, principal: Principal) -> None:
        self._expired_s = access.monotonic_s()
        self._denial = NotAuthenticated(f"token of {principal.name!r} has expired")
        if not self._can_refresh:
            self._remove_principal()
            return
        if not self._challenged:
            self._send_challenge()
        host = self._session.host
        host.at_time(self, None)
        self._stop_waiting = host.after(REFRESH_S, self._remove_principal)
        self._session.close_unauthorized(_denied)

    def _response(self, command: wire.BaseCommand) -> Steps[None]:
        access, before = self.access, self.principal
        if access is None or before is None or not self._challenged:
            raise ProtocolError("AUTH_RESPONSE without an AUTH_CHALLENGE")
        answer = command.authResponse.response
        self._authenticate(access, answer.auth_method_name, answer.auth_data)
        if self.principal is not None and self.principal.name != before.name:
            self._denial = NotAuthenticated(
                f"token of {before.name!r} cannot be followed by one of {self.principal.name!r}"
            )
            self.principal = None
        if self.principal is None:
            self._remove_principal()
            return
        held = self._release()
        self._begin(before)
        for each in held:
            steps = self._session.handle(each)
            yield None
            if steps is not None:
                yield from steps

    def review(self) -> None:
        """Permissions have changed: close the producers and consumers without permission."""
        access, principal = self.access, self.principal
        if access is not None and principal is not None:
            self._session.close_unauthorized(
                lambda where, action: access.may(principal, where, action)
            )

    def _remove_principal(self) -> None:
        self.principal = None
        self._session.host.gate_closed(self)
        # Send the refusals first: a client looks a topic up again when its producer is closed.
        for command in self._release():
            self.admits(command)
        self._session.close_unauthorized(_denied)

    def _release(self) -> list[wire.BaseCommand]:
        """End the wait for a token; returns the commands that waited."""
        self._challenged = False
        self._expired_s = None
        self._cancel_timeout()
        held, self._held = self._held, []
        return held

    def _cancel_timeout(self) -> None:
        if self._stop_waiting is not None:
            self._stop_waiting()
            self._stop_waiting = None

    def close(self) -> None:
        """The connection is closed."""
        self._cancel_timeout()
        self._held.clear()
        self._session.host.gate_closed(self)


def _denied(_where: Namespace, _action: Action) -> bool:
    return False


def _challenge(server_version: str) -> bytes:
    command = wire.BaseCommand(type=_Type.AUTH_CHALLENGE)
    command.authChallenge.server_version = server_version
    command.authChallenge.challenge.auth_method_name = "token"
    command.authChallenge.challenge.auth_data = b""
    return encode_command(command)


def _refusal(command: wire.BaseCommand, error: LithifyError) -> bytes:
    """The error response that ends this request in the client."""
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
