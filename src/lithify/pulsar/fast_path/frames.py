"""The compiled fast paths of all messages: parse SEND frames, write MESSAGE frames.

A generated parser takes microseconds per message, these loops a fraction of one. They implement
four protobuf messages (CommandSend, CommandSendReceipt, CommandMessage, MessageMetadata), and must
agree with the generated code; tests compare the two.

Producing, for the received bytes of a connection:

1. `scan_sends` parses SEND frames from the front: ids, byte ranges, CRC and metadata of each. It
   stops at the first frame that is not a SEND, incomplete, too large or malformed.
2. Such a frame, unless it is incomplete, goes to `framing.next_frame`, which parses or refuses it.
3. A row with the flag `UNUSUAL` contains a field that this module does not parse (a transaction, a
   marker, an id given by the client, indexes of a compacted batch, an unknown compression). Only
   its byte ranges are valid; the caller parses it with the generated code.
4. Once entries are durable, `write_receipts` writes the receipts of a run.

Dispatching, for entries read from the log: `messages` copies a run of small entries, each behind
its header (`write_messages`), for one send. `message_header` makes the header of a single entry
that is large or needs more fields (an ack set, a redelivery count, an epoch).

Invariants: no byte outside the given range is read or written, for any input. The generated code
parses every row that is neither `UNUSUAL` nor `BAD_METADATA` and has no bad CRC, with the same
values.

Pure. Used by sessions; `check_batch` also by the code that makes batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import InvalidInput
from lithify.pulsar.fast_path import read_kernels, write_kernels
from lithify.pulsar.fast_path.read_kernels import (
    BAD_BATCH,
    BAD_CRC,
    BAD_METADATA,
    BATCH,
    CHUNK,
    CHUNK_ID,
    DELAYED,
    ENCRYPTED,
    END,
    FULL,
    GOOD_CRC,
    KEYED,
    LARGE_BATCH,
    MARKER,
    NEED_MORE,
    NO_CRC,
    NOT_A_SEND,
    NULL_VALUE,
    OVER_LIMIT,
    UNUSUAL,
)
from lithify.pulsar.fast_path.write_kernels import MESSAGE_HEADER_BYTES_MAX, RECEIPT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lithify.checksum import Buffer

__all__ = [
    "BAD_BATCH",
    "BAD_CRC",
    "BAD_METADATA",
    "BATCH",
    "CHUNK",
    "CHUNK_ID",
    "DELAYED",
    "ENCRYPTED",
    "END",
    "FULL",
    "GOOD_CRC",
    "KEYED",
    "LARGE_BATCH",
    "MARKER",
    "MESSAGE_HEADER_BYTES_MAX",
    "NEED_MORE",
    "NOT_A_SEND",
    "NO_CRC",
    "NULL_VALUE",
    "OVER_LIMIT",
    "RECEIPT_BYTES_MAX",
    "SENDS_MAX",
    "UNUSUAL",
    "Sends",
    "check_batch",
    "message_header",
    "messages",
    "scan_sends",
    "signed",
    "write_messages",
    "write_receipts",
]

SENDS_MAX = 1000
"""Rows of one scan. A column then has 8000 bytes: with 8192, all columns would map to the same sets
of the L1 cache."""

_SEND_FRAME_BYTES_MIN = 17
"""Sizes: 8; type and length: 4; two ids: 4; entry: 1."""

_NO_WORDS = np.empty(0, dtype=np.int64)
_SIGNED_MAX = 2**63 - 1


class _Column:
    """One column of `Sends`, sliced on access: most scans have one or two frames."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __get__(self, sends: Sends, owner: type[Sends]) -> NDArray[np.int64]:
        column: NDArray[np.int64] = sends.rows[self._number]
        return column


@dataclass(frozen=True, slots=True)
class Sends:
    """Consecutive SEND frames; every column has one number per frame.

    Offsets are into the scanned array. The protocol's uint64 fields are int64 with the same bits,
    so the largest is -1, as in Pulsar. The metadata of an entry with a bad CRC is not parsed; its
    columns have their defaults.
    """

    rows: NDArray[np.int64]
    """The columns below, by their numbers in `read_kernels`."""
    stop: int
    """Where the scan stopped."""
    why: int
    """Why the scan stopped. `END`: at the end of the data; `NEED_MORE`: at an incomplete frame;
    `FULL`: rows full, continue at `stop`; `NOT_A_SEND`: at another or a malformed frame;
    `OVER_LIMIT`: at a frame above the limit; `LARGE_BATCH`: at a batch above `messages_max`."""

    plain: bool
    """All frames are of one producer, and none has a bad CRC, `UNUSUAL` or a `BAD_…` flag."""

    frame_starts = _Column(read_kernels.FRAME_START)
    entry_starts = _Column(read_kernels.ENTRY_START)
    """The first byte to store: the CRC's magic, or without a CRC the metadata's size."""
    payload_starts = _Column(read_kernels.PAYLOAD_START)
    """The end of the metadata; the end of the entry if the metadata is bad."""
    entry_stops = _Column(read_kernels.ENTRY_STOP)
    """The end of the entry and of its frame."""
    producer_ids = _Column(read_kernels.PRODUCER_ID)
    sequence_ids = _Column(read_kernels.SEQUENCE_ID)
    highest_sequence_ids = _Column(read_kernels.HIGHEST_SEQUENCE_ID)
    """0 if absent."""
    num_messages = _Column(read_kernels.NUM_MESSAGES)
    """The count in the command, 1 if absent. It is not validated: do not rely on it."""
    crcs = _Column(read_kernels.CRC)
    """`NO_CRC`, `GOOD_CRC` or `BAD_CRC`."""
    entry_crcs = _Column(read_kernels.ENTRY_CRC)
    """CRC-32C of all bytes of a large entry. -1 for others: it is not computed here, and costs
    little."""
    flags = _Column(read_kernels.FLAGS)
    """`CHUNK` is the command's is_chunk and `NULL_VALUE` the metadata's null_value. Presence in the
    metadata: `BATCH` num_messages_in_batch, `KEYED` partition_key, `MARKER` marker_type, `DELAYED`
    deliver_at_time, `ENCRYPTED` encryption_keys, `CHUNK_ID` chunk_id. Then `UNUSUAL`,
    `BAD_METADATA`, and `BAD_BATCH`: no message, more than `BATCH_MESSAGES_MAX`, or a count that
    differs from the payload. A compressed or encrypted batch is not decoded: its count must fit its
    uncompressed size, and that size must be possible for its compressed bytes."""
    publish_times_ms = _Column(read_kernels.PUBLISH_TIME)
    metadata_sequence_ids = _Column(read_kernels.METADATA_SEQUENCE_ID)
    nums_in_batch = _Column(read_kernels.NUM_IN_BATCH)
    """1 if absent."""
    deliver_at_times_ms = _Column(read_kernels.DELIVER_AT_TIME)
    """0 if absent."""
    compressions = _Column(read_kernels.COMPRESSION)
    """Values of CompressionType."""
    uncompressed_bytes = _Column(read_kernels.UNCOMPRESSED_SIZE)
    """0 if absent."""

    def __len__(self) -> int:
        return int(self.rows.shape[1])


def signed(number: int) -> int:
    """Convert a uint64 of the protocol to the int64 with the same bits."""
    return number if number <= _SIGNED_MAX else number - 2**64


def scan_sends(
    data: NDArray[np.uint8],
    start: int,
    stop: int,
    limit_bytes: int,
    messages_max: int = _SIGNED_MAX,
) -> Sends:
    """Parse the SEND frames at the front of `data[start:stop]`; see the module docstring.

    `limit_bytes` is that of `framing.next_frame`. The scan stops before the batch whose messages
    would exceed a total of `messages_max`. With a limit, it also stops before metadata larger than
    128 KiB. Any thread may call it.
    """
    if not 0 <= start <= stop <= data.size:
        raise InvalidInput(f"range {start}..{stop} is not inside an array of {data.size} bytes")
    rows_max = min(SENDS_MAX, (stop - start) // _SEND_FRAME_BYTES_MIN + 1)
    rows = np.empty((read_kernels.COLUMNS, rows_max), dtype=np.int64)
    count, at, why, plain = read_kernels.scan_sends(
        data, start, stop, limit_bytes, rows, messages_max
    )
    return Sends(rows[:, :count], at, why, plain)


def check_batch(data: NDArray[np.uint8], start: int, stop: int, num_messages: int) -> bool:
    """Whether `data[start:stop]`, a batch's decoded payload, has exactly `num_messages` messages.

    C++ clients trust the count and crash on a batch with fewer messages.
    """
    if not 0 <= start <= stop <= data.size:
        raise InvalidInput(f"range {start}..{stop} is not inside an array of {data.size} bytes")
    return bool(read_kernels.check_batch(data, start, stop, num_messages))


def write_receipts(
    out: NDArray[np.uint8],
    producer_ids: NDArray[np.int64],
    sequence_ids: NDArray[np.int64],
    highest_sequence_ids: NDArray[np.int64],
    ledger: int,
    first_entry: int,
) -> int:
    """Write SEND_RECEIPT frames of entries with consecutive numbers; returns the bytes written."""
    need_bytes = len(producer_ids) * RECEIPT_BYTES_MAX
    if out.size < need_bytes:
        raise InvalidInput(f"receipts need room for {need_bytes} bytes, there are {out.size}")
    if not len(producer_ids) == len(sequence_ids) == len(highest_sequence_ids):
        raise InvalidInput("receipts need as many producer ids as sequence ids")
    written: int = write_kernels.write_receipts(
        out, producer_ids, sequence_ids, highest_sequence_ids, ledger, first_entry
    )
    return written


def message_header(
    consumer_id: int,
    ledger: int,
    entry: int,
    partition: int,
    redelivery_count: int,
    ack_set_words: Sequence[int],
    entry_bytes: int,
    consumer_epoch: int | None,
) -> bytes:
    """The bytes before an entry of `entry_bytes` in a MESSAGE frame.

    `partition` is -1 for none. The words of an ack set are signed. A set bit is a message of the
    batch to deliver; an empty ack set means all messages.
    """
    words = np.array(ack_set_words, dtype=np.int64) if ack_set_words else _NO_WORDS
    epoch = -1 if consumer_epoch is None else consumer_epoch
    out = np.empty(MESSAGE_HEADER_BYTES_MAX + 11 * len(words), dtype=np.uint8)
    end = write_kernels.write_header(
        out,
        0,
        signed(consumer_id),
        ledger,
        entry,
        partition,
        redelivery_count,
        words,
        epoch,
        entry_bytes,
    )
    return out[:end].tobytes()


def messages(
    bodies: Sequence[Buffer], positions: NDArray[np.int64], consumer_id: int, partition: int
) -> memoryview:
    """MESSAGE frames of complete entries on their first delivery; `positions` are packed."""
    lengths = np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies))
    data = np.frombuffer(bytearray().join(bodies), dtype=np.uint8)
    out = np.empty(data.size + len(bodies) * MESSAGE_HEADER_BYTES_MAX, dtype=np.uint8)
    size, _ = write_messages(
        out, data, np.cumsum(lengths) - lengths, lengths, positions, consumer_id, partition
    )
    return out.data[:size]


def write_messages(
    out: NDArray[np.uint8],
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    positions: NDArray[np.int64],
    consumer_id: int,
    partition: int,
) -> tuple[int, int]:
    """Write MESSAGE frames of the first entries that fit; returns (bytes written, entries written).

    `positions` are packed. An entry is written if `out` has room for `MESSAGE_HEADER_BYTES_MAX` and
    the entry.
    """
    if not len(offsets) == len(lengths) == len(positions):
        raise InvalidInput("entries need as many offsets as lengths and positions")
    written, count = write_kernels.write_messages(
        out, data, offsets, lengths, positions, signed(consumer_id), partition, _NO_WORDS
    )
    if written < 0:
        raise InvalidInput(
            f"entry at {offsets[count]} of {lengths[count]} bytes is not inside an array of"
            f" {data.size} bytes"
        )
    return written, count
