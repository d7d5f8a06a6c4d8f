"""What is deleted for good is overwritten, and nothing else changes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.erase import erase as erase_module
from lithify.blobs.erase.journal import keys_of, read_erase
from lithify.blobs.errors import BlobDeleted, BlobDeletedForever, BlobExpired
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.blobs.visibility import Include
from lithify.clock import ManualClock
from lithify.errors import DamagedFrame, RunCancelled, WriteFailed
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.file_names import ERASE
from lithify.log.segments.frame import FLAG_ERASED, decode_frame, encode_header
from lithify.log.segments.overwrite import plan_erasure
from lithify.log.verify import verify_log
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.unit.blobs.life import DIRECTORY, RETENTION_MS, Life, content_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.checksum import Buffer
    from lithify.fs import File

LATE_S = RETENTION_MS / 1000 + 0.001


@pytest.fixture
def disk() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def life(disk: MemoryFileSystem) -> Life:
    return Life(disk, ManualClock())


def turn_back(life: Life, seconds: float) -> None:
    """The machine's clock is set to an earlier time."""
    life.clock.jump(-seconds)


def segments_of(life: Life) -> int:
    return len(life.store.log.manifest.segments)


def files_of(life: Life) -> dict[str, bytes]:
    names = life.fs.list(DIRECTORY)
    return {name: read_file(life.fs, f"{DIRECTORY}/{name}") for name in names if name != ERASE}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_a_frame_that_is_erased_is_an_intact_frame_with_zeros() -> None:
    body = b"kept and secret and kept"
    frame = encode_header(body, 7, 1000, 0x0100, 3, 64) + body
    erasure = plan_erasure("a.seg", 64, frame, ((9, 15),))
    zeroed = erasure.header + b"kept and " + bytes(6) + b" and kept"
    entry = decode_frame(zeroed, 0, "a.seg")
    assert (entry.position, entry.time_ms, entry.tag) == (7, 1000, 3)
    assert entry.flags == 0x0100 | FLAG_ERASED
    assert erasure.zero_bytes == 6


def test_at_the_very_instant_nothing_is_erased(life: Life) -> None:
    life.put("a", 500)
    life.delete("a")
    life.roll()
    life.clock.advance(RETENTION_MS / 1000)
    assert life.erase().blobs == 0
    life.check()
    life.undelete("a")
    life.check()


def test_a_deleted_blob_is_erased_when_its_retention_is_over(life: Life) -> None:
    life.put("small", 500)
    life.put("large", 150_000)
    life.put("stays", 500)
    life.delete("small")
    life.delete("large")
    life.roll()
    life.clock.advance(LATE_S)
    life.check()
    before = files_of(life)
    progress = life.erase()
    assert (progress.blobs, life.erased) == (2, {0, 4})
    assert progress.bytes == 150_500 + 2 * 4, "both contents, and what they could be guessed by"
    assert changed(before, files_of(life)) == {"000000000001.seg"}, "the key index stays true"
    life.check()
    with pytest.raises(BlobDeleted):
        life.store.get("large", include=Include.ALL)
    with pytest.raises(BlobDeletedForever):
        life.store.undelete("large")
    life.store.close()
    assert verify_log(life.fs, DIRECTORY).damage is None
    life.open()
    life.check()
    assert life.erase().bytes == 0, "once is enough"


def test_user_metadata_goes_and_the_rest_of_the_record_stays(life: Life) -> None:
    store = life.store
    store.put(b"secret content", service="s", owner="o", metadata={"a": "private"}, blob_id="x")
    store.put(bytes(70_000), service="s", metadata={"b": "hidden"}, blob_id="y")
    store.delete("x")
    store.delete("y")
    life.roll()
    life.clock.advance(LATE_S)
    assert store.erase.step(10**9).blobs == 2
    data = b"".join(files_of(life).values())
    assert not any(word in data for word in (b"secret", b"private", b"hidden"))
    assert b"x" in data


def test_only_deleted_blobs_are_erased_not_expired_or_undeleted_ones(life: Life) -> None:
    life.put("expired", 500, 10)
    life.put("back", 500)
    life.delete("back")
    life.undelete("back")
    life.put("both", 500, 10)
    life.delete("both")
    life.roll()
    life.clock.advance(LATE_S)
    assert life.erase().blobs == 1
    life.check()
    assert life.answer("expired", Include.EXPIRED) == life.records[0].content
    assert life.answer("both", Include.ALL) is BlobDeleted


def test_content_dropped_but_not_rewritten_by_compaction_is_erased(life: Life) -> None:
    """Also if the delete is gone before an erase began."""
    life.put("dropped", 500)
    for number in range(4):
        life.put(f"live {number}", 150_000)
        life.roll()
    life.delete("dropped")
    life.put("also live", 150_000)
    life.roll()
    life.clock.advance(LATE_S)
    for _ in range(3):
        life.compact("stats")
    assert not life.alive("dropped")
    content = life.records[0].content
    assert any(content in data for data in files_of(life).values())
    assert life.store.erase.step(10**9).blobs == 1
    assert not any(content in data for data in files_of(life).values())
    life.check()
    assert verify_log(life.fs, DIRECTORY).damage is None


def test_the_active_segment_waits_and_is_rolled_after_an_hour(life: Life) -> None:
    life.put("a", 500)
    life.delete("a")
    life.clock.advance(LATE_S)
    assert (life.erase().blobs, segments_of(life)) == (0, 1)
    life.clock.advance(3600)
    assert (life.erase().blobs, segments_of(life)) == (0, 2)
    life.clock.advance(1)
    assert (life.erase().blobs, segments_of(life)) == (1, 2)
    life.check()
    life.clock.advance(7200)
    assert (life.erase().blobs, segments_of(life)) == (0, 2), "nothing in it waits"


def test_steps_are_bounded_and_resume_in_the_next_process(life: Life) -> None:
    for number in range(6):
        life.put(f"blob {number}", 100_000)
        life.delete(f"blob {number}")
    life.roll()
    life.clock.advance(LATE_S)
    doomed = life.to_be_erased()
    found = 0
    for _ in range(40):
        progress = life.store.erase.step(60_000)
        assert progress.bytes <= 60_000 + 70_000
        found += progress.blobs
        life.store.abandon()
        life.open()
        if life.store.erase.status().as_of_ms is not None:
            break
    assert found == 6
    life.erased |= doomed
    life.check_erased()
    life.check()


def test_a_blob_is_erased_for_all_from_its_first_batch_on(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.put("large", 190_000)
    life.delete("large")
    life.roll()
    monkeypatch.setattr(erase_module, "BATCH_FRAMES", 1)
    life.clock.advance(LATE_S)
    assert life.store.erase.step(1).bytes == 0, "it looks"
    assert life.store.erase.step(1).bytes == 4, "the put, whose content is elsewhere"
    assert life.answer("large", Include.ALL) is BlobDeleted
    assert list(life.store.list(include=Include.ALL)) == []
    # The clock goes back behind the retention: what is begun cannot be taken back.
    turn_back(life, 2)
    life.store.erase.pause()
    life.store.erase.resume()
    with pytest.raises(BlobDeletedForever):
        life.store.undelete("large")


def test_the_clock_is_set_back_during_a_round(life: Life) -> None:
    life.put("a", 500)
    life.put("b", 500)
    life.delete("a")
    life.delete("b")
    life.roll()
    life.clock.advance(LATE_S)
    life.store.erase.step(1)
    assert life.store.erase.status().working
    turn_back(life, 2)
    with pytest.raises(BlobDeletedForever):
        life.store.undelete("b")
    assert life.store.erase.step(10**9).blobs == 2


def test_a_delete_before_the_last_round_is_found_though_the_clock_was_wrong(life: Life) -> None:
    life.put("a", 500)
    life.put("b", 500)
    life.delete("a")
    life.roll()
    life.clock.advance(60)
    assert life.erase().blobs == 1
    turn_back(life, 58)
    life.delete("b")
    life.clock.advance(70)
    assert life.erase().blobs == 1
    life.check()


def test_a_reader_gets_the_old_bytes_or_an_error_never_zeros(disk: MemoryFileSystem) -> None:
    clock = ManualClock()
    store = BlobStore.create(
        disk,
        "/big",
        capacity_bytes=2**23,
        segment_bytes=2**22,
        settings=BlobSettings(deleted_retention_ms=RETENTION_MS),
        clock=clock,
    )
    large = content_of(1, 3_000_000)
    store.put(b"a small one", service="s", blob_id="small")
    store.put(large, service="s", blob_id="large")
    small, pieces = store.get("small"), iter(store.get("large"))
    assert next(pieces) == large[: 2**20]
    store.delete("small")
    store.delete("large")
    store.writer.seal()
    clock.advance(LATE_S)
    assert store.erase.step(10**9).blobs == 2
    assert small.read() == b"a small one", "it was read when it was opened"
    with pytest.raises(BlobDeleted):
        next(pieces)


class Spying(MemoryFileSystem):
    """Does something after each overwrite."""

    act: Callable[[], None] = staticmethod(lambda: None)

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:
        file = super().open_append(path, exclusive=exclusive, uncached=uncached)
        overwrite = file.overwrite

        def spied(data: Buffer, offset: int) -> None:
            overwrite(data, offset)
            self.act()

        file.overwrite = spied  # type: ignore[method-assign]
        return file


def test_a_frame_that_is_half_written_over_is_no_damage() -> None:
    fs = Spying()
    life = Life(fs, ManualClock())
    life.put("small", 500)
    life.put("large", 150_000)
    life.delete("small")
    life.delete("large")
    life.roll()
    life.clock.advance(LATE_S)
    readers = [life.store.get("large", include=Include.ALL) for _ in range(20)]
    seen: set[object] = set()

    def look() -> None:
        for blob_id in ("small", "large"):
            answer = life.answer(blob_id, Include.ALL)
            content = next(r.content for r in life.records if r.blob_id == blob_id)
            assert answer in (content, BlobDeleted)
            seen.add(answer if answer is BlobDeleted else blob_id)
        if readers:
            with suppress(BlobDeleted):
                assert readers.pop().read() == life.records[1].content
        assert len(list(life.store.list(include=Include.ALL))) <= 2

    fs.act = look
    life.erase()
    assert seen == {BlobDeleted, "large"}


def test_damage_is_still_damage(life: Life, disk: MemoryFileSystem) -> None:
    life.put("a", 500)
    life.put("b", 500)
    life.delete("a")
    life.delete("b")
    life.roll()
    disk.flip(f"{DIRECTORY}/000000000001.seg", 400)
    life.clock.advance(LATE_S)
    progress = life.store.erase.step(10**9)
    status = life.store.erase.status()
    assert (progress.blobs, status.damaged) == (2, 1)
    assert "000000000001.seg at byte 64" in str(status.first_damage)
    with pytest.raises(DamagedFrame):
        life.store.get("a", include=Include.ALL)
    assert life.answer("b", Include.ALL) is BlobDeleted


@pytest.mark.parametrize("policy", ["all", "stats"])
def test_compaction_after_and_before_erase(life: Life, policy: str) -> None:
    for number in range(8):
        life.put(f"blob {number}", 60_000)
    for number in (1, 4, 6):
        life.delete(f"blob {number}")
    life.roll()
    life.clock.advance(LATE_S)
    life.erase()
    life.compact(policy)
    life.check()
    life.delete("blob 2")
    life.delete("blob 7")
    life.roll()
    life.compact(policy)
    life.clock.advance(LATE_S)
    life.erase()
    life.check()
    life.compact(policy)
    life.check()
    life.check_erased()
    assert verify_log(life.fs, DIRECTORY).damage is None


def test_an_erased_put_kept_alive_by_a_wrong_clock_is_copied_as_it_is(life: Life) -> None:
    life.put("a", 500)
    life.put("other", 500)
    life.delete("a")
    life.delete("other")
    life.roll()
    life.clock.advance(LATE_S)
    life.erase()
    turn_back(life, LATE_S)
    life.put("b", 500)
    life.roll()
    life.compact("all")
    life.check()
    life.check_erased()


def test_erase_pauses_during_compaction_and_resumes_after_it_failed(life: Life) -> None:
    for number in range(4):
        life.put(f"blob {number}", 120_000)
        life.delete(f"blob {number}")
        life.roll()
    life.put("stays", 10)
    life.roll()
    life.clock.advance(LATE_S)
    life.store.erase.step(1)
    seen = []

    def meddle() -> None:
        seen.append(life.store.erase.status().paused)
        assert life.store.erase.step(10**9).idle
        life.store.compaction.cancel()

    with pytest.raises(RunCancelled):
        life.compact_meanwhile("all", meddle)
    assert seen == [True]
    assert not life.store.erase.status().paused
    assert life.erase().blobs == 4
    life.check()


def test_a_round_whose_segments_were_replaced_begins_again(life: Life) -> None:
    for number in range(4):
        life.put(f"blob {number}", 120_000)
        life.delete(f"blob {number}")
    life.put("stays", 100)
    life.delete("stays")
    life.undelete("stays")
    life.roll()
    life.clock.advance(LATE_S)
    life.store.erase.step(1)
    life.store.erase.step(1)
    assert read_erase(life.fs, DIRECTORY).now is not None
    life.compact("all")
    life.store.erase.step(1)
    begun = read_erase(life.fs, DIRECTORY)
    keys = keys_of(life.store.log.manifest)
    assert [r.segments for r in (begun.done, begun.now) if r is not None] == [keys]
    life.erase()
    life.check()
    state = read_erase(life.fs, DIRECTORY)
    assert state.now is None
    assert state.done is not None


def test_a_batch_that_fails_is_finished_before_anything_else(disk: MemoryFileSystem) -> None:
    fs = FaultyFileSystem(disk)
    life = Life(fs, ManualClock())
    life.put("a", 500)
    life.put("b", 500)
    life.delete("a")
    life.delete("b")
    life.roll()
    life.clock.advance(LATE_S)
    doomed = life.to_be_erased()
    fs.add(Fault("overwrite", nth=2, kind="SHORT"))
    with pytest.raises(WriteFailed):
        life.store.erase.step(10**9)
    assert life.answer("a", Include.ALL) is BlobDeleted
    fs.add(Fault("overwrite", count=None, kind="EIO"))
    with pytest.raises(WriteFailed):
        life.store.compaction.run()
    assert not life.store.erase.status().paused
    fs.clear()
    life.store.compaction.run()
    life.erased |= doomed
    life.check_erased()


def test_a_full_disk_does_not_keep_a_torn_batch_from_being_finished() -> None:
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk)
    life = Life(fs, ManualClock())
    life.put("a", 500)
    life.delete("a")
    life.roll()
    life.clock.advance(LATE_S)
    fs.add(Fault("overwrite", nth=2, kind="SHORT"))
    with pytest.raises(WriteFailed):
        life.store.erase.step(10**9)
    life.store.abandon()
    again = FaultyFileSystem(disk.kill_clone(), [Fault("write", count=None, kind="ENOSPC")])
    life.open(again)
    life.erased |= {0}
    life.check()
    life.check_erased()


def test_a_damaged_progress_file_counts_as_none(life: Life, disk: MemoryFileSystem) -> None:
    life.put("a", 500)
    life.delete("a")
    life.roll()
    life.clock.advance(LATE_S)
    life.erase()
    life.store.close()
    disk.flip(f"{DIRECTORY}/{ERASE}", 30)
    life.open()
    life.check()
    progress = life.erase()
    assert (progress.blobs, progress.bytes) == (0, 0)
    assert read_erase(disk, DIRECTORY).done is not None


def test_no_retention_at_all_erases_at_once(disk: MemoryFileSystem) -> None:
    life = Life(disk, ManualClock(), BlobSettings(deleted_retention_ms=0))
    life.put("a", 500)
    life.put("b", 500, 2000)
    life.delete("a")
    life.roll()
    life.clock.advance(0.001)
    assert life.erase().blobs == 1
    life.check()
    life.clock.advance(5)
    with pytest.raises(BlobExpired):
        life.store.get("b")
