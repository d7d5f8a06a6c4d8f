"""A full disk while a compaction of a group publishes its portions, at every operation of it.

Portions have one target each. The disk is full once, twice, or from then on. Whatever was refused:
everything is readable, now and after a restart; and when there is space again the next runs leave
what a run without a failure leaves.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from lithify.raft.compaction import write_merged_segments
from lithify.raft.compaction.group_compaction import CompactionOutcome, RunWanted
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem
from tests.crash.test_raft_compaction import check, newest, prepared
from tests.unit.raft.stored import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import MemoryFileSystem


def compact(member: Member) -> bool:
    """One job, as a node does it; has it failed?"""
    compactor = member.compactor
    compactor.request(RunWanted())
    job = compactor.next_job()
    assert job is not None
    outcome: CompactionOutcome | OSError
    try:
        outcome = job()
    except OSError as error:
        outcome = error
    compactor.done(outcome)
    return not isinstance(outcome, CompactionOutcome) or outcome.failure is not None


def clones(disk: MemoryFileSystem, seed: int) -> Iterator[MemoryFileSystem]:
    """The disk as a kill and as power cuts leave it."""
    yield disk.kill_clone()
    for number in (seed, seed + 1000):
        yield disk.crash_clone(Random(number)).kill_clone()


@pytest.mark.parametrize("count", [1, 2, None])
@pytest.mark.parametrize(("kind", "alone_bytes"), [("ENOSPC", 0), ("SHORT", 2**40)])
def test_a_full_disk_at_every_operation_of_a_run_in_portions(
    monkeypatch: pytest.MonkeyPatch, count: int | None, kind: str, alone_bytes: int
) -> None:
    monkeypatch.setattr(write_merged_segments, "PORTION_BYTES", 1)
    monkeypatch.setattr(write_merged_segments, "ALONE_BYTES_MAX", alone_bytes)
    disk = prepared()
    before = newest(disk)
    recorded = FaultyFileSystem(disk.kill_clone(), record=True)
    whole = Member(recorded)
    opened = len(recorded.trace)
    assert not compact(whole)
    changes = sum(line.split()[0] in MUTATING for line in recorded.trace[opened:])
    failures = 0
    for nth in range(1, changes + 1):
        running = disk.kill_clone()
        fs = FaultyFileSystem(running, [])
        member = Member(fs)
        fs.add(Fault("mutating", "*", nth, count, kind))
        failures += compact(member)
        member.check()
        for found in clones(running, nth):
            again = check(found, before)
            compact(again)
            again.check()
            assert again.plan().plan.is_empty
        # Still full: what was half done is not made worse.
        compact(member)
        member.check()
        check(running.kill_clone(), before)
        fs.clear()
        # The first may only tidy up.
        compact(member)
        compact(member)
        member.check()
        assert member.spans == whole.spans
        check(running.kill_clone(), before)
    assert failures >= (20 if kind == "ENOSPC" else 5)
