"""Entries that are partly live, from a rule's judgement to what a reader sees.

An entry of these logs is a batch: each byte of its body is a message, and its tag is their number.
A batch that was rewritten has only its live bytes, and says in its first ones which they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lithify.compaction.live_set_rules.rule_interface import SegmentJudgement
from lithify.compaction.reports.report import Cause
from lithify.compaction.run.control import RunControl
from lithify.errors import DamagedFile, InvalidInput
from lithify.fs import MemoryFileSystem, read_file
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import Parts
from lithify.log.segments.frame import decode_frame, encode_header
from lithify.log.segments.scan import Frames
from lithify.log.verify import verify_log
from tests.unit.compaction.logs import (
    DIRECTORY,
    Interrupted,
    compactor_of,
    open_log,
    sealed,
    strays,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lithify.compaction.limits.budget import Allowance
    from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion
    from lithify.compaction.rewrite.rewrite import Copied
    from lithify.fs import FileSystem
    from lithify.log.log import Log
    from lithify.log.manifest import SegmentRef

SLOTS = 8
BODY = b"ABCDEFGH"
FRAME_BYTES = 32 + SLOTS
SHRUNK = 0x0400


@dataclass
class ByMask:
    """Live are the slots that `masks` says for a position; all where it says nothing."""

    masks: dict[int, int]
    state: Mapping[str, Any] = field(default_factory=dict)

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        for segment in question.segments:
            yield self._judge(segment)

    def _judge(self, segment: SegmentRef) -> SegmentJudgement:
        everywhere = range(segment.first_position, segment.last_position + 1)
        masks = {at: self.masks.get(at, 0xFF) for at in everywhere}
        # A rewrite leaves gaps where entries were dead.
        live = [at for at in everywhere if masks[at]]
        bits = [(at, s) for at in live for s in range(SLOTS) if masks[at] >> s & 1]
        some = [(at, s) for at, s in bits if masks[at] != 0xFF]
        rewritten = "-" in segment.name
        parts = Parts.empty()
        if some and not rewritten:
            positions, slots = (np.array(each) for each in zip(*some, strict=True))
            parts = Parts.of(positions, slots, np.full(len(some), SLOTS, np.uint32))
        size = segment.frame_bytes if rewritten else len(live) * 32 + len(bits)
        gone = SLOTS * segment.entries - len(bits)
        return SegmentJudgement(
            LiveSet.from_iterable(live),
            len(live),
            size,
            {Cause.SUPERSEDED: (gone, gone)} if gone else {},
            parts,
            (SLOTS * segment.entries, len(bits)),
        )

    def facts(self) -> Mapping[str, Any]:
        return self.state


@dataclass
class Shrinking:
    """Takes dead bytes out of bodies."""

    finished: list[tuple[list[str], str]] = field(default_factory=list)
    edited_bytes: list[int] = field(default_factory=list)

    def edit(self, frames: Frames, parts: Parts) -> Frames:
        data = b""
        offsets: list[int] = []
        for entry in replace(frames, parts=parts).entries():
            at = int(frames.offsets[len(offsets)])
            offsets.append(len(data))
            if entry.live is None:
                data += frames.buffer[at : at + entry.frame_bytes].tobytes()
                continue
            kept = (c for s, c in enumerate(entry.body) if entry.live >> s & 1)
            body = bytes([entry.live, *kept])
            data += encode_header(body, entry.position, entry.time_ms, SHRUNK, entry.tag, 0) + body
        buffer = np.frombuffer(data, np.uint8)
        return Frames(buffer, np.array(offsets), frames.positions, 0)

    def finish(
        self,
        fs: FileSystem,
        directory: str,
        sources: Sequence[SegmentRef],
        target: SegmentRef,
        copied: Copied,
        allowance: Allowance,
    ) -> None:
        assert fs.exists(f"{directory}/{target.name}")
        self.edited_bytes += copied.edited_bytes.tolist()
        data = read_file(fs, f"{directory}/{target.name}")
        for position, at in zip(copied.positions.tolist(), copied.offsets.tolist(), strict=True):
            assert decode_frame(data, at, target.name).position == position
        self.finished.append(([source.name for source in sources], target.name))


def new_log(segments: int = 1, entries: int = 4) -> tuple[MemoryFileSystem, Log]:
    fs = MemoryFileSystem()
    log = open_log(fs)
    for _ in range(segments):
        log.append_many([BODY] * entries, tags=[SLOTS] * entries).result()
        log.roll()
    return fs, log


def messages(log: Log) -> dict[int, bytes]:
    """What a reader takes for live, by position."""
    found = {}
    with log.snapshot("test") as snapshot:
        for entry in snapshot.read():
            body, live = entry.body, entry.live
            if entry.flags == SHRUNK:
                body = body[1:]
            elif live is not None:
                body = bytes(c for s, c in enumerate(body) if live >> s & 1)
            found[entry.position] = body
    return found


DYING = {0: 0b0000_0011, 1: 0, 3: 0b1000_0000}
LEFT = {0: b"AB", 2: BODY, 3: b"H"}


def test_a_kept_segment_says_by_its_dead_set_which_slots_are_live() -> None:
    fs, log = new_log()
    report = compactor_of(log, fs, ByMask(DYING), policy="whole-dead").run()
    (segment,) = sealed(log)
    assert segment.dead is not None
    assert (segment.dead.entries, segment.dead.parts) == (1, 2)
    assert segment.live_bytes == 3 * 32 + 2 + 8 + 1
    assert messages(log) == LEFT
    assert report.dropped == {Cause.SUPERSEDED: (21, 21)}
    assert (report.read_entries, report.kept_entries) == (4, 3)
    assert (report.read_messages, report.kept_messages) == (32, 11)
    assert "11 of 32 messages" in report.summary()
    log.close()
    assert messages(open_log(fs)) == LEFT
    assert verify_log(fs, DIRECTORY).damage is None


def test_the_same_answer_writes_no_second_dead_set() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, ByMask(DYING), policy="whole-dead")
    compactor.run()
    before = log.manifest
    assert compactor.run().result == "nothing to do"
    assert log.manifest == before
    assert not strays(fs, log)


def test_more_slots_die_and_the_dead_set_is_replaced() -> None:
    fs, log = new_log()
    compactor_of(log, fs, ByMask(DYING), policy="whole-dead").run()
    (before,) = sealed(log)
    report = compactor_of(log, fs, ByMask({**DYING, 0: 0b10}), policy="whole-dead").run()
    assert report.result == "done"
    assert messages(log) == {0: b"B", 2: BODY, 3: b"H"}
    assert before.dead is not None
    assert before.dead.name in {retired.name for retired in log.manifest.retired}


@pytest.mark.parametrize("back", [{0: 0xFF}, {0: 0b111}, {1: 1}])
def test_a_rule_that_revives_a_slot_is_refused(back: dict[int, int]) -> None:
    fs, log = new_log()
    compactor_of(log, fs, ByMask(DYING), policy="whole-dead").run()
    before = log.manifest
    with pytest.raises(InvalidInput, match="brings back dead entries"):
        compactor_of(log, fs, ByMask({**DYING, **back}), policy="whole-dead").run()
    assert log.manifest == before
    assert not strays(fs, log)


def test_a_rewrite_takes_dead_slots_out_and_copies_the_rest_byte_for_byte() -> None:
    fs, log = new_log(segments=2)
    (first, second) = sealed(log)
    data = read_file(fs, f"{DIRECTORY}/{first.name}")
    rewriting = Shrinking()
    compactor = compactor_of(log, fs, ByMask(DYING), rewriting=rewriting)
    assert compactor.run().result == "done"
    (target,) = sealed(log)
    assert rewriting.finished == [([first.name, second.name], target.name)]
    assert rewriting.edited_bytes == [32 + 3, 32 + 2]
    assert (target.entries, target.dead) == (7, None)
    assert target.frame_bytes == 7 * 32 + 3 + 2 + 5 * SLOTS
    assert messages(log) == LEFT | dict.fromkeys(range(4, 8), BODY)
    whole = data[64 + 2 * FRAME_BYTES : 64 + 3 * FRAME_BYTES]
    assert whole in read_file(fs, f"{DIRECTORY}/{target.name}")
    with log.snapshot("test") as snapshot:
        assert {entry.tag for entry in snapshot.read()} == {SLOTS}
    log.close()
    assert verify_log(fs, DIRECTORY).damage is None
    assert messages(open_log(fs)) == LEFT | dict.fromkeys(range(4, 8), BODY)


def test_without_an_editor_a_partly_live_entry_is_not_copied_whole() -> None:
    fs, log = new_log()
    before = log.manifest
    with pytest.raises(InvalidInput, match="the entry at 0 is partly live"):
        compactor_of(log, fs, ByMask(DYING)).run()
    assert log.manifest == before
    assert not strays(fs, log)


def test_an_editor_that_loses_an_entry_is_refused() -> None:
    class Losing(Shrinking):
        def edit(self, frames: Frames, parts: Parts) -> Frames:
            return frames.select(slice(1, None))

    fs, log = new_log()
    with pytest.raises(InvalidInput, match="must keep every position"):
        compactor_of(log, fs, ByMask(DYING), rewriting=Losing()).run()
    assert len(messages(log)) == 4
    assert not strays(fs, log)


def test_backward_reads_say_which_slots_are_live_too() -> None:
    fs, log = new_log()
    compactor_of(log, fs, ByMask(DYING), policy="whole-dead").run()
    with log.snapshot("test") as snapshot:
        found = [(entry.position, entry.live) for entry in snapshot.read_backward()]
        assert found == [(3, 0b1000_0000), (2, None), (0, 0b11)]
        some = [(entry.position, entry.live) for entry in snapshot.read(start=1, limit=2)]
        assert some == [(2, None), (3, 0b1000_0000)]


def test_verify_misses_an_entry_that_parts_name() -> None:
    class Elsewhere(ByMask):
        def _judge(self, segment: SegmentRef) -> SegmentJudgement:
            right = super()._judge(segment)
            parts = replace(right.parts, positions=right.parts.positions + 100)
            return replace(right, parts=parts, live_bytes=right.live_bytes - 1)

    fs, log = new_log()
    compactor_of(log, fs, Elsewhere({3: 1}), policy="whole-dead").run()
    log.close()
    damage = verify_log(fs, DIRECTORY).damage
    assert damage is not None
    assert "names live slots of 1 entries, 0 are there" in str(damage)


def test_a_damaged_mask_is_an_error() -> None:
    fs, log = new_log()
    compactor_of(log, fs, ByMask(DYING), policy="whole-dead").run()
    (segment,) = sealed(log)
    assert segment.dead is not None
    fs.flip(f"{DIRECTORY}/{segment.dead.name}", segment.dead.file_bytes - 20)
    with pytest.raises(DamagedFile, match=segment.dead.name):
        messages(log)


# --- facts of the store ---------------------------------------------------------------------


def test_facts_are_published_with_what_was_judged() -> None:
    fs, log = new_log()
    log.publish(lambda manifest: replace(manifest, state={"mine": 1, "last": 0}), "test")
    compactor = compactor_of(log, fs, ByMask({}, {"last": [3, 7]}), policy="whole-dead")
    assert compactor.run().result == "done"
    assert log.manifest.state == {"mine": 1, "last": [3, 7]}
    assert compactor.run().result == "nothing to do"


def test_new_facts_alone_are_worth_a_run() -> None:
    fs, log = new_log()
    compactor_of(log, fs, ByMask({}, {"last": 1}), policy="whole-dead").run()
    assert compactor_of(log, fs, ByMask({}), policy="whole-dead").run().result == "nothing to do"
    rule = ByMask({}, {"last": 2})
    assert compactor_of(log, fs, rule, policy="whole-dead").run().result == "done"
    assert log.manifest.state == {"last": 2}


def test_a_resumed_run_publishes_the_facts_of_the_killed_run() -> None:
    fs, log = new_log(segments=2)
    killed: list[MemoryFileSystem] = []
    jobs = Interrupted(lambda: killed.append(fs.kill_clone()))
    rule = ByMask(DYING, {"last": [7, 7]})
    compactor_of(log, fs, rule, jobs=jobs, rewriting=Shrinking()).run()
    disk = killed[0]
    again = open_log(disk)
    assert again.manifest.state == {}
    other = ByMask({}, {"last": "judged a second time"})
    report = compactor_of(again, disk, other, rewriting=Shrinking()).recover()
    assert report is not None
    assert report.result == "done"
    assert (report.read_messages, report.kept_messages) == (64, 43)
    assert again.manifest.state == {"last": [7, 7]}
    assert messages(again) == messages(log)


def test_a_discarded_run_publishes_no_facts() -> None:
    fs, log = new_log()
    with pytest.raises(InvalidInput):
        compactor_of(log, fs, ByMask(DYING, {"last": 1})).run()
    assert log.manifest.state == {}


def test_progress_says_how_many_bytes_are_copied() -> None:
    fs, log = new_log(segments=2)
    told: list[tuple[str, int, int]] = []
    control = RunControl(lambda name, done, total: told.append((name, done, total)))
    compactor_of(log, fs, ByMask({0: 0})).run(control=control)
    assert told == [("rewrite", 0, 7 * FRAME_BYTES), ("rewrite", 7 * FRAME_BYTES, 7 * FRAME_BYTES)]
