"""Pulls the changes of other replicas: a page, the contents that are missing, the next page.

    replicator = Replicator(store.replication, connect, clock)
    wait_s = replicator.step()          # called repeatedly by a thread of the node

One step requests one page of each peer that is due:

1. Request the changes since the saved token.
2. If the page says that this store is stale, **sweep**: ask which blobs the peer does not know, of
   those here that are at least as old as anything the peer has purged, and delete them. They were
   deleted while this store was offline, or had reached no other replica. The deletes are ordinary
   ones: within the retention an undelete undoes them. Then read the peer from its beginning; only
   ids are compared.
3. If the peer is stale here, or may not know what others have purged (`purge_claims.py`), do
   not read it until it has swept. A store that is not settled itself listens to the peer in the
   meantime, for its deletes and claims, so that two stores do not wait for each other.
4. Apply the changes (`apply.py`), fetch the contents that are needed, a few megabytes
   at a time, wait until all is durable, then save the token.

A peer that fails is retried after one second, then two, up to a minute. After a crash the old token
is used: what was applied is compared once more. Only tokens are stored.

One thread per store calls `step`; any thread may call `status`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from lithify.blobs.errors import ReplicaNoPeer, ReplicaNotCurrent, ReplicaUnreachable
from lithify.blobs.replication.blob_stream import read_records
from lithify.blobs.replication.feed import CHANGES_MAX
from lithify.blobs.replication.tokens_and_pages import Token
from lithify.errors import LithifyError, PlanStale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from lithify.blobs.content.spool import ByteStream
    from lithify.blobs.purge_bounds import PurgedTombstones
    from lithify.blobs.replication.read_progress import Replication
    from lithify.blobs.replication.tokens_and_pages import BlobChange, BlobChanges
    from lithify.clock import Clock

__all__ = ["Peer", "PeerStatus", "Replicator"]

POLL_S = 1.0
BACKOFF_S_MAX = 60.0
FETCH_BYTES_MAX = 64 * 2**20
"""Bytes per request; a larger blob is requested alone."""
FETCH_BLOBS_MAX = 200
SAVE_S = 60.0
"""How often the tokens that peers have sent are made durable."""


class Peer(Protocol):
    """Another replica. Its methods raise `LithifyError`, also if it does not answer."""

    def changes(
        self, replica: str, token: Token | None, limit: int, *, settled: bool
    ) -> BlobChanges:
        """The changes of the peer since a token; `replica` is the reader, settled or not.

        An empty `replica` listens: the page does not count as read.
        """

    def records(self, blob_ids: Sequence[str]) -> AbstractContextManager[ByteStream]:
        """The blobs with their contents, as a stream."""

    def unknown(self, blob_ids: Sequence[str]) -> list[str]:
        """The ids of which the peer has no record."""


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Status of one peer."""

    url: str
    state: str = "new"
    """`new`, `reading`, `caught up`, `not current`, `failing` or `inactive`."""
    behind: int = -1
    """Positions of its log that are not read; -1: unknown."""
    error: str = ""
    failures: int = 0
    """Consecutive failures."""
    errors: int = 0
    """Errors since this process started, except those that only mean waiting."""
    caught_up_ms: int = 0
    """When the end of its log was last reached; 0: never."""
    changes: int = 0
    """Changes received since this process started."""
    blobs: int = 0
    content_bytes: int = 0
    """Bytes fetched from it."""
    swept: int = 0
    """Blobs deleted here because it does not know them."""


class Replicator:
    """See the module."""

    def __init__(
        self,
        replication: Replication,
        connect: Callable[[str], Peer],
        clock: Clock,
        *,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        self._replication = replication
        self._connect = connect
        self._clock = clock
        self._changes_max = changes_max
        self._status: dict[str, PeerStatus] = {}
        self._due_s: dict[str, float] = {}
        self._listened: dict[str, tuple[Token | None, Token]] = {}
        """By URL: the token from which it was listened to, and how far."""
        self._save_s = clock.monotonic_s() + SAVE_S
        replication.status = self.status

    def step(self) -> float:
        """Read a page of each peer that is due; returns the seconds until the next one is."""
        peers = self._replication.peers
        self._status = {url: self._status.get(url, PeerStatus(url)) for url in peers}
        for url in peers:
            if self._due_s.get(url, 0.0) <= self._clock.monotonic_s():
                self._due_s[url] = self._clock.monotonic_s() + self._visit(url)
        now_s = self._clock.monotonic_s()
        if now_s >= self._save_s:
            self._save_s = now_s + SAVE_S
            self._replication.save()
        return max(0.0, min((self._due_s[url] for url in peers), default=now_s + POLL_S) - now_s)

    def status(self) -> list[PeerStatus]:
        """The status of each peer, in their order."""
        return [self._status.get(url, PeerStatus(url)) for url in self._replication.peers]

    def _visit(self, url: str) -> float:
        """Read one page; returns the seconds until the next visit."""
        try:
            more = self.pull(url)
        except LithifyError as error:
            self._replication.applier.forget()
            failures = self._status[url].failures + 1
            waits = isinstance(error, ReplicaNotCurrent)
            state = "not current" if waits else "failing"
            if isinstance(error, ReplicaNoPeer):
                state, waits = "inactive", True
            errors = self._status[url].errors + (not waits)
            self._note(url, state=state, error=str(error), failures=failures, errors=errors)
            soon = state == "not current" or isinstance(error, PlanStale)
            return POLL_S if soon else min(BACKOFF_S_MAX, POLL_S * 2.0 ** min(failures - 1, 6))
        self._note(url, error="", failures=0)
        return 0.0 if more else POLL_S

    def pull(self, url: str) -> bool:
        """Read one page of a peer; returns whether there is more."""
        replication = self._replication
        before, token = replication.purged(), replication.token(url)
        peer = self._connect(url)
        settled = replication.settled(url)
        page = peer.changes(replication.replica, token, self._changes_max, settled=settled)
        there = page.token.log_id
        if there == replication.replica:
            raise ReplicaUnreachable(url, "it is this store itself")
        if page.stale:
            self._sweep(url, peer, page.purged)
            replication.begin_peer(url, page.token, page.purged, swept=True)
            return True
        if token is not None and page.reset and there == token.log_id:
            replication.distrust(there)
        if token is None or page.reset:
            # From here on compaction waits for this peer.
            start = Token(there, 0, swept=page.token.swept, known=page.token.known)
            replication.begin_peer(url, start, page.purged, swept=False)
        where = replication.missed_by(url, page)
        if where is not None:
            self._listen(url, peer, before)
            raise ReplicaNotCurrent(url, where)
        wanted = replication.applier.take(page.changes, before)
        for batch in _batches(wanted):
            self._fetch(url, peer, batch, before)
        replication.applier.settle()
        replication.record_progress(url, page)
        changes = self._status_of(url).changes + len(page.changes)
        self._note(url, state="reading", behind=page.behind, changes=changes)
        if not page.more:
            self._note(url, state="caught up", caught_up_ms=self._clock.now_ms())
        return page.more

    def _listen(self, url: str, peer: Peer, before: PurgedTombstones) -> None:
        """Apply the deletes of a peer whose other changes are not accepted."""
        replication = self._replication
        from_there = replication.token(url)
        # What was read since the same token need not be read again.
        since, token = self._listened.get(url, (None, None))
        if since != from_there:
            token = from_there
        more = not replication.is_settled
        while more:
            page = peer.changes("", token, self._changes_max, settled=False)
            replication.applier.take([each for each in page.changes if each.deleted], before)
            replication.applier.settle()
            token, more = page.token, page.more
            self._listened[url] = from_there, token
            if not more:
                replication.record_deletes_applied(url, page)

    def _fetch(
        self, url: str, peer: Peer, batch: Sequence[BlobChange], before: PurgedTombstones
    ) -> None:
        missing = {change.blob_id: change for change in batch}
        with peer.records(list(missing)) as stream:
            for record, content in read_records(stream):
                missing.pop(record.put.blob_id, None)
                self._replication.applier.take_content(record, content, before)
                status = self._status_of(url)
                self._note(
                    url,
                    blobs=status.blobs + 1,
                    content_bytes=status.content_bytes + record.put.size,
                )
        if missing:
            self._replication.applier.take_missing(missing.values(), before)

    def _sweep(self, url: str, peer: Peer, purged: PurgedTombstones) -> None:
        replication = self._replication
        token, more = None, True
        while more:
            page = replication.feed.changes_since(token, self._changes_max)
            token, more = page.token, page.more
            old = [
                change
                for change in page.changes
                if not change.deleted and change.created_ms <= purged.time_ms
            ]
            for batch in _batches(old):
                unknown = set(peer.unknown([change.blob_id for change in batch]))
                lost = [change for change in batch if change.blob_id in unknown]
                dropped = sum(map(replication.applier.drop, lost))
                self._note(url, swept=self._status_of(url).swept + dropped)
        # Only then the token tells the peer that no blob remains here that it does not know.
        replication.applier.settle()

    def _status_of(self, url: str) -> PeerStatus:
        return self._status.get(url, PeerStatus(url))

    def _note(self, url: str, **values: object) -> None:
        self._status[url] = replace(self._status_of(url), **values)  # type: ignore[arg-type]


def _batches(changes: Sequence[BlobChange]) -> Iterator[list[BlobChange]]:
    """Split by number and by bytes."""
    batch: list[BlobChange] = []
    size = 0
    for change in changes:
        if batch and (size + change.size > FETCH_BYTES_MAX or len(batch) >= FETCH_BLOBS_MAX):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += change.size
    if batch:
        yield batch
