"""Executes changes of the catalog, one after the other, on this node.

1. Take the batches that wait, at most a group. Plan each on the catalog that the one before it in
   the group would result in. Each batch that changes something is an update of its own. A long one
   is alone in its group, and is planned in another thread.
2. Append the updates to the log, all in one transaction: as with a group commit, many callers share
   one write.
3. Wait until the last of them is applied here, then answer the callers.

If another node has appended first, wait until that version is applied here, and repeat from 1. This
is bounded: `CatalogBusy`. Nothing that was planned counts before the append: also a refusal by a
command may follow from a change that was not made.

If the outcome is unknown, the callers whose updates were in the transaction get that error; the
others are planned again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.catalog.catalog import activation_of
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.format import encode_update
from lithify.catalog.manager.errors import CatalogBusy
from lithify.catalog.update_log.errors import AppendOutcomeUnknown
from lithify.errors import LithifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogUpdate
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.manager.activation import ActivationTiming
    from lithify.catalog.manager.version_progress import VersionProgress
    from lithify.catalog.update_log.update_log import UpdateLog
    from lithify.catalog.versions import CatalogVersions

__all__ = ["Executed", "Executions", "Settled"]

TRIES_MAX = 10
SHORT_COMMANDS_MAX = 200
"""Of a batch that is planned in the event loop; most commands take some 20 µs."""
GROUP_BATCHES_MAX = 64
GROUP_BYTES_MAX = 2**20
"""A transaction of the metastore has room for 4 MiB; one update has at most 1 MiB."""


@dataclass(frozen=True, slots=True)
class Executed:
    """The result of a batch of commands."""

    version: int
    """The version that it made; the newest one if it changed nothing."""
    activation: int
    """The hybrid timestamp from which that version is in force."""
    applied: tuple[bool, ...]
    """Of each command: did it change something?"""


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of a batch; the result may be shown when the activation has passed."""

    activation: int
    result: Executed | Exception


@dataclass(slots=True, eq=False)
class _Waiting:
    commands: Sequence[CatalogCommand]
    is_long: bool
    settled: asyncio.Future[Settled]
    lost: int = 0
    """Races."""

    def settle(self, activation: int, result: Executed | Exception) -> None:
        if not self.settled.done():
            self.settled.set_result(Settled(activation, result))


@dataclass(frozen=True, slots=True)
class _Planned:
    waiting: _Waiting
    applied: tuple[bool, ...] = ()
    error: Exception | None = None
    update: CatalogUpdate | None = None
    """None: it changes nothing, or was refused."""

    def settle(self, version: int, activation: int) -> None:
        """Answer with the version of its update, or the one that it was planned on."""
        result = self.error or Executed(version, activation, self.applied)
        self.waiting.settle(activation, result)


class Executions:
    """See the module. One event loop."""

    def __init__(
        self,
        log: UpdateLog,
        versions: CatalogVersions,
        applied: VersionProgress,
        timing: Callable[[], ActivationTiming],
    ) -> None:
        self._log = log
        self._versions = versions
        self._applied = applied
        self._timing = timing
        self._waiting: deque[_Waiting] = deque()
        self._submitted = asyncio.Event()
        self._closed: LithifyError | None = None

    async def execute(
        self, commands: Sequence[CatalogCommand], *, is_long: bool = False
    ) -> Settled:
        """Execute a batch. If the caller is cancelled before its turn, nothing happens."""
        if self._closed is not None:
            raise self._closed
        is_long = is_long or len(commands) > SHORT_COMMANDS_MAX
        waiting = _Waiting(commands, is_long, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._submitted.set()
        return await waiting.settled

    def close(self, error: LithifyError) -> None:
        """Answer all that wait, and all that come, with an error: nothing of them was done."""
        self._closed = self._closed or error
        while self._waiting:
            self._waiting.popleft().settle(0, self._closed)

    async def run(self) -> None:
        """Execute what is submitted, until cancelled."""
        while True:
            await self._submitted.wait()
            self._submitted.clear()
            while self._waiting:
                base = self._versions.latest
                planned, payloads = await self._plan_group(base)
                if payloads:
                    await self._append(base, planned, payloads)
                else:
                    _settle(planned, base, 0)

    async def _plan_group(self, base: Catalog) -> tuple[list[_Planned], list[bytes]]:
        """Plan the batches at the head of the queue."""
        group = self._take_group()
        delay_ms = self._timing().delay_ms
        if group and group[0].is_long:
            try:
                return await asyncio.to_thread(_plan, base, group, delay_ms)
            except asyncio.CancelledError:
                self._waiting.extendleft(reversed(group))
                raise
        planned, payloads = _plan(base, group, delay_ms)
        self._waiting.extendleft(reversed(group[len(planned) :]))
        return planned, payloads

    def _take_group(self) -> list[_Waiting]:
        """Take the batches that are planned together: several short ones, or a long one."""
        group: list[_Waiting] = []
        while self._waiting and len(group) < GROUP_BATCHES_MAX:
            if group and (group[0].is_long or self._waiting[0].is_long):
                break
            waiting = self._waiting.popleft()
            if not waiting.settled.cancelled():
                group.append(waiting)
        return group

    async def _append(self, base: Catalog, planned: list[_Planned], payloads: list[bytes]) -> None:
        version = base.version + 1
        updated = [each.waiting for each in planned if each.update is not None]
        try:
            outcome = await self._log.append(version, payloads)
        except asyncio.CancelledError:
            self._answer(updated, AppendOutcomeUnknown(version), planned)
            raise
        except LithifyError as error:
            self._answer(updated, error, planned)
            return
        if outcome.won:
            try:
                await self._applied.wait(version + len(payloads) - 1)
            finally:
                # The changes are made, also if this node cannot follow any longer.
                _settle(planned, base, outcome.timestamp)
            return
        for each in planned:
            each.waiting.lost += 1
        beaten = [each.waiting for each in planned if each.waiting.lost == TRIES_MAX]
        self._answer(beaten, CatalogBusy(TRIES_MAX), planned)
        await self._applied.wait(version)

    def _answer(self, to: list[_Waiting], error: LithifyError, planned: list[_Planned]) -> None:
        """Answer with an error; those of the group that get none are planned again."""
        for each in to:
            each.settle(0, error)
        rest = [each.waiting for each in planned if each.waiting not in to]
        self._waiting.extendleft(reversed(rest))


def _plan(
    base: Catalog, group: Sequence[_Waiting], delay_ms: int
) -> tuple[list[_Planned], list[bytes]]:
    """Plan batches, as many as there is room for, and encode their updates. Pure."""
    planned: list[_Planned] = []
    payloads: list[bytes] = []
    size_bytes = 0
    for waiting in group:
        try:
            plan = plan_batch(base, waiting.commands, delay_ms)
            payload = encode_update(plan.update) if plan is not None else b""
        except Exception as error:  # noqa: BLE001  (raised to the caller)
            planned.append(_Planned(waiting, error=error))
            continue
        if plan is None:
            planned.append(_Planned(waiting, applied=(False,) * len(waiting.commands)))
            continue
        size_bytes += len(payload)
        if payloads and size_bytes > GROUP_BYTES_MAX:
            break
        payloads.append(payload)
        planned.append(_Planned(waiting, plan.applied, update=plan.update))
        if len(group) > 1:
            base = base.with_update(plan.update, base.activation)
    return planned, payloads


def _settle(planned: list[_Planned], base: Catalog, timestamp: int) -> None:
    """Answer a group that was planned on a catalog and appended at a time."""
    version, activation = base.version, base.activation
    for each in planned:
        if each.update is not None:
            version = each.update.version
            activation = activation_of(each.update, timestamp, activation)
        each.settle(version, activation)
