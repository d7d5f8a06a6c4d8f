"""The commands of `docs/runbooks.md`, run as they are written there, with real processes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from contextlib import chdir, suppress
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lithify.cli.main import app
from tests.cli.nodes import COMMAND
from tests.cli.raft_nodes import ROOT
from tests.patience import PROCESS_S_MAX, at_most, wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = ROOT / "docs" / "runbooks.md"
DISK_BYTES = 4 * 2**20
NODES = ",".join(f"127.0.0.1:700{number}" for number in (1, 2, 3))


def commands_of(title: str) -> list[str]:
    """The indented lines of a section."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line.strip() for line in section.splitlines() if line.startswith("    ")]


class Operator:
    """Three nodes, and the commands of the page; each port is a free one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._ports: dict[str, int] = {}

    def begin(self) -> None:
        for name in ("n1", "n2", "n3"):
            self.serve(name)
        self.run("lithify raft put colour red")

    def serve(self, name: str) -> None:
        peers = [f"--peer {p}=127.0.0.1:700{p[1]}" for p in ("n1", "n2", "n3") if p != name]
        given = f"--id {name} --listen 127.0.0.1:700{name[1]} {' '.join(peers)} --data raft/{name}"
        self.type(f"lithify raft serve {given} &")

    def type(self, line: str) -> None:
        line, _, comment = (part.strip() for part in line.partition("#"))
        code = int(comment.removeprefix("exit ")) if comment else 0
        if line.endswith("&"):
            self._start(line.removesuffix("&"))
        else:
            self.run(line, code=code)

    def words(self, line: str) -> list[str]:
        words = shlex.split(self._with_ports(line))
        return [str(COMMAND), *words[1:]] if words[0] == "lithify" else words

    def _with_ports(self, text: str) -> str:
        def port(found: re.Match[str]) -> str:
            return f"127.0.0.1:{self._ports.setdefault(found[1], free_port())}"

        return re.sub(r"127\.0\.0\.1:(\d+)", port, text)

    def run(self, line: str, *, code: int = 0) -> str:
        """What a command prints; in this process, because starting one takes long."""
        words = self.words(line)
        env = {"LITHIFY_RAFT_NODES": self._with_ports(NODES)}
        with chdir(self.directory):
            if words[0] == str(COMMAND):
                done = CliRunner().invoke(app, words[1:], env=env)
                found, text = done.exit_code, done.output
            else:
                moved = subprocess.run(words, text=True, capture_output=True, check=False)
                found, text = moved.returncode, moved.stdout + moved.stderr
        assert found == code, f"{line}\n{text}"
        return text

    def _start(self, line: str) -> None:
        words = [*self.words(line), "--tick-ms", "50"]
        name = words[words.index("--id") + 1]
        with (self.directory / f"{name}.log").open("a") as errors:
            process = subprocess.Popen(
                words, cwd=self.directory, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.processes[name] = process
        assert process.stdout is not None
        with at_most(PROCESS_S_MAX, process.kill):
            ready = process.stdout.readline()
        assert ready.startswith("raft"), (self.directory / f"{name}.log").read_text()

    def kill(self, *names: str) -> None:
        for name in names:
            process = self.processes.pop(name)
            process.kill()
            process.communicate()

    def get(self, key: str, nodes: str = NODES) -> str:
        return self.run(f"lithify raft get {key} --nodes {nodes}").strip()


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    made = Operator(tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.kill(*list(made.processes))


def test_lost_majority(operator: Operator) -> None:
    operator.kill("n2", "n3", "n1")
    for line in commands_of("Lost majority"):
        operator.type(line)
    alone = "127.0.0.1:7001"
    assert operator.get("colour", alone) == "red"
    operator.run(f"lithify raft put colour blue --nodes {alone}")
    shown = operator.run(f"lithify raft members --nodes {alone}")
    assert shown.startswith("voters n1 n4 n5")
    # One of the lost comes back: it disturbs no member.
    operator.serve("n2")
    operator.run(f"lithify raft put colour green --nodes {alone}")
    assert operator.get("colour", "127.0.0.1:7004") == "green"
    again = operator.run(f"lithify raft members --nodes {alone}")
    assert again.splitlines()[0] == shown.splitlines()[0]


@pytest.mark.slow
def test_replace_a_dead_node(operator: Operator) -> None:
    operator.kill("n3")
    for line in commands_of("Replace a dead node"):
        operator.type(line)
    assert operator.get("colour", "127.0.0.1:7004") == "red"
    assert operator.run("lithify raft members").startswith("voters n1 n2 n4")


@pytest.mark.slow
def test_damaged_disk(operator: Operator) -> None:
    operator.kill("n2")
    (wal,) = (operator.directory / "raft/n2/wal").glob("*.wal")
    data = bytearray(wal.read_bytes())
    data[len(data) // 2] ^= 1
    wal.write_bytes(data)
    with pytest.raises(AssertionError, match=r"\.wal"):
        operator.serve("n2")
    for line in commands_of("Damaged disk"):
        if "overview" in line:
            continue  # It is about a node that runs.
        operator.type(line)
    assert operator.get("colour", "127.0.0.1:7004") == "red"
    assert operator.run("lithify raft members").startswith("voters n1 n3 n4")


@pytest.mark.slow
def test_an_older_copy(operator: Operator) -> None:
    directory = operator.directory / "raft/n2"
    operator.kill("n2")
    copy = shutil.copytree(directory, directory.with_name("n2-copy"), symlinks=True)
    operator.serve("n2")
    # With n2 alone, so that n1 has met its new start.
    operator.kill("n3")
    operator.run("lithify raft put colour blue")
    operator.serve("n3")
    operator.kill("n2")
    shutil.rmtree(directory)
    copy.rename(directory)
    operator.serve("n2")
    at_n2 = "lithify raft overview --json --nodes 127.0.0.1:7002"
    wait_until(lambda: '"disowned"' in operator.run(at_n2))
    for line in commands_of("An older copy"):
        operator.type(line)
    assert operator.get("colour", "127.0.0.1:7002") == "blue"


@pytest.mark.slow
def test_full_disk(tmp_path: Path) -> None:
    data = tmp_path / "raft" / "n1"
    data.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(data)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own can be mounted by root only")
    operator = Operator(tmp_path)
    try:
        operator.begin()
        ballast = data / "BALLAST"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        # Another member leads, if this one did.
        for number in range(20):
            operator.run(f"lithify raft put colour {number}")
        for line in commands_of("Full disk"):
            operator.type(line)
        ballast.unlink()
        assert operator.get("colour", "127.0.0.1:7001") == "19"
        operator.run("lithify raft snapshot")
        wait_until(lambda: any((data / "groups/default/snapshots").iterdir()))
    finally:
        operator.kill(*list(operator.processes))
        subprocess.run(["umount", str(data)], check=True)


@pytest.mark.slow
def test_backup_and_restore(operator: Operator) -> None:
    (operator.directory / "backups").mkdir()
    for line in commands_of("Backup and restore"):
        operator.type(line)
    assert operator.get("colour", "127.0.0.1:7012") == "red"
    # What is done to the one is not done to the other.
    operator.run("lithify raft put colour blue --nodes 127.0.0.1:7011")
    assert operator.get("colour") == "red"


def test_the_page_has_a_test_for_each_runbook() -> None:
    titles = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    names = {title.lower().replace(" ", "_") for title in titles}
    assert names == {name.removeprefix("test_") for name in globals() if name[5:] in names}
