"""The catalog of a running node: its versions, changes of it, and its listeners.

    manager = CatalogManager(metastore, clock, timing=lambda: ALONE)
    manager.listen(open_topics)
    await manager.start()
    executed = await manager.execute([CreateTenant("acme")])
    manager.current.tenant("acme")

All nodes of a cluster have one update log, in the metastore (`update_log/`). Every node applies
every version of it in order (`follower.py`). A change is planned on the newest version and appended
as the next one; only one node succeeds, the others plan again (`executions.py`).

Version N is **applied** here when look-ups find it. It is **active** from its activation on
(`activation.py`). It is **ready** here when all listeners have finished with it (`listeners.py`).

`execute` returns when the version is applied here and active on every node of the cluster: the
caller, on whatever node it asks next, sees its change. So does a caller that is refused: it can see
why.

`start` replays the log; if the log is empty, it appends version 1. One event loop; from another
thread only `versions`, `current` and `now` may be read.
"""

from __future__ import annotations

import asyncio
from secrets import token_bytes
from typing import TYPE_CHECKING

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.format import encode_update
from lithify.catalog.manager.activation import ActivationWait
from lithify.catalog.manager.errors import CatalogFailed, CatalogStopped
from lithify.catalog.manager.executions import Executions
from lithify.catalog.manager.follower import CatalogFollower
from lithify.catalog.manager.listeners import CatalogListeners
from lithify.catalog.manager.snapshots import CatalogFold, chunks_of_catalog
from lithify.catalog.update_log.update_log import UpdateLog
from lithify.catalog.versions import CatalogVersions
from lithify.hybrid_time import HybridClock
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.manager.activation import ActivationTiming
    from lithify.catalog.manager.executions import Executed
    from lithify.catalog.manager.listeners import CatalogListener
    from lithify.clock import Clock
    from lithify.errors import LithifyError
    from lithify.metastore.metastore import Metastore
    from lithify.metastore.transaction import Compare

__all__ = ["CatalogManager"]

_log = get_logger("lithify.catalog")


class CatalogManager:
    """See the module. `timing` is asked for each change: nodes join and leave.

    `failed` gets the error if this node cannot follow the catalog any longer, once.
    """

    def __init__(
        self,
        metastore: Metastore,
        clock: Clock,
        *,
        timing: Callable[[], ActivationTiming],
        failed: Callable[[LithifyError], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw_tag: Callable[[int], bytes] = token_bytes,
    ) -> None:
        self.versions = CatalogVersions()
        self._time = HybridClock(clock)
        self._log = UpdateLog(metastore, draw_tag)
        self._listeners = CatalogListeners()
        announce = self._listeners.announce
        self._follower = CatalogFollower(self._log, self.versions, self._time, announce, sleep)
        self._executions = Executions(self._log, self.versions, self._follower.applied, timing)
        self._activation = ActivationWait(clock, sleep, timing)
        self._failed = failed
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    # -- look-ups

    def now(self) -> int:
        """The hybrid time of this node: not before the newest version that it knows of."""
        return self._time.now()

    def observe(self, time: int) -> None:
        """Another node has used a time: `now` is above it from here on."""
        self._time.observe(time)

    @property
    def current(self) -> Catalog:
        """The version in force."""
        return self.versions.at_time(self.now())

    async def wait_applied(self, version: int) -> None:
        """Return when a version is applied here."""
        await self._follower.applied.wait(version)

    async def wait_ready(self, version: int) -> None:
        """Return when all listeners have finished with a version."""
        await self._listeners.ready.wait(version)

    # -- changes

    async def execute(
        self, commands: Sequence[CatalogCommand], *, is_long: bool = False
    ) -> Executed:
        """Execute a batch of commands: all of them or none; see the module.

        A batch that `is_long`, or has many commands, is planned outside of the event loop.
        Raises what a command raises, `CatalogBusy`, `AppendOutcomeUnknown`, `MetastoreUnavailable`.
        """
        settled = await self._executions.execute(commands, is_long=is_long)
        await self._wait_active(settled.activation)
        if isinstance(settled.result, Exception):
            raise settled.result
        return settled.result

    async def snapshot(self, version: int, demands: tuple[Compare, ...] = ()) -> bool:
        """Replace the updates up to a version by a snapshot; False if there is one as new.

        Earlier versions are dropped on every node. Waits until the version is in force on each.
        Called by the compaction of the catalog, which knows what needs earlier versions; `demands`
        must still hold when it is published (`SnapshotRefused`).
        """
        catalog = self.versions.at_version(version)
        await self._wait_active(catalog.activation)
        chunks = chunks_of_catalog(catalog)
        return await self._log.save_snapshot(version, chunks, CatalogFold(), demands)

    async def _wait_active(self, activation: int) -> None:
        await self._activation.wait(activation)
        # What was answered is in force here, also if the clock of this node is behind.
        self._time.observe(activation)

    # -- life

    def listen(self, listener: CatalogListener, *, replayed: bool = False) -> None:
        """Deliver every version applied from here on; of those replayed by `start` if asked."""
        self._listeners.add(listener, replayed=replayed)

    async def start(self) -> None:
        """Replay the log, append version 1 if it is empty, and follow it. Once."""
        await self._follower.catch_up(replayed=True)
        if self.versions.latest.version == 0:
            plan = plan_batch(Catalog(), initial_commands())
            assert plan is not None
            # Whichever node wins, version 1 is there.
            await self._log.append(1, [encode_update(plan.update)])
        if self._stopped:
            raise CatalogStopped
        for run in (self._follower.run, self._listeners.run, self._executions.run):
            self._tasks.append(asyncio.create_task(self._run(run)))
        await self.wait_applied(1)

    async def stop(self) -> None:
        """End all tasks; what waits ends with `CatalogStopped`. May be called again."""
        self._stopped = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail(CatalogStopped())

    async def _run(self, part: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await part()
        except Exception as error:  # noqa: BLE001  (raised by everything that waits)
            _log.exception("this node cannot follow the catalog")
            failure = CatalogFailed(str(error) or repr(error))
            self._fail(failure)
            self._failed(failure)

    def _fail(self, error: LithifyError) -> None:
        self._follower.applied.fail(error)
        self._listeners.ready.fail(error)
        self._executions.close(error)
