"""Commands of clients as bytes, and the conversations from which fuzzing starts.

`python -m tests.fuzz.conversations` writes the conversations into `corpus/`. What fuzzing has found
is in there too, under names that begin with "found": it is not made here, but kept as it was.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from lithify.checksum import crc32c
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, encode_payload
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata, SingleMessageMetadata

CORPUS = Path(__file__).with_name("corpus")
TOPIC = "t"
LEDGER = 0
NOW_MS = 1_700_000_000_000
SECRET = b"a secret of the fuzzing tests, of more than 32 bytes"
Type = wire.BaseCommand
Sub = wire.CommandSubscribe


def word(kind: int, part: str, **fields: Any) -> bytes:
    """The frame of any command without an entry."""
    command = wire.BaseCommand(type=wire.BaseCommand.Type.ValueType(kind))
    field = wire.BaseCommand.DESCRIPTOR.fields_by_name[part]
    inner = getattr(wire, field.message_type.name)(**fields)
    getattr(command, part).CopyFrom(inner)
    return encode_command(command)


def connect(**fields: Any) -> bytes:
    return word(Type.CONNECT, "connect", client_version="fuzz", protocol_version=20, **fields)


def token(name: str, valid_s: int | None = None, secret: bytes = SECRET) -> bytes:
    """A JWT; by hand, so that its bytes do not depend on a library."""
    claims: dict[str, object] = {"sub": name}
    if valid_s is not None:
        claims["exp"] = NOW_MS // 1000 + valid_s
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    text = b".".join(map(_base64, parts))
    return text + b"." + _base64(hmac.digest(secret, text, hashlib.sha256))


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def connect_as(name: str, valid_s: int | None = None, *, refresh: bool = True) -> bytes:
    return connect(
        auth_method_name="token",
        auth_data=token(name, valid_s),
        feature_flags=wire.FeatureFlags(supports_auth_refresh=refresh),
    )


def auth_response(data: bytes, method: str = "token") -> bytes:
    answer = wire.AuthData(auth_method_name=method, auth_data=data)
    return word(Type.AUTH_RESPONSE, "authResponse", response=answer)


def producer(topic: str = TOPIC, number: int = 1, **fields: Any) -> bytes:
    return word(
        Type.PRODUCER, "producer", topic=topic, producer_id=number, request_id=number, **fields
    )


def close_producer(number: int = 1) -> bytes:
    return word(Type.CLOSE_PRODUCER, "close_producer", producer_id=number, request_id=20)


def metadata(sequence: int, **fields: Any) -> MessageMetadata:
    given = {"producer_name": "p", "sequence_id": sequence, "publish_time": NOW_MS, **fields}
    return MessageMetadata(**given)


def send(sequence: int, value: bytes = b"value", number: int = 1, **fields: Any) -> bytes:
    return send_entry(sequence, encode_entry(metadata(sequence, **fields), value), number)


def send_entry(sequence: int, entry: bytes, number: int = 1, **fields: Any) -> bytes:
    command = wire.BaseCommand(type=Type.SEND)
    command.send.CopyFrom(wire.CommandSend(producer_id=number, sequence_id=sequence, **fields))
    return b"".join(encode_payload(command, entry))


def send_batch(sequence: int, count: int, **fields: Any) -> bytes:
    single = SingleMessageMetadata(payload_size=1, partition_key="k").SerializeToString()
    payload = (len(single).to_bytes(4, "big") + single + b"x") * count
    head = metadata(sequence, num_messages_in_batch=count, **fields)
    return send_entry(sequence, encode_entry(head, payload), num_messages=count)


def subscribe(
    topic: str = TOPIC, name: str = "s", kind: int = Sub.Exclusive, number: int = 1, **fields: Any
) -> bytes:
    given = {
        "topic": topic,
        "subscription": name,
        "subType": kind,
        "consumer_id": number,
        "request_id": number,
        "consumer_name": f"c{number}",
        "initialPosition": Sub.Earliest,
        **fields,
    }
    return word(Type.SUBSCRIBE, "subscribe", **given)


def flow(number: int = 1, permits: int = 1000) -> bytes:
    return word(Type.FLOW, "flow", consumer_id=number, messagePermits=permits)


def entry_id(entry: int, ledger: int = LEDGER, **fields: Any) -> wire.MessageIdData:
    return wire.MessageIdData(ledgerId=ledger, entryId=entry, **fields)


def ack(*ids: wire.MessageIdData, number: int = 1, kind: int = wire.CommandAck.Individual) -> bytes:
    return word(
        Type.ACK, "ack", consumer_id=number, ack_type=kind, message_id=list(ids), request_id=30
    )


def redeliver(*ids: wire.MessageIdData, number: int = 1) -> bytes:
    kind = Type.REDELIVER_UNACKNOWLEDGED_MESSAGES
    part = "redeliverUnacknowledgedMessages"
    return word(kind, part, consumer_id=number, message_ids=list(ids))


def about(kind: int, part: str, number: int = 1, **fields: Any) -> bytes:
    """A request of a consumer."""
    return word(kind, part, consumer_id=number, request_id=40, **fields)


def unsubscribe(number: int = 1) -> bytes:
    return about(Type.UNSUBSCRIBE, "unsubscribe", number)


def seek(number: int = 1, **fields: Any) -> bytes:
    return about(Type.SEEK, "seek", number, **fields)


def schema(kind: int, definition: bytes) -> wire.Schema:
    return wire.Schema(name="n", schema_data=definition, type=wire.Schema.Type.ValueType(kind))


def signed(body: bytes) -> bytes:
    """An entry whose CRC is right, whatever is in it."""
    return b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body


# --- conversations ------------------------------------------------------------------------------


def _filled(count: int = 4, **fields: Any) -> bytes:
    return connect() + producer() + b"".join(send(i, **fields) for i in range(count))


def _lookups() -> bytes:
    part = "partitionMetadata"
    return b"".join(
        (
            connect(),
            word(Type.PARTITIONED_METADATA, part, topic=TOPIC, request_id=1),
            word(Type.LOOKUP, "lookupTopic", topic=TOPIC, request_id=2),
            word(
                Type.GET_TOPICS_OF_NAMESPACE,
                "getTopicsOfNamespace",
                request_id=3,
                namespace="public/default",
            ),
            word(Type.PING, "ping"),
            word(Type.PONG, "pong"),
        )
    )


def _acknowledging() -> bytes:
    return b"".join(
        (
            _filled(),
            send_batch(4, 5),
            subscribe() + flow(),
            ack(entry_id(1), entry_id(3)),
            ack(entry_id(4, ack_set=[0b10101])),
            about(Type.GET_LAST_MESSAGE_ID, "getLastMessageId"),
            about(Type.CONSUMER_STATS, "consumerStats"),
            redeliver(),
            ack(entry_id(2), kind=wire.CommandAck.Cumulative),
            ack(entry_id(50), entry_id(0, 9), entry_id(2**40, 2**40), entry_id(2**64 - 1)),
            word(Type.CLOSE_CONSUMER, "close_consumer", consumer_id=1, request_id=5),
            subscribe() + unsubscribe(),
        )
    )


def _sharing(kind: int, *more: dict[str, Any]) -> bytes:
    first, second = more or ({}, {})
    return b"".join(
        (
            _filled(3, partition_key="a"),
            send(3, partition_key="b", deliver_at_time=NOW_MS + 1000),
            send(4, ordering_key=b"\xff"),
            send_batch(5, 3, partition_key="YQ==", partition_key_b64_encoded=True),
            subscribe(kind=kind, number=1, **first) + subscribe(kind=kind, number=2, **second),
            flow(1, 2) + flow(2, 2) + flow(1) + flow(2),
            redeliver(entry_id(0), entry_id(1), number=1) + redeliver(number=2),
            ack(entry_id(0), number=1) + ack(entry_id(5, ack_set=[0b101]), number=2),
            word(Type.CLOSE_CONSUMER, "close_consumer", consumer_id=1, request_id=5),
            unsubscribe(2),
        )
    )


def _sticky() -> bytes:
    metas = [
        wire.KeySharedMeta(
            keySharedMode=wire.KeySharedMeta.STICKY,
            hashRanges=[wire.IntRange(start=low, end=high)],
        )
        for low, high in ((0, 32767), (40000, 65535))
    ]
    both = [{"keySharedMeta": meta} for meta in metas]
    return _sharing(Sub.Key_Shared, *both) + subscribe(kind=Sub.Key_Shared, number=3)


def _reading() -> bytes:
    latest = entry_id(2**63 - 1, 2**63 - 1)
    earliest = entry_id(2**64 - 1, 2**64 - 1)
    return b"".join(
        (
            _filled(40),
            subscribe(name="r", durable=False, start_message_id=entry_id(2)) + flow(),
            seek(message_id=earliest) + subscribe(name="r", durable=False),
            seek(message_publish_time=NOW_MS) + subscribe(name="r", durable=False) + flow(),
            seek(message_id=latest) + subscribe(name="r", durable=False),
            subscribe(name="d", number=2, start_message_id=latest),
            seek(2, message_id=entry_id(0, 1)) + subscribe(name="d", number=2) + flow(2),
        )
    )


def _taking_turns() -> bytes:
    access = wire.ProducerAccessMode
    return b"".join(
        (
            connect(),
            producer(number=1, producer_name="a", producer_access_mode=access.Exclusive),
            producer(number=2, producer_access_mode=access.WaitForExclusive),
            producer(number=3, producer_access_mode=access.Shared),
            send(0, number=1) + close_producer(1) + send(0, number=2),
            producer(number=4, producer_access_mode=access.ExclusiveWithFencing),
            send(1, number=2) + send(0, number=4),
        )
    )


def _coming_back() -> bytes:
    named: dict[str, Any] = {"producer_name": "a", "user_provided_producer_name": False}
    waiting = wire.ProducerAccessMode.WaitForExclusive
    return b"".join(
        (
            connect() + producer(number=1, **named) + send(0),
            producer(number=2, producer_name="w", producer_access_mode=waiting),
            producer(number=3, epoch=1, **named) + send(1) + send(0, number=3),
            close_producer(3),
        )
    )


def _schemas() -> bytes:
    avro = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    wider = b'{"type":"record","name":"R","fields":[{"name":"a","type":["null","long"]}]}'
    of = schema(wire.Schema.Avro, avro)
    return b"".join(
        (
            connect() + producer(schema=of),
            producer(number=2, schema=schema(wire.Schema.Json, wider)),
            word(Type.GET_SCHEMA, "getSchema", request_id=5, topic=TOPIC),
            word(
                Type.GET_OR_CREATE_SCHEMA,
                "getOrCreateSchema",
                request_id=6,
                topic=TOPIC,
                schema=schema(wire.Schema.Avro, wider),
            ),
            word(Type.GET_SCHEMA, "getSchema", request_id=7, topic=TOPIC, schema_version=b"\0" * 8),
            subscribe(schema=of) + subscribe(number=2, schema=schema(wire.Schema.String, b"")),
        )
    )


def _damaged() -> bytes:
    wrong = bytearray(send(0))
    wrong[-1] ^= 1
    head = metadata(2).SerializeToString()
    short = signed((len(head) + 99).to_bytes(4, "big") + head)
    return b"".join(
        (
            connect() + producer() + bytes(wrong) + send(1),
            send_entry(2, short) + send_entry(3, b"") + send_entry(4, signed(b"")),
            send(5, num_messages_in_batch=7) + send(6, num_messages_in_batch=-1),
            send(7, publish_time=2**64 - 1, deliver_at_time=-(2**63)),
            send(2**64 - 1) + send(8, number=9),
        )
    )


def _not_text() -> bytes:
    """Bytes where the protocol has text."""
    named = subscribe(name="@@") + word(Type.LOOKUP, "lookupTopic", topic="@@", request_id=2)
    return connect() + named.replace(b"@@", b"\xff\xfe") + word(Type.PING, "ping")


def _keys_that_are_not_text() -> bytes:
    frames = [connect(), producer()]
    for sequence, more in enumerate(({}, {"partition_key_b64_encoded": True})):
        head = metadata(sequence, partition_key="@@", **more).SerializeToString()
        head = head.replace(b"@@", b"\xff\xfe")
        frames.append(send_entry(sequence, signed(len(head).to_bytes(4, "big") + head + b"x")))
    head = metadata(2, producer_name="@@").SerializeToString().replace(b"@@", b"\xff\xfe")
    frames.append(send_entry(2, signed(len(head).to_bytes(4, "big") + head + b"x")))
    return b"".join((*frames, subscribe(kind=Sub.Key_Shared), flow()))


def _everything(number: int = 1) -> bytes:
    """Each command that has to be permitted, and some of those that then are free."""
    return b"".join(
        (
            _lookups().removeprefix(connect()),
            word(
                Type.GET_OR_CREATE_SCHEMA,
                "getOrCreateSchema",
                request_id=6,
                topic=TOPIC,
                schema=schema(wire.Schema.String, b""),
            ),
            word(Type.GET_SCHEMA, "getSchema", request_id=7, topic=TOPIC),
            subscribe(name=f"s{number}", number=number) + flow(number),
            producer(number=number) + send(0, number=number),
            ack(entry_id(0), number=number),
        )
    )


EVERYTHING_FRAMES = 12


def _with_tokens() -> dict[str, bytes]:
    """Those with a token that expires are to be played frame by frame, a second each."""
    elsewhere = "persistent://elsewhere/there/t"
    # It expires after everything. What comes then waits until the client has shown another.
    first_s = 1 + EVERYTHING_FRAMES + 1
    asked = connect_as("both", first_s) + _everything(1) + producer(number=8) + producer(number=9)
    second_s = first_s + 2 + EVERYTHING_FRAMES + 1
    again = auth_response(token("both", second_s)) + _everything(2) + producer(number=7)
    unsigned = _base64(b'{"alg":"none"}') + b"." + _base64(b'{"sub":"root"}') + b"."
    shown = {
        "forged": ("token", token("root", secret=SECRET[::-1])),
        "unsigned": ("token", unsigned),
        "of_another_method": ("tls", token("root")),
        "not_text": ("token", b"\xff\xfe." * 3),
    }
    next_shown = {
        "another": auth_response(token("root")),
        "none": auth_response(b"", ""),
        "an_old_one": auth_response(token("both", 1)),
    }
    return {
        "token": connect_as("both") + _everything() + producer(elsewhere, 2),
        "token_of_a_reader": connect_as("reader") + _everything(),
        "token_of_a_writer": connect_as("writer") + _everything(),
        "token_of_nobody": connect_as("stranger") + _everything(),
        "token_renewed": asked + again + auth_response(token("both")) + _everything(3),
        "token_not_renewed": connect_as("both", first_s, refresh=False) + _everything() * 2,
        "token_unasked": connect_as("both") + auth_response(token("both")) + _everything(),
        "token_before_connect": auth_response(token("root")) + connect_as("root"),
        **{
            f"token_{how}": connect(auth_method_name=method, auth_data=data) + _everything()
            for how, (method, data) in shown.items()
        },
        **{
            f"token_followed_by_{what}": asked + answer + _everything(2)
            for what, answer in next_shown.items()
        },
    }


def conversations() -> dict[str, bytes]:
    """All of them, by name."""
    names = (
        "",
        "/",
        "..",
        "a/../b",
        "persistent://x/y/../../z",
        "non-persistent://a/b/c",
        "x" * 300,
    )
    return {
        "lookups": _lookups(),
        "producing": _filled() + send_batch(4, 3) + close_producer() + send(9),
        "acknowledging": _acknowledging(),
        "shared": _sharing(Sub.Shared),
        "key_shared": _sharing(Sub.Key_Shared),
        "sticky": _sticky(),
        "failover": _sharing(Sub.Failover),
        "exclusive": _sharing(Sub.Exclusive),
        "reading": _reading(),
        "taking_turns": _taking_turns(),
        "coming_back": _coming_back(),
        "schemas": _schemas(),
        "damaged": _damaged(),
        "not_text": _not_text(),
        "keys_that_are_not_text": _keys_that_are_not_text(),
        "bad_names": connect() + b"".join(producer(each) + subscribe(each) for each in names),
        "before_connect": subscribe() + connect(),
        "twice_connected": connect() + connect() + word(Type.PING, "ping"),
        "not_for_a_broker": connect() + word(Type.SUCCESS, "success", request_id=1),
        "huge_length": connect() + b"\x7f\xff\xff\xff" + bytes(16),
        "no_length": connect() + bytes(16),
        "cut": _filled()[:-3],
        **_with_tokens(),
    }


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for name, data in conversations().items():
        CORPUS.joinpath(f"{name}.bin").write_bytes(data)


if __name__ == "__main__":
    main()
