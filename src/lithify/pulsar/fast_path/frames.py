"""The two paths every message takes, compiled: SEND frames in and MESSAGE frames out.

A generated parser costs microseconds a message, these loops a fraction of one. They know the bytes
of four messages (CommandSend, CommandSendReceipt, CommandMessage, MessageMetadata) and must say the
same as the generated code; tests hold the two together.

Producing, for the bytes a connection has received:

1. `scan_sends` reads SEND frames from the front: ids, byte ranges, CRC and metadata of each. It
   stops at the first frame that is something else, not complete, too large or malformed.
2. Any of these but an incomplete one goes to `framing.next_frame`, which cuts it out or refuses it.
3. A row flagged `UNUSUAL` has something in it that this module does not read (a transaction, a
   marker, an id given by the client, indexes of a compacted batch, an unknown compression): only
   its byte ranges count, the caller parses it with the generated code.
4. Once entries are durable, `write_receipts` makes the answers of a run of them.

Dispatching, for entries read from the log: `messages` copies a run of small ones, each behind its
header (`write_messages`), for one send; `message_header` makes the header of an entry that is large
or has more to it (an ack set, a redelivery count, an epoch).

Invariants: no byte outside the given range is read or written, whatever the bytes are. A row that
is neither `UNUSUAL` nor `BAD_METADATA`, and whose CRC is not bad, is one that the generated code
parses and reads in the same way.

Pure. For sessions; `check_batch` also for whoever makes a batch.
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
"""Rows of one scan. A column is then 8000 bytes: with 8192 all columns would fight over the same
few lines of the CPU's first cache."""

_SEND_FRAME_BYTES_MIN = 17
"""8 of sizes, 4 for type and length, 2 ids of 2 bytes, an entry of 1."""

_NO_WORDS = np.empty(0, dtype=np.int64)
_SIGNED_MAX = 2**63 - 1


class _Column:
    """One column of `Sends`, cut out when it is asked for: most scans are of a frame or two."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __get__(self, sends: Sends, owner: type[Sends]) -> NDArray[np.int64]:
        column: NDArray[np.int64] = sends.rows[self._number]
        return column


@dataclass(frozen=True, slots=True)
class Sends:
    """SEND frames that stand one after the other; every column has a number for each.

    Offsets are into the scanned array. What the protocol has as uint64 is int64 here, so that the
    largest reads -1, as in Pulsar itself. Of an entry whose CRC is bad the metadata was not read:
    its columns have their defaults.
    """

    rows: NDArray[np.int64]
    """The columns below, by their numbers in `read_kernels`."""
    stop: int
    """Where the scan stopped."""
    why: int
    """`END`; `NEED_MORE` inside a frame; `FULL`, go on at `stop`; `NOT_A_SEND`, which a malformed
    frame is too; `OVER_LIMIT`; `LARGE_BATCH`, one that takes longer than was to be checked."""

    plain: bool
    """All are of one producer, and none has a bad CRC or is `UNUSUAL` or `BAD_…`."""

    frame_starts = _Column(read_kernels.FRAME_START)
    entry_starts = _Column(read_kernels.ENTRY_START)
    """Where the CRC's magic is, or without a CRC the metadata's size: the first byte to store."""
    payload_starts = _Column(read_kernels.PAYLOAD_START)
    """Where the metadata ends; where the entry does, if it is bad."""
    entry_stops = _Column(read_kernels.ENTRY_STOP)
    """Where the frame ends too."""
    producer_ids = _Column(read_kernels.PRODUCER_ID)
    sequence_ids = _Column(read_kernels.SEQUENCE_ID)
    highest_sequence_ids = _Column(read_kernels.HIGHEST_SEQUENCE_ID)
    """0 if absent."""
    num_messages = _Column(read_kernels.NUM_MESSAGES)
    """As the command has it, 1 if absent: nothing checks it, so nothing may rely on it."""
    crcs = _Column(read_kernels.CRC)
    """`NO_CRC`, `GOOD_CRC` or `BAD_CRC`."""
    entry_crcs = _Column(read_kernels.ENTRY_CRC)
    """CRC-32C of a large entry from its first byte to its last; -1 of others, where nobody has
    computed it and it costs little."""
    flags = _Column(read_kernels.FLAGS)
    """`CHUNK` is the command's is_chunk and `NULL_VALUE` the metadata's null_value. Presence in the
    metadata: `BATCH` num_messages_in_batch, `KEYED` partition_key, `MARKER` marker_type, `DELAYED`
    deliver_at_time, `ENCRYPTED` encryption_keys, `CHUNK_ID` chunk_id. Then `UNUSUAL`,
    `BAD_METADATA`, and `BAD_BATCH`: no message in it, more than `BATCH_MESSAGES_MAX`, or not as
    many as it says. A compressed or encrypted batch is not opened: it may not say more messages
    than its size when opened can hold, nor a size that its bytes cannot be opened to."""
    publish_times_ms = _Column(read_kernels.PUBLISH_TIME)
    metadata_sequence_ids = _Column(read_kernels.METADATA_SEQUENCE_ID)
    nums_in_batch = _Column(read_kernels.NUM_IN_BATCH)
    """1 if absent."""
    deliver_at_times_ms = _Column(read_kernels.DELIVER_AT_TIME)
    """0 if absent."""
    compressions = _Column(read_kernels.COMPRESSION)
    """Numbers of CompressionType."""
    uncompressed_bytes = _Column(read_kernels.UNCOMPRESSED_SIZE)
    """0 if absent."""

    def __len__(self) -> int:
        return int(self.rows.shape[1])


def signed(number: int) -> int:
    """An id of the protocol, which is a uint64, as the int64 with the same bits."""
    return number if number <= _SIGNED_MAX else number - 2**64


def scan_sends(
    data: NDArray[np.uint8],
    start: int,
    stop: int,
    limit_bytes: int,
    messages_max: int = _SIGNED_MAX,
) -> Sends:
    """Read the SEND frames at the front of `data[start:stop]`; see the module's description.

    `limit_bytes` is that of `framing.next_frame`. Of batches that have more than `messages_max`
    messages together only the first ones are read; metadata larger than 128 KiB count as such a
    batch, if there is a limit. Any thread may call it.
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
    """Whether `data[start:stop]`, a batch's readable payload, is exactly that many messages.

    Clients written in C++ believe the count and crash on a batch that has fewer.
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
    """Write SEND_RECEIPT frames for entries with ascending numbers; the bytes written."""
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
    """What to send in front of an entry of `entry_bytes`, so that both are a MESSAGE frame.

    `partition` is -1 for none. The words of an ack set are signed, a set bit for each message of
    the batch that is still to be delivered; none means all of them.
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
    """MESSAGE frames of entries that go out for the first time, whole, at packed positions."""
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
    """Write MESSAGE frames for the first of these entries; (bytes written, how many).

    `positions` are packed. An entry is written if there is room for `MESSAGE_HEADER_BYTES_MAX` and
    itself.
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
