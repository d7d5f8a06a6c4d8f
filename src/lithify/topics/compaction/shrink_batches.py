"""Batches of which only some messages are live, made smaller.

Stored, such a batch has only its retained messages, in their order, and the list of their slots in
`compacted_batch_indexes`; its frame is flagged `FLAG_SHRUNK`. Everything else is as the producer
sent it: the codec, all other metadata, the number of messages, in metadata and tag. Slots are never
numbered anew, so a batch can be made smaller again and again.

For a run of frames (`shrink_frames`):

1. One compiled loop writes all frames side by side into a new buffer: wholly live ones as they
   are, the others with new metadata, payload and CRCs, each read once more to see that it has what
   it should have.
2. If it meets one that is compressed, all of those are opened, one by one: copy what is retained,
   compress it with the same codec, open that and compare. Then the loop is run again with them.

The target of a rewrite gets its key index from those of its sources, row by row what is live in
them. If one of those is not there or not whole, it gets none, and the next run makes it.

Invariants: positions, order and number of frames stay. A batch that cannot be read, or does not
have a message that is said to be live, is an error that names it; nothing is left out silently.

Pure but for `TopicRewriting.finish`. For the compaction of topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.tasks.key_indexes import IndexTask, place_index, segment_crc
from lithify.errors import Corrupt, InvalidInput, UnsupportedVersion
from lithify.liveset import LiveSet
from lithify.log.deadset.dead_set import DeadSet, Parts
from lithify.log.file_names import key_index_name
from lithify.log.keyindex.key_index import COLUMNS, IndexFacts, KeyIndex, KeyRows, encode
from lithify.log.keyindex.key_index_kernels import position_order
from lithify.log.reader import read_dead_set
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

_WHAT = {
    kernels.BAD_METADATA: "its metadata cannot be read",
    kernels.BAD_SLOTS: "its number or list of messages is impossible",
    kernels.BAD_PAYLOAD: "its payload cannot be read",
    kernels.MISSING_SLOT: "it does not have a message that is live",
    kernels.ENCRYPTED: "it is encrypted",
    kernels.BAD_CHECK: "read again, it is not what was written",
}


def shrink_frames(frames: Frames, parts: Parts) -> Frames:
    """The frames with only the live slots of those that `parts` names, in a buffer of their own."""
    at = np.searchsorted(parts.positions, frames.positions)
    at[at == len(parts)] = 0
    rows = np.where(parts.positions[at] == frames.positions, at, -1)
    nothing = np.zeros(len(frames) + 1, np.int64)
    made, bad, problem = _write(frames, rows, parts, _NO_BYTES, nothing, nothing - 1)
    if problem == kernels.PACKED:
        made, bad, problem = _write(frames, rows, parts, *_pack(frames, rows, parts))
    if bad >= 0:
        raise _refused(frames, bad, problem)
    return made


def _write(
    frames: Frames,
    rows: NDArray[np.int64],
    parts: Parts,
    packed: NDArray[np.uint8],
    packed_starts: NDArray[np.int64],
    plain_sizes: NDArray[np.int64],
) -> tuple[Frames, int, int]:
    """The frames as they are to be, the first one that could not be written or -1, and why not."""
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


def _refused(frames: Frames, number: int, problem: int) -> InvalidInput:
    ledger, entry = unpack(int(frames.positions[number]))
    return InvalidInput(f"the batch at {ledger}:{entry} cannot be shrunk: {_WHAT[problem]}")


def _pack(
    frames: Frames, rows: NDArray[np.int64], parts: Parts
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The new payloads of compressed batches.

    All of them side by side, where that of each frame begins, and its size before it was
    compressed: -1 for a frame that has none.
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
        raise _refused(frames, bad, problem)
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
            raise _refused(frames, number, kernels.BAD_CHECK)
        pieces.append(piece)
        lengths[number + 1] = len(piece)
        plain_sizes[number] = len(kept)
    packed = np.frombuffer(bytearray().join(pieces), np.uint8)
    return packed, np.cumsum(lengths), plain_sizes


def _kept(frames: Frames, number: int, opened: Buffer, row: int, parts: Parts) -> bytes:
    """What is retained of an opened payload."""
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
        raise _refused(frames, number, problem)
    return out[:size].tobytes()


@dataclass(frozen=True, slots=True)
class TopicRewriting:
    """What the rewrite of a topic does beyond copying; see `Rewriting`."""

    log_id: bytes

    def edit(self, frames: Frames, parts: Parts) -> Frames:
        """Make partly live batches smaller."""
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
        """Make the target's key index of those of its sources."""
        try:
            found = [self._live_rows(fs, directory, source, allowance) for source in sources]
        except (Corrupt, UnsupportedVersion, FileNotFoundError):
            return
        orders = {order for _, order, _ in found}
        if len(orders) > 1:
            return
        columns = {
            name: np.concatenate([getattr(rows, name) for rows, _, _ in found]) for name in COLUMNS
        }
        rows = KeyRows(**columns)
        opaque = int(np.count_nonzero(rows.flags & OPAQUE))
        facts = IndexFacts(orders.pop(), len(rows), opaque=opaque)
        shrunk = np.concatenate([positions for _, _, positions in found])
        if len(shrunk):
            _share_out(rows, shrunk, copied.edited_bytes)
        task = IndexTask(fs, directory, target, self.log_id)
        keep = np.ones(len(rows), np.bool_)
        pieces = encode(rows, keep, facts, target.id, self.log_id, segment_crc(task))
        allowance.write(sum(len(piece) for piece in pieces))
        place_index(task, pieces)

    def _live_rows(
        self, fs: FileSystem, directory: str, source: SegmentRef, allowance: Allowance
    ) -> tuple[KeyRows, int, NDArray[np.int64]]:
        """Of a source: the live rows of its key index, their order, where it is partly live."""
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


def _share_out(rows: KeyRows, shrunk: NDArray[np.int64], frame_bytes: NDArray[np.int64]) -> None:
    """Scale the shares of messages in batches that were made smaller to what these take now.

    `shrunk` are the positions of those batches, ascending.
    """
    changed = np.flatnonzero(_among(rows.position, shrunk))
    changed = position_order(changed, rows.position, rows.slot)
    begins = np.flatnonzero(np.diff(rows.position[changed], prepend=-1))
    counts = np.diff(begins, append=len(changed))
    # One more for each, so that no share is of nothing.
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
    """Which of the values are among the ascending ones, of which there is at least one."""
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[at] == values
    return found


def _count_slots(rows: KeyRows, parts: Parts) -> None:
    """Say of the batches that were made smaller how many messages they have now."""
    bits = np.bitwise_count(parts.words).astype(np.uint32)
    counts = np.add.reduceat(bits, parts.starts[:-1])
    at = np.minimum(np.searchsorted(parts.positions, rows.position), len(parts) - 1)
    changed = parts.positions[at] == rows.position
    rows.slots[changed] = counts[at[changed]]
