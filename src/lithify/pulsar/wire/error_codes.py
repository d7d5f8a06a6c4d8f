"""Maps errors to the error codes of the protocol, chosen so that the client fails without retries.

`CommandRestarted` is internal: it is never sent to a client.
"""

from __future__ import annotations

from lithify.errors import Corrupt, InvalidInput, LithifyError, UnsupportedVersion
from lithify.ownership import NotOwner
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.topics.permissions import NotAuthorized
from lithify.topics.producers.producers import ProducerBusy, ProducerFenced
from lithify.topics.producers.topic_writer import BacklogExceeded
from lithify.topics.schemas.schemas import IncompatibleSchema
from lithify.topics.subscriptions.consumer import CannotRead
from lithify.topics.subscriptions.subscription import ConsumerRefused
from lithify.topics.token_authentication import NotAuthenticated
from lithify.topics.topic import TopicTerminated
from lithify.topics.topics import TooManyTopics, TopicNotFound

__all__ = ["CommandRestarted", "error_code"]


class CommandRestarted(Exception):
    """State that a command depends on has changed while it waited: restart the command."""


_CODES: tuple[tuple[type[LithifyError], int], ...] = (
    (NotAuthenticated, wire.ServerError.AuthenticationError),
    (NotAuthorized, wire.ServerError.AuthorizationError),
    # Clients look the topic up again.
    (NotOwner, wire.ServerError.ServiceNotReady),
    (ProducerBusy, wire.ServerError.ProducerBusy),
    (BacklogExceeded, wire.ServerError.ProducerBlockedQuotaExceededException),
    (ProducerFenced, wire.ServerError.ProducerFenced),
    (ConsumerRefused, wire.ServerError.ConsumerBusy),
    (TopicNotFound, wire.ServerError.TopicNotFound),
    (IncompatibleSchema, wire.ServerError.IncompatibleSchema),
    (TopicTerminated, wire.ServerError.TopicTerminatedError),
    (InvalidInput, wire.ServerError.NotAllowedError),
    # Clients retry a PersistenceError until their timeout. For these errors a retry cannot succeed.
    (TooManyTopics, wire.ServerError.TooManyRequests),
    (CannotRead, wire.ServerError.NotAllowedError),
    (Corrupt, wire.ServerError.NotAllowedError),
    (UnsupportedVersion, wire.ServerError.NotAllowedError),
)


def error_code(error: LithifyError) -> int:
    """The code of the first matching class; other errors are a PersistenceError."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return int(wire.ServerError.PersistenceError)
