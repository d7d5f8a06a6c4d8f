"""A store as one of several replicas: its peers, and how far each replica has read.

    store.replication.set_peers(["http://node-2:8080/blobs/photos"])
    page = store.replication.serve(replica, token, limit)      # requested by another replica
    Replicator(store, connect, clock).step()                   # requests from the others

The peers are in the manifest's `state` ("replicas": a list of URLs), so they cannot be lost alone.
The read positions are in the file REPLICATION, one checked line that is replaced as a whole:

    {"version":2,"read":{URL: reading},"passed":{LOG_ID: token}}

`read` has the token up to which this store has durably applied the changes of the peer; it is saved
before it is sent to the peer. `passed` has the last token that each replica has sent here. If the
file is lost or damaged, it is treated as never written: everything is compared again, and nothing
is dropped that a peer may not have read.

1. Compaction drops a delete only below the position that every peer has passed (`passed`). A peer
   that is offline keeps deletes from being dropped until it is back or removed from the peers. So
   does a peer that is still below what was purged before it was added.
2. `purged` bounds the purged deletes. A replica whose token does not cover it was no peer for a
   while, or is an old copy of itself: it is **stale**, and the page says so. It must sweep before
   it continues to read (`replicator.py`); until then this store reads nothing from it.
3. A replica that has neither requested nor been read has nothing to sweep: it is new.
4. This replica must not bring back what others have purged: `purge_claims.py`.

Any thread may call. Called by the store, by HTTP and by the replicator.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lithify.blobs.errors import ReplicaAnswerInvalid, ReplicaUnreachable
from lithify.blobs.purge_bounds import NOTHING, PurgedTombstones
from lithify.blobs.replication.purge_claims import PeerProgress, is_settled, not_covered
from lithify.blobs.replication.replicator import PeerStatus
from lithify.blobs.replication.tokens_and_pages import Claim, Token
from lithify.errors import Corrupt, InvalidInput, LogClosed, WriteFailed
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.log.file_names import REPLICATION
from lithify.log.side_files import set_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.blobs.replication.apply import Applier
    from lithify.blobs.replication.feed import ChangeFeed
    from lithify.blobs.replication.tokens_and_pages import BlobChanges
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.fs.full_disk_reserve import NoReserve
    from lithify.log.log import Log

__all__ = ["PEERS_MAX", "Replication"]

PEERS_MAX = 16
URL_CHARACTERS_MAX = 1024

_VERSION = 2
_STATE = "replicas"


@dataclass(slots=True)
class _Reached:
    """The read positions of all replicas."""

    read: dict[str, PeerProgress]
    """By the URL of the peer."""
    passed: dict[str, Token]
    """By the id of the reader's log."""


class Replication:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        log: Log,
        feed: ChangeFeed,
        applier: Applier,
        events: EventSink,
        reserve: Callable[[], NoReserve],
    ) -> None:
        self._fs = fs
        self._log = log
        self._reserve = reserve
        self._path = f"{log.directory}/{REPLICATION}"
        self._lock = threading.Lock()
        self._reached = _load(fs, self._path, events)
        self._claims: dict[str, tuple[Claim, ...]] = {}
        """Claims of peers, received with their last pages, by URL."""
        self._settled: set[str] = set()
        """Logs that have said so since this process started."""
        self.replica = log.manifest.log_id.hex()
        """The id of this store among the replicas."""
        self.feed = feed
        self.applier = applier
        self.status: Callable[[], list[PeerStatus]] = lambda: [PeerStatus(u) for u in self.peers]
        """Status of each peer; set by the replicator."""

    # --- peers ------------------------------------------------------------------------------

    @property
    def peers(self) -> tuple[str, ...]:
        """The URLs of the other replicas."""
        return tuple(self._log.manifest.state.get(_STATE, ()))

    def set_peers(self, urls: Sequence[str]) -> None:
        """Replicate with these stores, which should list this one too; durable."""
        peers = [_checked_url(url) for url in urls]
        if len(set(peers)) != len(peers):
            raise InvalidInput(f"replicas {peers} contain a duplicate")
        if len(peers) > PEERS_MAX:
            raise InvalidInput(f"{len(peers)} replicas are too many, at most {PEERS_MAX}")
        with self._lock:
            # A peer that is added again later is read from its beginning.
            kept = {url: each for url, each in self._reached.read.items() if url in peers}
            if kept != self._reached.read:
                self._reached.read = kept
                self._claims = {url: each for url, each in self._claims.items() if url in kept}
                self._save()
            self._log.publish(
                lambda m: replace(m, state={**m.state, _STATE: peers}), "replicas of a blob store"
            )

    # --- what others have read --------------------------------------------------------------

    def purged(self) -> PurgedTombstones:
        """The deletes that this store has purged."""
        return PurgedTombstones.from_state(self._log.manifest.state)

    def serve(self, replica: str, token: Token | None, limit: int, *, settled: bool) -> BlobChanges:
        """The changes since a token, for the replica that has it.

        A replica without a name only listens: the page does not count as read.
        """
        if replica and (len(replica) != len(self.replica) or not replica.isalnum()):
            raise InvalidInput(f"replica {replica!r} is not the id of a log")
        with self._lock:
            # Before the page is built: its claims are then true of the page too.
            claims = tuple(Claim(each.token, each.settled) for each in self._reached.read.values())
        page = self.feed.changes_since(token, limit)
        if not replica:
            return replace(page, claims=claims)
        begins = token is None or page.reset
        with self._lock:
            seen = self._reached.passed.get(replica) if begins else token
            start = Token(self.replica, 0, swept=page.purged.count)
            stale = seen is not None and not seen.covers(page.purged)
            passed = seen
            if begins and not stale:
                passed = start if seen is None else replace(start, known=seen.read_to)
            assert passed is not None
            is_new = replica not in self._reached.passed
            self._reached.passed[replica] = passed
            (self._settled.add if settled and not begins else self._settled.discard)(replica)
            if is_new:
                self._save()
        if stale:
            behind = page.behind + page.token.position
            return replace(
                page, changes=(), token=start, more=True, behind=behind, reset=False, stale=True
            )
        token = replace(page.token, swept=passed.swept, known=passed.known)
        return replace(page, token=token, claims=claims)

    def read_by_all(self) -> int | None:
        """The position up to which every peer has read; None if there are no peers."""
        peers = self.peers
        if not peers:
            return None
        with self._lock:
            # What is purged because of it must not be durable first: after a crash a peer that has
            # passed it all would be treated as stale.
            self._save()
            return min(self._passed(url) for url in peers) - 1

    def _passed(self, url: str) -> int:
        peer = self._reached.read.get(url)
        token = None if peer is None else self._reached.passed.get(peer.token.log_id)
        # A token that covers the purged deletes only by a sweep would not cover more of them.
        if token is None or token.position <= self.purged().position:
            return 0
        return token.position

    def distrust(self, log_id: str) -> None:
        """A replica has reverted to an older state: it must prove again what it has read."""
        with self._lock:
            if log_id in self._reached.passed:
                self._reached.passed[log_id] = Token(self.replica, 0)
                self._save()

    # --- what this store has read -----------------------------------------------------------

    def token(self, url: str) -> Token | None:
        """The token up to which a peer was read; None: start from the beginning."""
        with self._lock:
            reading = self._reached.read.get(url)
            return None if reading is None else reading.token

    def settled(self, url: str) -> bool:
        """Whether a peer may rely on the token sent to it."""
        with self._lock:
            reading = self._reached.read.get(url)
            return reading is not None and reading.settled

    def begin_peer(self, url: str, token: Token, base: PurgedTombstones, *, swept: bool) -> None:
        """Start reading a peer from its beginning, after a sweep or because it is new."""
        with self._lock:
            before = self._reached.read.get(url)
            taken = before is not None and before.taken
            self._claims.pop(url, None)
            self._put(url, PeerProgress(token, base, settled=swept, taken=taken))

    def missed_by(self, url: str, page: BlobChanges) -> str | None:
        """Where deletes were purged that a peer may have missed; None: its changes can be applied.

        Then the peer is recorded as `taken`: some data may have come from it.
        """
        there, purged = page.token.log_id, self.purged()
        with self._lock:
            reading = self._reached.read.get(url)
            if reading is None:
                raise ReplicaUnreachable(url, "it is no longer a replica")
            passed = self._reached.passed.get(there)
            is_current = passed is not None and passed.covers(purged)
            if purged != NOTHING and not (is_current and there in self._settled):
                return "here"
            missed = not_covered(self._reached.read, there, page.claims)
            if missed is not None:
                return f"at {missed}"
            if passed is None:
                # What is taken from it can be deleted here before its first request.
                self._reached.passed[there] = Token(self.replica, 0)
                self._save()
            self._put(url, replace(reading, taken=True))
            return None

    def record_progress(self, url: str, page: BlobChanges) -> None:
        """A page of a peer was applied and is durable."""
        with self._lock:
            reading = self._reached.read.get(url)
            if reading is None:
                return
            if not page.more:
                self._claims[url] = page.claims
            self._put(url, replace(reading, token=page.token))

    @property
    def is_settled(self) -> bool:
        """Whether it is settled with all peers."""
        with self._lock:
            return all(reading.settled for reading in self._reached.read.values())

    def record_deletes_applied(self, url: str, page: BlobChanges) -> None:
        """All deletes of a peer that is not current were applied, up to this last page."""
        with self._lock:
            reading = self._reached.read.get(url)
            if reading is not None:
                self._claims[url] = page.claims
                self._put(url, reading)

    def _put(self, url: str, reading: PeerProgress) -> None:
        """Save a reading and all that it settles, unless its peer was removed."""
        read = self._reached.read
        if url not in self.peers:
            return
        after = {**read, url: reading}
        for each, other in after.items():
            if is_settled(after, each, self._claims):
                after[each] = replace(other, settled=True)
        if after != read:
            self._reached.read = after
            self._save()

    def save(self) -> None:
        """Save what the peers have passed, so that compaction knows it after a restart."""
        with self._lock:
            if self._reached.passed:
                self._save()

    def _save(self) -> None:
        if self._log.closed:
            # The directory may belong to another store now.
            raise LogClosed(f"{self._log.directory} is closed")
        try:
            with self._reserve().if_full():
                write_atomic(self._fs, self._path, _encoded(self._reached))
        except OSError as error:
            raise WriteFailed(self._path, error) from error


def _load(fs: FileSystem, path: str, events: EventSink) -> _Reached:
    """Read the file. If it cannot be used, it is set aside and everything is read again."""
    try:
        (_, line), *_ = read_lines(fs, path)[0]
        value: dict[str, Any] = json.loads(line)
        if value["version"] == _VERSION:
            return _Reached(
                {url: PeerProgress.from_row(row) for url, row in value["read"].items()},
                {log_id: Token.from_row(row) for log_id, row in value["passed"].items()},
            )
        reason = f"has version {value['version']}, this build reads {_VERSION}"
    except FileNotFoundError:
        return _Reached({}, {})
    except (Corrupt, OSError, ReplicaAnswerInvalid, ValueError, KeyError, TypeError) as error:
        reason = str(error)
    set_aside(fs, path, reason, events)
    with suppress(OSError):
        write_atomic(fs, path, _encoded(_Reached({}, {})))
    return _Reached({}, {})


def _encoded(reached: _Reached) -> bytes:
    value = {
        "version": _VERSION,
        "read": {url: reading.to_row() for url, reading in reached.read.items()},
        "passed": {log_id: token.to_row() for log_id, token in reached.passed.items()},
    }
    return encode_line(json.dumps(value, separators=(",", ":")))


def _checked_url(url: str) -> str:
    """The URL, checked and without a trailing slash."""
    try:
        parts = urlsplit(url)
        sendable = url.isascii() and url.isprintable() and " " not in url
        more = parts.query or parts.fragment or parts.username
        fits = sendable and parts.scheme in ("http", "https") and parts.hostname and not more
        port = parts.port
    except ValueError:
        fits, port = None, None
    if not fits or len(url) > URL_CHARACTERS_MAX or port == 0:
        raise InvalidInput(f"replica {url!r} must be the http or https URL of a blob store")
    return url.rstrip("/")
