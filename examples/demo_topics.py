"""The main job in one minute: a topic of a million messages becomes its newest message per key.

`make demo` runs it. It starts `lithify serve` on free ports with demo-data/node in the current
directory, which it recreates each time; the real Pulsar client writes and reads; the commands that
it shows are those that a user would type. It ends by itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pulsar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lithify.compaction.planning.plan import human_bytes

DIRECTORY = Path("demo-data/node")
TOPIC = "persistent://public/default/orders"
ADMIN = "admin/v2/persistent/public/default/orders"
MESSAGES = 1_000_000
KEYS = 50_000
STEP = 10_000
COMMAND = Path(sys.executable).parent / "lithify"


def start() -> tuple[subprocess.Popen[str], str, str]:
    """A node, and its two addresses as it prints them."""
    command = [COMMAND, "serve", "--data", DIRECTORY, "--pulsar-port", "0", "--http-port", "0"]
    node = subprocess.Popen(  # noqa: S603  (our own command)
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert node.stdout is not None
    return node, node.stdout.readline().split()[1], node.stdout.readline().split()[1]


def value_of(number: int) -> bytes:
    """What the message with this number says."""
    return b"status %d of an order, said message %d" % (number % 7, number)


def produce(client: pulsar.Client, console: Console) -> float:
    """Send all orders in batches; how many seconds it took until all were acknowledged."""
    producer = client.create_producer(
        TOPIC,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=5,
        block_if_queue_full=True,
        max_pending_messages=20_000,
    )
    started_s = time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("producing", total=MESSAGES)
        for number in range(MESSAGES):
            key = f"order-{number % KEYS}"
            producer.send_async(value_of(number), _acknowledged, partition_key=key)
            if number % STEP == 0:
                progress.update(task, completed=number)
    producer.flush()
    return time.perf_counter() - started_s


def _acknowledged(result: pulsar.Result, _: pulsar.MessageId) -> None:
    assert result == pulsar.Result.Ok, result


def read_compacted(client: pulsar.Client) -> tuple[dict[str, bytes], float]:
    """What a compacted reader finds from the beginning, and how many seconds it took."""
    started_s = time.perf_counter()
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found = {}
    while reader.has_message_available():
        message = reader.read_next(10_000)
        found[message.partition_key()] = message.data()
    reader.close()
    return found, time.perf_counter() - started_s


def run(console: Console, *arguments: str) -> None:
    """Show a command, and do it."""
    console.print(f"\n[bold]$ lithify {' '.join(arguments)}[/bold]")
    subprocess.run([str(COMMAND), *arguments], check=True)  # noqa: S603  (our own command)


def ask(url: str, method: str = "GET", body: object = None) -> dict[str, int]:
    """What a node answers over HTTP."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url, data, headers, method=method)) as answer:  # noqa: S310  (our node)
        text = answer.read()
    found: dict[str, int] = json.loads(text) if text else {}
    return found


def main() -> None:
    """Serve, produce, compact, read, let the log go, look a key up, stop."""
    console = Console(highlight=False)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    node, pulsar_url, http_url = start()
    try:
        console.print(f"[bold]A node[/bold] serves {pulsar_url} and {http_url}")
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(pulsar_url, logger=logger)
        seconds = produce(client, console)
        console.print(f"Produced {MESSAGES:,} messages in {seconds:.1f} s, each batch fsynced.")
        before = ask(f"{http_url}/{ADMIN}/stats")["storageSize"]
        run(console, "topics", "compact", "orders", "--url", http_url)
        found, seconds = read_compacted(client)
        first = MESSAGES - KEYS
        expected = {f"order-{n % KEYS}": value_of(n) for n in range(first, MESSAGES)}
        assert found == expected, "the view is the newest message of each key"
        console.print(f"\nRead the topic compacted, {len(found):,} messages, in {seconds:.1f} s.")
        client.close()

        # The view outlives the log: without retention, entries that no subscription needs are
        # deleted at once.
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        ask(f"{http_url}/{ADMIN}/retention", "POST", nothing)
        ask(f"{http_url}/{ADMIN}/trim", "POST")
        after = ask(f"{http_url}/{ADMIN}/stats")["storageSize"]
        table = Table("", "before", "compacted, no retention")
        table.add_row("messages", f"{MESSAGES:,}", f"{len(found):,}")
        table.add_row("on disk", human_bytes(before), human_bytes(after))
        console.print(table)
        run(console, "topics", "get", "orders", "order-42", "--url", http_url)
    finally:
        node.terminate()
        code = node.wait(timeout=20)
    assert code == 0, f"the node ended with {code}"
    console.print("\nThe node has stopped. Continue with:")
    for command in (
        f"topics compaction-history orders --data {DIRECTORY}",
        f"topics get orders order-4711 --data {DIRECTORY}",
        f"log stat {DIRECTORY}/topics/public/default/orders/log",
        f"serve --data {DIRECTORY}    [dim]# and use any client[/dim]",
    ):
        console.print(f"  .venv/bin/lithify {command}")
    console.print("  README.md, docs/operating.md, docs/topic-compaction.md")


if __name__ == "__main__":
    main()
