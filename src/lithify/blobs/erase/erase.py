"""Erase: zeroes the content of blobs that are deleted for good, before any compaction.

    progress = store.erase.step(bytes_max=2**20)     # called periodically; a bounded amount of work
    with store.erase.paused(): ...                   # no sealed segment is overwritten meanwhile

1. A **round** scans all sealed segments and finds the puts to erase (`find_puts.py`), by ranges
   of buckets, and within a range by position.
2. Erasing a put zeroes its content, user metadata and content CRC, then its parts. The put comes
   first, so a blob reads as erased from its first batch on. Frames stay where they are
   (`log/segments/overwrite.py`).
3. Frames are overwritten in batches. The file `ERASE` names the frames of a batch before it begins
   (`journal.py`); opening the store finishes the batch first.
4. The next round begins when a delete has become old enough, or when segments were sealed or
   replaced: 8 to 256 times per retention, at most every 10 seconds. A round skips what the previous
   round has processed.

Only sealed segments are overwritten. If the active segment has had something to erase for an hour,
it is rolled, as far as the capacity allows.

The next step finishes a batch that failed. Until then, and during a round, the clock does not go
back behind the beginning of the round, so that no blob can be undeleted after it was chosen.
`pause` waits for the batch in progress. After a pause, also one for a compaction that failed, a
round resumes only if all its segments still exist; otherwise it restarts.

A reader that reaches an erased frame gets `BlobDeleted`, also in the middle of a content. A reader
that reads a frame while it is overwritten sees a wrong CRC; `explain` tells that from damage.

A damaged frame is left as it is and counted. Its put cannot be erased; compaction will drop it.

Any thread may call; one step runs at a time. Called by the store.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lithify.blobs.erase.find_puts import ErasablePuts, find_puts, range_from
from lithify.blobs.erase.journal import EraseRound, EraseState, keys_of, load_erase, write_erase
from lithify.blobs.erase.put_frames import PutFrames
from lithify.blobs.errors import BlobDeleted
from lithify.blobs.settings import RECORD_BODY_BYTES_MAX
from lithify.errors import Corrupt, WriteFailed
from lithify.events import ignore_events
from lithify.log.key_index.key_index import BUCKETS
from lithify.log.segments.frame import HEADER_BYTES, decode_frame, is_erased
from lithify.log.segments.overwrite import erase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.blobs.index import BlobIndex
    from lithify.blobs.log_writer import BlobWriter
    from lithify.blobs.monotonic_clock import MonotonicClock
    from lithify.errors import DamagedFrame, LithifyError
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.log import Log
    from lithify.log.segments.overwrite import Erasure

__all__ = ["Erase", "EraseProgress", "EraseStatus", "finish_erase"]

BATCH_BYTES = 4 * 2**20
BATCH_FRAMES = 1024
"""About 150 bytes each in the file `ERASE`."""
ROUNDS_MIN, ROUNDS_MAX = 8, 256
"""Rounds per retention."""
ROUND_MS_MIN = 10_000
"""Minimum time between the beginnings of two rounds: each reads the key indexes once."""
ROLL_AGE_MS = 3600 * 1000
ROW_BYTES = 62
"""Bytes per row of a key index."""


@dataclass(frozen=True, slots=True)
class EraseProgress:
    """Result of one step."""

    blobs: int
    """Puts that were erased completely."""
    bytes: int
    """Bytes that were zeroed."""
    idle: bool
    """There is nothing to do now."""


@dataclass(frozen=True, slots=True)
class EraseStatus:
    """State of erasing; the counts are of this process."""

    paused: bool
    working: bool
    """A round is in progress."""
    blobs: int
    bytes: int
    damaged: int
    """Frames that could not be erased."""
    first_damage: str | None
    as_of_ms: int | None
    """What was old enough at this time is erased, except in the active segment; None: unknown."""


def finish_erase(fs: FileSystem, directory: str, events: EventSink = ignore_events) -> None:
    """Overwrite again the frames that a crash may have torn, before the store is read."""
    erase(fs, directory, load_erase(fs, directory, events).frames)


class Erase:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        log: Log,
        index: BlobIndex,
        writer: BlobWriter,
        clock: MonotonicClock,
        *,
        deleted_retention_ms: Callable[[], int],
        floor_ms: Callable[[], int],
    ) -> None:
        """`floor_ms` is the lowest time that the other users of the clock allow.

        See `blobs/monotonic_clock.py`.
        """
        self._fs = fs
        self._log = log
        self._index = index
        self._writer = writer
        self._clock = clock
        self._deleted_retention_ms = deleted_retention_ms
        self._floor_ms = floor_ms
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._pauses = 0
        self._frames: PutFrames | None = None
        self._torn: frozenset[tuple[str, int]] = frozenset()
        self._state = replace(load_erase(fs, log.directory), frames=())
        self._saved = self._state
        self._began_ms: int | None = None
        self._due_ms = 0
        self._oldest_ms = 0
        self._active = False
        self._blobs = self._bytes = self._damaged = 0
        self._first_damage: str | None = None

    # --- interface -----------------------------------------------------------------------------

    def step(self, bytes_max: int) -> EraseProgress:
        """Read or overwrite about `bytes_max` bytes, at least one batch or one range of rows.

        A step stops at the end of a round.
        """
        blobs, size, left, idle = self._blobs, self._bytes, bytes_max, False
        with self._lock:
            if self._is_paused():
                return EraseProgress(0, 0, idle=True)
            with self._log.pin("blob erase"):
                self._finish_batch()
                self._revalidate()
                while left > 0 and not self._is_paused():
                    if self._frames is None:
                        read_bytes = self._find()
                        idle = read_bytes is None
                        left -= read_bytes or 0
                    else:
                        left -= self._overwrite_batch(self._frames, min(left, BATCH_BYTES))
                    if self._state.now is None:
                        break
                self._save()
        return EraseProgress(self._blobs - blobs, self._bytes - size, idle)

    def _is_paused(self) -> bool:
        """Whether a caller waits in `pause`."""
        return self._pauses > 0

    def pause(self) -> None:
        """Stop overwriting until `resume`. Pauses nest: each needs its own `resume`."""
        with self._counting:
            self._pauses += 1
        try:
            with self._lock:
                self._finish_batch()
                self._discard_found()
        except BaseException:
            self.resume()
            raise

    def resume(self) -> None:
        """End a pause. The next step checks that the segments of its round still exist."""
        with self._counting:
            self._pauses -= 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause for a `with` block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """Refuse new steps, and wait for the one in progress."""
        with self._counting:
            self._pauses += 1
        with self._lock:
            self._frames = None

    def status(self) -> EraseStatus:
        """The current state."""
        done = self._state.done
        return EraseStatus(
            self._pauses > 0,
            self._state.now is not None,
            self._blobs,
            self._bytes,
            self._damaged,
            self._first_damage,
            None if done is None else done.as_of_ms,
        )

    def explain(self, damage: DamagedFrame, blob_id: str) -> LithifyError:
        """The error to raise for a bad frame that a reader found: `BlobDeleted` or the damage.

        The frame may be being overwritten, or may have been since; reading it again tells.
        """
        if (damage.path, damage.offset) in self._torn:
            return BlobDeleted(blob_id)
        try:
            with self._fs.open_read(damage.path) as file:
                data = file.pread(HEADER_BYTES + RECORD_BODY_BYTES_MAX, damage.offset)
            decode_frame(data, 0, damage.path)
        except (Corrupt, OSError):
            return damage
        return BlobDeleted(blob_id) if is_erased(data, 0) else damage

    # --- rounds -----------------------------------------------------------------------------

    def _revalidate(self) -> None:
        """Abandon a round if one of its segments no longer exists."""
        now = self._state.now
        if now is not None and not set(now.segments) <= set(keys_of(self._log.manifest)):
            self._discard_found()
            self._state = replace(self._state, now=None)
            self._began_ms = None

    def _find(self) -> int | None:
        """Find what to erase in the next range; returns bytes read, or None if there is nothing."""
        now = self._state.now or self._next_round()
        if now is None:
            return None
        sealed = [s for s in self._log.manifest.segments if s.sealed]
        indexes = [self._index.task(segment) for segment in sealed]
        with self._writer.lock:
            self._writer.ready()
            # A blob that the round finds gone must take no more records, even if the clock goes
            # back.
            self._clock.floor_ms = max(self._clock.floor_ms, now.as_of_ms)
            recent = self._index.recent.rows()
        try:
            if not now.stop:
                now = replace(now, stop=range_from(indexes, now.first))
            found = find_puts(indexes, recent, now, self._state.done)
        except OSError as error:
            # A missing index could not be written.
            raise WriteFailed(self._log.directory, error) from error
        self._note(found)
        self._state = replace(self._state, now=now)
        self._frames = PutFrames(self._fs, self._log.directory, found.puts, now.after)
        return found.rows * ROW_BYTES

    def _next_round(self) -> EraseRound | None:
        """The round to begin now, or None."""
        now_ms, retention_ms = self._clock.now_ms(), self._deleted_retention_ms()
        keys = keys_of(self._log.manifest)
        if self._began_ms is not None:
            waited_ms = now_ms - self._began_ms
            known = self._state.done is not None and self._state.done.segments == keys
            pace_ms = max(ROUND_MS_MIN, retention_ms // ROUNDS_MAX)
            if 0 <= waited_ms < pace_ms or (known and now_ms < self._due_ms):
                return None
        self._began_ms, self._oldest_ms, self._active = now_ms, now_ms, False
        return EraseRound(now_ms, now_ms - retention_ms, self._log.last_position, keys)

    def _note(self, found: ErasablePuts) -> None:
        self._oldest_ms = min(self._oldest_ms, found.oldest_delete_ms)
        self._active = self._active or found.active

    def _end_range(self, now: EraseRound) -> None:
        """Move to the next range, or end the round."""
        self._frames = None
        if now.stop < BUCKETS:
            following = EraseRound(
                now.as_of_ms, now.deleted_before_ms, now.last_position, now.segments, now.stop
            )
            self._state = replace(self._state, now=following)
            return
        self._state = EraseState(done=replace(now, first=0, stop=0, after=-1))
        # Deletes that came since are no older than the round's beginning, except those of other
        # replicas.
        retention_ms = self._deleted_retention_ms()
        latest_ms = now.as_of_ms + max(1, retention_ms // ROUNDS_MIN)
        self._due_ms = min(self._oldest_ms + retention_ms + 1, latest_ms)
        self._reset_floor()
        times = self._log.active_times_ms
        if self._active and times is not None and now.as_of_ms - times[0] >= ROLL_AGE_MS:
            self._writer.seal()

    def _discard_found(self) -> None:
        """Discard the found puts: they may be stale."""
        self._frames = None
        self._reset_floor()

    def _reset_floor(self) -> None:
        with self._writer.lock:
            self._clock.floor_ms = self._floor_ms()

    # --- batches ----------------------------------------------------------------------------

    def _overwrite_batch(self, frames: PutFrames, bytes_max: int) -> int:
        """Overwrite the next batch; returns the bytes read."""
        now = self._state.now
        assert now is not None
        try:
            batch = frames.take(bytes_max, BATCH_FRAMES)
            if batch.damage is not None:
                self._damaged += batch.damaged
                self._first_damage = self._first_damage or str(batch.damage)
            if batch.erasures:
                self._overwrite(replace(self._state, frames=batch.erasures))
        except BaseException:
            self._frames = None
            raise
        self._blobs += batch.blobs
        now = replace(now, after=frames.after)
        self._state = replace(self._state, now=now)
        if frames.ended:
            self._end_range(now)
        return batch.bytes_read

    def _overwrite(self, state: EraseState) -> None:
        """Steps 2 and 3 of `log/segments/overwrite.py`.

        From here on the batch must be completed: a crash leaves the file `ERASE` without it, or
        with it, and then any of its frames may be torn.
        """
        self._state = state
        write_erase(self._fs, self._log.directory, state)
        self._saved = state
        self._torn = frozenset(
            (f"{self._log.directory}/{f.segment}", f.offset) for f in state.frames
        )
        erase(self._fs, self._log.directory, state.frames)
        self._bytes += _zero_bytes(state.frames)
        self._torn = frozenset()
        self._state = replace(state, frames=())

    def _finish_batch(self) -> None:
        """Finish a batch that failed."""
        if self._state.frames:
            self._overwrite(self._state)

    def _save(self) -> None:
        """Make the progress durable, without the batches that are complete."""
        if self._state != self._saved:
            write_erase(self._fs, self._log.directory, self._state)
            self._saved = self._state


def _zero_bytes(frames: tuple[Erasure, ...]) -> int:
    return sum(frame.zero_bytes for frame in frames)
