"""One test for each row of the tables in docs/recovery.md.

Each puts a log into the state of its row by cutting the power, or killing the process, at exactly
that operation, lets recovery do its work, and checks what it did. What holds in every row is
checked in `recovered`; the tests themselves say what is particular to theirs.
"""

from __future__ import annotations

import re
from pathlib import Path

from lithify.events import TailCut
from lithify.fs import MemoryFileSystem
from lithify.log.file_names import MANIFEST
from lithify.testing.faulty_fs import Fault
from tests.crash.states import (
    LIVE,
    NEW,
    OLD,
    ORPHANS,
    Found,
    append,
    append_that_rolls,
    close,
    compact,
    create,
    drop_head,
    goes_on,
    reclaim,
    recovered,
    retired,
    roll,
    states,
    torn,
)
from tests.unit.compaction.logs import DIRECTORY, compactor_of

PAGE = Path(__file__).parent.parent.parent / "docs" / "recovery.md"


# --- the log: what happens when the power is cut ---------------------------------------------


def test_create_before_the_first_segment() -> None:
    fault = Fault("open_append", "*.seg", kind="CRASH")
    for disk in states(create, fault, disk=MemoryFileSystem()):
        found = recovered(disk)
        assert (found.positions, found.events) == ([], [])
        goes_on(found)


def test_create_before_the_manifest() -> None:
    for disk in states(create, Fault("rename", kind="CRASH"), disk=MemoryFileSystem()):
        assert not disk.exists(f"{DIRECTORY}/{MANIFEST}")
        found = recovered(disk)
        assert (found.positions, found.log.manifest.generation) == ([], 1)
        goes_on(found)


def test_create_before_the_directory_is_synced() -> None:
    for disk in states(create, Fault("rename", kind="CRASH_AFTER"), disk=MemoryFileSystem()):
        found = recovered(disk)
        assert (found.positions, found.log.manifest.generation) == ([], 1)
        goes_on(found)


def test_append_before_the_write() -> None:
    for disk in states(append, Fault("writev", "*.seg", kind="CRASH")):
        found = recovered(disk)
        assert (found.positions, found.events) == (OLD, [])
        goes_on(found)


def test_append_in_the_middle_of_the_write() -> None:
    faults = Fault("writev", "*.seg", kind="SHORT"), Fault("truncate", "*.seg", kind="CRASH")
    cuts = 0
    for disk in states(append, *faults):
        found = recovered(disk)
        assert found.positions == OLD
        cuts += len(found.of(TailCut))
        goes_on(found)
    assert cuts > 1


def test_sync_before_the_fsync() -> None:
    seen = set()
    for disk in states(append, Fault("fdatasync", kind="CRASH")):
        found = recovered(disk)
        assert found.positions in (OLD, [*OLD, NEW])
        seen.add((found.positions[-1], len(found.of(TailCut))))
        goes_on(found)
    assert seen == {(19, 0), (19, 1), (20, 0)}


def test_sync_after_the_fsync() -> None:
    for disk in states(append, Fault("fdatasync", kind="CRASH_AFTER")):
        found = recovered(disk)
        assert (found.positions, found.events) == ([*OLD, NEW], [])
        goes_on(found)


def test_seal_before_the_fsync() -> None:
    for disk in states(roll, Fault("fsync", "*/000000000003.seg", kind="CRASH")):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        assert not found.log.manifest.active.sealed
        goes_on(found)


def test_seal_before_the_successor() -> None:
    for disk in states(append_that_rolls, Fault("open_append", "*/000000000004.seg", kind="CRASH")):
        found = recovered(disk)
        assert (found.positions, found.events) == ([*OLD, NEW], [])
        assert found.log.manifest.active.id == 3
        assert found.log.active_bytes == 64 + 132
        goes_on(found)


def test_roll_before_the_seal() -> None:
    removed = set()
    for disk in states(roll, Fault("writev", "*/000000000003.seg", nth=2, kind="CRASH")):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        assert found.log.manifest.active.id == 3
        removed.update(found.removed)
        goes_on(found)
    assert removed == {"000000000004.seg"}


def test_roll_before_the_manifest() -> None:
    removed = set()
    for disk in states(roll, Fault("rename", "*/MANIFEST", kind="CRASH")):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        assert found.log.manifest.active.id == 3
        removed.update(found.removed)
        goes_on(found)
    assert removed == {"000000000004.seg", "MANIFEST.tmp"}


def test_roll_before_the_directory_is_synced() -> None:
    seen = set()
    for disk in states(roll, Fault("rename", "*/MANIFEST", kind="CRASH_AFTER")):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        seen.add(found.log.manifest.active.id)
        goes_on(found)
    assert seen == {3, 4}


def test_publish_before_the_rename() -> None:
    for disk in states(drop_head, Fault("rename", "*/MANIFEST", kind="CRASH")):
        found = recovered(disk)
        assert found.positions == OLD
        assert found.log.manifest.retired == ()
        assert set(found.removed) <= {"MANIFEST.tmp"}
        goes_on(found)


def test_publish_before_the_directory_is_synced() -> None:
    seen = set()
    for disk in states(drop_head, Fault("rename", "*/MANIFEST", kind="CRASH_AFTER")):
        found = recovered(disk)
        assert found.positions == (OLD[10:] if found.log.manifest.retired else OLD)
        seen.add(len(found.positions))
        goes_on(found)
    assert seen == {10, 20}


def test_reclaim_before_the_first_file() -> None:
    for disk in states(reclaim, Fault("remove", "*.seg", kind="CRASH"), disk=retired()):
        found = recovered(disk)
        assert (found.positions, found.events) == ([], [])
        assert len(found.log.manifest.retired) == 2
        assert found.log.reclaim().files == 2
        goes_on(found)


def test_reclaim_between_two_files() -> None:
    for disk in states(reclaim, Fault("remove", "*.seg", nth=2, kind="CRASH"), disk=retired()):
        found = recovered(disk)
        assert (found.positions, found.events) == ([], [])
        assert found.log.reclaim().files == 2
        assert found.log.manifest.retired == ()
        goes_on(found)


def test_reclaim_before_the_manifest() -> None:
    for disk in states(reclaim, Fault("rename", "*/MANIFEST", kind="CRASH"), disk=retired()):
        found = recovered(disk)
        assert found.positions == []
        assert len(found.log.manifest.retired) == 2
        goes_on(found)


def test_reclaim_before_the_directory_is_synced() -> None:
    for disk in states(reclaim, Fault("rename", "*/MANIFEST", kind="CRASH_AFTER"), disk=retired()):
        found = recovered(disk)
        assert found.positions == []
        assert len(found.log.manifest.retired) in (0, 2)
        goes_on(found)


def test_close_before_the_fsync() -> None:
    for disk in states(close, Fault("fdatasync", kind="CRASH")):
        found = recovered(disk)
        assert found.positions in (OLD, [*OLD, NEW])
        goes_on(found)


def test_close_before_the_manifest() -> None:
    for disk in states(close, Fault("rename", "*/MANIFEST", kind="CRASH")):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        assert set(found.removed) <= {"MANIFEST.tmp"}
        goes_on(found)


def test_close_before_the_directory_is_synced() -> None:
    for disk in states(close, Fault("rename", "*/MANIFEST", kind="CRASH_AFTER")):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        assert set(found.removed) <= {"MANIFEST.tmp"}
        goes_on(found)


CUT = "/data/log: cut 12 torn bytes of 000000000003.seg at byte 196, after position 20"


def test_open_before_an_orphan_is_removed() -> None:
    for nth in (1, 2):
        for disk in states(create, Fault("remove", nth=nth, kind="CRASH"), disk=torn()):
            found = recovered(disk)
            assert found.positions == [*OLD, NEW]
            assert set(found.removed) <= ORPHANS
            assert [str(event) for event in found.of(TailCut)] == [CUT]
            goes_on(found)


def test_open_before_the_torn_tail_is_cut() -> None:
    for disk in states(create, Fault("truncate", kind="CRASH"), disk=torn()):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        assert [str(event) for event in found.of(TailCut)] == [CUT]
        goes_on(found)


def test_open_before_the_cut_is_durable() -> None:
    seen = set()
    for disk in states(create, Fault("fsync", kind="CRASH"), disk=torn()):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        seen.add(len(found.of(TailCut)))
        goes_on(found)
    assert seen == {0, 1}


def test_open_before_the_cut_segment_is_rolled() -> None:
    for disk in states(create, Fault("rename", "*/MANIFEST", kind="CRASH"), disk=torn()):
        found = recovered(disk)
        assert found.positions == [*OLD, NEW]
        assert found.of(TailCut) == []
        goes_on(found)


# --- a run ----------------------------------------------------------------------------------


TARGET = "*-*.seg"
TARGETS = re.compile(r"00000000000[12]-.*\.seg")
DEAD_SETS = re.compile(r"00000000000[12]-.*\.dead")


def copied_again(found: Found, copied: int, phase: str = "COPY") -> None:
    """Recovery took the run up, found `copied` groups done, and finished it."""
    assert found.actions == [f"{phase}: resuming, {copied} groups are copied"]
    finished(found)


def only_finished(found: Found, phase: str) -> None:
    """The run was published; recovery swept up and reported."""
    assert found.actions == [f"{phase}: it was published, finishing"]
    finished(found)


def finished(found: Found) -> None:
    assert found.positions == LIVE
    assert found.run is not None
    assert (found.run.result, found.run.run_id) == ("done", found.log.manifest.last_run)
    goes_on(found)


def never_begun(found: Found) -> None:
    """There was no journal: the log is as it was, and what the run had written is gone."""
    assert (found.actions, found.run) == ([], None)
    assert found.positions == OLD
    goes_on(found)


def test_prepare_between_two_dead_sets() -> None:
    removed = set()
    for disk in states(compact, Fault("open_append", "*.dead", nth=2, kind="CRASH")):
        found = recovered(disk)
        removed.update(found.removed)
        never_begun(found)
    assert len(removed) == 1
    assert DEAD_SETS.fullmatch(removed.pop())


def test_prepare_before_the_journal() -> None:
    removed = set()
    for disk in states(compact, Fault("rename", "*/JOURNAL", kind="CRASH")):
        found = recovered(disk)
        removed.update(found.removed)
        never_begun(found)
    assert len(removed) == 3
    assert "JOURNAL.tmp" in removed


def test_prepare_before_the_directory_is_synced() -> None:
    seen = set()
    for disk in states(compact, Fault("rename", "*/JOURNAL", kind="CRASH_AFTER")):
        found = recovered(disk)
        seen.add(len(found.actions))
        if found.actions:
            copied_again(found, 0, "PREPARE")
        else:
            never_begun(found)
    assert seen == {0, 1}


def test_copy_before_the_first_target() -> None:
    for disk in states(compact, Fault("open_append", TARGET, kind="CRASH")):
        copied_again(recovered(disk), 0, "PREPARE")


def test_copy_in_the_middle_of_a_target() -> None:
    removed: set[str] = set()
    for disk in states(compact, Fault("write", TARGET, nth=2, kind="CRASH_AFTER")):
        found = recovered(disk)
        removed.update(name for name in found.removed if TARGETS.fullmatch(name))
        copied_again(found, 0, "PREPARE")
    assert len(removed) == 1


def test_copy_before_a_target_is_durable() -> None:
    for disk in states(compact, Fault("fsync", TARGET, kind="CRASH")):
        copied_again(recovered(disk), 0, "PREPARE")


def test_copy_before_a_target_is_journalled() -> None:
    for disk in states(compact, Fault("write", "*/JOURNAL", kind="CRASH")):
        copied_again(recovered(disk), 0, "PREPARE")


def test_copy_before_its_line_is_durable() -> None:
    seen = set()
    for disk in states(compact, Fault("fsync", "*/JOURNAL", kind="CRASH")):
        found = recovered(disk)
        # With the line the target itself may be missing, because its name was never synced.
        seen.add(found.actions[0])
        finished(found)
    assert "COPY: resuming, 1 groups are copied" in seen
    assert "PREPARE: resuming, 0 groups are copied" in seen


def test_copy_between_two_groups() -> None:
    seen = set()
    for disk in states(compact, Fault("open_append", TARGET, nth=2, kind="CRASH")):
        before = [name for name in disk.list(DIRECTORY) if TARGETS.fullmatch(name)]
        found = recovered(disk)
        used = {segment.name for segment in found.log.manifest.segments}
        assert used.issuperset(before)
        copied_again(found, len(before))
        seen.add(len(before))
    assert seen == {0, 1}


def test_copy_and_a_source_is_dropped_before_the_next_run() -> None:
    for disk in states(compact, Fault("open_append", TARGET, nth=2, kind="CRASH")):
        found = recovered(disk, meanwhile=lambda log: log.drop_head(before=10))
        assert found.run is None
        (action,) = found.actions
        assert action.startswith("COPY: rolled back: 000000000001.seg was dropped")
        assert found.positions == OLD[10:]
        (report,) = compactor_of(found.log, disk, LIVE).history.newest(9)
        assert report.result == "rolled back"
        goes_on(found)


def test_commit_before_it_is_journalled() -> None:
    for disk in states(compact, Fault("write", "*/JOURNAL", nth=3, kind="CRASH")):
        found = recovered(disk)
        assert found.actions[0].startswith("COPY: resuming, ")
        finished(found)


def test_commit_before_the_manifest() -> None:
    for disk in states(compact, Fault("rename", "*/MANIFEST", kind="CRASH")):
        copied_again(recovered(disk), 2, "COMMIT")


def test_commit_before_the_directory_is_synced() -> None:
    seen = set()
    for disk in states(compact, Fault("rename", "*/MANIFEST", kind="CRASH_AFTER")):
        found = recovered(disk)
        seen.update(found.actions)
        finished(found)
    assert seen == {
        "COMMIT: resuming, 2 groups are copied",
        "COMMIT: it was published, finishing",
    }


def test_cleanup_before_it_is_journalled() -> None:
    for disk in states(compact, Fault("write", "*/JOURNAL", nth=4, kind="CRASH")):
        only_finished(recovered(disk), "COMMIT")


def test_cleanup_before_a_file_is_swept_up() -> None:
    for disk in states(compact, Fault("remove", "*.dead", nth=2, kind="CRASH")):
        found = recovered(disk)
        assert 1 <= len([name for name in found.removed if DEAD_SETS.fullmatch(name)]) <= 2
        only_finished(found, "CLEANUP")


def test_cleanup_before_the_report() -> None:
    for disk in states(compact, Fault("rename", "*/HISTORY", kind="CRASH")):
        only_finished(recovered(disk), "CLEANUP")


def test_cleanup_before_the_report_is_durable() -> None:
    for disk in states(compact, Fault("rename", "*/HISTORY", kind="CRASH_AFTER")):
        only_finished(recovered(disk), "CLEANUP")


def test_done_before_it_is_journalled() -> None:
    for disk in states(compact, Fault("write", "*/JOURNAL", nth=5, kind="CRASH")):
        only_finished(recovered(disk), "CLEANUP")


def test_done_before_the_journal_is_removed() -> None:
    for disk in states(compact, Fault("remove", "*/JOURNAL", kind="CRASH")):
        only_finished(recovered(disk), "DONE")


def test_done_before_the_directory_is_synced() -> None:
    seen = set()
    for disk in states(compact, Fault("remove", "*/JOURNAL", kind="CRASH_AFTER")):
        found = recovered(disk)
        seen.add(len(found.actions))
        if found.actions:
            only_finished(found, "DONE")
        else:
            assert (found.positions, found.run) == (LIVE, None)
            assert len(compactor_of(found.log, disk, LIVE).history.newest(9)) == 1
            goes_on(found)
    assert seen == {0, 1}


# --- the page -------------------------------------------------------------------------------


def test_every_row_of_the_page_has_its_test_and_every_test_its_row() -> None:
    rows = re.findall(r"^\|.*\| `(test_\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    tests = [name for name in globals() if name.startswith("test_") and "_row_" not in name]
    assert rows == tests
