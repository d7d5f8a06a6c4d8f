"""The catalog on whole members in a bad world, driven by one seed.

    python -m tests.property.catalog_cluster [--seeds N] [--first SEED] [--steps N]

The world is that of `metastore_cluster.py`. Each member has the catalog of a node, with a listener,
over its own metastore. Members change definitions, several at once, and publish snapshots beside
that; each of these may be interrupted by a crash, a partition or a change of the leader. History is
compacted, so members that were away continue from a snapshot. Checked, beside what that world
checks:

- each listener gets each version once and in order, but for those that a snapshot has replaced
- in the end all members have the same versions, with ascending activations
- every acknowledged change is in the version that was named; no refused one is anywhere; of an
  unknown one all is there, or nothing
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant, DropTenant
from lithify.catalog.errors import CatalogVersionNotFound, CatalogVersionTrimmed
from lithify.catalog.manager.activation import ALONE
from lithify.catalog.manager.errors import CatalogBusy, CatalogStopped
from lithify.catalog.manager.manager import CatalogManager
from lithify.catalog.update_log.errors import AppendOutcomeUnknown, SnapshotContention
from lithify.errors import InvalidInput
from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.local_metastore import GROUP
from lithify.raft.net.client_operations import MayHaveHappened
from lithify.raft.snapshots.sending import SendingSettings
from tests.property.catalog_told import Told, VersionListener, check_versions
from tests.property.metastore_cluster import MetastoreWorld, small_limits
from tests.property.seeds import simulated, worlds

if TYPE_CHECKING:
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.fs import MemoryFileSystem
    from lithify.raft.group.settings import GroupSettings
    from tests.property.metastore_member import Life

NEVER = "there-is-no-such-tenant"


class CatalogLife:
    """The catalog of a member, from a start to its end."""

    def __init__(self, world: CatalogWorld, life: Life) -> None:
        self.life = life
        self.world = world
        self.listener = VersionListener()
        self.is_started = False
        self.is_saving = False
        self.manager = CatalogManager(
            life.metastore,
            world.clock,
            timing=lambda: ALONE,
            sleep=world.sleep,
            draw_tag=world.random.randbytes,
        )
        self.manager.listen(self.listener, replayed=True)
        life.do(self.start())

    async def start(self) -> None:
        """As a node does: again until there is a quorum."""
        while not self.is_started:
            try:
                await self.manager.start()
            except (AppendOutcomeUnknown, MayHaveHappened, MetastoreUnavailable):
                await self.world.sleep(0)
            else:
                self.is_started = True

    def end(self) -> None:
        """The process ends: nothing more happens, and nothing is answered."""
        self.world.loop.create_task(self.manager.stop())


class CatalogWorld(MetastoreWorld):
    heal_rounds_max = 2000
    """Snapshots are larger than in other worlds."""

    def __init__(self, seed: int) -> None:
        self.catalogs: dict[str, CatalogLife] = {}
        self.told = Told()
        self.names = 0
        self.open_changes: Counter[CatalogManager] = Counter()
        self.sleeping: list[asyncio.Future[None]] = []
        super().__init__(seed)
        # A snapshot takes many commands, which a world of crashes and elections does not finish.
        wild = self.change, self.crash, self.break_link, self.transfer
        calm = self.random.choice((0.05, 0.3))
        self.actions = [
            (weight * calm if act in wild else weight, act)
            for weight, act in self.actions
            if act != self.call
        ]
        self.actions += [(5, self.call), (60, self.change_catalog), (6, self.save_snapshot)]

    def settings_of(self, name: str) -> GroupSettings:
        sending = SendingSettings(
            4000, resend_ticks=3, tries_max=4, backoff_ticks=4, backoff_ticks_max=60
        )
        return replace(super().settings_of(name), sending=sending)

    # Members.

    def start(self, name: str, disk: MemoryFileSystem) -> None:
        super().start(name, disk)
        if name in self.lives:
            self.catalogs[name] = CatalogLife(self, self.lives[name])

    def stop_life(self, name: str) -> None:
        catalog = self.catalogs.pop(name, None)
        if catalog is not None:
            catalog.end()
        super().stop_life(name)

    def a_catalog(self) -> CatalogLife | None:
        life = self.a_life()
        found = self.catalogs.get(life.member.name) if life is not None else None
        return found if found is not None and found.is_started else None

    # What happens.

    async def sleep(self, _seconds: float) -> None:
        """Until the next tick."""
        future = self.loop.create_future()
        self.sleeping.append(future)
        await future

    def wake(self) -> None:
        sleeping, self.sleeping = self.sleeping, []
        for future in sleeping:
            if not future.done():
                future.set_result(None)

    def tick(self) -> None:
        self.wake()
        super().tick()

    def change_catalog(self) -> None:
        catalog = self.a_catalog()
        if catalog is None or len(catalog.life.tasks) > 8:
            return
        names = tuple(f"t{self.names + n}" for n in range(self.random.choice((1, 1, 3))))
        self.names += len(names)
        is_wrong = self.random.random() < 0.1
        catalog.life.do(self.execute_batch(catalog.manager, names, is_wrong=is_wrong))

    async def execute_batch(
        self, manager: CatalogManager, names: tuple[str, ...], *, is_wrong: bool
    ) -> None:
        """Create tenants; a wrong batch has a last command that is refused."""
        commands: list[CatalogCommand] = [CreateTenant(name) for name in names]
        if is_wrong:
            commands.append(DropTenant(NEVER))
        self.open_changes[manager] += 1
        try:
            executed = await manager.execute(commands)
        except (AppendOutcomeUnknown, asyncio.CancelledError, MayHaveHappened):
            self.told.unknown.append(names)
            self.counts["unknown changes"] += 1
        except (CatalogBusy, CatalogStopped, InvalidInput, MetastoreUnavailable):
            self.told.refused.append(names)
            self.counts["refused changes"] += 1
        else:
            assert not is_wrong, "a wrong batch was executed"
            self.told.made.update(dict.fromkeys(names, executed.version))
            self.counts["catalog changes"] += 1
        finally:
            self.open_changes[manager] -= 1

    def save_snapshot(self) -> None:
        if (catalog := self.a_catalog()) is not None and not catalog.is_saving:
            back = self.random.choice((0, 1, 5))
            version = max(catalog.manager.versions.latest.version - back, 1)
            catalog.is_saving = True
            catalog.life.do(self.snapshot_to(catalog, version))

    async def snapshot_to(self, catalog: CatalogLife, version: int) -> None:
        errors = CatalogVersionNotFound, CatalogVersionTrimmed, SnapshotContention
        with suppress(*errors, MayHaveHappened, MetastoreUnavailable):
            self.counts["catalog snapshots"] += await catalog.manager.snapshot(version)
        catalog.is_saving = False

    # The end.

    def heal_round(self) -> None:
        self.wake()
        super().heal_round()

    def all_the_same(self, name: str, index: int) -> bool:
        if not super().all_the_same(name, index):
            return False
        leaders = [member for member in self.members.values() if member.leads(GROUP)]
        config = leaders[0].groups[GROUP].config
        found = [self.catalogs[member] for member in sorted(config.members)]
        newest = max(each.manager.versions.latest.version for each in found)
        listened = [each.listener.last for each in found]
        if not newest or any(self.open_changes.values()):
            # Also one that was removed, and is not notified, answers in the end.
            return False
        if any(last is None or last.version < newest for last in listened):
            return False
        self.counts["jumps"] += sum(each.listener.jumps for each in found)
        self.counts["versions"] += newest
        check_versions(self.told, [each.manager.versions for each in found])
        return True


def simulate(seed: int, steps: int = 1200) -> CatalogWorld:
    with small_limits():
        return simulated(CatalogWorld, seed, steps)


def main() -> None:
    counts: Counter[str] = Counter()
    with small_limits():
        for world in worlds(CatalogWorld, seeds=100, steps=1200):
            counts += world.counts
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
