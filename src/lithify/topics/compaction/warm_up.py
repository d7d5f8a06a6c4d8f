"""Runs the compiled code of a topic compaction once, over a few messages in memory.

The first call of compiled code loads it, which takes most of a second in total. Spark's workers are
forked from a process that has called `warm_up` (`pipeline/python_daemon.py`), so none of them has
to load it:

1. Append batches, plain and compressed, and single messages to a log in memory. The last message
   supersedes some of the earlier ones.
2. Compute the live set as a run does, with key indexes and dead sets.
3. Rewrite the segment, which shrinks the batches.

The call leaves no state and touches nothing outside memory.
"""

from __future__ import annotations

from lithify.clock import ManualClock
from lithify.compaction.limits.budget import Budget
from lithify.compaction.live_set_rules.dead_sets import judge_segments
from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion
from lithify.compaction.rewrite.rewrite import RewriteTask, run_rewrite
from lithify.compaction.tasks.jobs import LocalJobs, ignore_progress, no_check
from lithify.fs import MemoryFileSystem
from lithify.log.file_names import segment_name
from lithify.log.log import Log
from lithify.positions import PACKED
from lithify.settings import Durability, LogSettings
from lithify.topics.compaction.live_messages import TopicRule
from lithify.topics.compaction.shrink_batches import TopicRewriting
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.messages.message import compress, encode_entry
from lithify.topics.messages.message_pb2 import (
    LZ4,
    NONE,
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)

__all__ = ["warm_up"]

_SETTINGS = LogSettings(durability=Durability.NONE)


def warm_up() -> None:
    """Call every compiled loop that the tasks of a run use."""
    fs, clock = MemoryFileSystem(), ManualClock()
    with Log.open(fs, "/log", kind="topic", settings=_SETTINGS, rule=PACKED, clock=clock) as log:
        log.append_many([_batch(NONE), _batch(LZ4), _single(b"0"), _single(b"1")])
        log.roll()
        manifest = log.manifest
        sealed = [segment for segment in manifest.segments if segment.sealed]
        question = LiveSetQuestion(
            fs=fs,
            directory=log.directory,
            log_id=manifest.log_id,
            segments=sealed,
            horizon=sealed[-1].last_position,
            as_of_ms=clock.now_ms(),
            budget=Budget(),
            jobs=LocalJobs(),
            check=no_check,
            progress=ignore_progress,
            before_read=lambda _: None,
        )
        judged = judge_segments(question, TopicRule(TopicCompactionSettings, lambda: -1), "warm")
        task = RewriteTask(
            fs,
            log.directory,
            judged.segments,
            segment_name(sealed[0].id, "warm"),
            clock.now_ms(),
            rewriting=TopicRewriting(manifest.log_id),
            clock=clock,
        )
        run_rewrite(task, no_check)


def _single(value: bytes) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key="a")
    return encode_entry(metadata, value)


def _batch(codec: CompressionType) -> bytes:
    """Two messages; the first has the key of the single messages."""
    payload = b""
    for key in ("a", f"b{codec}"):
        head = SingleMessageMetadata(partition_key=key, payload_size=1).SerializeToString()
        payload += len(head).to_bytes(4, "big") + head + b"v"
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=2,
        compression=codec,
        uncompressed_size=len(payload),
    )
    return encode_entry(metadata, compress(codec, payload))
