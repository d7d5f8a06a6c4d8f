"""Encodes the frames that a broker sends, one function per command. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.topics.messages.message import MessageId

__all__ = [
    "NO_REQUEST",
    "UNSIGNED",
    "ack_response",
    "active_consumer_change",
    "close_consumer",
    "close_producer",
    "connected",
    "error",
    "last_message_id",
    "lookup_response",
    "partitions_response",
    "ping",
    "pong",
    "producer_success",
    "send_error",
    "success",
    "topics_response",
]

NO_REQUEST = 2**64 - 1
"""The request id of a command that is not a reply."""

UNSIGNED = 2**64

_Type = wire.BaseCommand


def connected(server_version: str, max_message_bytes: int, protocol_version: int) -> bytes:
    """CONNECTED: accepts the client's CONNECT.

    The feature flags are those that this broker supports. Without the second one the Java client
    treats every PARTITIONED_METADATA_RESPONSE as that of an existing topic, so that different
    topics share the retry and dead-letter topics of a subscription.
    """
    command = wire.BaseCommand(type=_Type.CONNECTED)
    command.connected.server_version = server_version
    command.connected.protocol_version = protocol_version
    command.connected.max_message_size = max_message_bytes
    flags = command.connected.feature_flags
    flags.supports_auth_refresh = True
    flags.supports_get_partitioned_metadata_without_auto_creation = True
    return encode_command(command)


def ping() -> bytes:
    """PING: the peer must reply with PONG."""
    command = wire.BaseCommand(type=_Type.PING)
    command.ping.SetInParent()
    return encode_command(command)


def pong() -> bytes:
    """PONG: the reply to PING."""
    command = wire.BaseCommand(type=_Type.PONG)
    command.pong.SetInParent()
    return encode_command(command)


def success(request_id: int) -> bytes:
    """SUCCESS of a request without a result."""
    command = wire.BaseCommand(type=_Type.SUCCESS)
    command.success.request_id = request_id
    return encode_command(command)


def error(request_id: int, code: int, message: str) -> bytes:
    """ERROR: a request failed, with the reason."""
    command = wire.BaseCommand(type=_Type.ERROR)
    command.error.request_id = request_id
    command.error.error = wire.ServerError.ValueType(code)
    command.error.message = message
    return encode_command(command)


def partitions_response(
    request_id: int, partitions: int, code: int | None = None, message: str = ""
) -> bytes:
    """The number of partitions of a topic, or an error."""
    command = wire.BaseCommand(type=_Type.PARTITIONED_METADATA_RESPONSE)
    reply = command.partitionMetadataResponse
    reply.request_id = request_id
    if code is None:
        reply.partitions = partitions
        reply.response = wire.CommandPartitionedTopicMetadataResponse.Success
    else:
        reply.response = wire.CommandPartitionedTopicMetadataResponse.Failed
        reply.error = wire.ServerError.ValueType(code)
        reply.message = message
    return encode_command(command)


def lookup_response(
    request_id: int, url: str, url_tls: str, code: int | None = None, message: str = ""
) -> bytes:
    """The URLs of the broker that serves a topic, or an error."""
    command = wire.BaseCommand(type=_Type.LOOKUP_RESPONSE)
    reply = command.lookupTopicResponse
    reply.request_id = request_id
    if code is None:
        reply.brokerServiceUrl = url
        if url_tls:
            reply.brokerServiceUrlTls = url_tls
        reply.response = wire.CommandLookupTopicResponse.Connect
        reply.authoritative = True
    else:
        reply.response = wire.CommandLookupTopicResponse.Failed
        reply.error = wire.ServerError.ValueType(code)
        reply.message = message
    return encode_command(command)


def topics_response(request_id: int, topics: Iterable[str]) -> bytes:
    """The topics of a namespace."""
    command = wire.BaseCommand(type=_Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    command.getTopicsOfNamespaceResponse.request_id = request_id
    command.getTopicsOfNamespaceResponse.topics.extend(topics)
    return encode_command(command)


def producer_success(
    request_id: int,
    name: str,
    last_sequence_id: int,
    *,
    ready: bool = True,
    topic_epoch: int | None = None,
    schema_version: bytes = b"",
) -> bytes:
    """A producer has joined, or waits for exclusive access if not `ready`."""
    command = wire.BaseCommand(type=_Type.PRODUCER_SUCCESS)
    reply = command.producer_success
    reply.request_id = request_id
    reply.producer_name = name
    reply.last_sequence_id = last_sequence_id
    reply.producer_ready = ready
    if topic_epoch is not None:
        reply.topic_epoch = topic_epoch
    if schema_version:
        reply.schema_version = schema_version
    return encode_command(command)


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    """A message was not written."""
    command = wire.BaseCommand(type=_Type.SEND_ERROR)
    reply = command.send_error
    reply.producer_id = producer_id
    reply.sequence_id = sequence_id
    reply.error = wire.ServerError.ValueType(code)
    reply.message = message
    return encode_command(command)


def close_producer(producer_id: int) -> bytes:
    """The broker disconnects a producer; its client reconnects."""
    command = wire.BaseCommand(type=_Type.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = NO_REQUEST
    return encode_command(command)


def close_consumer(consumer_id: int) -> bytes:
    """The broker disconnects a consumer; its client reconnects."""
    command = wire.BaseCommand(type=_Type.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = NO_REQUEST
    return encode_command(command)


def active_consumer_change(consumer_id: int, *, active: bool) -> bytes:
    """Whether a consumer is the active one of its failover subscription."""
    command = wire.BaseCommand(type=_Type.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = active
    return encode_command(command)


def ack_response(consumer_id: int, request_id: int, message: str = "") -> bytes:
    """An acknowledgement was applied, or refused with a reason."""
    command = wire.BaseCommand(type=_Type.ACK_RESPONSE)
    reply = command.ackResponse
    reply.consumer_id = consumer_id
    reply.request_id = request_id
    if message:
        reply.error = wire.ServerError.UnknownError
        reply.message = message
    return encode_command(command)


def last_message_id(request_id: int, last: MessageId, mark_delete: MessageId) -> bytes:
    """The last message of a topic, and the mark-delete position of a subscription."""
    command = wire.BaseCommand(type=_Type.GET_LAST_MESSAGE_ID_RESPONSE)
    reply = command.getLastMessageIdResponse
    reply.request_id = request_id
    _set_id(reply.last_message_id, last)
    _set_id(reply.consumer_mark_delete_position, mark_delete)
    return encode_command(command)


def _set_id(target: wire.MessageIdData, found: MessageId) -> None:
    target.ledgerId = found.ledger % UNSIGNED
    target.entryId = found.entry % UNSIGNED
    target.batch_index = found.batch_index
    if found.partition >= 0:
        target.partition = found.partition
