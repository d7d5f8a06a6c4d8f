"""A store as one of several replicas: who the others are, how far everybody has read.

    store.replication.set_peers(["http://node-2:8080/blobs/photos"])
    page = store.replication.serve(replica, token, limit)      # asked by another replica
    Replicator(store, connect, clock).step()                   # asks the others

The peers stand in the manifest's `state` ("replicas": a list of URLs): they are never lost alone.
How far everybody has read stands in the file REPLICATION, one checked line that is replaced whole:

    {"version":1,"read":{URL: token},"passed":{LOG_ID: token}}

`read` has the token up to which this store has taken over what the peer has, durably: it is saved
before it is shown to the peer. `passed` has the last token that each replica has shown here. A file
that is lost or damaged is one that was never written: everything is compared again, and nothing is
dropped that a peer may not have seen.

1. Compaction drops a delete only below what every peer has passed (`passed`). A peer that is away
   keeps deletes from being dropped, however long that is, until it is back or no longer a peer.
2. What was dropped is told by `forgotten`. A replica whose token does not cover that was no peer
   for a while, or is an old copy of itself: it is **stale**, and told so. It has to sweep before it
   reads on (`replicator.py`), and until then nothing is read from it here.
3. A replica that was never seen has nothing to sweep: it is new.

Any thread may call. Called by the store, by HTTP and by the replicator.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lithify.blobs.errors import ReplicaTalksNonsense
from lithify.blobs.forgotten import Forgotten
from lithify.blobs.replication_values import Token
from lithify.compaction.lines import encode_line, read_lines
from lithify.errors import Corrupt, InvalidInput, LogClosed, WriteFailed
from lithify.fs import write_atomic
from lithify.log.names import REPLICATION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.blobs.replication_apply import Applier
    from lithify.blobs.replication_feed import Feed
    from lithify.blobs.replication_values import Changes
    from lithify.blobs.replicator import PeerStatus
    from lithify.fs import FileSystem
    from lithify.log.log import Log

__all__ = ["PEERS_MAX", "Replication"]

PEERS_MAX = 16
URL_CHARACTERS_MAX = 1024

_VERSION = 1
_STATE = "replicas"


@dataclass(slots=True)
class _Reached:
    """How far everybody has read."""

    read: dict[str, Token]
    """By URL."""
    passed: dict[str, Token]
    """By the id of the log of who reads."""


class Replication:
    """See the module."""

    def __init__(self, fs: FileSystem, log: Log, feed: Feed, applier: Applier) -> None:
        self._fs = fs
        self._log = log
        self._path = f"{log.directory}/{REPLICATION}"
        self._lock = threading.Lock()
        self._reached = _load(fs, self._path)
        self.replica = log.manifest.log_id.hex()
        """What this store calls itself."""
        self.feed = feed
        self.applier = applier
        self.status: Callable[[], list[PeerStatus]] = list
        """How it goes with each peer; whoever pulls puts that here."""

    # --- peers ------------------------------------------------------------------------------

    @property
    def peers(self) -> tuple[str, ...]:
        """The URLs of the other replicas."""
        return tuple(self._log.manifest.state.get(_STATE, ()))

    def set_peers(self, urls: Sequence[str]) -> None:
        """Replicate with these stores, which should replicate with this one; durable."""
        peers = [_checked_url(url) for url in urls]
        if len(set(peers)) != len(peers):
            raise InvalidInput(f"replicas {peers} are not all different")
        if len(peers) > PEERS_MAX:
            raise InvalidInput(f"{len(peers)} replicas are too many, at most {PEERS_MAX}")
        with self._lock:
            # A peer that comes back later is read from its beginning.
            kept = {url: each for url, each in self._reached.read.items() if url in peers}
            if kept != self._reached.read:
                self._reached.read = kept
                self._save()
            self._log.publish(
                lambda m: replace(m, state={**m.state, _STATE: peers}), "replicas of a blob store"
            )

    # --- what others have read --------------------------------------------------------------

    def forgotten(self) -> Forgotten:
        """The deletes that this store has dropped."""
        return Forgotten.from_state(self._log.manifest.state)

    def serve(self, replica: str, token: Token | None, limit: int) -> Changes:
        """What has changed here since a token, for the replica that has it."""
        if len(replica) != len(self.replica) or not replica.isalnum():
            raise InvalidInput(f"replica {replica!r} is not the id of a log")
        page = self.feed.changes_since(token, limit)
        begins = token is None or page.reset
        with self._lock:
            seen = self._reached.passed.get(replica) if begins else token
            start = Token(self.replica, 0, swept=page.forgotten.position)
            stale = seen is not None and not seen.covers(page.forgotten)
            passed = start if begins and not stale else seen
            assert passed is not None
            is_new = replica not in self._reached.passed
            self._reached.passed[replica] = passed
            if is_new:
                self._save()
        if stale:
            behind = page.behind + page.token.position
            return replace(
                page, changes=(), token=start, more=True, behind=behind, reset=False, stale=True
            )
        return replace(page, token=replace(page.token, swept=passed.swept))

    def passed(self) -> int | None:
        """The position up to which every peer has read; None if there are no peers."""
        peers = self.peers
        if not peers:
            return None
        with self._lock:
            return min(self._passed(url) for url in peers) - 1

    def _passed(self, url: str) -> int:
        peer = self._reached.read.get(url)
        token = None if peer is None else self._reached.passed.get(peer.log_id)
        return 0 if token is None else token.position

    def is_current(self, log_id: str) -> bool:
        """Whether a replica knows all that is forgotten here, or is new."""
        with self._lock:
            passed = self._reached.passed.get(log_id)
        return passed is None or passed.covers(self.forgotten())

    def distrust(self, log_id: str) -> None:
        """A replica has become older than it was: it has to show again what it knows."""
        with self._lock:
            if log_id in self._reached.passed:
                self._reached.passed[log_id] = Token(self.replica, 0)
                self._save()

    # --- what this store has read -----------------------------------------------------------

    def token(self, url: str) -> Token | None:
        """Up to where a peer was read; None: from the beginning."""
        with self._lock:
            return self._reached.read.get(url)

    def reached(self, url: str, token: Token) -> None:
        """Everything up to here is taken over and durable."""
        with self._lock:
            if url in self.peers and self._reached.read.get(url) != token:
                self._reached.read[url] = token
                self._save()

    def save(self) -> None:
        """Make durable what the peers have passed: compaction will know it after a restart."""
        with self._lock:
            if self._reached.passed:
                self._save()

    def _save(self) -> None:
        value = {
            "version": _VERSION,
            "read": {url: token.to_row() for url, token in self._reached.read.items()},
            "passed": {log_id: token.to_row() for log_id, token in self._reached.passed.items()},
        }
        line = encode_line(json.dumps(value, separators=(",", ":")))
        if self._log.closed:
            # The directory may be that of another store by now.
            raise LogClosed(f"{self._log.directory} is closed")
        try:
            write_atomic(self._fs, self._path, line)
        except OSError as error:
            raise WriteFailed(self._path, error) from error


def _load(fs: FileSystem, path: str) -> _Reached:
    try:
        (_, line), *_ = read_lines(fs, path)[0]
        value: dict[str, Any] = json.loads(line)
        if value["version"] != _VERSION:
            return _Reached({}, {})
        return _Reached(
            *(
                {key: Token.from_row(row) for key, row in value[part].items()}
                for part in ("read", "passed")
            )
        )
    except (FileNotFoundError, Corrupt, ReplicaTalksNonsense, ValueError, KeyError):
        return _Reached({}, {})


def _checked_url(url: str) -> str:
    """Without a slash at its end."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and parts.hostname and not parts.query
        port = parts.port
    except ValueError:
        fits, port = None, None
    if not fits or len(url) > URL_CHARACTERS_MAX or port == 0:
        raise InvalidInput(f"replica {url!r} must be the http or https URL of a blob store")
    return url.rstrip("/")
