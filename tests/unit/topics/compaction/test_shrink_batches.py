"""Partly live batches in a rewrite: what is in the target, and its key index."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lithify.checksum import crc32c
from lithify.clock import ManualClock
from lithify.compaction.limits.budget import Budget
from lithify.compaction.rewrite.rewrite import RewriteTask, run_rewrite
from lithify.compaction.tasks.jobs import no_check
from lithify.errors import InvalidInput
from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import DeadSet, Parts
from lithify.log.file_names import key_index_name
from lithify.log.key_index.key_index import COLUMNS, ORDER_PUBLISH
from lithify.log.log import Log
from lithify.log.manifest import DeadRef
from lithify.log.open_segments import OpenSegment
from lithify.log.segments.frame import decode_frame
from lithify.log.segments.scan import Frames, scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.topics.compaction.build_key_index import IndexTask, has_index, open_index, run_index
from lithify.topics.compaction.shrink_batches import TopicRewriting, shrink_frames
from lithify.topics.messages.entry_flags import FLAG_BATCH
from lithify.topics.messages.message import FLAG_SHRUNK, compress, decode_entry, encode_entry
from lithify.topics.messages.message_pb2 import (
    LZ4,
    NONE,
    ZSTD,
    CompressionType,
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.unit.topics.segments import shrink

if TYPE_CHECKING:
    from lithify.checksum import Buffer
    from lithify.fs import FileSystem
    from lithify.log.key_index.key_index import KeyRows
    from lithify.log.manifest import SegmentRef
    from lithify.log.segments.frame import LogEntry

DIRECTORY = "/topic"
TARGET = "000000000001-t1.seg"
SLOTS = 100


def batch(number: int, codec: CompressionType = NONE, slots: int = SLOTS) -> bytes:
    rows = []
    for slot in range(slots):
        value = b"value %d of batch %d " % (slot, number) * 3
        key = f"key {number} {slot}"
        single = SingleMessageMetadata(payload_size=len(value), partition_key=key, event_time=slot)
        head = single.SerializeToString()
        rows += [len(head).to_bytes(4, "big"), head, value]
    plain = b"".join(rows)
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=number,
        publish_time=1000 + number,
        num_messages_in_batch=slots,
    )
    if codec:
        metadata.compression = codec
        metadata.uncompressed_size = len(plain)
    return encode_entry(metadata, compress(codec, plain))


def single(number: int) -> bytes:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=number, publish_time=1000, partition_key=f"single {number}"
    )
    return encode_entry(metadata, b"value")


class Story:
    """Two sealed segments of batches in several codecs and single messages, indexed."""

    def __init__(self) -> None:
        self.fs: FileSystem = MemoryFileSystem()
        log = Log.open(self.fs, DIRECTORY, kind="topic", clock=ManualClock())
        for number in range(20):
            if number % 4 == 3:
                log.append(single(number), time_ms=1000 + number, tag=1)
            else:
                body = batch(number, (NONE, LZ4, ZSTD)[number % 4])
                log.append(body, time_ms=1000 + number, flags=FLAG_BATCH, tag=SLOTS)
            if number in {9, 19}:
                log.roll()
        self.sources = list(log.manifest.segments[:2])
        self.log_id = log.manifest.log_id
        log.close()
        for source in self.sources:
            run_index(self.index_task(source), no_check)

    def index_task(self, segment: SegmentRef) -> IndexTask:
        return IndexTask(self.fs, DIRECTORY, segment, self.log_id, ORDER_PUBLISH, Budget())

    def rows(self, segment: SegmentRef) -> KeyRows:
        with open_index(self.index_task(segment)) as index:
            return index.read()

    def entries(self, segment: SegmentRef) -> list[LogEntry]:
        opened = OpenSegment(self.fs, DIRECTORY, segment)
        with opened.file:
            first = segment.first_position - 1
            return [
                entry
                for frames in scan_frames(
                    opened.file, SEGMENT_HEADER_BYTES, opened.frames_end, first
                )
                for entry in frames.entries()
            ]

    def judge(self, segment: SegmentRef, dead: list[int], live: dict[int, list[int]]) -> SegmentRef:
        """The segment with these positions dead and of these only these slots live."""
        pairs = [(position, slot) for position, slots in live.items() for slot in slots]
        positions, slots = np.array(pairs).T
        width = np.full(len(pairs), SLOTS, np.uint32)
        parts = Parts.of(positions, slots.astype(np.int32), width)
        data = DeadSet(LiveSet.from_array(np.array(dead, np.int64)), parts).to_bytes()
        name = f"{segment.name}.dead"
        with self.fs.open_append(f"{DIRECTORY}/{name}") as file:
            file.write(data)
        ref = DeadRef(name, len(dead), 0, len(data), crc32c(data), len(parts))
        return replace(segment, dead=ref)

    def rewrite(self, sources: list[SegmentRef]) -> SegmentRef:
        rewriting = pickle.loads(pickle.dumps(TopicRewriting(self.log_id)))
        task = RewriteTask(self.fs, DIRECTORY, tuple(sources), TARGET, 5, rewriting=rewriting)
        return run_rewrite(task, no_check).target


LIVE = {1: [0, 1, 99], 2: [50], 4: [3, 64, 65], 8: list(range(99))}
LATER = {12: [1], 13: list(range(0, 100, 3))}


def test_the_target_has_what_is_live_at_the_same_positions_and_slots() -> None:
    story = Story()
    entries = [entry for source in story.sources for entry in story.entries(source)]
    before = [message for entry in entries for message in decode_entry(entry)]
    first = story.judge(story.sources[0], [0, 3], LIVE)
    second = story.judge(story.sources[1], [10, 19], LATER)
    target = story.rewrite([first, second])
    live = LIVE | LATER
    gone = {0, 3, 10, 19}
    expected = [
        message
        for message in before
        if message.id.entry not in gone
        and (message.id.entry not in live or message.id.batch_index in live[message.id.entry])
    ]
    entries = story.entries(target)
    found = [message for entry in entries for message in decode_entry(entry)]
    assert found == expected
    assert {entry.position for entry in entries if entry.flags & FLAG_SHRUNK} == set(live)
    assert {entry.tag for entry in entries if entry.flags & FLAG_BATCH} == {SLOTS}


def test_the_index_of_the_target_is_the_one_that_would_be_made_of_it() -> None:
    story = Story()
    first = story.judge(story.sources[0], [0, 3], LIVE)
    second = story.judge(story.sources[1], [10, 19], LATER)
    target = story.rewrite([first, second])
    assert has_index(story.index_task(target))
    merged = story.rows(target)
    with open_index(story.index_task(target)) as index:
        facts = index.facts
    assert run_index(story.index_task(target), no_check) == facts
    made = story.rows(target)
    # A message's share of its frame is the one that it had: frames grow by their lists of slots.
    for name in COLUMNS.keys() - {"length"}:
        assert np.array_equal(getattr(merged, name), getattr(made, name)), name
    assert abs(int(merged.length.sum()) - target.frame_bytes) < target.frame_bytes / 10


def test_a_shrunk_batch_is_shrunk_again_or_copied() -> None:
    story = Story()
    first = story.rewrite([story.judge(story.sources[0], [], LIVE)])
    again = story.judge(first, [2], {1: [1], 4: [3, 64, 65]})
    rewriting = TopicRewriting(story.log_id)
    task = RewriteTask(story.fs, DIRECTORY, (again,), "000000000001-t2.seg", 6, rewriting=rewriting)
    second = run_rewrite(task, no_check).target
    before = {entry.position: entry for entry in story.entries(first)}
    after = {entry.position: entry for entry in story.entries(second)}
    assert [message.id.batch_index for message in decode_entry(after[1])] == [1]
    assert after[4] == before[4]
    assert 2 not in after
    merged = story.rows(second)
    run_index(story.index_task(second), no_check)
    made = story.rows(second)
    assert np.array_equal(merged.slots, made.slots)
    assert np.array_equal(merged.slot, made.slot)


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_without_a_whole_index_of_every_source_the_target_has_none(damage: str) -> None:
    story = Story()
    path = f"{DIRECTORY}/{key_index_name(story.sources[1].name)}"
    if damage == "missing":
        story.fs.remove(path)
    else:
        with story.fs.open_read(path) as file:
            data = bytearray(file.pread(file.size(), 0))
        if damage == "cut":
            del data[-1]
        else:
            data[-1] ^= 1
        with story.fs.open_append(path) as file:
            file.truncate(0)
            file.write(data)
    target = story.rewrite([story.judge(story.sources[0], [], LIVE), story.sources[1]])
    assert not story.fs.exists(f"{DIRECTORY}/{key_index_name(TARGET)}")
    assert run_index(story.index_task(target), no_check).messages > 0


def test_frames_that_are_wholly_live_stay_as_they_are() -> None:
    story = Story()
    opened = OpenSegment(story.fs, DIRECTORY, story.sources[0])
    with opened.file:
        (frames,) = scan_frames(opened.file, SEGMENT_HEADER_BYTES, opened.frames_end, -1)
        parts = Parts.of(np.array([4]), np.array([7], np.int32), np.array([8], np.uint32))
        made = shrink_frames(frames, parts)
    entries, kept = list(made.entries()), list(frames.entries())
    assert [entry for entry in entries if entry.position != 4] == [
        entry for entry in kept if entry.position != 4
    ]
    (message,) = decode_entry(entries[4])
    assert message.key == b"key 4 7"
    # The frame's own CRC is checked by this.
    assert decode_frame(made.buffer.tobytes(), int(made.offsets[4]), "made") == entries[4]


def test_a_live_slot_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="a live message is missing in it"):
        shrink(batch(1, slots=3), 1 << 3, shrunk=False)
    smaller = shrink(batch(1, slots=3), 0b101, shrunk=False)
    with pytest.raises(InvalidInput, match="0:0 cannot be shrunk"):
        shrink(smaller, 0b110, shrunk=True)


def test_wrong_compression_is_found_before_the_batch_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The codec's fault must not become the topic's."""

    def wrongly(codec: int, plain: bytes) -> Buffer:
        return compress(codec, plain[:-1] + b"?")

    monkeypatch.setattr("lithify.topics.compaction.shrink_batches.compress", wrongly)
    for codec in (LZ4, ZSTD):
        with pytest.raises(InvalidInput, match="verification of the shrunk batch failed"):
            shrink(batch(1, slots=4, codec=codec), 0b101, shrunk=False)


def test_an_encrypted_batch_is_not_opened() -> None:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=3
    )
    metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    with pytest.raises(InvalidInput, match="encrypted"):
        shrink(encode_entry(metadata, b"secret"), 1, shrunk=False)


def test_data_that_is_no_batch_is_not_shrunk() -> None:
    for body in (b"", b"\0\0\0\x7f", single(1)):
        with pytest.raises(InvalidInput, match="cannot be shrunk"):
            shrink(body, 1, shrunk=False)


def test_frames_come_out_as_a_value_of_their_own() -> None:
    body = batch(1, slots=4)
    story = Frames(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
    assert len(shrink_frames(story, Parts.empty())) == 0
    assert shrink(memoryview(body), 0b1, shrunk=False) == shrink(body, 0b1, shrunk=False)
