"""Makes what is open on this node what the catalog says, after each version.

    reconciler = CatalogReconciler(definitions, topics, blobs)
    reconciler.start()

1. When a version is applied, in the cluster thread: what it has deleted is withdrawn, so that
   nothing more is accepted under its name. No I/O, no waiting; the version is ready afterwards.
2. A thread then disconnects the clients of withdrawn topics, in the event loop of the broker if the
   node serves; they look up the topic again. It closes their files, deletes the directories that
   the removals in the catalog name, and confirms the removals.
3. The thread creates the files of stores that a change of the catalog has defined on this node, and
   gives open stores their settings.
4. It also withdraws whatever else is open and not, or no longer, of this node by its object id.

What fails or is in use is repeated, after a wait that doubles up to `RETRY_S_MAX`.

**Two nodes never both believe that they own a topic.** An object has its owners from the version
that creates it, and no later version changes them. All nodes apply the same versions in the same
order, so a node that finds itself as the owner of id N does so in every version that has N. The
same name with another owner has another id, in a version after the one that deleted the first. A
node opens a topic by the newest version that it has applied, and checks this again when it is open
(`topics/topics.py`); a directory says of which id it is (`log/object_file.py`). A node that is
behind may still serve the deleted id N: that is another topic, whose data is deleted, and whose
clients are disconnected when the node applies the version.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.name_locks import Claimed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lithify.blobs.stores import BlobStores
    from lithify.blobs.withdrawals import WithdrawnStore
    from lithify.node.catalog.definitions import CatalogDefinitions
    from lithify.topics.definitions.definitions import RemovedObject
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.topic import Topic
    from lithify.topics.topics import Topics
    from lithify.topics.withdrawals import WithdrawnTopics

__all__ = ["CatalogReconciler", "has_no_clients"]

RETRY_S = 0.05
RETRY_S_MAX = 30.0

log = get_logger("lithify.node")


def has_no_clients(_topics: Collection[Topic]) -> None:
    """The node does not serve."""


class CatalogReconciler:
    """See the module."""

    def __init__(self, definitions: CatalogDefinitions, topics: Topics, stores: BlobStores) -> None:
        self._definitions = definitions
        self._topics = topics
        self._stores = stores
        self._withdrawn_topics: deque[WithdrawnTopics] = deque()
        self._withdrawn_stores: deque[WithdrawnStore] = deque()
        self._disconnect: Callable[[Collection[Topic]], Any] = has_no_clients
        self._disconnecting = threading.Lock()
        self._changed = threading.Event()
        # What was changed before the start.
        self._changed.set()
        self._is_closing = False
        # It does not keep a process that has not closed the node: what is interrupted is repeated.
        name = "lithify-catalog-reconciler"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # --- any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Follow the versions from here on."""
        self._definitions.on_removed = self._withdraw
        self._definitions.watchers.append(self._changed.set)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for work in progress."""
        self._is_closing = True
        self._changed.set()
        self._thread.join()
        self._close_withdrawn()

    def connect(self, disconnect: Callable[[Collection[Topic]], Any]) -> None:
        """Call a function, in the thread, that disconnects the clients of topics."""
        with self._disconnecting:
            self._disconnect = disconnect

    # --- in the cluster thread --------------------------------------------------------------

    def _withdraw(self, removed: RemovedObject) -> None:
        # What another thread opens or deletes is left to the thread.
        with suppress(Claimed):
            if removed.is_store:
                store = self._stores.withdrawals.withdraw(removed.identity.name)
                self._withdrawn_stores.append(store)
            else:
                topics = self._topics.withdrawals.withdraw(removed.directories)
                self._withdrawn_topics.append(topics)

    # --- in the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        wait_s: float | None = None
        while True:
            if self._changed.wait(wait_s) or wait_s is None:
                wait_s = RETRY_S
            self._changed.clear()
            if self._is_closing:
                return
            try:
                is_done = self._follow()
            except Exception:
                log.exception("following the catalog failed")
                is_done = False
            wait_s = None if is_done else min(wait_s * 2, RETRY_S_MAX)

    def _follow(self) -> bool:
        """One round; False if something must be repeated."""
        is_done = all([self._withdraw_topics(), self._withdraw_stores()])
        self._close_withdrawn()
        for withdrawals in (self._topics.withdrawals, self._stores.withdrawals):
            is_done = withdrawals.finish_removals() and is_done
        is_done = self._create_stores() and is_done
        is_done = self._stores.withdrawals.apply_settings(self._stores.settings) and is_done
        return is_done and not self._definitions.removals()

    def _withdraw_topics(self) -> bool:
        strangers: list[TopicName] = self._topics.withdrawals.strangers()
        for name in strangers:
            try:
                self._withdrawn_topics.append(self._topics.withdrawals.withdraw([name]))
            except Claimed:
                return False
        return True

    def _withdraw_stores(self) -> bool:
        for name in self._stores.withdrawals.strangers():
            try:
                self._withdrawn_stores.append(self._stores.withdrawals.withdraw(name))
            except Claimed:
                return False
        return True

    def _close_withdrawn(self) -> None:
        while self._withdrawn_topics:
            withdrawn = self._withdrawn_topics.popleft()
            try:
                if withdrawn.topics:
                    log.info("a topic was deleted", topic=str(withdrawn.topics[0].name.whole))
                    with self._disconnecting:
                        self._disconnect(withdrawn.topics)
            finally:
                withdrawn.close()
        while self._withdrawn_stores:
            self._withdrawn_stores.popleft().close()

    def _create_stores(self) -> bool:
        is_done = True
        for name in self._stores.uncreated():
            try:
                self._stores.get(name)
            except (LithifyError, OSError) as error:
                log.warning("a blob store cannot be created yet", store=name, reason=str(error))
                is_done = False
        return is_done
