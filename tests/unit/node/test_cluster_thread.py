"""The thread of a process that runs its Raft node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lithify.errors import InvalidInput, LogClosed, ProtocolError
from lithify.fs import LocalFileSystem
from lithify.node.cluster_thread import ClusterThread
from lithify.raft.kv import format as kv
from lithify.raft.kv.machine import KvMachine, kv_machine
from lithify.raft.node.node import RaftNode
from lithify.raft.node.settings import RaftNodeSettings
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any


def thread_of(
    directory: Path,
    failed: Callable[[BaseException], None] = lambda _: None,
    machine_of: Callable[[str], KvMachine] = kv_machine,
) -> ClusterThread:
    settings = RaftNodeSettings("n1", str(directory / "raft"), None, tick_ms=20)
    return ClusterThread(partial(RaftNode, settings, LocalFileSystem(), machine_of), failed)


def test_other_threads_use_the_groups_and_the_thread_ends_with_the_node(tmp_path: Path) -> None:
    for _ in range(2):
        cluster = thread_of(tmp_path)
        cluster.start()
        put = partial(cluster.node.propose, "default", kv.put(b"k", b"v"))
        index, _reply = cluster.call(put).result(PROCESS_S_MAX)
        read = partial(cluster.node.read, "default", kv.get(b"k"), local=True)
        found = cluster.call(read).result(PROCESS_S_MAX)
        assert (found.index >= index, kv.parse_reply(found.reply).value) == (True, b"v")
        cluster.close()
        cluster.close()
        assert "lithify-cluster" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(LogClosed):
            cluster.call(put)


def test_a_node_that_cannot_open_raises_in_the_caller(tmp_path: Path) -> None:
    first = thread_of(tmp_path)
    first.start()
    first.close()
    settings = RaftNodeSettings("n2", str(tmp_path / "raft"), None)
    failures: list[BaseException] = []
    node = partial(RaftNode, settings, LocalFileSystem(), kv_machine)
    second = ClusterThread(node, failures.append)
    with pytest.raises(InvalidInput, match="belongs to node n1 of cluster raft, not to n2"):
        second.start()
    second.close()
    assert failures == [], "it is told once"
    assert "lithify-cluster" not in {thread.name for thread in threading.enumerate()}


INTERRUPTED = """
import asyncio, signal, sys, threading
from functools import partial
from lithify.errors import LogClosed
from lithify.fs import LocalFileSystem
from lithify.node import cluster_thread
from lithify.raft.kv.machine import kv_machine
from lithify.raft.node.node import RaftNode
from lithify.raft.node.settings import RaftNodeSettings

cluster_thread.OPEN_S = 0.05
settings = RaftNodeSettings("n1", sys.argv[1], None, tick_ms=20)
may_open = threading.Event()

def open_node():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    may_open.wait()
    return RaftNode(settings, LocalFileSystem(), kv_machine)

cluster = cluster_thread.ClusterThread(open_node, lambda _: None)
try:
    cluster.start()
except KeyboardInterrupt:
    cluster.close()
    try:
        cluster.call(partial(asyncio.sleep, 0))
    except LogClosed:
        may_open.set()
        [thread] = [each for each in threading.enumerate() if each.name == "lithify-cluster"]
        thread.join()
        print("interrupted")
"""


def test_an_interrupted_start_does_not_wait_for_a_directory_that_is_being_opened(
    tmp_path: Path,
) -> None:
    # In a process of its own: an interrupt that is missed would end the tests.
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "raft")]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=PROCESS_S_MAX
    )
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr
    again = thread_of(tmp_path)
    again.start()
    again.close()


def test_calls_in_progress_are_done_before_the_node_stops(tmp_path: Path) -> None:
    cluster = thread_of(tmp_path)
    cluster.start()

    async def both() -> int:
        await cluster.node.propose("default", kv.put(b"a", b"1"))
        return (await cluster.node.propose("default", kv.put(b"b", b"2"))).index

    futures = [cluster.call(both) for _ in range(20)]
    cluster.close()
    assert len({future.result(0) for future in futures}) == 20


def test_a_call_that_does_not_end_does_not_keep_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.node.cluster_thread.CALLS_S", 0.05)
    cluster = thread_of(tmp_path)
    cluster.start()
    future = cluster.call(partial(asyncio.sleep, PROCESS_S_MAX))
    cluster.close()
    assert future.cancelled()


class Failing(KvMachine):
    """Does not understand what was committed."""

    def apply_many(self, *_: Any) -> Any:
        raise ProtocolError("no such command")


def test_a_node_that_fails_is_reported_once_and_takes_no_more_calls(tmp_path: Path) -> None:
    reported: list[BaseException] = []
    told = threading.Event()

    def failed(error: BaseException) -> None:
        reported.append(error)
        told.set()

    cluster = thread_of(tmp_path, failed, lambda _: Failing())
    cluster.start()
    put = partial(cluster.node.propose, "default", kv.put(b"k", b"v"))
    with pytest.raises(Exception, match="the node stops"):
        cluster.call(put).result(PROCESS_S_MAX)
    assert told.wait(PROCESS_S_MAX)
    with pytest.raises(LogClosed, match="the Raft node of the process has stopped"):
        cluster.call(put)
    cluster.close()
    assert [str(error) for error in reported] == ["no such command"]
