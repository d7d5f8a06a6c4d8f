"""The upkeep of blob stores in a node that serves.

1. Stores that nobody uses yet are opened, one after the other: triggers and erasing are for them
   too. One that cannot be opened is reported; who uses it gets the error.
2. From then on, round by round: late fsyncs and files that readers have let go of
   (`BlobStore.maintain`), and a bounded step of erasing (`blobs/erase.py`).
3. A round that has erased something is followed by the next one after as long as it took, so that
   erasing has at most half of a disk's time; others wait for `ROUND_S`.

All of it in a thread, a store at a time. Called by `serving.py`, while the node serves.
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
"""Of erasing, in one store, before the next one has its turn."""

log = get_logger("lithify.node")


async def keep_up(stores: BlobStores, ended: asyncio.Event) -> None:
    """Look after the stores until `ended` is set."""
    for name in stores.names():
        if ended.is_set():
            return
        await asyncio.to_thread(_open, stores, name)
    loop = asyncio.get_running_loop()
    failures: dict[str, str] = {}
    while not ended.is_set():
        began_s, rests = loop.time(), True
        for name, store in stores.opened().items():
            rests = await asyncio.to_thread(_look_after, name, store, failures) and rests
        try:
            await asyncio.wait_for(ended.wait(), ROUND_S if rests else loop.time() - began_s)
        except TimeoutError:
            continue


def _open(stores: BlobStores, name: str) -> None:
    try:
        stores.get(name)
    except (LithifyError, OSError) as error:
        log.warning("a blob store cannot be opened", store=name, reason=str(error))
    except Exception:
        log.exception("a blob store cannot be opened", store=name)


def _look_after(name: str, store: BlobStore, failures: dict[str, str]) -> bool:
    """One round of a store; whether it has nothing to do at once.

    Why it fails is logged once, until it works again or fails by something else.
    """
    try:
        store.maintain()
        idle = store.erase.step(STEP_BYTES).idle
        failures.pop(name, None)
        return idle
    except LogClosed:
        # It was deleted meanwhile.
        return True
    except (LithifyError, OSError) as error:
        if failures.get(name) != str(error):
            log.warning("upkeep failed", store=name, reason=str(error))
        failures[name] = str(error)
    except Exception:
        log.exception("upkeep failed", store=name)
    return True
