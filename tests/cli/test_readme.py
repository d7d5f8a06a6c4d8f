"""Every example of the README runs as it is written, except for ports and the data directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from tests.cli.nodes import COMMAND
from tests.patience import PROCESS_S_MAX, at_most
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parents[2] / "README.md"


def blocks(section: str, language: str) -> list[str]:
    """The examples in a section of the README."""
    _, _, rest = README.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    body = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)


class Place:
    """A directory with a node, and other ports than those in the README."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        self.directory = directory
        self.ports = ports
        self.environ = os.environ | {
            "PATH": f"{COMMAND.parent}:{os.environ['PATH']}",
            "LITHIFY_URL": f"http://127.0.0.1:{ports.get('8080', 0)}",
        }

    def adapt(self, text: str) -> str:
        for port, mine in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(mine), text)
        return text

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PROCESS_S_MAX,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def shell(self, text: str) -> str:
        """Run it as one script, and stop what it has started in the background."""
        stop = "trap 'code=$?; kill $(jobs -p) 2>/dev/null || true; wait; exit $code' EXIT\n"
        return self.run("bash", "-euo", "pipefail", "-c", stop + self.adapt(text))

    def python(self, text: str) -> str:
        return self.run(sys.executable, "-c", self.adapt(text))


@contextmanager
def started(directory: Path) -> Iterator[Place]:
    """The node of the README."""
    [_, serve] = blocks("Two commands", "sh")
    place = Place(directory, {"6650": free_port(), "8080": free_port()})
    pulsar_port, http_port = place.ports.values()
    place.environ |= {
        "LITHIFY_PULSAR_PORT": str(pulsar_port),
        "LITHIFY_HTTP_PORT": str(http_port),
    }
    with subprocess.Popen(
        ["bash", "-c", f"exec {serve}"],
        cwd=directory,
        env=place.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as node:
        try:
            assert node.stdout is not None
            with at_most(PROCESS_S_MAX, node.kill):
                printed = [node.stdout.readline() for _ in range(2)]
            assert [line.split()[0] for line in printed] == ["pulsar", "http"]
            yield place
        finally:
            node.terminate()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with started(tmp_path_factory.mktemp("readme")) as found:
        yield found


def test_topics(place: Place) -> None:
    produce, _ = blocks("Topics", "python")
    place.python(produce)
    [compact] = blocks("Topics", "sh")
    assert place.shell(compact).rstrip().endswith("shipped")
    client = pulsar.Client(f"pulsar://127.0.0.1:{place.ports['6650']}")
    reader = client.create_reader("orders", pulsar.MessageId.earliest, is_read_compacted=True)
    assert reader.read_next(10_000).data() == b"shipped"
    assert not reader.has_message_available()
    client.close()


def test_blobs(place: Place) -> None:
    [example] = blocks("Blobs", "sh")
    content = README.read_bytes()
    (place.directory / "README.md").write_bytes(content)
    printed = place.shell(example)
    assert (place.directory / "copy.md").read_bytes() == content
    assert content[:100].decode() in printed


def test_a_cluster(tmp_path: Path) -> None:
    ports = (7001, 7002, 7003, 6651, 6652, 6653, 8081, 8082, 8083)
    place = Place(tmp_path, {str(port): free_port() for port in ports})
    [example] = blocks("A cluster", "sh")
    printed = place.shell(example)
    assert "asked n1" in printed
    assert "+ topic persistent://public/default/invoices" in printed


def test_raft(tmp_path: Path) -> None:
    place = Place(tmp_path, {str(port): free_port() for port in (7001, 7002, 7003)})
    [example] = blocks("Raft", "sh")
    printed = place.shell(example)
    assert "blue" in printed
    assert printed.count("leader") >= 1
    assert {path.name for path in (tmp_path / "raft").iterdir()} == {"n1", "n2", "n3"}
