"""A process that runs members of many groups: their logs, their connections, their clients.

    node = RaftNode(NodeSettings("n1", "data/n1", listen, peers), LocalFileSystem(), KvMachine)
    await node.run(stop, ready)

1. The directory is opened, and with it every group that has something there. A node that is new
   begins the group `default`, with itself and its peers as the first members, unless it joins.
2. It listens and connects (`transport.py`), starts the threads that wait for the disk (`disk.py`),
   and ticks.
3. Whatever happens (a tick, messages, requests, word from the disk) is told to its group at once,
   and marks the group. Before the loop waits again, each marked group does its work once. So the
   requests of one turn go into one append, one message for each peer, and one round of the disk.
4. On `stop` clients are let go, what was handed to the disk is written, and the directory is
   closed. A stop without all that loses nothing either.

A message of a leader to a group that is not known here begins it, without members: the node was
added to it, and the log will say who they are.

An error of the disk's threads, or of a group, ends the node: what it would do next is not known.

All but the threads of `disk.py` runs in one event loop.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, InvalidSetting
from lithify.logger import get_logger
from lithify.raft.answering import Answering
from lithify.raft.core import AppendRequest, Config, Heartbeat
from lithify.raft.disk import Disk
from lithify.raft.group import Group, GroupSettings
from lithify.raft.identity import Identity
from lithify.raft.names import check_group
from lithify.raft.storage import RaftStorage, StorageSettings
from lithify.raft.transfer import SnapshotOffer
from lithify.raft.transport import Handlers, Transport
from lithify.raft.wal import Rolled
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lithify.fs import FileSystem
    from lithify.liveset import LiveSet
    from lithify.raft.core import Message
    from lithify.raft.jobs import Job
    from lithify.raft.machine import Machine
    from lithify.raft.operations import Address
    from lithify.raft.segment_writer import Flushed
    from lithify.raft.transport import Tls
    from lithify.raft.wal import WalEvent

    MakeMachine = Callable[[], Machine[Any]]

__all__ = ["DEFAULT_GROUP", "NodeSettings", "RaftNode"]

DEFAULT_GROUP = "default"

log = get_logger("lithify.raft")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node is told when it starts."""

    node: str
    data: str
    listen: Address
    peers: dict[str, str] = field(default_factory=dict)
    """Where other nodes are reached; those of the first start are the first members."""
    join: bool = False
    """Begin nothing: some group will add this node."""
    cluster: str = "raft"
    tls: Tls | None = None
    tick_ms: int = 100
    """The unit of all timeouts of Raft: a heartbeat each, an election after ten to twenty."""
    group: GroupSettings = field(default_factory=GroupSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)

    def __post_init__(self) -> None:
        check_range("tick_ms", self.tick_ms, 1, 60_000)
        if self.node in self.peers:
            raise InvalidSetting("peers", self.node, "others than the node itself")


class RaftNode:
    """See the module."""

    def __init__(self, settings: NodeSettings, fs: FileSystem, make_machine: MakeMachine) -> None:
        """Open the directory; `LogLocked` if another process has it."""
        self.settings = settings
        self._make_machine = make_machine
        self._draw = random.SystemRandom().randrange
        self.groups: dict[str, Group[Any]] = {}
        self._marked: dict[str, Group[Any]] = {}
        self._working = False
        self._storage = RaftStorage(fs, settings.data, settings.storage)
        try:
            self.identity = Identity(fs, settings.data, settings.node, settings.cluster)
            self._open()
        except BaseException:
            self._storage.close()
            raise
        self._failed: asyncio.Future[None]
        self._disk: Disk
        self.transport: Transport
        self._answering: Answering

    def _open(self) -> None:
        identity, settings = self.identity, self.settings
        self._storage.open_groups(self._live_of)
        identity.book |= settings.peers
        if identity.is_new and not settings.join:
            identity.groups[DEFAULT_GROUP] = sorted({settings.node, *settings.peers})
        identity.save()
        for name in {*self._storage.groups, *identity.groups}:
            self._begin(name)

    def _live_of(self, group: str, pieces: Iterable[bytes]) -> LiveSet:  # noqa: ARG002
        """What a state needs of its log; all groups here have the same kind of machine."""
        machine = self._make_machine()
        return machine.live_indexes(machine.load(pieces))

    def _begin(self, name: str) -> Group[Any]:
        members = Config(frozenset(self.identity.groups.get(name, ())))
        settings = replace(self.settings.group, members=members)
        machine = self._make_machine()
        group = Group(self._storage, name, self.identity.node, machine, settings, self._draw)
        self.groups[name] = group
        return group

    # --- running ----------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, ready: Callable[[Address], None]) -> None:
        """Run until `stop` is set; `ready` is told where the node listens."""
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        async with AsyncExitStack() as stack:
            stack.callback(self._close)
            self._disk = Disk(
                self._storage, written=self._written, flushed=self._flushed, failed=self._fail
            )
            stack.push_async_callback(self._disk.close)
            self._answering = Answering(self)
            handlers = Handlers(
                self._heard, self._answering.ask, self._unreachable, self._answering.forget
            )
            self.transport = Transport(self.identity, handlers, self.settings.tls)
            await self.transport.start(self.settings.listen)
            stack.push_async_callback(self.transport.close)
            ticking = asyncio.create_task(self._tick())
            stack.callback(ticking.cancel)
            ready(self.transport.address)
            stopping = asyncio.create_task(stop.wait())
            ends: list[asyncio.Future[Any]] = [stopping, self._failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        if self._failed.done():
            self._failed.result()

    def _close(self) -> None:
        # Nothing is left to be done, and nobody to do it.
        self._marked, self._working = {}, True
        self._storage.close()

    async def _tick(self) -> None:
        """Time passes; a process that was stopped for a while makes up for nothing."""
        while True:
            await asyncio.sleep(self.settings.tick_ms / 1000)
            with self._guarded():
                for group in self.groups.values():
                    group.tick()
                    self.mark(group)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What fails in the block ends the node."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (see the module)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            log.error("the node ends", reason=str(error))
            self._failed.set_exception(error)

    # --- work -------------------------------------------------------------------------------

    def mark(self, group: Group[Any]) -> None:
        """Something has happened to a group: it works before the loop waits again."""
        self._marked[group.name] = group
        if not self._working:
            self._working = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        marked, self._marked, self._working = self._marked, {}, False
        with self._guarded():
            for group in marked.values():
                out = group.work()
                for message in out.messages:
                    self.transport.send(group.name, message)
                for job in out.jobs:
                    self._run_job(group, job)

    def _run_job(self, group: Group[Any], job: Job) -> None:
        def done(result: object) -> None:
            if isinstance(result, Exception):
                log.error("a job failed", group=group.name, job=job.what, reason=str(result))
            with self._guarded():
                group.job_done(job, result)
            self.mark(group)

        self._disk.run(job, done)

    # --- what happens -----------------------------------------------------------------------

    def _heard(self, name: str, message: Message) -> None:
        group = self.groups.get(name)
        if group is None:
            if not isinstance(message, AppendRequest | Heartbeat | SnapshotOffer):
                return
            group = self._join(name)
        with self._guarded():
            group.receive(message)
        self.mark(group)

    def _unreachable(self, name: str, peer: str) -> None:
        group = self.groups.get(name)
        if group is not None:
            with self._guarded():
                group.unreachable(peer)
            self.mark(group)

    def _written(self, events: list[WalEvent]) -> None:
        for event in events:
            if isinstance(event, Rolled):
                # A group that installs a snapshot waits for this.
                for group in self.groups.values():
                    self.mark(group)
                continue
            name = getattr(event, "group", "").partition("/")[0]
            found = self.groups.get(name)
            if found is not None:
                with self._guarded():
                    found.wal_event(event)
                self.mark(found)

    def _flushed(self, rolled: Rolled, done: list[Flushed]) -> None:
        with self._guarded():
            self._storage.settle(rolled, done)
            for flushed in done:
                if flushed.group in self.groups:
                    self.groups[flushed.group].settled(flushed)
        for group in self.groups.values():
            self.mark(group)

    # --- groups -----------------------------------------------------------------------------

    def create(self, name: str, members: list[str]) -> Group[Any]:
        """Begin a group with the own node as its first member, which then adds the others."""
        check_group(name)
        if name in self.groups:
            raise InvalidInput(f"group {name} is there already")
        if self.identity.node not in members:
            raise InvalidInput(f"node {self.identity.node} is not one of the members {members}")
        self.identity.groups[name] = [self.identity.node]
        # First, because a group whose first members nobody remembers has no leader ever.
        self.identity.save()
        group = self._begin(name)
        group.campaign()
        self.mark(group)
        return group

    def _join(self, name: str) -> Group[Any]:
        log.info("added to a group", group=check_group(name))
        self.identity.groups[name] = []
        self.identity.save()
        return self._begin(name)
