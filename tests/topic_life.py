"""A topic that lives through everything compaction has to cope with, beside its oracle.

`Entries` makes entries of every kind, in every client's form, out of one source of randomness.
`Life` appends them to a log, compacts it, trims it, opens it again, and `check` holds the compacted
view against the oracle: message for message, from every position, forward and backward.

The randomness may be hypothesis's, which then finds the smallest life that goes wrong, or that of
a seed.
"""

from __future__ import annotations

import base64
import random
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.clock import ManualClock
from lithify.compaction.limits.one_run_per_disk import DiskGate
from lithify.events import ignore_events
from lithify.log.file_names import FileKind, parse_name
from lithify.log.log import Log
from lithify.positions import PACKED
from lithify.settings import LogSettings
from lithify.topics.compaction.live_messages import LAST_MESSAGE, VIEW_MESSAGES
from lithify.topics.compaction.topic_compaction import TopicCompaction
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.messages import message_pb2 as pb
from lithify.topics.messages.entry_flags import FLAG_BATCH
from lithify.topics.messages.message import FLAG_SHRUNK, decode_entry
from tests.oracle import Oracle, Rules, Sent, messages_of
from tests.unit.topics.segments import batch, compress, message, single

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.compaction.reports.report import Report
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.fs import FileSystem
    from lithify.log.manifest import Manifest
    from lithify.log.reader import Snapshot
    from lithify.log.segments.frame import LogEntry

DIRECTORY = "/data/topic"
SETTLED = frozenset({FileKind.LOCK, FileKind.MANIFEST, FileKind.HISTORY})
CODECS = (pb.NONE, pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)
SECRET = pb.EncryptionKeys(key="k", value=b"sealed")
OTHER_BROKER = b"\x0e\x02\0\0\0\x02\x08\x07"
GONE = message(None, b"", compacted_out=True)
BINARY = "//79", "AAECAw=="
"""Keys that are no text, in base64."""


class Entries:
    """Makes entries; `clock` says when they are published."""

    def __init__(
        self, rng: random.Random, clock: Clock, keys: int = 6, *, readable: bool = False
    ) -> None:
        """`readable` ones only: no markers, and nothing that cannot be opened."""
        self._rng = rng
        self._kinds = [self._single] * 8 + [self._batch] * 6 + [self._chunk] * 2
        if not readable:
            self._kinds += [self._marker, self._unreadable]
        self._clock = clock
        self._keys = ["", *(f"key {number}" for number in range(keys))]
        self._chunks: list[bytes] = []
        self._uuids = 0

    def some(self, count: int) -> list[tuple[bytes, int]]:
        """(body, number of messages, 0 for no batch) of each."""
        return [self._one() for _ in range(count)]

    def _one(self) -> tuple[bytes, int]:
        body, messages = self._rng.choice(self._kinds)()
        if self._rng.random() < 0.1:
            body = body[6:]  # A CRC is optional.
        if self._rng.random() < 0.1:
            body = OTHER_BROKER + body
        return body, messages

    def _key(self) -> dict[str, Any]:
        choice = self._rng.random()
        if choice < 0.1:
            return {}
        if choice < 0.2:
            return {"key": self._rng.choice(BINARY), "partition_key_b64_encoded": True}
        key = self._rng.choice(self._keys)
        if choice < 0.3:  # The same key, in the form of a client that always encodes.
            return {
                "key": base64.b64encode(key.encode()).decode(),
                "partition_key_b64_encoded": True,
            }
        if choice < 0.32:
            return {"key": key, "null_partition_key": True}
        return {"key": key}

    def _fields(self) -> dict[str, Any]:
        fields = self._key()
        if self._rng.random() < 0.7:
            fields["event_time"] = self._rng.randrange(6)
        if self._rng.random() < 0.2:
            fields["properties"] = [pb.KeyValue(key="colour", value="blue")]
        return fields

    def _value(self) -> tuple[bytes, dict[str, Any]]:
        """A value, or none in one of the ways to say so."""
        choice = self._rng.random()
        if choice < 0.1:
            return b"", {"null_value": True}
        if choice < 0.2:
            return b"", {}
        return self._rng.randbytes(self._rng.choice((1, 16, 40))), {}

    def _published(self) -> dict[str, int]:
        return {"publish_time": self._clock.now_ms() - self._rng.choice((0, 0, 0, 3000))}

    def _single(self) -> tuple[bytes, int]:
        value, said = self._value()
        fields = {**self._fields(), **said, **self._published()}
        codec = self._rng.choice(CODECS)
        if codec != pb.NONE:
            fields |= {"compression": codec, "uncompressed_size": len(value)}
            value = compress(codec, value)
        if self._rng.random() < 0.2:
            fields["encryption_keys"] = [SECRET]
            value += bytes(16)  # The tag of the cipher.
        return single(value=value, **fields), 0

    def _batch(self) -> tuple[bytes, int]:
        messages = []
        out = self._rng.random() < 0.2
        for number in range(self._rng.choice((1, 2, 3, 5, 70))):
            value, said = self._value()
            each = message(value=value, **self._fields(), **said)
            messages.append(GONE if out and number and self._rng.random() < 0.5 else each)
        fields: dict[str, Any] = self._published()
        if out:
            left = [slot for slot, each in enumerate(messages) if each is not GONE]
            fields["compacted_batch_indexes"] = left
        if self._rng.random() < 0.1:
            fields |= {"encryption_keys": [SECRET], "partition_key": self._keys[1]}
        body = batch(*messages, codec=self._rng.choice(CODECS), **fields)
        return body, len(messages)

    def _chunk(self) -> tuple[bytes, int]:
        """The next chunk of a message; others come in between, and some messages never end."""
        if not self._chunks:
            self._uuids += 1
            fields = {**self._fields(), **self._published()}
            count = self._rng.choice((2, 3))
            fields |= {"uuid": f"p-{self._uuids}", "num_chunks_from_msg": count}
            sent = [single(value=b"part", **fields, chunk_id=number) for number in range(count)]
            if self._rng.random() < 0.2:
                sent = [sent[0], *sent]  # Its producer began again.
            if self._rng.random() < 0.2:
                sent.pop()
            self._chunks = sent
        return self._chunks.pop(0), 0

    def _marker(self) -> tuple[bytes, int]:
        return single("key 1", b"", marker_type=1, **self._published()), 0

    def _unreadable(self) -> tuple[bytes, int]:
        choice = self._rng.randrange(3)
        if choice == 0:
            return self._rng.randbytes(self._rng.randrange(20)), 0
        codec = self._rng.choice(CODECS)
        if choice == 1:
            return batch(message("key 1"), codec=codec, num_messages_in_batch=3), 3
        return batch(message("key 1"), codec=pb.ZSTD, uncompressed_size=7), 1


def strays(fs: FileSystem, directory: str, manifest: Manifest) -> list[str]:
    """Files in the directory of a log that are unknown."""
    known = manifest.sizes().keys() | {retired.name for retired in manifest.retired}
    files = [parse_name(name) for name in fs.list(directory)]
    return [
        file.name
        for file in files
        if file.kind not in SETTLED
        and file.name not in known
        and not (file.kind is FileKind.KEY_INDEX and f"{file.name[:-5]}.seg" in known)
    ]


@dataclass
class Life:
    """One topic with its oracle."""

    fs: FileSystem
    rng: random.Random
    clock: Clock
    settings: TopicCompactionSettings
    directory: str = DIRECTORY
    jobs: Jobs | None = None
    keys: int = 6

    def __post_init__(self) -> None:
        self.entries = Entries(self.rng, self.clock, self.keys)
        self.oracle = Oracle()
        self.bodies: dict[int, bytes] = {}
        self.open()

    def open(self) -> None:
        self.log = Log.open(
            self.fs,
            self.directory,
            kind="topic",
            settings=LogSettings(),
            clock=self.clock,
            rule=PACKED,
        )
        self.compaction = TopicCompaction(
            self.fs,
            self.log,
            settings=lambda: self.settings,
            clock=self.clock,
            events=ignore_events,
            # Tests in other processes compact on the same disk, and must not be waited for.
            gate=DiskGate(self.fs, f"{self.directory}.gate"),
        )

    def reborn(self, fs: FileSystem) -> Life:
        """The same topic as it was left on another disk."""
        life = copy(self)
        life.fs, life.oracle, life.bodies = fs, deepcopy(self.oracle), dict(self.bodies)
        life.open()
        return life

    def reopen(self) -> None:
        self.log.close()
        self.open()

    def send(self, count: int) -> None:
        self.append(self.entries.some(count))

    def append(self, entries: list[tuple[bytes, int]]) -> None:
        for body, messages in entries:
            flags = FLAG_BATCH if messages else 0
            position = self.log.append(body, flags=flags, tag=messages or 1).result()
            self.bodies[position] = body
            self.oracle.sent(position, body)

    def rules(self) -> Rules:
        return Rules(
            self.settings.by_event_time,
            self.settings.keep_keyless,
            self.settings.tombstone_retention_ms,
            self.settings.key_ttl_ms,
        )

    def remember(self) -> None:
        """Of a log that others have written: what is in it, and what was judged of it."""
        with self.log.snapshot("memory") as snapshot:
            for entry in snapshot.read():
                self.bodies[entry.position] = entry.body
                self.oracle.sent(entry.position, entry.body)
        self.judged(self.clock.now_ms())

    def compact(self) -> Report:
        """A run, and the oracle's."""
        now_ms = self.clock.now_ms()
        report = self.compaction.run("test", self.jobs)
        self.judged(now_ms)
        if not self.settings.compaction_lag_min_ms:
            assert not self.oracle.waiting, "a run ends at the last durable entry"
        return report

    def settle(self) -> None:
        """Runs until there is nothing left to rewrite, one at a time where the cap is small."""
        segments = len(self.log.manifest.view or ())
        for _ in range(segments + 2):
            if self.compact().result == "nothing to do":
                return
        raise AssertionError(f"{segments + 2} runs and still something to do")

    def lose_index(self) -> None:
        """A key index goes, or has a byte that it should not have."""
        names = [name for name in self.fs.list(self.directory) if name.endswith(".keys")]
        if not names:
            return
        path = f"{self.directory}/{self.rng.choice(names)}"
        with self.fs.open_read(path) as file:
            data = bytearray(file.pread(file.size(), 0))
        self.fs.remove(path)
        if self.rng.random() < 0.7:
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            with self.fs.open_append(path) as file:
                file.write(data)

    def judged(self, now_ms: int) -> None:
        """A run that began at a time has been published."""
        self.oracle.run(self.rules(), self.log.manifest.horizon, now_ms)

    def trim(self) -> None:
        """What was compacted leaves the log, up to some segment."""
        self.log.drop_head(self.rng.randint(0, max(self.log.manifest.horizon + 1, 0)))
        self.log.reclaim()

    def strays(self) -> list[str]:
        """Unknown files."""
        return strays(self.fs, self.directory, self.log.manifest)

    # --- holding it against the oracle ------------------------------------------------------

    def check(self) -> None:
        with self.log.snapshot("check") as snapshot:
            self.check_snapshot(snapshot, self.oracle.view())
        self._check_facts()

    def check_snapshot(self, snapshot: Snapshot, expected: list[Sent]) -> None:
        """All of it, and what there is from every position on."""
        entries = list(snapshot.read(compacted=True))
        assert list(snapshot.read_backward(compacted=True)) == entries[::-1]
        positions = [entry.position for entry in entries]
        assert positions == sorted(set(positions))
        for at, position in enumerate(positions):
            for start in (position, positions[at - 1] + 1 if at else 0):
                assert snapshot.find(start, compacted=True) == position
        if entries:
            at = self.rng.randrange(len(entries))
            assert list(snapshot.read(positions[at], compacted=True)) == entries[at:]
        found = [each for entry in entries for each in self.opened(entry)]
        assert_same(found, expected)

    def opened(self, entry: LogEntry) -> list[Sent]:
        """The messages of an entry as it was read, as the project and as the oracle opens it."""
        shrunk = bool(entry.flags & FLAG_SHRUNK)
        if not shrunk:
            assert entry.body == self.bodies[entry.position], "not what the producer sent"
        found = messages_of(entry.position, entry.body, shrunk=shrunk, live=entry.live)
        assert found, "an entry without a message"
        if not found[0].opaque and not found[0].marker:
            ids = [(m.id.ledger << 32 | m.id.entry, m.id.batch_index) for m in decode_entry(entry)]
            assert ids == [each.id for each in found]
        return found

    def _check_facts(self) -> None:
        state, kept = self.log.manifest.state, self.oracle.kept
        if self.log.manifest.view is None:
            return
        assert state[VIEW_MESSAGES] == len(kept)
        last = state[LAST_MESSAGE]
        assert (last is None) is (not kept)
        if kept:
            assert last[0] == kept[-1].position
            assert kept[-1].opaque or last[1] == kept[-1].slot


def grown(fs: FileSystem, seed: int, settings: TopicCompactionSettings | None = None) -> Life:
    """A topic with a view of some segments, dead sets and partly live batches, and new entries."""
    life = Life(fs, random.Random(seed), ManualClock(), settings or TopicCompactionSettings())
    for count in (24, 12, 8):
        life.send(count)
        life.log.roll()
        life.send(3)
        life.compact()
    life.trim()
    life.send(25)
    life.log.roll()
    life.send(5)
    life.check()
    return life


def assert_same(found: list[Sent], expected: list[Sent]) -> None:
    there, due = {each.id for each in found}, {each.id for each in expected}
    assert not due - there, f"missing: {[each for each in expected if each.id not in there]}"
    assert not there - due, f"not dead: {[each for each in found if each.id not in due]}"
    assert found == expected
