"""A cluster under changes of definitions, while its nodes are killed, stopped and continued.

    with Story(directory, seed=1) as story:
        story.begin()
        story.run(rounds)
        story.finish()

What is checked, at random moments and at the end: `definition_record.py`. At the end also:

- all nodes have the same catalog, which is what the versions add up to
- listeners of every process got every version once, in order; a snapshot may replace some
- every removal is confirmed; what is on the disks belongs to what is defined, at its owner only
- every acknowledged message and blob of what exists can be read
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

import httpx

from lithify.metastore.client import MetastoreClient
from lithify.metastore.errors import MetastoreUnavailable
from lithify.raft.client.client import RaftClient
from lithify.raft.net.client_operations import Address, MayHaveHappened
from lithify.raft.net.cluster_secret import ClusterSecret
from tests.cli.cluster_members import SECRET, Member, members, start_all
from tests.cli.definition_checks import catalog_problems, disk_problems, listener_problems
from tests.cli.definition_clients import DefinitionClients
from tests.cli.definition_record import History, Record
from tests.cli.listening_serve import FILE
from tests.cli.topic_producers import Producers, lost_blobs, lost_messages
from tests.patience import PROCESS_S_MAX, wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

TICK_MS = 50
STOPPED_S = (0.1, 3.0)
"""A stop is shorter or longer than the time to an election, which is about a second."""
LEASE_S = 11.0
"""Longer than the lease of a node."""
HISTORY_MAX = 100
KEPT = {"retention_ms": 2**40, "retention_bytes": 2**40}
"""Messages stay, also without a subscription."""


class Story:
    """See the module."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        clients: int = 4,
        learner: bool = False,
        ready_s: int = PROCESS_S_MAX,
    ) -> None:
        """`ready_s` limits the wait for a node that was started."""
        self._directory = directory
        self._random = random.Random(seed)
        self._seed = seed
        self._clients = clients
        self._stack = ExitStack()
        self.record = Record()
        self.history = History()
        found = self._stack.enter_context(
            members(directory, 3 + learner, tick_ms=TICK_MS, auto_create="false", **KEPT)
        )
        self.nodes = found[:3]
        self.learner = found[3] if learner else None
        self._is_member = False
        for each in found:
            each.program = "tests.cli.listening_serve"
            each.environ = {FILE: str(directory / f"{each.name}.versions")}
            each.pulsar_port = free_port()
            each.ready_s = ready_s
        self._urls = "pulsar://" + ",".join(f"127.0.0.1:{each.pulsar_port}" for each in self.nodes)
        self._producers: Producers
        self._changing: DefinitionClients
        self._began_at = 0
        self.counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what happens -----------------------------------------------------------------------

    def begin(self) -> None:
        """Start the nodes and the clients."""
        start_all(self.nodes)
        self.poll()
        self._began_at = max(self.history.versions)
        if self.learner is not None:
            self.learner.start([], "--join")
            self.learner.await_logged("lithify cluster join n4")
        producers = Producers(self.nodes, self._urls, self._seed)
        clients = DefinitionClients(self.nodes, self.record, self._seed, self._clients)
        self._producers = self._stack.enter_context(producers)
        self._changing = self._stack.enter_context(clients)

    def run(self, rounds: int, events: tuple[str, ...]) -> None:
        """Let things happen, each once in random order, then again."""
        order: list[str] = []
        for _ in range(rounds):
            order = order or self._random.sample(events, len(events))
            event = order.pop()
            print(f"{time.strftime('%H:%M:%S')} {event}", flush=True)
            getattr(self, event)()
            self.counts[event] = self.counts.get(event, 0) + 1
            self.await_changes(2)
            self.check()

    def await_changes(self, count: int) -> None:
        """Until more changes are acknowledged."""
        wanted = len(self.record.made()) + count
        wait_until(lambda: self._has_failed() or len(self.record.made()) >= wanted)
        self._raise_errors()

    def _has_failed(self) -> bool:
        return bool(self._changing.errors or self._producers.errors)

    def _raise_errors(self) -> None:
        for error in (*self._changing.errors, *self._producers.errors):
            raise error

    def _others(self, node: Member) -> list[Member]:
        return [each for each in self.nodes if each is not node]

    def _restart(self, *nodes: Member) -> None:
        for each in nodes:
            each.start(self._others(each))
        for each in nodes:
            each.await_ready()

    def kill(self) -> None:
        """One node, and it returns after more changes."""
        node = self._random.choice(self.nodes)
        node.end(signal.SIGKILL)
        self.await_changes(self._random.choice((0, 2, 5)))
        self._restart(node)

    def kill_two(self) -> None:
        """There is no quorum for a moment."""
        nodes = self._random.sample(self.nodes, 2)
        for each in nodes:
            each.end(signal.SIGKILL)
        time.sleep(self._random.uniform(*STOPPED_S))
        self._restart(*nodes)

    def kill_all(self) -> None:
        """As in a power cut, but that the operating system keeps what was written."""
        for each in self.nodes:
            each.end(signal.SIGKILL)
        self._restart(*self.nodes)

    def terminate(self) -> None:
        """One node is stopped properly."""
        node = self._random.choice(self.nodes)
        assert node.end(signal.SIGTERM) == 0, node.log.read_text()[-2000:]
        self._restart(node)

    def stop_for_a_moment(self) -> None:
        """One node, perhaps the leader, sleeps; it does not know that it did."""
        self._stop(self._random.choice(self.nodes), self._random.uniform(*STOPPED_S))

    def stop_for_long(self) -> None:
        """Longer than its lease."""
        self._stop(self._random.choice(self.nodes), LEASE_S)

    @staticmethod
    def _stop(node: Member, seconds: float) -> None:
        node.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        node.send_signal(signal.SIGCONT)

    def snapshot(self) -> None:
        """Replace the updates up to a version that was seen here."""
        newest = max(self.history.versions)
        version = max(1, newest - self._random.choice((0, 3, 20)))
        self._post(f"/catalog/snapshot?version={version}", ok=(200, 410))

    def snapshot_twice(self) -> None:
        """Two nodes at once, and one is killed meanwhile."""
        version = max(self.history.versions)
        one, other = self._random.sample(self.nodes, 2)
        path = f"/catalog/snapshot?version={version}"
        with ExitStack() as stack:
            sent = [stack.enter_context(httpx.Client()) for _ in range(2)]
            for http, node in zip(sent, (one, other), strict=True):
                with suppress(httpx.HTTPError):
                    http.post(f"{node.url}{path}", timeout=0.05)
            if self._random.random() < 0.5:
                one.end(signal.SIGKILL)
                self._restart(one)

    def compact_history(self) -> None:
        """Raise the floor of the metastore to its newest revision, or below."""
        addresses = [Address("127.0.0.1", each.port) for each in self.nodes]

        async def compact() -> None:
            secret = ClusterSecret(SECRET)
            async with RaftClient(addresses, secret=secret, timeout_s=PROCESS_S_MAX) as client:
                store = MetastoreClient(client)
                newest = (await store.range(b"", b"", limit=1)).revision
                try:
                    await store.compact(newest - self._random.choice((0, 0, 5)))
                except (MayHaveHappened, MetastoreUnavailable) as error:
                    print(f"  {error!r}")

        asyncio.run(compact())

    def compact_files(self) -> None:
        """Compact the files of the group on one node."""
        node = self._random.choice(self.nodes)
        with suppress(httpx.HTTPError):
            httpx.put(f"{node.url}/cluster/raft/metastore/compaction", timeout=PROCESS_S_MAX)

    def learn_or_leave(self) -> None:
        """The fourth node joins as a learner, or leaves, or is killed before it returns."""
        assert self.learner is not None
        if not self._is_member:
            body = {"name": "n4", "address": self.learner.address, "voter": False}
            self._post("/cluster/join", body, ok=(204, 503, 504))
            if not self.learner.url:
                self.learner.await_ready()
            self._is_member = True
        elif self._random.random() < 0.5:
            self._post("/cluster/leave", {"name": "n4"}, ok=(204,))
            self._is_member = False
        else:
            self.learner.end(signal.SIGKILL)
            self.learner.start(self.nodes)
            self.learner.await_ready()

    def _post(self, path: str, body: object = None, *, ok: tuple[int, ...]) -> None:
        """Ask a node until it has an answer that is expected."""

        def is_done() -> bool:
            node = self._random.choice(self.nodes)
            answer = httpx.post(f"{node.url}{path}", json=body, timeout=PROCESS_S_MAX)
            if answer.status_code not in ok:
                print(f"  {path} at {node.name}: {answer.status_code} {answer.text}")
            return answer.status_code in ok

        wait_until(is_done, every_s=0.5)

    # --- checks -----------------------------------------------------------------------------

    def poll(self) -> None:
        """Take the versions of all nodes, when they have what any of them had before."""
        newest = max(_version(each) for each in self.nodes)
        for node in self.nodes:
            wait_until(lambda node=node: _version(node) >= newest)  # type: ignore[misc]
            self._take(node)

    def _take(self, node: Member) -> None:
        """The versions of a node that were not taken from it."""
        page = {row["version"]: row for row in node.get(f"/catalog/history?limit={HISTORY_MAX}")}
        for number in range(self.history.seen.get(node.name, 0) + 1, max(page) + 1):
            row = page.get(number)
            if row is not None and row["changes"] is not None and number in self.history.versions:
                self.history.compare(node.name, number, row["activation"], row["changes"])
                continue
            answer = node.ask(f"/catalog/diff?a={number - 1}&b={number}")
            if answer.status_code == httpx.codes.GONE:
                # A snapshot has replaced it.
                continue
            assert answer.is_success, answer.text
            row = row or node.get(f"/catalog?version={number}")
            self.history.add(node.name, number, row["activation"], answer.json()["differences"])

    def check(self) -> None:
        """What can be checked while clients change definitions."""
        self.poll()
        self._report(self.history.explain(self.record, self._began_at))

    def finish(self) -> None:
        """End the clients, and check everything."""
        self._changing.__exit__()
        self._producers.__exit__()
        self._raise_errors()
        nodes = self.nodes
        if self.learner is not None and self.learner.url:
            if not self._is_member:
                self.learn_or_leave()
            nodes = [*nodes, self.learner]
        self.check()
        wait_until(lambda: not _rows(nodes[0], "removal"))
        self.check()
        newest = max(_version(each) for each in nodes)
        for each in nodes:
            wait_until(lambda each=each: _version(each) >= newest)  # type: ignore[misc]
        catalogs = [each.get("/catalog") for each in nodes]
        objects = {(row["kind"], row["name"]): row for row in catalogs[0]["objects"]}
        files = {each.name: self._directory / f"{each.name}.versions" for each in nodes}
        self._report(
            [
                *catalog_problems(nodes, catalogs, self.history.objects.values()),
                *listener_problems(files, newest),
                *disk_problems(self._directory, nodes, objects),
                *self._content_problems(objects),
            ]
        )

    def _content_problems(self, objects: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
        created_ms: dict[tuple[str, str], int] = {}
        for version in sorted(self.history.versions.values(), key=lambda each: each.number):
            for change, kind, name, _ in version.effects:
                if change == "added":
                    created_ms[kind, name] = version.activation_ms
        of = {
            kind: {name: created_ms.get((kind, name), 0) for each, name in objects if each == kind}
            for kind in ("topic", "store")
        }
        producers = self._producers
        print(f"  {len(producers.messages)} messages, {len(producers.blobs)} blobs")
        return [
            *lost_messages(self._urls, producers.messages, of["topic"]),
            *lost_blobs(self.nodes[0], producers.blobs, of["store"]),
        ]

    def _report(self, problems: list[str]) -> None:
        assert not problems, "\n".join([f"{len(problems)} problems", *problems[:20]])


def _version(node: Member) -> int:
    found: int = node.get("/cluster")["catalog"]["version"]
    return found


def _rows(node: Member, kind: str) -> list[dict[str, Any]]:
    return [row for row in node.get("/catalog")["objects"] if row["kind"] == kind]
