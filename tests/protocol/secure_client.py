"""A real client in a process of its own, told what to do by lines of standard input.

Started with the service URL, the file of certificates to trust (or "") and the tokens it shows, one
after the other, the last one again and again; none: it has no token. Each line is an operation and
a topic. The answer is a line "answer: ok", or the name of the exception in its place; the client
prints what it logs in between.
"""

from __future__ import annotations

import re
import sys

import pulsar

RECEIVE_MS = 50_000
QUIET_MS = 2_000


def main(url: str, trusted: str, *tokens: str) -> None:
    left = list(tokens)

    def token() -> str:
        return left.pop(0) if len(left) > 1 else left[0]

    client = pulsar.Client(
        url,
        authentication=pulsar.AuthenticationToken(token) if tokens else None,
        operation_timeout_seconds=120,
        tls_trust_certs_file_path=trusted or None,
        tls_validate_hostname=bool(trusted),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    producers: dict[str, pulsar.Producer] = {}
    listening: dict[str, pulsar.Consumer] = {}
    for line in sys.stdin:
        operation, topic = line.split()
        try:
            if operation == "produce":
                producers[topic] = client.create_producer(topic, send_timeout_millis=5_000)
                producers[topic].send(b"hello")
            elif operation == "produce-again":
                producers[topic].send(b"hello again")
            elif operation == "consume":
                consumer = client.subscribe(
                    topic, "s", initial_position=pulsar.InitialPosition.Earliest
                )
                consumer.acknowledge(consumer.receive(RECEIVE_MS))
                consumer.close()
            elif operation == "listen":
                listening[topic] = client.subscribe(
                    topic, "l", initial_position=pulsar.InitialPosition.Earliest
                )
            elif operation == "hear":
                listening[topic].acknowledge(listening[topic].receive(RECEIVE_MS))
            elif operation == "hear-nothing":
                listening[topic].receive(QUIET_MS)
            elif operation == "read":
                reader = client.create_reader(topic, pulsar.MessageId.earliest)
                reader.read_next(RECEIVE_MS)
                reader.close()
            elif operation == "pattern":
                client.subscribe(re.compile(topic), "p").close()
            answer = "ok"
        except pulsar.PulsarException as error:
            answer = type(error).__name__
        print("answer:", answer, flush=True)
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
