"""The cluster in a process: its Raft node, the metastore and the catalog, in one thread.

    cluster = Cluster(settings, fs, directory, clock, failed, queue=queue)
    cluster.start()
    cluster.catalog.current                                     # any thread
    cluster.ask(partial(cluster.execute, commands))
    cluster.close()

`start` opens the Raft node in `DIRECTORY/raft`, waits until the metastore has a quorum, replays the
catalog, and reads which nodes there are. Until `opened`, whatever needs a quorum waits for it, and
a log line says for which nodes.

A node without a cluster port is its own quorum, and opens no port. It knows everything that its log
has, so it reads without asking the group, and starts also while the disk is full.

If the directory belongs to a member of a larger cluster and there is no cluster port, the cluster
is only **read**: as far as this node knew it when it was stopped. Changes raise `MemberReadsOnly`.

The history of the metastore is compacted by the queue of the process, on the node that leads
(`metastore/compaction/history_compaction.py`), and so is that of the catalog
(`catalog/maintenance.py`); `DIRECTORY/metastore` and `DIRECTORY/catalog` have the reports.
The queue is that of the Raft groups too, and has to be closed before the cluster.

The partitions of tables are groups of the same Raft node (`tables/tables.py`).

A node with the name of another one, or of another cluster, is refused by the others
(`raft/net/transport.py`, `node_registry.py`).

If the Raft node or the catalog fails later, or the name of this node turns out to be taken,
`failed` gets the error, once, in the cluster thread.

`start`, `opened`, `close`, `call` and `ask` are for any thread; so are `name`, `is_alone`, `nodes`,
`announce`, `queue`, what `history` says is, and of the catalog `versions`, `current` and `now`.
Everything else runs in the cluster thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import wait
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.catalog.manager.activation import ALONE, ActivationTiming
from lithify.catalog.manager.errors import CatalogBusy
from lithify.catalog.manager.manager import CatalogManager
from lithify.catalog.update_log.errors import AppendOutcomeUnknown
from lithify.catalog_compaction.compaction import CATALOG, CatalogCompaction
from lithify.errors import InvalidInput, LithifyError, LogClosed, WriteFailed
from lithify.events import ignore_events
from lithify.logger import get_logger
from lithify.metastore.compaction.history_compaction import HistoryCompaction, HistorySettings
from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.local_metastore import GROUP, LocalMetastore
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.maintenance import maintained
from lithify.node.bounded_changes import BoundedChanges, ChangeUnknown
from lithify.node.catalog.maintenance import CatalogMaintenance
from lithify.node.cluster_thread import ClusterThread
from lithify.node.node_registry import NodeAddresses, NodeRegistry
from lithify.node.raft_settings import make_raft_settings
from lithify.ownership import NodeUrls
from lithify.raft.errors import GroupAbsent, MemberReadsOnly, OutcomeUnknown
from lithify.raft.net.client_operations import MayHaveHappened
from lithify.raft.node.node import RaftNode
from lithify.tables.assignments import parse_group
from lithify.tables.background import TableWork
from lithify.tables.index_builds import IndexBuilds
from lithify.tables.low_watermark import LowWatermark
from lithify.tables.reclaim import Reclaim
from lithify.tables.tables import Tables
from lithify.tables.zone_assignments import ZoneAssignments

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from concurrent.futures import Future

    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.manager.executions import Executed
    from lithify.clock import Clock
    from lithify.compaction.scheduling.run_queue import RunQueue
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.metastore.metastore import KeyValue, Rows
    from lithify.node.settings import NodeSettings
    from lithify.raft.core import Config

__all__ = ["RAFT", "Cluster"]

T = TypeVar("T")

RAFT = "raft"
"""The directory of the Raft node, in the data directory."""
METASTORE = "metastore"
"""The directory of the reports of the metastore's history."""
TABLES = "tables"
"""The directory with the low watermark."""
IN_CLUSTER = ActivationTiming(delay_ms=500, skew_ms=500)
SAY_S = 1.0
"""A wait for other nodes that takes longer is logged; an election takes about as long."""
RETRY_S = 0.2
WAKE_S = 0.2
OBSERVE_S = 1.0
"""The interval at which the triggers of the history's compaction are checked."""
LEAVE_S = 1.0
"""How long a stopping node tries to end its lease."""
_NO_QUORUM = (
    AppendOutcomeUnknown,
    CatalogBusy,
    ChangeUnknown,
    GroupAbsent,
    MayHaveHappened,
    MetastoreUnavailable,
    OutcomeUnknown,
)
"""Errors of a request that is repeated while a node opens."""

log = get_logger("lithify.node")


class Cluster:
    """See the module."""

    def __init__(
        self,
        settings: NodeSettings,
        fs: FileSystem,
        directory: str,
        clock: Clock,
        failed: Callable[[BaseException], None],
        *,
        queue: RunQueue,
        events: EventSink = ignore_events,
    ) -> None:
        given = make_raft_settings(settings, fs, f"{directory}/{RAFT}", GROUP)
        given = replace(given, group=replace(given.group, clock=clock), queue=queue)
        self._fs = fs
        self._data = directory
        self._directory = f"{directory}/{METASTORE}"
        self._events = events
        self.queue = queue
        self.history: HistoryCompaction | None = None
        self.trimming: CatalogCompaction | None = None
        """The compaction of the catalog; both are None if the cluster is only read."""
        self._settings = settings.clustering
        self.name = given.node
        self._clock = clock
        self._failed = failed
        self._failure: BaseException | None = None
        self._thread = ClusterThread(partial(RaftNode, given, fs, _machine_of), self._fail)
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._config: Config | None = None
        self._beginning: Future[None] | None = None
        self._saying: asyncio.Task[None] | None = None
        """Says what the start waits for, until `opened`."""
        self._is_closing = False
        self._leader = ""
        self.leader_changes = 0
        """Times that another node has become the leader of the metastore, as seen here."""
        self._registry: NodeRegistry
        self._changes: BoundedChanges
        self._table_settings = settings.tables
        self._table_directory = f"{directory}/{TABLES}"
        self.tables: Tables | None = None
        """None if the cluster is only read."""
        self.catalog: CatalogManager
        self.metastore: LocalMetastore

    # --- any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Return when the cluster can be used; see the module."""
        for directory in (self._directory, self._table_directory):
            try:
                self._fs.mkdir(directory)
            except OSError as error:
                raise WriteFailed(directory, error) from error
        self._thread.start()
        try:
            self._beginning = self._thread.call(self._begin)
            _wait(self._beginning)
        except BaseException:
            # Also a wait that the user interrupts.
            self.close()
            if self._failure is not None:
                raise self._failure from None
            raise

    def close(self) -> None:
        """Stop everything, and wait for the thread. Idempotent."""
        self._is_closing = True
        if self._beginning is not None:
            self._beginning.cancel()
        with suppress(LogClosed):
            self._thread.call(self._end).result()
        self._thread.close()

    def opened(self) -> None:
        """The node is open: from here on a request without a quorum raises an error."""

        async def opened() -> None:
            if self._saying is not None:
                self._saying.cancel()
                self._saying = None

        self._thread.call(opened).result()

    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine function in the cluster thread; `LogClosed` if that has ended."""
        return self._thread.call(function)

    def ask(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `call`, and wait for the result; until `opened` also for a quorum."""

        async def asked() -> T:
            if self._saying is None:
                return await function()
            return await self._until_available(function)

        future = self._thread.call(asked)
        try:
            return _wait(future)
        finally:
            # If the user interrupts the wait.
            future.cancel()

    @property
    def failure(self) -> BaseException | None:
        """Why everything has stopped, if it has."""
        return self._failure

    @property
    def node(self) -> RaftNode:
        """The Raft node; used in the cluster thread only."""
        return self._thread.node

    @property
    def identity(self) -> str:
        """That of the directory of the Raft node; used in the cluster thread."""
        return self.node.identity.recognition.own

    @property
    def is_alone(self) -> bool:
        """Is this node the only member of the cluster?"""
        try:
            return self.metastore.group.config.members <= {self.name}
        except MetastoreUnavailable:
            # The node has left the cluster.
            return False

    def check_serving(self) -> None:
        """Refuse to serve clients from what can only be read."""
        if self.node.reads_only:
            raise MemberReadsOnly(self.name, self.node.others)

    @property
    def address(self) -> str:
        """The address for other nodes; empty if there is none."""
        found = self.node.transport.address
        return str(found) if found.port else ""

    def nodes(self) -> Mapping[str, NodeAddresses]:
        """The members of the cluster by name, as known here now."""
        return self._registry.nodes

    def announce(self, addresses: NodeAddresses) -> None:
        """Tell the other nodes where this one serves clients."""
        own = replace(addresses, cluster=self.address)

        async def announced() -> None:
            self._registry.announce(own)

        self._thread.call(announced).result()

    # --- in the thread ----------------------------------------------------------------------

    async def execute(
        self, commands: Sequence[CatalogCommand], *, is_long: bool = False
    ) -> Executed:
        """Execute a batch of commands of the catalog, in bounded time (`bounded_changes.py`)."""
        return await self._changes.run(partial(self.catalog.execute, commands, is_long=is_long))

    async def _begin(self) -> None:
        node = self._thread.node
        has_port = node.settings.listen is not None
        kind = LocalMetastore if has_port else _OwnState
        self.metastore = metastore = kind(node, self._clock)
        self._changes = BoundedChanges(node)
        self.catalog = CatalogManager(
            metastore, self._clock, timing=self._timing, failed=self._catalog_failed
        )
        self._stack.push_async_callback(self.catalog.stop)
        self._registry = NodeRegistry(metastore, self._clock, self.name, self.identity)
        if not has_port:
            await metastore.wait_committed()
        if node.reads_only:
            await self.catalog.start()
            self._applied(GROUP)
            return
        await self._stack.enter_async_context(maintained(metastore, self._clock))
        self._saying = asyncio.create_task(self._say_whom())
        if has_port:
            await self._until_member()
        await self._until_available(self.catalog.start)
        node.listeners.on_applied(self._applied)
        node.listeners.on_leader(self._led)
        self._applied(GROUP)
        await self._until_available(self._registry.load)
        history = self.history = HistoryCompaction(
            metastore, self._fs, self._directory, self._clock, HistorySettings(), self._events
        )
        tables = self.tables = await self._open_tables()
        maintenance = CatalogMaintenance(
            metastore,
            self.catalog,
            self.nodes,
            tables,
            self._fs,
            self._data,
            self._clock,
            self._settings.trimming,
            self._events,
        )
        self.trimming = maintenance.compaction
        observe = partial(self._observe, history, self.trimming)
        for work in (self._registry.register, self._registry.follow, observe):
            self._tasks.append(asyncio.create_task(self._run(work)))
        for work in self._table_works(tables):
            self._tasks.append(asyncio.create_task(self._run(work)))

    async def _open_tables(self) -> Tables:
        settings = self._table_settings
        watermark = LowWatermark(
            self._fs, self._table_directory, self._clock, settings.watermark, self._events
        )
        watermark.open(self.catalog.versions.earliest.activation)
        # Nothing is read yet, so it does not wait.
        try:
            await watermark.update()
        except WriteFailed as error:
            log.warning("the low watermark stays", reason=str(error))
        return Tables(
            self.node,
            self.metastore,
            self.catalog,
            self._clock,
            watermark,
            settings,
            self._timing,
            self._urls,
        )

    def _table_works(self, tables: Tables) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        metastore, versions, hosting = self.metastore, self.catalog.versions, tables.hosting
        reclaim = Reclaim(self.name, metastore, hosting, versions, self._alive)
        tables.low_watermark.listen(reclaim.raised)
        zones = ZoneAssignments(
            metastore, versions, hosting.assignments, tables.leaving, self._alive
        )
        builds = IndexBuilds(
            self.name, metastore, self.catalog, hosting, tables.active, self._alive
        )
        work = TableWork(tables, zones, builds, self._table_settings)
        self.catalog.listen(work.catalog_changed)
        self.node.listeners.on_leader(work.leader_changed)
        return work.works()

    def _alive(self) -> list[str]:
        return [name for name, each in self._registry.nodes.items() if each.is_alive]

    def _urls(self, node: str) -> NodeUrls:
        found = self._registry.nodes.get(node)
        return NodeUrls(found.pulsar, found.pulsar_tls, found.http) if found else NodeUrls()

    async def _observe(self, history: HistoryCompaction, trimming: CatalogCompaction) -> None:
        while True:
            # In a thread: it takes as long as there are logs in the queue.
            await asyncio.to_thread(self.queue.observe, METASTORE, [history])
            await asyncio.to_thread(self.queue.observe, CATALOG, [trimming])
            await asyncio.sleep(OBSERVE_S)

    async def _until_member(self) -> None:
        """Wait until this node has what the cluster had when it started.

        Other nodes also answer one that is not a member of their group.
        """
        status = await self._until_available(self.metastore.status)
        known = -1
        while known < status.revision:
            await self.metastore.wait_present()
            try:
                known = self.metastore.state.revision
            except MetastoreUnavailable:
                # It was removed.
                continue
            if known < status.revision:
                await asyncio.sleep(RETRY_S)

    async def _until_available(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat a request until there is a quorum, and this node is a member."""
        while True:
            try:
                await self.metastore.wait_present()
                return await request()
            except _NO_QUORUM as error:
                if isinstance(error, ChangeUnknown) and self.node.storage.refused:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _say_whom(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(SAY_S)
            waits = self._waits_for()
            if waits and waits != said:
                log.info("waiting for a quorum of the metastore", waits_for=waits)
            said = waits

    def _waits_for(self) -> str:
        """What a request must wait for; "" if it can be answered."""
        if self.node.storage.refused:
            return f"the disk: {self.node.storage.refused}"
        group = self.node.groups.get(GROUP)
        if group is None or not group.config.members:
            what = f"lithify cluster join {self.name} {self.address}"
            return f"a node of the cluster to add this one ({what})"
        if group.leader:
            return "" if group.applied_index else f"the log of {group.leader}"
        missing = group.config.electorate - {self.name} - set(self.node.transport.connected)
        return ", ".join(sorted(missing)) or "an election"

    def _timing(self) -> ActivationTiming:
        return ALONE if self.is_alone else IN_CLUSTER

    def _applied(self, group: str) -> None:
        if group != GROUP:
            return
        member = self.node.groups.get(GROUP)
        config = None if member is None else member.config
        if config is not None and config is not self._config:
            self._config = config
            self._registry.set_members(config.members, self.node.transport.book)

    def _led(self, group: str, leader: str, _: int) -> None:
        if group != GROUP:
            return
        if leader and leader != self._leader:
            self._leader = leader
            self.leader_changes += 1
        if GROUP not in self.node.groups:
            # This node was removed.
            self._config = None
            self._registry.set_members((), {})

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  (the process decides)
            if not self._is_closing:
                self._fail(error)

    def _catalog_failed(self, error: LithifyError) -> None:
        if not self._is_closing:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._failed(error)

    async def _end(self) -> None:
        if self._saying is not None:
            self._saying.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            with suppress(LithifyError, TimeoutError):
                await asyncio.wait_for(self._registry.leave(), LEAVE_S)
        await self._stack.aclose()


class _OwnState(LocalMetastore):
    """The metastore as this node knows it: nothing else changes it."""

    async def get(self, key: bytes, *, revision: int = 0, **_: bool) -> KeyValue | None:
        """See `Metastore`."""
        return await super().get(key, revision=revision, local=True)

    async def range(
        self, start: bytes, end: bytes, *, revision: int = 0, limit: int = 0, **_: bool
    ) -> Rows:
        """See `Metastore`."""
        return await super().range(start, end, revision=revision, limit=limit, local=True)


def _wait(future: Future[T]) -> T:
    """The result; a signal that comes just before the thread sleeps is handled soon after."""
    while not future.done():
        wait([future], WAKE_S)
    return future.result()


def _machine_of(group: str) -> MetastoreMachine:
    if group != GROUP and parse_group(group) is None:
        raise InvalidInput(f"this node runs no group {group}")
    return MetastoreMachine()
