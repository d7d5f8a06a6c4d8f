"""Brokers and clients in processes of their own.

The real client is C++ underneath and can take its process down, so every case runs in a fresh one:

1. A test file marks a function of a `Case` with `@in_client`. What pytest sees is a test that
   takes the session's `broker` and the function's other parameters.
2. The test starts this file with the broker's port, the file and the name of the function, and
   the parameters as JSON. The new process imports the test file and calls the function.
3. A failure is reported with everything that the client's process has printed.

A `Server` may also be killed and started again on the same port and directory.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from tests.patience import PROCESS_S_MAX, at_most, wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parents[2]
RECEIVE_MS = 600 * PROCESS_S_MAX
"""More than half of what a case may take; one that passes waits for no more than it has to."""

OPERATION_S = 60
"""How long a client tries what it is asked for; what is refused is refused long before."""

PARTITIONED = {f"parted-{name}": 3 for name in ("keys", "all", "reader", "schemas")}


CLIENT_CRASHES_MAX = 2
"""How often a case is repeated because the client crashed."""
SAID = "case: "
"""With this begins what a case says to its test, unlike what its client logs."""
STEPS = 300


def say(word: str, rest: str = "") -> None:
    """Tell the test."""
    print(f"{SAID}{word} {rest}", flush=True)


def moment_ms() -> int:
    """A time after all that was published before this call, and before what will be after it."""
    now_ms = _now_ms()
    wait_until(lambda: _now_ms() > now_ms, every_s=0)
    between_ms = _now_ms()
    wait_until(lambda: _now_ms() > between_ms, every_s=0)
    return between_ms


def _now_ms() -> int:
    return time.time_ns() // 10**6


class Steps:
    """How far a case has come. Its test asks it to continue for some steps, and at last to stop."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._count = 0
        self._counted = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        say("running")

    def add(self) -> None:
        with self._counted:
            self._count += 1
            self._counted.notify()

    def _listen(self) -> None:
        # The end of the input is the end of the test.
        while sys.stdin.readline() == "more\n":
            with self._counted:
                goal = self._count + STEPS
                self._counted.wait_for(lambda goal=goal: self._count >= goal)  # type: ignore[misc]
            say("more")
        self.stop.set()


class Server:
    """A broker's process."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.settings = settings
        self.port = free_port()
        self._http_port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self._log = directory.with_suffix(".log")

    def start(self) -> None:
        """Start it, always on the same ports; it listens when this returns."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("server.py")),
                    str(self.directory),
                    str(self.port),
                    json.dumps({**self.settings, "http_port": self._http_port}),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        assert self._process.stdout is not None
        with at_most(PROCESS_S_MAX, self._process.kill):
            line = self._process.stdout.readline()
        assert line == "listening\n", f"the broker did not start:\n{self.log}"

    def kill(self) -> None:
        """As `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()

    @property
    def memory_bytes(self) -> int:
        """What it keeps in memory now."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def open_files(self) -> int:
        """How many descriptors it has."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def start_case(self, function: Callable[..., None], **values: Any) -> subprocess.Popen[str]:
        """Begin a case in a client's process; `finish` waits for it."""
        return subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",
                __file__,
                str(self.port),
                str(self._http_port),
                inspect.getfile(function),
                function.__name__,
                json.dumps(values),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def heard(self, process: subprocess.Popen[str], word: str) -> str:
        """The rest of the line in which a case says a word; the client prints others before."""
        assert process.stdout is not None
        printed = []
        with at_most(PROCESS_S_MAX, process.kill):
            for line in process.stdout:
                _, found, rest = line.strip().partition(f"{SAID}{word}")
                if found:
                    return rest
                printed.append(line)
        pytest.fail(f"the client ended before it said {word!r}:\n{''.join(printed)}", pytrace=False)

    def tell(self, process: subprocess.Popen[str], word: str) -> None:
        """Give a case a line."""
        assert process.stdin is not None
        process.stdin.write(f"{word}\n")
        try:
            process.stdin.flush()
        except BrokenPipeError:
            assert process.stdout is not None
            with at_most(PROCESS_S_MAX, process.kill):
                printed = process.stdout.read()
            pytest.fail(f"the client ended before it was told {word!r}:\n{printed}", pytrace=False)

    def let_go_on(self, process: subprocess.Popen[str]) -> None:
        """Wait until a case has come further by `STEPS`; it counts them with `Steps`."""
        self.tell(process, "more")
        self.heard(process, "more")

    def run_case(self, function: Callable[..., None], **values: Any) -> str:
        """Run a case to its end; returns what it printed.

        The C++ code of the client crashes now and then while table views and readers are closed. A
        segmentation fault counts as the client's if the stack of the crashed thread has no frame of
        this repository's sources (`is_clients_crash`). The case is then repeated on another topic,
        and each crash is a numbered warning with its stacks.
        """
        for number in range(1, CLIENT_CRASHES_MAX + 1):
            process = self.start_case(function, **values)
            output = self._output(process)
            if process.returncode != -signal.SIGSEGV or not is_clients_crash(output):
                return self._checked(process, output)
            count = f"crash {number} of at most {CLIENT_CRASHES_MAX}"
            text = f"the pulsar client crashed in {function.__name__}, {count}:\n{output}"
            warnings.warn(text, stacklevel=2)
        return self.finish(self.start_case(function, **values))

    def finish(self, process: subprocess.Popen[str], seconds: float = PROCESS_S_MAX) -> str:
        """Wait for a case; fails with its output if it failed."""
        return self._checked(process, self._output(process, seconds))

    def _output(self, process: subprocess.Popen[str], seconds: float = PROCESS_S_MAX) -> str:
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            pytest.fail(f"still running after {seconds} s:\n{output}", pytrace=False)

    def _checked(self, process: subprocess.Popen[str], output: str) -> str:
        if process.returncode != 0:
            pytest.fail(
                f"client ended with {process.returncode}:\n{output}\nbroker:\n{self.log[-4000:]}",
                pytrace=False,
            )
        return output


def is_clients_crash(output: str) -> bool:
    """Do the stacks that faulthandler printed put a crash outside the code of this repository?

    The crashed thread is the current one. A thread of the client itself has no Python frames.
    """
    _, found, stacks = output.rpartition("Fatal Python error: Segmentation fault")
    if not found:
        return False
    _, found, crashed = stacks.partition("Current thread ")
    frames = crashed.partition("\n\n")[0] if found else ""
    return str(ROOT / "src") not in frames


def in_client(function: Callable[..., None]) -> Callable[..., None]:
    """Make a test of a case: it runs in a process of its own against the session's broker."""
    first, *others = inspect.signature(function).parameters.values()
    broker = first.replace(name="broker", annotation=Server)

    def test(broker: Server, **values: Any) -> None:
        broker.run_case(function, **values)

    test.__name__ = function.__name__
    test.__doc__ = function.__doc__
    test.__module__ = function.__module__
    test.__signature__ = inspect.Signature([broker, *others])  # type: ignore[attr-defined]
    test.case = function  # type: ignore[attr-defined]
    return test


@dataclasses.dataclass
class Case:
    """What a case has to work with in the client's process."""

    url: str
    topic: str
    """A topic that no other caller uses."""
    client: Any
    admin: str = ""
    """Where the broker is asked over HTTP, if it was started with `http`."""

    def connect(self, **options: Any) -> Any:
        """Another client."""
        given = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn), **options}
        return pulsar.Client(self.url, operation_timeout_seconds=OPERATION_S, **given)

    def fill(self, count: int, topic: str | None = None, **options: Any) -> list[Any]:
        """Send b"0", b"1", … and return their ids."""
        producer = self.client.create_producer(topic or self.topic, **options)
        ids = send_all(producer, numbers(count))
        producer.close()
        return ids

    def earliest(self, name: str = "s", topic: Any = None, **options: Any) -> Any:
        """A subscription that begins with the first message."""
        return self.client.subscribe(
            topic or self.topic, name, initial_position=pulsar.InitialPosition.Earliest, **options
        )

    def wait_for_backlog(self, subscription: str, messages: int) -> None:
        """Until this many are not acknowledged: the client sends acknowledgements when it likes."""

        def is_so() -> bool:
            path = f"persistent/public/default/{self.topic}/stats"
            stats = httpx.get(f"{self.admin}/admin/v2/{path}").json()
            return bool(stats["subscriptions"][subscription]["msgBacklog"] == messages)

        wait_until(is_so)


def numbers(*limits: int) -> list[bytes]:
    """b"0", b"1", … of a range."""
    return [b"%d" % number for number in range(*limits)]


def send_all(producer: Any, values: Iterable[bytes], **options: Any) -> list[Any]:
    """Send without waiting in between; the ids in order."""
    values = list(values)
    ids: list[Any] = [None] * len(values)

    def taken(at: int) -> Callable[[Any, Any], None]:
        def callback(result: Any, message_id: Any) -> None:
            assert result == pulsar.Result.Ok, result
            ids[at] = message_id

        return callback

    for at, value in enumerate(values):
        producer.send_async(value, taken(at), **options)
    producer.flush()
    assert all(each is not None for each in ids)
    return ids


def receive_all(consumer: Any, count: int, *, ack: bool = True) -> list[bytes]:
    """The next `count` values."""
    values = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        values.append(bytes(message.data()))
        if ack:
            consumer.acknowledge(message)
    return values


def nothing_comes(consumer: Any, within_ms: int = 300) -> bool:
    """Is there no message to receive?"""
    try:
        message = consumer.receive(within_ms)
    except pulsar.Timeout:
        return True
    print("came:", message.message_id(), message.data())
    return False


def _main(port: str, http_port: str, path: str, name: str, values: str) -> None:
    spec = importlib.util.spec_from_file_location("case", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name)
    function = getattr(function, "case", function)
    url = f"pulsar://127.0.0.1:{port}"
    topic = f"{name}-{os.getpid()}"
    case = Case(url, topic, None, f"http://127.0.0.1:{http_port}")
    case.client = case.connect()
    function(case, **json.loads(values))
    case.client.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
