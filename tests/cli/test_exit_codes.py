"""The interface for programs that run `lithify`: exit codes, JSON errors, Ctrl-C, confirmations."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import pty
import re
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import lithify
from lithify.cli.client.errors import Refused
from lithify.cli.main import app
from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT, FAILED, NOT_FOUND, OUTCOME_UNKNOWN, UNREACHABLE, USAGE
from tests.cli.nodes import COMMAND, served_here
from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def data(tmp_path: Path) -> str:
    place = str(tmp_path / "data")
    assert run("topics", "create", "orders", "--data", place)[0] == 0
    return place


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout, done.stderr


# --- exit codes -------------------------------------------------------------------------------

CODES = (
    (2, ("topics", "stats", "not//a/name")),
    (2, ("topics", "nonsense")),
    (3, ("topics", "stats", "absent")),
    (3, ("topics", "delete", "absent")),
    (3, ("topics", "get", "orders", "absent")),
    (3, ("blobs", "stats", "absent")),
    (4, ("topics", "create", "orders")),
    (4, ("topics", "cancel-compaction", "orders")),
    (2, ("topics", "create", "parted", "--partitions", "99999999")),
    (2, ("blobs", "create", "bad", "--capacity", "10", "--segment", "3")),
)


@pytest.mark.parametrize(("code", "arguments"), CODES, ids=str)
def test_an_error_has_the_same_exit_code_in_the_process_and_at_a_node(
    code: int, arguments: tuple[str, ...], data: str
) -> None:
    assert run(*arguments, "--data", data)[0] == code
    if arguments[1] == "nonsense":
        return
    with served_here(Path(data)) as url:
        assert run(*arguments, "--url", url)[0] == code


def test_an_error_of_a_node_that_needs_others_has_the_code_of_that_error() -> None:
    for module in pkgutil.walk_packages(lithify.__path__, "lithify."):
        if module.name.startswith(("lithify.raft", "lithify.metastore", "lithify.catalog")):
            importlib.import_module(module.name)
    kinds = [LithifyError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    needing = {kind.__name__ for kind in kinds if kind.exit_code == UNREACHABLE}
    needing -= {"NodeNotReached"}
    assert "MetastoreUnavailable" in needing
    for name in sorted(needing):
        assert Refused("why", 503, name).exit_code == UNREACHABLE, name
    assert Refused("why", 503, "LogClosed").exit_code == FAILED


def test_the_page_has_every_exit_code() -> None:
    page = (Path(__file__).parents[2] / "docs/operating.md").read_text()
    section = page.split("\n### Exit codes\n")[1].split("\n#")[0]
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
    codes = [FAILED, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE, OUTCOME_UNKNOWN]
    assert listed == [0, *codes, 128 + signal.SIGINT]


@pytest.mark.parametrize("verb", ["verify", "stat", "dump"])
def test_a_log_that_does_not_exist_is_not_found(verb: str, tmp_path: Path) -> None:
    code, _, text = run("log", verb, str(tmp_path / "absent"))
    assert (code, "absent does not exist" in text) == (3, True), text


def test_definitions_that_are_a_directory_are_named(data: str) -> None:
    place = Path(data, "definitions")
    place.mkdir()
    code, _, text = run("topics", "list", "--data", data)
    assert (code, str(place) in text) == (1, True), text


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("topics", "nonsense"),
        ("topics", "list", "--nonsense"),
        ("topics", "stats"),
        ("topics", "create", "orders", "--partitions", "many"),
        ("--nonsense",),
    ],
    ids=str,
)
def test_a_usage_error_is_one_line(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("lithify: error: ")
    assert done.stderr.count("\n") == 1
    assert "--help" in done.stderr


def test_an_unreachable_node_has_its_own_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, _, text = run("topics", "list", "--url", f"http://127.0.0.1:{port}")
    assert code == 5
    assert "no node answers" in text


def test_a_directory_in_use_is_a_conflict(data: str) -> None:
    with served_here(Path(data)):
        code, _, text = run("topics", "list", "--data", data)
    assert code == 4
    assert "is open for writing by" in text


@contextmanager
def cuts_off(answer: bytes = b"") -> Iterator[str]:
    """A server that reads a request, perhaps answers, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(2**16)
                        client.sendall(answer)
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_change_that_a_server_breaks_off_has_an_unknown_outcome() -> None:
    """A node that stops answers so, beside its application."""
    answer = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 21\r\n\r\n"
    with cuts_off(answer + b"Internal Server Error") as url:
        code, _, text = run("topics", "create", "orders", "--url", url)
        assert (code, "may have taken effect" in text) == (6, True), text
        assert run("topics", "list", "--url", url)[0] == 1


def test_a_change_without_an_answer_has_an_unknown_outcome() -> None:
    with cuts_off() as url:
        code, _, text = run("topics", "create", "orders", "--url", url)
        assert code == 6
        assert "may have taken effect or not" in text
        assert run("topics", "list", "--url", url)[0] == 5


# --- errors in JSON ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (("topics", "stats", "absent"), "TopicNotFound", 3),
        (("topics", "list", "--nonsense"), "UsageError", 2),
        (("topics", "nonsense"), "UsageError", 2),
    ],
)
def test_with_json_an_error_is_json(
    arguments: tuple[str, ...], kind: str, code: int, data: str
) -> None:
    given, out, text = run(*arguments, "--data", data, "--json")
    error = json.loads(text)
    assert (given, out) == (code, "")
    assert (error["type"], error["exit_code"]) == (kind, code)
    assert error["error"]


def test_an_argument_after_two_dashes_does_not_select_json(data: str) -> None:
    code, _, text = run("topics", "get", "--data", data, "orders", "--", "--json")
    assert (code, text[:15]) == (3, "lithify: error:")


# --- many messages ----------------------------------------------------------------------------


def test_twenty_thousand_short_lines_are_produced_at_a_node(tmp_path: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(1, 20_001)).encode()
    with served_here(tmp_path / "data") as url:
        done = CliRunner().invoke(app, ["topics", "produce", "T", "--url", url], input=lines)
        assert (done.exit_code, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 20_000
        tail = CliRunner().invoke(app, ["topics", "tail", "T", "--limit", "1", "--url", url])
        assert tail.stdout.split()[-1] == "20000"


# --- a terminal -------------------------------------------------------------------------------


def on_a_terminal(answer: bytes, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose stdin is a terminal."""
    leader, follower = pty.openpty()
    try:
        os.write(leader, answer)
        done = subprocess.run(
            [COMMAND, *arguments],
            stdin=follower,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROCESS_S_MAX,
        )
    finally:
        os.close(leader)
        os.close(follower)
    return done.returncode, done.stderr


def test_on_a_terminal_a_deletion_needs_confirmation(data: str) -> None:
    shape = ("--capacity", "2MiB", "--segment", "1MiB")
    assert run("blobs", "create", "photos", *shape, "--data", data)[0] == 0
    code, text = on_a_terminal(b"n\n", "raft", "drop", "orders", "--nodes", "127.0.0.1:1")
    assert (code, "This cannot be undone" in text) == (1, True)
    for deletion in (("topics", "delete", "orders"), ("blobs", "drop", "photos")):
        code, text = on_a_terminal(b"n\n", *deletion, "--data", data)
        assert code != 0
        assert "This cannot be undone" in text
    assert run("topics", "stats", "orders", "--data", data)[0] == 0
    assert run("blobs", "stats", "photos", "--data", data)[0] == 0
    assert on_a_terminal(b"y\n", "topics", "delete", "orders", "--data", data)[0] == 0
    assert on_a_terminal(b"", "blobs", "drop", "photos", "--yes", "--data", data) == (0, "")
    assert run("topics", "stats", "orders", "--data", data)[0] == 3


def test_an_interrupt_while_commands_are_imported_prints_nothing(tmp_path: Path) -> None:
    # The process interrupts itself at the first import of typer, in the middle of all imports.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    done = subprocess.run(
        [COMMAND, "topics", "list"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_S_MAX,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


class _Answers:
    """A node at which a run never ends; it tells when its progress was asked for."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def answer(self, head: bytes) -> bytes:
        running = [
            {"topic": "orders", "status": "RUNNING", "phase": "index", "done": 0, "total": 9}
        ]
        body = b""
        if head.startswith(b"GET"):
            body = json.dumps(running).encode()
            self.asked.set()
        start = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        return start + body


def test_an_interrupted_compact_says_that_the_run_continues() -> None:
    node = _Answers()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    client, _ = server.accept()
                    with client:
                        client.sendall(node.answer(client.recv(2**16)))
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with (
            subprocess.Popen(
                [COMMAND, "topics", "compact", "orders", "--url", url],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process,
            at_most(PROCESS_S_MAX, process.kill),
        ):
            assert node.asked.wait(PROCESS_S_MAX)
            process.send_signal(signal.SIGINT)
            _, text = process.communicate()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert process.returncode == 130, text
    assert text == (
        "lithify: the run continues at the node; lithify topics compaction-status orders shows it, "
        "lithify topics cancel-compaction orders cancels it\n"
    )
