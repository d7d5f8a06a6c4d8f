"""Schemas of the real client: kept with the topic, compared, and refused with a typed exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.protocol.harness import RECEIVE_MS, Case, Server, in_client

if TYPE_CHECKING:
    from collections.abc import Callable


def order(**more: Any) -> Any:
    """A record named Order with an id, an amount, and what else is asked for."""
    from pulsar import schema  # noqa: PLC0415

    fields = {"id": schema.String(required=True), "amount": schema.Integer(required=True), **more}
    return type("Order", (schema.Record,), fields)


def refused(create: Callable[..., Any], *given: Any, **options: Any) -> bool:
    """Does the client raise what it should?"""
    import pulsar  # noqa: PLC0415

    try:
        create(*given, **options)
    except pulsar.IncompatibleSchema:
        return True
    return False


@in_client
def test_bytes_and_strings(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    plain = case.client.create_producer(f"{case.topic}-b", schema=schema.BytesSchema())
    plain.send(b"\xff\x00")
    consumer = case.earliest(topic=f"{case.topic}-b", schema=schema.BytesSchema())
    assert consumer.receive(RECEIVE_MS).value() == b"\xff\x00"

    texts = case.client.create_producer(case.topic, schema=schema.StringSchema())
    texts.send("grüezi")
    consumer = case.earliest(schema=schema.StringSchema())
    assert consumer.receive(RECEIVE_MS).value() == "grüezi"


@in_client
def test_json_and_avro_records_are_decoded_as_sent(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    Order = order()
    for kind in (schema.JsonSchema, schema.AvroSchema):
        topic = f"{case.topic}-{kind.__name__}"
        # A consumer that comes first brings the schema of an empty topic.
        consumer = case.earliest(topic=topic, schema=kind(Order))
        producer = case.client.create_producer(topic, schema=kind(Order))
        producer.send(Order(id="a", amount=3))
        message = consumer.receive(RECEIVE_MS)
        assert (message.value().id, message.value().amount) == ("a", 3)


@in_client
def test_a_record_grows_by_fields_with_defaults(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    Old = order()
    New = order(note=schema.String(default="-", required=True, required_default=True))
    for kind in (schema.JsonSchema, schema.AvroSchema):
        topic = f"{case.topic}-{kind.__name__}"
        old = case.client.create_producer(topic, schema=kind(Old))
        old.send(Old(id="a", amount=1))
        new = case.client.create_producer(topic, schema=kind(New))
        new.send(New(id="b", amount=2, note="hi"))
        again = case.client.create_producer(topic, schema=kind(Old))
        again.send(Old(id="c", amount=3))
        reader = case.earliest(topic=topic)
        versions = [reader.receive(RECEIVE_MS).schema_version() for _ in range(3)]
        assert versions[0] == versions[2] != versions[1]


@in_client
def test_a_consumer_whose_schema_cannot_read_the_topic_is_refused_at_once(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    Order = order()
    Wider = order(note=schema.String(required=True))
    for kind in (schema.JsonSchema, schema.AvroSchema):
        topic = f"{case.topic}-{kind.__name__}"
        producer = case.client.create_producer(topic, schema=kind(Order))
        for other in (kind(Wider), schema.StringSchema()):
            assert refused(case.client.create_producer, topic, schema=other)
            assert refused(case.earliest, topic=topic, schema=other)
        # The topic continues as before.
        producer.send(Order(id="a", amount=1))
        assert case.earliest(topic=topic, schema=kind(Order)).receive(RECEIVE_MS).value().id == "a"


@in_client
def test_a_client_without_a_schema_is_accepted(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    texts = case.client.create_producer(case.topic, schema=schema.StringSchema())
    texts.send("one")
    plain = case.client.create_producer(case.topic)
    plain.send(b"two")
    consumer = case.earliest()
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(2)] == [b"one", b"two"]


@in_client
def test_messages_without_a_schema_cannot_be_read_with_one(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    case.fill(1)
    assert refused(case.earliest, schema=schema.StringSchema())


def _partitions(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    Order = order()
    producer = case.client.create_producer("parted", schema=schema.JsonSchema(Order))
    for number in range(6):
        producer.send(Order(id=str(number), amount=number))
    consumer = case.earliest(topic="parted", schema=schema.JsonSchema(Order))
    found = [consumer.receive(RECEIVE_MS) for _ in range(6)]
    assert {message.value().amount for message in found} == set(range(6))
    assert len({message.schema_version() for message in found}) == 1
    other = schema.StringSchema()
    assert refused(case.client.create_producer, "parted-partition-1", schema=other)


def test_partitions_have_one_schema(own_broker: Callable[..., Server]) -> None:
    own_broker(topics={"parted": 3}).run_case(_partitions)


def _first_of_a_restart(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    case.client.create_producer("kept", schema=schema.AvroSchema(order()))


def _second_of_a_restart(case: Case) -> None:
    from pulsar import schema  # noqa: PLC0415

    assert refused(case.client.create_producer, "kept", schema=schema.StringSchema())
    case.client.create_producer("kept", schema=schema.AvroSchema(order()))


def test_schemas_outlive_kill_9(own_broker: Callable[..., Server]) -> None:
    server = own_broker()
    server.run_case(_first_of_a_restart)
    server.kill()
    server.start()
    server.run_case(_second_of_a_restart)
