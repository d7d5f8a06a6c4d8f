"""The real client with an HTTP address: lookups over HTTP, then the binary protocol."""

from __future__ import annotations

import sys

import httpx
import pulsar

RECEIVE_MS = 60_000


def send(client: pulsar.Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send(b"%d" % number)
    producer.close()


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    received = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        received.append(bytes(message.data()))
    return received


def main(url: str) -> None:
    admin = httpx.Client(base_url=f"{url}/admin/v2/persistent/public/default")
    client = pulsar.Client(url, operation_timeout_seconds=60)
    start, latest = pulsar.InitialPosition.Earliest, pulsar.InitialPosition.Latest

    # Plain, with a name that has to be encoded, and partitioned.
    for topic in ("plain", "with space & ü"):
        send(client, topic, 3)
        consumer = client.subscribe(topic, "s", initial_position=start)
        assert receive(consumer, 3) == [b"0", b"1", b"2"]
        consumer.close()
    assert admin.put("/parted/partitions", json=3).status_code == 204
    assert client.get_topic_partitions("parted") == [
        f"persistent://public/default/parted-partition-{number}" for number in range(3)
    ]
    send(client, "parted", 9)
    consumer = client.subscribe("parted", "s", initial_position=start)
    assert sorted(receive(consumer, 9)) == [b"%d" % number for number in range(9)]
    consumer.close()

    # Moving a subscription sends its consumer back, without its help.
    consumer = client.subscribe("plain", "s", initial_position=latest)
    assert admin.post("/plain/subscription/s/resetcursor/0").status_code == 204
    assert receive(consumer, 3) == [b"0", b"1", b"2"]
    refused = admin.delete("/plain/subscription/s")
    assert (refused.status_code, list(refused.json())) == (412, ["reason"])
    assert admin.delete("/plain").status_code == 412
    stats = admin.get("/plain/stats").json()["subscriptions"]["s"]
    assert [each["availablePermits"] for each in stats["consumers"]] == [1000 - 3]
    consumer.close()
    assert admin.delete("/plain").status_code == 204

    # Unloading: producers and consumers come back by themselves.
    producer = client.create_producer("moved")
    consumer = client.subscribe("moved", "s", initial_position=start)
    producer.send(b"before")
    assert admin.put("/moved/unload").status_code == 204
    producer.send(b"after")
    assert [bytes(consumer.receive(RECEIVE_MS).data()) for _ in range(2)][-1] == b"after"

    # Who is connected, and how much goes through it.
    stats = admin.get("/moved/stats").json()
    [publisher], [reader] = stats["publishers"], stats["subscriptions"]["s"]["consumers"]
    for each in (publisher, reader):
        assert each["address"].startswith("/127.0.0.1:"), each
        assert each["clientVersion"], each
        assert each["connectedSince"].endswith("Z"), each
    assert publisher["msgRateIn"] > 0
    assert reader["msgRateOut"] > 0
    assert stats["subscriptions"]["s"]["msgRateOut"] > 0

    # One producer too many, and a topic that is terminated: what is there is read on.
    assert admin.post("/moved/maxProducers", json=1).status_code == 204
    refused_with(pulsar.ProducerBusy, client, "moved")
    assert admin.delete("/moved/maxProducers").status_code == 204
    producer.send(b"last")
    assert admin.post("/moved/terminate").status_code == 200
    refused_with(pulsar.TopicTerminated, client, "moved")
    assert bytes(consumer.receive(RECEIVE_MS).data()) == b"last"
    late = client.subscribe("moved", "late", initial_position=start)
    assert receive(late, 3) == [b"before", b"after", b"last"]
    client.close()


def refused_with(error: type[Exception], client: pulsar.Client, topic: str) -> None:
    try:
        client.create_producer(topic)
    except error:
        return
    raise AssertionError(f"a producer of {topic} was let in")


if __name__ == "__main__":
    main(sys.argv[1])
