"""Makes the open stores of a node those that the catalog defines on it, by their object ids.

1. `withdraw`: a store that was deleted is no longer found by its name. This does no I/O and does
   not wait, so it runs where a version of the catalog is applied. Until `WithdrawnStore.close` no
   store of the name is opened or created.
2. `finish_removals` deletes the directories that the removals in the catalog name, and confirms.
3. `apply_settings` gives open stores the settings of their definitions.

A directory is deleted only if it says that it is of exactly the object of a removal. Part of
`stores.py`; `node/catalog/reconciler.py` calls it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.blobs.definition import with_settings
from lithify.errors import InvalidSetting, LithifyError
from lithify.fs.full_disk_reserve import NO_RESERVE
from lithify.logger import get_logger
from lithify.name_locks import Claimed

if TYPE_CHECKING:
    from lithify.blobs.definition import StoreDefinitions
    from lithify.blobs.settings import BlobSettings
    from lithify.blobs.store import BlobStore
    from lithify.blobs.unclaimed_directories import StoreDirectories
    from lithify.damage import Damage
    from lithify.fs.full_disk_reserve import NoReserve
    from lithify.name_locks import Claims

__all__ = ["StoreWithdrawals", "WithdrawnStore"]

log = get_logger("lithify.blobs")


@dataclass(frozen=True, slots=True)
class WithdrawnStore:
    """A store that is out of use, if it was open."""

    store: BlobStore | None
    claims: ExitStack

    def close(self) -> None:
        """Release its files, in any thread."""
        with self.claims:
            if self.store is not None:
                self.store.abandon()


class StoreWithdrawals:
    """See the module. It shares the open stores with `BlobStores`."""

    def __init__(
        self,
        opened: dict[str, BlobStore],
        claims: Claims[str],
        directories: StoreDirectories,
        definitions: StoreDefinitions,
        damage: Damage,
    ) -> None:
        self._open = opened
        self._claims = claims
        self._directories = directories
        self._definitions = definitions
        self._damage = damage
        self.reserve: NoReserve = NO_RESERVE

    def is_own(self, name: str, store: BlobStore) -> bool:
        """Is exactly this store defined, and on this node?"""
        identity = self._definitions.store_identity(name)
        # Definitions in a file have no ids.
        known = identity.id if identity is not None else 0
        return store.object_id == known and self._definitions.owns_store(name)

    def strangers(self) -> list[str]:
        """Open stores that are not, or no longer, of this node."""
        return [name for name, each in dict(self._open).items() if not self.is_own(name, each)]

    def withdraw(self, name: str) -> WithdrawnStore:
        """Take a store out of use if it is not of this node; raises `Claimed`. Does not wait."""
        with ExitStack() as stack:
            stack.enter_context(self._claims.of([name], wait=False))
            store = self._open.get(name)
            if store is not None and self.is_own(name, store):
                store = None
            elif store is not None:
                del self._open[name]
            return WithdrawnStore(store, stack.pop_all())

    def finish_removals(self) -> bool:
        """Delete the directories of deleted stores; False if something must be repeated."""
        finished, is_all = [], True
        for removal in self._definitions.removals():
            if not removal.is_store:
                continue
            name = removal.identity.name
            try:
                with self._claims.of([name], wait=False), self.reserve.if_full():
                    self._directories.finish_removal(removal.identity)
            except Claimed:
                is_all = False
                continue
            except (LithifyError, OSError) as error:
                log.warning(
                    "the directory of a deleted blob store cannot be removed yet",
                    store=name,
                    reason=str(error),
                )
                is_all = False
                continue
            self._damage.forget(f"blob store {name}")
            finished.append(removal.identity.id)
        self._definitions.confirm_removals(finished)
        return is_all

    def apply_settings(self, defaults: BlobSettings) -> bool:
        """Give open stores the settings of their definitions; False if one must be repeated."""
        is_all = True
        for name, store in dict(self._open).items():
            row = self._definitions.stores().get(name)
            if row is None:
                continue
            try:
                settings = with_settings(defaults, row["settings"])
                if settings != store.settings:
                    with self._claims.of([name], wait=False):
                        store.change_settings(settings)
            except Claimed:
                is_all = False
            except InvalidSetting as error:
                log.warning("settings of a blob store are invalid", store=name, reason=str(error))
        return is_all
