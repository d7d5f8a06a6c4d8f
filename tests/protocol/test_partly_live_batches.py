"""What the real client makes of batches that lost messages, in every form they can be sent in.

The entry 5:0 is a batch of six messages of which 1, 3 and 5 are live, or 0 and 1; 5:1 is a message
of its own. docs/topic-compaction.md has a table of what comes out here, and what follows from it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lithify.log.segments.frame import LogEntry
from lithify.positions import pack
from lithify.topics.messages.message import FLAG_SHRUNK, encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata, SingleMessageMetadata
from lithify.topics.subscriptions.compacted_batch import BatchForm, to_wire
from tests.protocol.partly_live_client import LEDGER, receive, seek
from tests.protocol.scripted import Scripted
from tests.unit.topics.segments import shrink

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLES, PREFIX, ONE = (1, 3, 5), (0, 1), (3,)
SLOTS = 6


def batch() -> bytes:
    rows = []
    for slot in range(SLOTS):
        single = SingleMessageMetadata(payload_size=2, partition_key=f"k{slot}")
        head = single.SerializeToString()
        rows += [len(head).to_bytes(4, "big"), head, b"v%d" % slot]
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=SLOTS
    )
    return encode_entry(metadata, b"".join(rows))


def serve(live: tuple[int, ...], form: BatchForm, *, stored_whole: bool) -> Scripted:
    mask = sum(1 << slot for slot in live)
    if stored_whole:
        entry = LogEntry(pack(LEDGER, 0), 1, batch(), tag=SLOTS, live=mask)
    else:
        body = shrink(batch(), mask, shrunk=False)
        entry = LogEntry(pack(LEDGER, 0), 1, body, FLAG_SHRUNK, SLOTS)
    metadata = MessageMetadata(producer_name="p", sequence_id=9, publish_time=1)
    alone = LogEntry(pack(LEDGER, 1), 1, encode_entry(metadata, b"alone"), tag=1)
    return Scripted([to_wire(entry, None, form), to_wire(alone, None, form)])


@pytest.fixture
def brokers() -> Iterator[list[Scripted]]:
    started: list[Scripted] = []
    yield started
    for each in started:
        each.kill()


def outcome(
    broker: Scripted, brokers: list[Scripted], count: int, how: str, *, with_indexes: bool = False
) -> tuple[list[list[Any]], list[tuple[str, int, int | None]]]:
    brokers.append(broker)
    broker.start()
    process = broker.start_case(receive, count=count, how=how, with_indexes=with_indexes)
    found = json.loads(broker.heard(process, "received"))
    broker.finish(process)
    return found, broker.acks


BY_SLOT = [[0, 1, "v1"], [0, 3, "v3"], [0, 5, "v5"], [1, -1, "alone"]]
BY_RANK = [[0, 0, "v1"], [0, 1, "v3"], [0, 2, "v5"], [1, -1, "alone"]]


@pytest.mark.parametrize("stored_whole", [False, True])
@pytest.mark.parametrize("form", [BatchForm.STORED, BatchForm.SLOTS])
def test_masked_batches_show_what_is_live_with_the_ids_it_always_had(
    brokers: list[Scripted], form: BatchForm, stored_whole: bool
) -> None:
    broker = serve(HOLES, form, stored_whole=stored_whole)
    found, acks = outcome(broker, brokers, 4, "each")
    assert found == BY_SLOT
    # One by one: of the masked batch nothing is ever heard.
    assert acks == [("Individual", 1, None)]


def test_masked_batches_and_cumulative_acknowledgements(brokers: list[Scripted]) -> None:
    broker = serve(HOLES, BatchForm.SLOTS, stored_whole=False)
    assert outcome(broker, brokers, 4, "last")[1] == [("Cumulative", 1, None)]
    broker = serve(HOLES, BatchForm.SLOTS, stored_whole=False)
    assert outcome(broker, brokers, 4, "last of the batch")[1] == [("Cumulative", 0, None)]


def test_dead_slots_at_the_end_must_be_cut_off_for_old_clients(brokers: list[Scripted]) -> None:
    live = (1, 3)
    broker = serve(live, BatchForm.STORED, stored_whole=True)
    assert outcome(broker, brokers, 3, "last of the batch")[1] == [("Cumulative", -1, None)]
    broker = serve(live, BatchForm.SLOTS, stored_whole=True)
    assert outcome(broker, brokers, 3, "last of the batch")[1] == [("Cumulative", 0, None)]


def test_masked_batches_and_acknowledgements_by_index(brokers: list[Scripted]) -> None:
    broker = serve(HOLES, BatchForm.SLOTS, stored_whole=False)
    found, acks = outcome(broker, brokers, 4, "each", with_indexes=True)
    assert found == BY_SLOT
    left = [bits for _, entry, bits in acks if entry == 0]
    # The client speaks of slots that it was not to deliver as if they were left.
    assert left[-1] == 0b010101
    assert broker.batches[0].left_of(0b010101) == 0


def test_a_prefix_needs_no_mask(brokers: list[Scripted]) -> None:
    broker = serve(PREFIX, BatchForm.SLOTS, stored_whole=False)
    found, acks = outcome(broker, brokers, 3, "each")
    assert found == [[0, 0, "v0"], [0, 1, "v1"], [1, -1, "alone"]]
    assert acks == [("Individual", 0, None), ("Individual", 1, None)]


def test_packed_batches_are_acknowledged_in_every_way(brokers: list[Scripted]) -> None:
    broker = serve(HOLES, BatchForm.PACKED, stored_whole=False)
    found, acks = outcome(broker, brokers, 4, "each")
    assert found == BY_RANK
    assert acks == [("Individual", 0, None), ("Individual", 1, None)]
    broker = serve(HOLES, BatchForm.PACKED, stored_whole=False)
    assert outcome(broker, brokers, 4, "first")[1] == []
    broker = serve(HOLES, BatchForm.PACKED, stored_whole=False)
    assert outcome(broker, brokers, 4, "last of the batch")[1] == [("Cumulative", 0, None)]
    broker = serve(HOLES, BatchForm.PACKED, stored_whole=False)
    _, acks = outcome(broker, brokers, 4, "first", with_indexes=True)
    assert acks == [("Individual", 0, 0b110)]
    assert broker.batches[0].left_of(0b110) == 1 << 3 | 1 << 5
    broker = serve(ONE, BatchForm.PACKED, stored_whole=False)
    assert outcome(broker, brokers, 2, "each") == (
        [[0, 0, "v3"], [1, -1, "alone"]],
        [("Individual", 0, None), ("Individual", 1, None)],
    )


@pytest.mark.parametrize(("index", "expected"), [(1, BY_SLOT[1:]), (2, BY_SLOT[1:])])
def test_a_batch_that_is_sought_by_a_rank_and_sent_by_slots_misses_nothing(
    brokers: list[Scripted], index: int, expected: list[list[Any]]
) -> None:
    """The ids 5:0:1 and 5:0:2 were the slots 3 and 5 when the batch was packed."""
    broker = serve(HOLES, BatchForm.SLOTS, stored_whole=False)
    brokers.append(broker)
    broker.start()
    process = broker.start_case(seek, index=index)
    assert json.loads(broker.heard(process, "received")) == expected
    broker.finish(process)
