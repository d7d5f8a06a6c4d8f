"""Shrinks partly live batches: removes their dead messages.

A shrunk batch has only its retained messages, in order, and the list of their slots in
`compacted_batch_indexes`. Its frame is flagged `FLAG_SHRUNK`. Everything else is as the producer
sent it: the codec, all other metadata, the number of messages in metadata and tag. Slots are never
renumbered, so a batch can be shrunk repeatedly.

For a piece of frames (`shrink_frames`):

1. A compiled loop writes all frames into a new buffer: wholly live ones unchanged, the others with
   new metadata, payload and CRCs. Each shrunk entry is parsed again and verified.
2. If the loop meets a compressed batch, decompress all compressed batches one by one: copy the
   retained messages, compress them with the same codec, decompress and compare. Then run the loop
   again with the results.

The target of a rewrite gets a key index from those of its sources, with the live rows of each. If
an index is missing or damaged, the target gets none, and the next run builds it.

Invariants: positions, order and number of frames do not change. An unreadable batch, or one without
a message that is in the live set, is an error that names it; no message is dropped silently.

Pure except for `TopicRewriting.finish`. For the compaction of topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.tasks.find_or_build_key_index import IndexTask, place_index, segment_crc
from lithify.errors import Corrupt, InvalidInput, UnsupportedVersion
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import DeadSet, Parts
from lithify.log.file_names import key_index_name
from lithify.log.key_index.key_index import COLUMNS, IndexFacts, KeyIndex, KeyRows, encode
from lithify.log.key_index.key_index_kernels import position_order
from lithify.log.open_segments import read_dead_set
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.scan import Frames
from lithify.positions import unpack
from lithify.topics.compaction.key_index_flags import OPAQUE
from lithify.topics.messages import batch_kernels as kernels
from lithify.topics.messages.message import compress, decompress_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.compaction.limits.budget import Allowance
    from lithify.compaction.rewrite.rewrite import Copied
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef

__all__ = ["TopicRewriting", "shrink_frames"]

_NO_BYTES = np.empty(0, np.uint8)

_PROBLEMS = {
    kernels.BAD_METADATA: "its metadata is malformed",
    kernels.BAD_SLOTS: "its message count or list of slots is invalid",
    kernels.BAD_PAYLOAD: "its payload is malformed",
    kernels.MISSING_SLOT: "a live message is missing in it",
    kernels.ENCRYPTED: "it is encrypted",
    kernels.BAD_CHECK: "verification of the shrunk batch failed",
}


def shrink_frames(frames: Frames, parts: Parts) -> Frames:
    """Copy frames to a new buffer; batches in `parts` keep only their live slots."""
    at = np.searchsorted(parts.positions, frames.positions)
    at[at == len(parts)] = 0
    rows = np.where(parts.positions[at] == frames.positions, at, -1)
    nothing = np.zeros(len(frames) + 1, np.int64)
    result, bad, problem = _write(frames, rows, parts, _NO_BYTES, nothing, nothing - 1)
    if problem == kernels.PACKED:
        result, bad, problem = _write(frames, rows, parts, *_pack(frames, rows, parts))
    if bad >= 0:
        raise _shrink_error(frames, bad, problem)
    return result


def _write(
    frames: Frames,
    rows: NDArray[np.int64],
    parts: Parts,
    packed: NDArray[np.uint8],
    packed_starts: NDArray[np.int64],
    plain_sizes: NDArray[np.int64],
) -> tuple[Frames, int, int]:
    """(new frames, number of the first frame with a problem or -1, the problem)."""
    growth = int(kernels.entry_bytes_max(0, parts.slots.astype(np.int64)).sum())
    out = np.empty(len(frames.buffer) + growth + len(packed), np.uint8)
    places = np.empty(len(frames), np.int64)
    filled, bad, problem = kernels.shrink_frames(
        frames.buffer,
        frames.offsets,
        rows,
        parts.slots,
        parts.starts,
        parts.words,
        packed,
        packed_starts,
        plain_sizes,
        out,
        places,
    )
    return Frames(out[:filled], places, frames.positions, base=0), bad, problem


def _shrink_error(frames: Frames, number: int, problem: int) -> InvalidInput:
    ledger, entry = unpack(int(frames.positions[number]))
    return InvalidInput(f"the batch at {ledger}:{entry} cannot be shrunk: {_PROBLEMS[problem]}")


def _pack(
    frames: Frames, rows: NDArray[np.int64], parts: Parts
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The new payloads of compressed batches.

    Returns (all payloads concatenated, begin of each frame's payload, its uncompressed size or -1
    for a frame without one).
    """
    count = len(frames)
    codecs = np.empty(count, np.int64)
    payloads = np.empty(count, np.int64)
    sizes = np.empty(count, np.int64)
    masks = parts.slots, parts.starts, parts.words
    bad, problem = kernels.classify(
        frames.buffer, frames.offsets, rows, *masks, codecs, payloads, sizes
    )
    if bad >= 0:
        raise _shrink_error(frames, bad, problem)
    plain_sizes = np.full(count, -1, np.int64)
    lengths = np.zeros(count + 1, np.int64)
    pieces: list[Buffer] = []
    numbers = np.flatnonzero(codecs)
    ends = frames.offsets[numbers] + HEADER_BYTES + frames.select(codecs != 0).lengths()
    for number, end in zip(numbers.tolist(), ends.tolist(), strict=True):
        payload = frames.buffer.data[payloads[number] : end]
        opened = decompress_as(int(codecs[number]), payload, int(sizes[number]))
        kept = _kept(frames, number, opened, int(rows[number]), parts)
        piece = compress(int(codecs[number]), kept)
        if decompress_as(int(codecs[number]), piece, len(kept)) != kept:
            raise _shrink_error(frames, number, kernels.BAD_CHECK)
        pieces.append(piece)
        lengths[number + 1] = len(piece)
        plain_sizes[number] = len(kept)
    packed = np.frombuffer(bytearray().join(pieces), np.uint8)
    return packed, np.cumsum(lengths), plain_sizes


def _kept(frames: Frames, number: int, opened: Buffer, row: int, parts: Parts) -> bytes:
    """The retained messages of a decompressed payload."""
    plain = np.frombuffer(opened, np.uint8)
    out = np.empty(len(plain), np.uint8)
    problem, size = kernels.keep_slots(
        frames.buffer,
        frames.offsets[number],
        plain,
        int(parts.slots[row]),
        parts.words,
        parts.starts[row],
        out,
    )
    if problem != kernels.OK:
        raise _shrink_error(frames, number, problem)
    return out[:size].tobytes()


@dataclass(frozen=True, slots=True)
class TopicRewriting:
    """Edits the frames and builds the key index in a rewrite of a topic; see `Rewriting`."""

    log_id: bytes

    def edit(self, frames: Frames, parts: Parts) -> Frames:
        """Shrink partly live batches."""
        return shrink_frames(frames, parts)

    def finish(
        self,
        fs: FileSystem,
        directory: str,
        sources: Sequence[SegmentRef],
        target: SegmentRef,
        copied: Copied,
        allowance: Allowance,
    ) -> None:
        """Build the target's key index from those of its sources."""
        try:
            per_source = [self._live_rows(fs, directory, source, allowance) for source in sources]
        except (Corrupt, UnsupportedVersion, FileNotFoundError):
            return
        orders = {order for _, order, _ in per_source}
        if len(orders) > 1:
            return
        columns = {
            name: np.concatenate([getattr(rows, name) for rows, _, _ in per_source])
            for name in COLUMNS
        }
        rows = KeyRows(**columns)
        opaque = int(np.count_nonzero(rows.flags & OPAQUE))
        facts = IndexFacts(orders.pop(), len(rows), opaque=opaque)
        shrunk = np.concatenate([positions for _, _, positions in per_source])
        if len(shrunk):
            _scale_lengths(rows, shrunk, copied.edited_bytes)
        task = IndexTask(fs, directory, target, self.log_id)
        keep = np.ones(len(rows), np.bool_)
        pieces = encode(rows, keep, facts, target.id, self.log_id, segment_crc(task))
        allowance.write(sum(len(piece) for piece in pieces))
        place_index(task, pieces)

    def _live_rows(
        self, fs: FileSystem, directory: str, source: SegmentRef, allowance: Allowance
    ) -> tuple[KeyRows, int, NDArray[np.int64]]:
        """(live rows of a source's key index, their order, positions of partly live batches)."""
        crc = segment_crc(IndexTask(fs, directory, source, self.log_id))
        file = fs.open_read(f"{directory}/{key_index_name(source.name)}")
        with file, KeyIndex(file, source.id, self.log_id, crc) as index:
            rows, order = index.read(before_read=allowance.read), index.facts.order
        dead = DeadSet(LiveSet.empty())
        if source.dead is not None:
            dead = read_dead_set(fs, directory, source.dead)
        live = np.flatnonzero(~dead.messages(rows.position, rows.slot))
        kept = KeyRows(**{name: getattr(rows, name)[live] for name in COLUMNS})
        if len(dead.parts):
            _count_slots(kept, dead.parts)
        return kept, order, dead.parts.positions


def _scale_lengths(
    rows: KeyRows, shrunk: NDArray[np.int64], frame_bytes: NDArray[np.int64]
) -> None:
    """Scale the lengths of messages in shrunk batches to the new frame sizes.

    `shrunk` has the positions of these batches in ascending order.
    """
    changed = np.flatnonzero(_among(rows.position, shrunk))
    changed = position_order(changed, rows.position, rows.slot)
    begins = np.flatnonzero(np.diff(rows.position[changed], prepend=-1))
    counts = np.diff(begins, append=len(changed))
    # Plus one, so that no batch has a total of zero.
    lengths = rows.length[changed].astype(np.int64) + 1
    through = np.cumsum(lengths)
    through -= np.repeat((through - lengths)[begins], counts)
    whole = np.repeat(through[begins + counts - 1], counts)
    now = frame_bytes[np.searchsorted(shrunk, rows.position[changed[begins]])]
    until = through * np.repeat(now, counts) // whole
    shares = np.diff(until, prepend=0)
    shares[begins] = until[begins]
    rows.length[changed] = shares


def _among(values: NDArray[np.int64], ascending: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the values that are in `ascending`, which must not be empty."""
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    mask: NDArray[np.bool_] = ascending[at] == values
    return mask


def _count_slots(rows: KeyRows, parts: Parts) -> None:
    """Update the number of slots in the rows of shrunk batches."""
    bits = np.bitwise_count(parts.words).astype(np.uint32)
    counts = np.add.reduceat(bits, parts.starts[:-1])
    at = np.minimum(np.searchsorted(parts.positions, rows.position), len(parts) - 1)
    changed = parts.positions[at] == rows.position
    rows.slots[changed] = counts[at[changed]]
