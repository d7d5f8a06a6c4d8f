"""A world of replicas of a blob store, each on a disk of its own that can lose power.

Each has a clock of its own, too, that is a little wrong. Everything that happens is drawn from one
source of chance: operations, lost and damaged messages, kills, compactions, absences, and all of
these between a question and its answer. There are three replicas, or, where the lists change too,
four, of which several at a time are taken out of the lists of the others, and a new one may join.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.blobs.errors import BlobError, BlobStoreFull, ReplicaUnreachable
from lithify.blobs.offline.verify import verify_store
from lithify.blobs.records import BlobRecordKind, hash_id
from lithify.blobs.replication.replicator import Replicator
from lithify.blobs.replication.tokens_and_pages import BlobChange, BlobChanges, Token
from lithify.blobs.replication.which_state_wins import rank_of, rank_of_change
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.blobs.visibility import Include
from lithify.clock import ManualClock
from lithify.errors import LithifyError, RunRefused
from lithify.fs import MemoryFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lithify.blobs.index import FoundRecords

DIRECTORY = "/data/blobs"
RETENTION_MS = 3000
SEGMENT_BYTES = 100_000
NAMES = ("a", "b", "c", "d", "e")
SIZES = [0, 10, 500, 500, 5000, 70_000]
SOON_MS = 500
TTLS_MS = [None, None, None, SOON_MS, 5000]
WAITS_S = [0.0, 0.001, 0.2, 1.0, RETENTION_MS / 1000, 2 * RETENTION_MS / 1000]
OFTEN = [
    "put",
    "put",
    "delete",
    "delete",
    "ttl",
    "undelete",
    "wait",
    "roll",
    "compact",
    "pull",
    "pull",
]
SELDOM = ["leave", "come_back", "kill", "forget_tokens", "pull"]
STEPS = OFTEN * 3 + SELDOM
LISTS_CHANGE = (
    OFTEN * 3
    + ["pull"] * 6
    + ["leave", "come_back", "come_back", "kill", "join"]
    + ["unlist", "unlist_long", "list_again", "list_again"]
)


class Chunks:
    """Pieces of bytes, to be read like a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """At most this many bytes; none at the end."""
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._held = memoryview(piece)
        data, self._held = bytes(self._held[:size]), self._held[size:]
        return data


class Killed(Exception):
    """The process ends here."""


class SkewedClock:
    def __init__(self, clock: ManualClock, skew_ms: int) -> None:
        self._clock = clock
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


class Replica:
    """A node with one store."""

    def __init__(self, world: World, name: str, skew_ms: int) -> None:
        self.world = world
        self.name = name
        self.url = url_of(name)
        self.fs = MemoryFileSystem()
        self.clock = SkewedClock(world.clock, skew_ms)
        self.away = False
        self.deleted: dict[str, tuple[int, ...]] = {}
        """The greatest state with a delete that it has had, for each blob."""
        self.store = BlobStore.create(
            self.fs,
            DIRECTORY,
            capacity_bytes=100 * SEGMENT_BYTES,
            segment_bytes=SEGMENT_BYTES,
            settings=SETTINGS,
            clock=self.clock,
            random_bytes=world.random_bytes,
        )
        self._start()

    def _start(self) -> None:
        def connect(url: str) -> Wire:
            return Wire(self.world, self, self.world.by_url[url])

        replication = self.store.replication
        self.replicator = Replicator(replication, connect, self.clock, changes_max=5)

    def open(self) -> None:
        self.store = BlobStore.open(
            self.fs,
            DIRECTORY,
            settings=SETTINGS,
            clock=self.clock,
            random_bytes=self.world.random_bytes,
        )
        self._start()

    def kill(self) -> None:
        self.store.abandon()
        self.fs = self.fs.crash_clone(self.world.rng)
        self.open()

    def found(self, blob_id: str) -> FoundRecords | None:
        """What is durable of it."""
        index, log = self.store.index, self.store.log
        id_hash = hash_id(blob_id, log.manifest.log_id)
        return index.find(index.opened(log), id_hash, log.last_position + 1)

    def rank(self, blob_id: str) -> tuple[int, ...] | None:
        found = self.found(blob_id)
        if found is None:
            return None
        return rank_of(found, self.store.replication.applier._identity(found))

    def has(self, blob_id: str) -> bool:
        """Has it a content that no run may drop now, by what is written, durable or not?"""
        id_hash = hash_id(blob_id, self.store.log.manifest.log_id)
        found = self.store.replication.applier._reads.state(id_hash)
        if found is None or found.put is None:
            return False
        now_ms = self.clock.now_ms()
        gone = found.newest.time_ms < now_ms - RETENTION_MS
        return now_ms <= found.newest.expiry_ms and not (
            gone and found.newest.kind is BlobRecordKind.DELETE
        )

    def content(self, blob_id: str) -> bytes | None:
        try:
            with self.store.get(blob_id, include=Include.NONE) as blob:
                return blob.read()
        except BlobError:
            return None

    def roll(self) -> None:
        writer = self.store.writer
        with writer.lock:
            writer.ready()
            if self.store.log.active_bytes > 64:
                writer.roll()

    def check(self) -> None:
        """What it has known as deleted is not there, but by an undelete."""
        for blob_id in self.world.contents:
            rank = self.rank(blob_id)
            if rank is None:
                continue
            if rank[1]:
                self.deleted[blob_id] = max(rank, self.deleted.get(blob_id, rank))
            elif blob_id in self.deleted:
                assert rank > self.deleted[blob_id], f"{self.name} shows {blob_id} again"


class Wire:
    """The way from one replica to another, with everything that is lost on it."""

    def __init__(self, world: World, here: Replica, there: Replica) -> None:
        self._world = world
        self._here = here
        self._there = there

    def _send(self) -> None:
        if self._here.away or self._there.away or self._world.chance(0.05):
            raise ReplicaUnreachable(self._there.url, "no answer")

    def changes(
        self, replica: str, token: Token | None, limit: int, *, settled: bool
    ) -> BlobChanges:
        self._send()
        asked = None if token is None else Token.from_row(json.loads(json.dumps(token.to_row())))
        page = self._there.store.replication.serve(replica, asked, limit, settled=settled)
        self._world.meanwhile(self._here)
        self._send()
        return BlobChanges.from_json(json.loads(json.dumps(page.to_json())))

    @contextmanager
    def records(self, blob_ids: Sequence[str]) -> Iterator[Chunks]:
        self._send()
        for blob_id in blob_ids:
            assert not self._here.has(blob_id), f"{self._here.name} has {blob_id} already"
        self._world.seen["contents"] += len(blob_ids)
        yield Chunks(self._broken(self._there.store.replication.feed.records(blob_ids)))

    def _broken(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The stream is cut, changed, or its reader dies."""
        world = self._world
        for piece in pieces:
            if world.chance(0.01):
                world.seen["cut"] += 1
                return
            if world.chance(0.01):
                raise Killed
            if world.chance(0.01) and piece:
                world.seen["damaged"] += 1
                at = world.rng.randrange(len(piece))
                yield piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
            else:
                yield piece
            world.meanwhile(self._here)

    def unknown(self, blob_ids: Sequence[str]) -> list[str]:
        self._send()
        return self._there.store.replication.feed.unknown(blob_ids)


def url_of(name: str) -> str:
    return f"http://{name}/blobs/s"


SETTINGS = BlobSettings(deleted_retention_ms=RETENTION_MS)


class World:
    def __init__(
        self,
        seed: int,
        *,
        trouble: bool = True,
        lists_change: bool = False,
        clients_expire: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.trouble = trouble
        self.lists_change = lists_change
        """Replicas are taken out of the others' lists, who then do not wait for them."""
        self.clients_expire = clients_expire
        """Clients let blobs expire where they would delete them."""
        self.contents: dict[str, bytes] = {}
        self.states: dict[str, list[BlobChange]] = {}
        """Of each blob, those that a client was told of."""
        self.seen: Counter[str] = Counter()
        self._depth = 0
        self.replicas: list[Replica] = []
        self.by_url: dict[str, Replica] = {}
        for name in NAMES[:4] if lists_change else NAMES[:3]:
            self._add(name)
        self.list_all()

    def _add(self, name: str) -> None:
        replica = Replica(self, name, self.rng.choice([-150, 0, 90]))
        self.replicas.append(replica)
        self.by_url[replica.url] = replica

    def list_all(self) -> None:
        for replica in self.replicas:
            others = [each.url for each in self.replicas if each is not replica]
            replica.store.replication.set_peers(others)

    def random_bytes(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    def chance(self, probability: float) -> bool:
        return self.trouble and self.rng.random() < probability

    # --- steps --------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        all_steps = LISTS_CHANGE if self.lists_change else STEPS
        for _ in range(steps):
            self.step(self.rng.choice(all_steps), self.rng.choice(self.replicas))

    def step(self, step: str, replica: Replica) -> None:
        self.seen[step] += 1
        getattr(self, f"_{step}")(replica)
        if step in ("pull", "kill", "forget_tokens"):
            replica.check()

    def meanwhile(self, busy: Replica) -> None:
        """Other things happen; the one that waits for an answer asks no other caller."""
        if self._depth or not self.chance(0.15):
            return
        self._depth += 1
        for _ in range(self.rng.randrange(1, 12)):
            step, replica = self.rng.choice(OFTEN), self.rng.choice(self.replicas)
            if not (step == "pull" and replica is busy):
                self.step(step, replica)
        self._depth -= 1

    def _put(self, replica: Replica) -> None:
        content = self.rng.randbytes(self.rng.choice(SIZES))
        ttl_ms = self.rng.choice(TTLS_MS)
        expiry_ms = None if ttl_ms is None else replica.clock.now_ms() + ttl_ms
        try:
            info = replica.store.put(content, service="tests", expiry_ms=expiry_ms)
        except BlobStoreFull:
            self.seen["full"] += 1
            return
        self.contents[info.blob_id] = content
        self.note(replica, info.blob_id)

    def _change(self, replica: Replica, name: str, *more: int | None) -> None:
        if not self.contents:
            return
        blob_id = self.rng.choice(list(self.contents)[-12:])
        try:
            getattr(replica.store, name)(blob_id, *more)
        except BlobError:
            self.seen["refused"] += 1
            return
        self.note(replica, blob_id)

    def note(self, replica: Replica, blob_id: str) -> None:
        rank = replica.rank(blob_id)
        assert rank is not None
        life_version, deleted, time_ms, expiry_ms, created_ms, crc, size = rank
        kind = BlobRecordKind.DELETE if deleted else BlobRecordKind.PUT
        state = BlobChange(blob_id, kind, life_version, time_ms, expiry_ms, created_ms, size, crc)
        self.states.setdefault(blob_id, []).append(state)

    def _delete(self, replica: Replica) -> None:
        if self.clients_expire:
            self._change(replica, "ttl", replica.clock.now_ms() + SOON_MS)
        else:
            self._change(replica, "delete")

    def _undelete(self, replica: Replica) -> None:
        self._change(replica, "undelete")

    def _ttl(self, replica: Replica) -> None:
        ttl_ms = self.rng.choice(TTLS_MS)
        expiry_ms = None if ttl_ms is None else replica.clock.now_ms() + ttl_ms
        self._change(replica, "ttl", expiry_ms)

    def _wait(self, replica: Replica) -> None:
        self.clock.advance(self.rng.choice(WAITS_S))

    def _roll(self, replica: Replica) -> None:
        replica.roll()

    def _compact(self, replica: Replica) -> None:
        try:
            report = replica.store.compaction.run(policy=self.rng.choice(["all", "stats"]))
        except RunRefused:
            return
        for cause, (count, _) in report.dropped.items():
            self.seen[f"dropped {cause}"] += count

    def _pull(self, replica: Replica) -> None:
        for url in replica.store.replication.peers:
            try:
                while replica.replicator.pull(url):
                    pass
            except Killed:
                self._kill(replica)
                return
            except LithifyError as error:
                replica.store.replication.applier.forget()
                self.seen[type(error).__name__] += 1

    def _leave(self, replica: Replica) -> None:
        replica.away = True

    def _come_back(self, replica: Replica) -> None:
        for each in self.replicas:
            each.away = False

    def _kill(self, replica: Replica) -> None:
        replica.kill()

    def _unlist(self, replica: Replica) -> None:
        """Some go away and are taken out of the others' lists."""
        gone = self.rng.sample(self.replicas, self.rng.choice([1, 2, 2]))
        for each in self.replicas:
            if each in gone:
                each.away = True
                continue
            peers = [url for url in each.store.replication.peers if self.by_url[url] not in gone]
            each.store.replication.set_peers(peers)

    def _unlist_long(self, replica: Replica) -> None:
        """Long enough that the others purge what they have deleted meanwhile."""
        self._unlist(replica)
        others = [each for each in self.replicas if not each.away]
        for _ in range(2 if others else 0):
            for _ in range(6):
                step = self.rng.choice(["put", "delete", "delete", "ttl", "undelete"])
                self.step(step, self.rng.choice(others))
            for each in others * 2:
                self.step("pull", each)
            self.clock.advance(2 * RETENTION_MS / 1000)
            for each in others:
                each.roll()
                self.step("compact", each)

    def _list_again(self, replica: Replica) -> None:
        self.list_all()

    def _join(self, replica: Replica) -> None:
        """A brand new one, once."""
        if len(self.replicas) < len(NAMES):
            self._add(NAMES[-1])
            self.list_all()

    def _forget_tokens(self, replica: Replica) -> None:
        """The file with the tokens is lost."""
        replica.store.close()
        path = f"{DIRECTORY}/REPLICATION"
        if replica.fs.exists(path):
            replica.fs.remove(path)
            replica.fs.sync_dir(DIRECTORY)
        replica.open()

    # --- the end ------------------------------------------------------------------------------

    def heal(self) -> None:
        """All replicas get all changes."""
        self.trouble = False
        for replica in self.replicas:
            replica.away = False
        if self.lists_change:
            self.list_all()
        for _ in range(2 * len(self.replicas)):
            for replica in self.replicas:
                self.step("pull", replica)

    def check_same(self) -> None:
        for blob_id, content in self.contents.items():
            greatest = max(self.states[blob_id], key=rank_of_change)
            if abs(greatest.expiry_ms - self.clock.now_ms()) <= 1000:
                continue  # By some of the clocks it is expired, by others not.
            answers = {replica.name: replica.content(blob_id) for replica in self.replicas}
            assert len(set(answers.values())) == 1, (blob_id, answers, greatest)
            answer = answers["a"]
            assert answer in (None, content), blob_id
            if greatest.deleted:
                assert answer is None, f"{blob_id} was deleted and is there"
            elif greatest.expiry_ms < self.clock.now_ms() - 1000:
                assert answer is None, f"{blob_id} was expired and is there"
            elif self.lists_change:
                continue
            elif greatest.expiry_ms > self.clock.now_ms() + 1000:
                assert answer is not None, f"{blob_id} is lost"
                ranks = {replica.rank(blob_id) for replica in self.replicas}
                assert ranks == {rank_of_change(greatest)}, blob_id

    def settle(self) -> None:
        """Time passes, and everything that can be dropped is."""
        for _ in range(3):
            self.clock.advance(10 * RETENTION_MS / 1000)
            for replica in self.replicas:
                replica.roll()
                self.step("compact", replica)
            self.heal()

    def end(self) -> None:
        self.heal()
        self.check_same()
        self.settle()
        self.check_same()
        for replica in self.replicas:
            left = all_changes(replica.store)
            assert not [change for change in left if change.deleted], "deletes that are not needed"
            replica.store.close()
            assert verify_store(replica.fs, DIRECTORY, replica.clock).ok


def all_changes(store: BlobStore) -> list[BlobChange]:
    changes: list[BlobChange] = []
    page = store.changes_since(None, 3)
    changes += page.changes
    while page.more:
        page = store.changes_since(page.token, 3)
        changes += page.changes
    return changes
