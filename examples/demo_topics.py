"""A node and the real Pulsar client: produce, consume, read, and look at it from the command line.

`make demo` runs it. It starts `lithify serve` on free ports with demo-data/node in the current
directory, which it makes anew each time, and ends by itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pulsar
from rich.console import Console

DIRECTORY = Path("demo-data/node")
TOPIC = "persistent://public/default/orders"
MESSAGES = 100_000
KEYS = 1_000
COMMAND = Path(sys.executable).parent / "lithify"


def start() -> tuple[subprocess.Popen[str], str, str]:
    """A node, and its two addresses as it prints them."""
    command = [COMMAND, "serve", "--data", DIRECTORY, "--pulsar-port", "0", "--http-port", "0"]
    node = subprocess.Popen(  # noqa: S603  (our own command)
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert node.stdout is not None
    return node, node.stdout.readline().split()[1], node.stdout.readline().split()[1]


def produce(client: pulsar.Client) -> float:
    """Send all orders in batches; how many seconds it took until all were acknowledged."""
    producer = client.create_producer(
        TOPIC,
        batching_enabled=True,
        batching_max_publish_delay_ms=5,
        block_if_queue_full=True,
    )
    started_s = time.perf_counter()
    for number in range(MESSAGES):
        key = f"order-{number % KEYS}"
        producer.send_async(b"status %d" % (number % 7), lambda *_: None, partition_key=key)
    producer.flush()
    return time.perf_counter() - started_s


def consume(client: pulsar.Client) -> float:
    """Receive and acknowledge all of them; how many seconds it took."""
    earliest = pulsar.InitialPosition.Earliest
    consumer = client.subscribe(TOPIC, "billing", initial_position=earliest)
    started_s = time.perf_counter()
    for _ in range(MESSAGES):
        consumer.acknowledge(consumer.receive(10_000))
    return time.perf_counter() - started_s


def newest_of(client: pulsar.Client, key: str) -> bytes:
    """What a reader that begins at the beginning finds last for a key."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    newest = b""
    while reader.has_message_available():
        message = reader.read_next(10_000)
        if message.partition_key() == key:
            newest = message.data()
    return newest


def main() -> None:
    """Serve, produce, consume, read, stop."""
    console = Console(highlight=False)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    node, pulsar_url, http_url = start()
    try:
        console.print(f"[bold]A node[/bold] serves {pulsar_url} and {http_url}")
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(pulsar_url, logger=logger)
        seconds = produce(client)
        console.print(f"Produced {MESSAGES:,} messages in {seconds:.1f} s, each batch fsynced.")
        seconds = consume(client)
        console.print(f"Consumed and acknowledged them in {seconds:.1f} s.")
        console.print(
            f"Newest of order-42: [green]{newest_of(client, 'order-42').decode()}[/green]"
        )
        client.close()
        look = [str(COMMAND), "topics", "stats", "orders", "--url", http_url]
        subprocess.run(look, check=True)  # noqa: S603  (our own command)
    finally:
        node.terminate()
        code = node.wait(timeout=10)
    assert code == 0, f"the node ended with {code}"
    console.print("The node has stopped.\n\nLook on:")
    console.print(f"  .venv/bin/lithify topics tail orders --data {DIRECTORY}")
    console.print(f"  .venv/bin/lithify log stat {DIRECTORY}/topics/public/default/orders/log")
    console.print(
        f"  .venv/bin/lithify serve --data {DIRECTORY}    [dim]# and use any client[/dim]"
    )
    console.print("  README.md, docs/operating.md")


if __name__ == "__main__":
    main()
