"""Maintenance of blob stores in a node that serves.

1. Open stores that are not in use, one at a time: triggers and erasing apply to them too. A store
   that cannot be opened is reported; its clients get the error.
2. Then, in rounds: late fsyncs and files that readers have released (`BlobStore.maintain`), and a
   bounded step of erasing (`blobs/erase/erase.py`).
3. A round that has erased something is followed by a pause of the same duration, so that erasing
   uses at most half of a disk's time; otherwise the pause is `ROUND_S`.

Runs in a thread, one store at a time. Called by `server.py`, while the node serves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.errors import LithifyError, LogClosed
from lithify.logger import get_logger

if TYPE_CHECKING:
    from lithify.blobs.store import BlobStore
    from lithify.blobs.stores import BlobStores

__all__ = ["keep_up"]

ROUND_S = 1.0
STEP_BYTES = 16 * 2**20
"""Maximum erasing in one store, before the next store."""

log = get_logger("lithify.node")


async def keep_up(stores: BlobStores, ended: asyncio.Event) -> None:
    """Maintain the stores until `ended` is set."""
    for name in stores.own_names():
        if ended.is_set():
            return
        await asyncio.to_thread(_open, stores, name)
    loop = asyncio.get_running_loop()
    failures: dict[str, str] = {}
    while not ended.is_set():
        began_s, is_idle = loop.time(), True
        for name, store in stores.opened().items():
            is_idle = await asyncio.to_thread(_maintain, name, store, failures) and is_idle
        try:
            await asyncio.wait_for(ended.wait(), ROUND_S if is_idle else loop.time() - began_s)
        except TimeoutError:
            continue


def _open(stores: BlobStores, name: str) -> None:
    try:
        stores.get(name)
    except (LithifyError, OSError) as error:
        log.warning("a blob store cannot be opened", store=name, reason=str(error))
    except Exception:
        log.exception("a blob store cannot be opened", store=name)


def _maintain(name: str, store: BlobStore, failures: dict[str, str]) -> bool:
    """One round of a store; returns whether all work is done.

    An error is logged once, until the store works again or fails for another reason.
    """
    try:
        store.maintain()
        idle = store.erase.step(STEP_BYTES).idle
        failures.pop(name, None)
        return idle
    except LogClosed:
        # The store was closed in the meantime.
        return True
    except (LithifyError, OSError) as error:
        if failures.get(name) != str(error):
            log.warning("maintenance failed", store=name, reason=str(error))
        failures[name] = str(error)
    except Exception:
        log.exception("maintenance failed", store=name)
    return True
