"""Repairs a member's damaged segments with the entries of other members.

1. A reader finds damage (`raft/storage/damage.py`). The worker reads the whole segment, and finds
   which of the needed entries (live ones, and all above the snapshot) are intact.
2. The others are requested from another member, `ASK_ENTRIES` at a time, and from the next one if
   there is no answer within `ASK_TICKS`.
3. The worker writes intact and received entries to a new segment under another name, makes it
   durable and renames it over the old one. A crash leaves one or the other; the next start deletes
   an unfinished file.
4. If the same segment is found damaged again, the next repair waits, twice as long each time, up to
   `AGAIN_TICKS`.

Correctness: a member sends only entries that it has applied. At or below the own commit index these
are the same on all members, by Raft's state machine safety. Above it an entry is used only if the
term of the own one is certain (`GroupSegments.term_between`) and equal: entries of one index and
term are equal. All others wait until they are committed.

A member that is ahead may have compacted an entry away that is still live here, so it cannot send
it. Then a snapshot is taken here, after which the entry is dead here too, and the segment is
examined again.

The newest segment grows. It is sealed first, and the write-ahead log rolled, so that the segment
writer has closed it (`RaftStorage.settled_number`). Repair and compaction take turns, because both
replace segments.

Called in the group's thread, except the jobs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.log.manifest import SegmentRef
from lithify.log.segments.segment_file import SegmentHeader, SegmentWriter
from lithify.raft.core.values import fit
from lithify.raft.errors import EntryDeleted, EntryUnreadable
from lithify.raft.pending_work import Job
from lithify.raft.repair.messages import ASK_ENTRIES, EntriesFound, EntriesWanted
from lithify.raft.storage.file_names import parse_segment, repair_name
from lithify.raft.storage.segment_file import (
    KIND,
    MERGED_KIND,
    SegmentAppender,
    SegmentLimits,
    log_id_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.entry import Entry
    from lithify.raft.storage.group_segments import IndexSpan
    from lithify.raft.storage.live_state import LiveState
    from lithify.raft.storage.storage import GroupStorage, RaftStorage

__all__ = ["Known", "Repair"]

ASK_TICKS = 20
PAUSE_TICKS = 50
"""The pause after a failed attempt."""
AGAIN_TICKS = 64 * PAUSE_TICKS
"""The longest pause between two repairs of one segment. A disk that cannot read it is not cured by
rewriting: each repair logs two lines, and the next read finds the damage again."""
ANSWERS_MAX = 4
"""Answers in preparation; further requests are dropped, and the sender repeats them."""
ANSWER_BYTES_MAX = 4 * 2**20
_ANY = SegmentLimits(2**31, 2**31)


@dataclass(frozen=True, slots=True)
class Known:
    """A member's commit index, members and term."""

    commit: int
    members: tuple[str, ...]
    term: int


@dataclass(slots=True)
class _Case:
    """A damaged segment."""

    span: IndexSpan
    missing: set[int] = field(default_factory=set)
    fetched: dict[int, Entry] = field(default_factory=dict)
    examined: bool = False
    roll: int | None = None
    """The file of the write-ahead log that must be settled first; -1 if it was not rolled yet."""


@dataclass(frozen=True, slots=True)
class _Repaired:
    """A segment that was repaired: when it may be repaired again."""

    pause_ticks: int
    next_tick: int


class Repair:
    """See the module."""

    def __init__(
        self,
        node: str,
        storage: RaftStorage,
        own: GroupStorage,
        compacted: Callable[[], None],
    ) -> None:
        """`compacted` is called when other members have compacted missing entries away."""
        self._node = node
        self._storage = storage
        self._own = own
        self._compacted = compacted
        self._segments = own.log.segments
        self.damages = own.log.segments.damages
        self._case: _Case | None = None
        self._job: Job | None = None
        self._pause_ticks = self._asked_ticks = self._ticks = 0
        self._repaired: dict[int, _Repaired] = {}
        self._turn = 0
        self._out: list[RaftMessage] = []
        self._answers: set[Job] = set()
        self._reads: list[Job] = []

    def tick(self) -> None:
        """Count one tick."""
        self._ticks += 1
        self._pause_ticks = max(0, self._pause_ticks - 1)
        self._asked_ticks = max(0, self._asked_ticks - 1)

    @property
    def is_idle(self) -> bool:
        """Is there nothing to repair?"""
        return not (self.damages.open or self._out)

    def take(self) -> tuple[list[RaftMessage], list[Job]]:
        """(messages to be sent, jobs of a reader)."""
        out, self._out = self._out, []
        reads, self._reads = self._reads, []
        return out, reads

    # --- steps ------------------------------------------------------------------------------

    def next_job(self, known: Known) -> Job | None:
        """The next job of the worker; requests come out of `take`."""
        if self._job is not None or self._pause_ticks or not self.damages.open:
            return None
        case = self._case or self._begin()
        if case is None or not self._is_free(case):
            return None
        state = self._own.log.state
        if not case.examined:
            # It may have grown until the segment writer has closed it.
            numbers = [span.number for span in self._segments.spans]
            if case.span.number in numbers:
                case.span = self._segments.spans[numbers.index(case.span.number)]
            self._job = Job(f"examine {case.span.ref.name}", partial(self._examine, case, state))
        elif case.missing:
            self._ask(case, known)
        else:
            self._job = Job(f"repair {case.span.ref.name}", partial(self._rewrite, case, state))
        return self._job

    def _begin(self) -> _Case | None:
        damaged = {parse_segment(name): name for name in self.damages.open}
        spans = self._segments.spans
        numbers = {span.number for span in spans}
        self._repaired = {n: each for n, each in self._repaired.items() if n in numbers}
        for span in spans:
            before = self._repaired.get(span.number)
            if span.number in damaged and (before is None or self._ticks >= before.next_tick):
                self._case = _Case(span)
                return self._case
        for number, name in damaged.items():
            if number is not None and number not in numbers:
                # The segment was removed.
                self.damages.repaired(name, "removal")
        return None

    def _is_free(self, case: _Case) -> bool:
        """Has the segment writer closed the segment?"""
        wal, name = self._storage.wal, f"{self._own.group}/repair"
        if case.roll is None:
            case.roll = 0
            if self._segments.grows and case.span.number == self._segments.last_number:
                self._segments.seal_newest()
                wal.ask_roll(name)
                case.roll = -1
        if case.roll < 0:
            case.roll = wal.rolled_for(name) or -1
        return 0 <= case.roll <= self._storage.settled_number

    def _ask(self, case: _Case, known: Known) -> None:
        others = [name for name in known.members if name != self._node]
        wanted = [i for i in sorted(case.missing) if self._may_take(i, known.commit)][:ASK_ENTRIES]
        if self._asked_ticks or not others or not wanted:
            return
        self._asked_ticks = ASK_TICKS
        self._turn += 1
        to = others[self._turn % len(others)]
        self._out.append(EntriesWanted.of(self._node, to, known.term, wanted))

    def receive(self, message: EntriesFound | EntriesWanted, commit: int, applied: int) -> None:
        """Process entries of another member, or a request; the indexes are this member's."""
        if isinstance(message, EntriesFound):
            self._found(message, commit)
        elif len(self._answers) < ANSWERS_MAX:
            job = self._answer(message, applied)
            self._answers.add(job)
            self._reads.append(job)

    def _answer(self, question: EntriesWanted, applied: int) -> Job:
        """The job that reads the requested entries."""
        log, node = self._own.log, self._node
        wanted = [i for i in question.parse() if i <= applied and log.state.needs(i)]

        def read() -> EntriesFound:
            found: list[Entry] = []
            for index in wanted:
                with suppress(EntryDeleted, EntryUnreadable):
                    found += log.read([index])
            some = fit(found, ANSWER_BYTES_MAX)
            return EntriesFound(node, question.sender, question.term, applied, some)

        return Job(f"entries for {question.sender}", read)

    def _found(self, found: EntriesFound, commit: int) -> None:
        case = self._case
        if case is None or not case.missing:
            return
        asked = [index for index in case.missing if self._may_take(index, commit)]
        for entry in found.entries:
            if entry.index in asked and self._may_take(entry.index, commit, entry.term):
                case.missing.discard(entry.index)
                case.fetched[entry.index] = entry
        self._asked_ticks = min(self._asked_ticks, 0 if found.entries else ASK_TICKS)
        if asked and not found.entries and found.applied >= max(asked):
            # It is ahead, and these are dead there. After a snapshot they are dead here.
            self._compacted()
            self._give_up()

    def _may_take(self, index: int, commit: int, term: int | None = None) -> bool:
        """May an entry of another member replace the own one?"""
        if index <= commit:
            return True
        own = self._segments.term_between(index)
        return own is not None and term in (None, own)

    def is_job(self, job: Job) -> bool:
        """Does the job belong to this?"""
        return job is self._job or job in self._answers

    def done(self, job: Job, result: object) -> None:
        """Take the result of a job."""
        if job in self._answers:
            self._answers.discard(job)
            self._out += [result] if isinstance(result, EntriesFound) else []
            return
        self._job = None
        case = self._case
        if case is None or isinstance(result, BaseException):
            self._give_up()
        elif isinstance(result, set):
            case.missing, case.examined = result, True
        else:
            if isinstance(result, SegmentRef):
                self._segments.repaired(result)
            self._note_repair(case.span.number)
            count = len(case.fetched)
            self.damages.repaired(case.span.ref.name, f"{count} entries of other members")
            self._case = None

    def _note_repair(self, number: int) -> None:
        """Delay the next repair of the same segment, twice as long each time."""
        before = self._repaired.get(number)
        pause_ticks = PAUSE_TICKS if before is None else min(2 * before.pause_ticks, AGAIN_TICKS)
        self._repaired[number] = _Repaired(pause_ticks, self._ticks + pause_ticks)

    def _give_up(self) -> None:
        """Examine again later; fewer entries may be needed then."""
        self._case = None
        self._pause_ticks = PAUSE_TICKS

    # --- jobs of the worker -----------------------------------------------------------------

    def _needed(self, case: _Case, state: LiveState) -> list[int]:
        return list(state.needed(case.span.first, case.span.last))

    def _examine(self, case: _Case, state: LiveState) -> set[int]:
        needed = self._needed(case, state)
        return set(needed) - self._segments.read_intact(case.span.ref, needed).keys()

    def _rewrite(self, case: _Case, state: LiveState) -> SegmentRef | None:
        fs, directory, ref = self._storage.fs, self._own.directory, case.span.ref
        needed = self._needed(case, state)
        entries = self._segments.read_intact(ref, needed) | case.fetched
        lost = [index for index in needed if index not in entries]
        if lost:
            raise EntryUnreadable(lost[0], f"{directory}/{ref.name}", LithifyError("more damage"))
        if not needed:
            # The next compaction drops the whole segment.
            return None
        path = f"{directory}/{repair_name(ref.id)}"
        if fs.exists(path):
            fs.remove(path)
        # Merges reach up to the snapshot, and what they write was never overwritten.
        kind = MERGED_KIND if case.span.last <= state.snapshot_index else KIND
        header = SegmentHeader(ref.id, needed[0], 0, kind, log_id_of(self._own.group))
        appender = SegmentAppender(ref.id, SegmentWriter.create(fs, path, header), _ANY)
        try:
            written, chosen = 0, [entries[index] for index in needed]
            while written < len(chosen):
                written += appender.append(chosen[written:])
            made = appender.close()
        except BaseException:
            appender.abandon()
            raise
        # From here on the repaired file replaces the damaged one.
        fs.rename(path, f"{directory}/{ref.name}")
        fs.sync_dir(directory)
        return made
