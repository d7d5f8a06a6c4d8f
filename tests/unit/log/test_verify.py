"""Wrong contents with right CRCs. For flipped bytes see `tests/fault`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lithify.checksum import crc32c
from lithify.errors import InvalidInput, MissingFile
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.log.file_names import MANIFEST, segment_name
from lithify.log.manifest import read_manifest, write_manifest
from lithify.log.segments.segment_file import FOOTER_BYTES, read_footer
from lithify.log.verify import verify_log
from tests.small_log import ACTIVE, DIRECTORY, build, with_dead_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.log.manifest import Manifest, SegmentRef
    from lithify.log.verify import Verification

SECOND = f"{DIRECTORY}/{segment_name(2)}"
THIRD = f"{DIRECTORY}/{segment_name(3)}"


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    build(fs)
    return fs


def contents(fs: MemoryFileSystem) -> dict[str, bytes]:
    return {name: read_file(fs, f"{DIRECTORY}/{name}") for name in fs.list(DIRECTORY)}


def edit_manifest(fs: MemoryFileSystem, edit: Callable[[Manifest], Manifest]) -> None:
    write_manifest(fs, DIRECTORY, edit(read_manifest(fs, DIRECTORY)))


def edit_third(fs: MemoryFileSystem, **changes: Any) -> None:
    """Make the manifest lie about segment 3."""

    def edit(manifest: Manifest) -> Manifest:
        second, third, active = manifest.segments
        return replace(manifest, segments=(second, replace(third, **changes), active))

    edit_manifest(fs, edit)


def edit_footer(fs: MemoryFileSystem, path: str, **changes: int) -> None:
    """Make a footer lie, under a good CRC."""
    with fs.open_read(path) as file:
        footer = replace(read_footer(file), **changes)
    write_atomic(fs, path, read_file(fs, path)[:-FOOTER_BYTES] + footer.to_bytes())


def damage(found: Verification) -> str:
    assert found.damage is not None
    return str(found.damage)


def test_a_healthy_log_is_counted_and_left_as_it_is(fs: MemoryFileSystem) -> None:
    before = contents(fs)
    seen: list[int] = []

    found = verify_log(fs, DIRECTORY, seen.append)

    assert found.damage is None
    assert (found.segments, found.entries, found.dead_entries) == (4, 4 + 4 + 4 + 6, 2)
    assert found.retired == (segment_name(1),)
    assert (found.orphans, found.warnings, found.torn_bytes) == ((), (), 0)
    checked = [n for n in before if n not in ("LOCK", "JOURNAL", "HISTORY", segment_name(1))]
    assert found.bytes == sum(seen) == sum(len(before[name]) for name in checked)
    assert contents(fs) == before


def test_a_directory_without_a_log_is_wrong_input_and_no_damage(fs: MemoryFileSystem) -> None:
    with pytest.raises(InvalidInput, match="/data holds no log"):
        verify_log(fs, "/data")


def test_a_torn_tail_is_reported_and_is_no_damage(fs: MemoryFileSystem) -> None:
    with fs.open_append(f"{DIRECTORY}/{ACTIVE}") as file:
        end = file.size()
        file.write(b"half a fra")
    found = verify_log(fs, DIRECTORY)
    assert (found.damage, found.torn_bytes) == (None, 10)
    assert f"{ACTIVE} has 10 torn bytes behind byte {end}" in found.warnings[0]


def test_unexplained_files_are_listed(fs: MemoryFileSystem) -> None:
    fs.remove(f"{DIRECTORY}/JOURNAL")
    for name in ("000000000009.seg", "000000000002-b0.dead", "MANIFEST.tmp", "notes.txt"):
        write_atomic(fs, f"{DIRECTORY}/{name}", b"?")
    found = verify_log(fs, DIRECTORY)
    assert found.damage is None
    assert found.orphans == ("000000000002-b0.dead", "000000000009.seg", "MANIFEST.tmp")
    assert found.warnings == ("notes.txt is no file of Lithify",)


@pytest.mark.parametrize("name", ["000000000003.seg", "000000000002-a2.dead", ACTIVE])
def test_a_missing_file_is_damage(fs: MemoryFileSystem, name: str) -> None:
    fs.remove(f"{DIRECTORY}/{name}")
    found = verify_log(fs, DIRECTORY)
    assert isinstance(found.damage, MissingFile)
    assert found.damage.path == f"{DIRECTORY}/{name}"


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_min", 1), ("time_max", 2000), ("frame_bytes", 1), ("entries", 3), ("last_position", 9)],
)
def test_a_manifest_that_counts_differently_from_a_footer_is_damage(
    fs: MemoryFileSystem, field: str, value: int
) -> None:
    edit_third(fs, **{field: value})
    assert THIRD in damage(verify_log(fs, DIRECTORY))


def test_a_segment_in_the_view_is_compared_with_what_the_view_says(fs: MemoryFileSystem) -> None:
    def edit(manifest: Manifest) -> Manifest:
        second = replace(manifest.segments[0], time_max=5, dead=None)
        return replace(manifest, view=(second,))

    edit_manifest(fs, edit)
    assert "manifest says time_max is 5, footer says" in damage(verify_log(fs, DIRECTORY))


@pytest.mark.parametrize(
    ("field", "value"),
    [("entries", 3), ("first_position", 8), ("last_position", 9), ("time_min", 1), ("time_max", 9)],
)
def test_a_footer_that_counts_differently_from_the_frames_is_damage(
    fs: MemoryFileSystem, field: str, value: int
) -> None:
    edit_footer(fs, THIRD, **{field: value})
    if field != "first_position":
        edit_third(fs, **{field: value})
    assert f"footer says {field} is {value}, frames say" in damage(verify_log(fs, DIRECTORY))


@pytest.mark.parametrize("column", [0, 8, 16], ids=["position", "offset", "running time"])
def test_a_block_index_that_does_not_fit_the_frames_is_damage(
    fs: MemoryFileSystem, column: int
) -> None:
    with fs.open_read(THIRD) as file:
        footer = read_footer(file)
    data = bytearray(read_file(fs, THIRD))
    data[footer.frames_end + column] += 1
    write_atomic(fs, THIRD, data)
    edit_footer(fs, THIRD, rows_crc=crc32c(data[footer.frames_end : -FOOTER_BYTES]))
    assert "block index and frames disagree" in damage(verify_log(fs, DIRECTORY))


def test_segments_whose_positions_overlap_are_damage(fs: MemoryFileSystem) -> None:
    edit_third(fs, first_position=6)
    found = verify_log(fs, DIRECTORY)
    assert "000000000003.seg begins at position 6, the segment before it ends at 6" in damage(found)
    assert getattr(found.damage, "path", "") == f"{DIRECTORY}/{MANIFEST}"


def test_a_segment_that_begins_before_the_manifest_says_is_damage(fs: MemoryFileSystem) -> None:
    edit_third(fs, first_position=8)
    assert "begins at position 7, manifest says 8" in damage(verify_log(fs, DIRECTORY))


def test_a_segment_of_another_log_is_damage(fs: MemoryFileSystem) -> None:
    edit_manifest(fs, lambda manifest: replace(manifest, kind="blob"))
    assert "is a segment of another log" in damage(verify_log(fs, DIRECTORY))
    edit_manifest(fs, lambda manifest: replace(manifest, segments=manifest.segments[-1:], view=()))
    assert f"{ACTIVE} at byte 40: is a segment of another log" in damage(verify_log(fs, DIRECTORY))


@pytest.mark.parametrize("sealed", [(True, True, True), (True, False, False)])
def test_exactly_the_last_segment_must_be_active(
    fs: MemoryFileSystem, sealed: tuple[bool, ...]
) -> None:
    def edit(manifest: Manifest) -> Manifest:
        pairs = zip(manifest.segments, sealed, strict=True)
        return replace(manifest, segments=tuple(replace(s, sealed=yes) for s, yes in pairs))

    edit_manifest(fs, edit)
    assert f"{MANIFEST} at byte 0" in damage(verify_log(fs, DIRECTORY))


def test_a_segment_id_that_is_still_to_be_given_out_is_damage(fs: MemoryFileSystem) -> None:
    edit_manifest(fs, lambda manifest: replace(manifest, next_segment_id=4))
    assert "names segment 4, but the next one is 4" in damage(verify_log(fs, DIRECTORY))


def judged(fs: MemoryFileSystem, positions: set[int], **counts: Any) -> Verification:
    """Verify the log with a new dead set of segment 3, counted as told."""

    def edit(manifest: Manifest) -> Manifest:
        second, third, active = manifest.segments
        lying: SegmentRef = with_dead_set(fs, DIRECTORY, third, positions, "c0")
        assert lying.dead is not None
        lying = replace(lying, dead=replace(lying.dead, **counts))
        return replace(manifest, segments=(second, lying, active))

    edit_manifest(fs, edit)
    return verify_log(fs, DIRECTORY)


def test_dead_sets_are_counted_against_the_frames(fs: MemoryFileSystem) -> None:
    assert judged(fs.kill_clone(), {7, 8, 9}).damage is None
    wrong = "names 3 entries of 117 bytes, the manifest counts 2 of 117"
    assert wrong in damage(judged(fs.kill_clone(), {7, 8, 9}, entries=2))
    wrong = "names 3 entries of 117 bytes, the manifest counts 3 of 116"
    assert wrong in damage(judged(fs.kill_clone(), {7, 8, 9}, frame_bytes=116))


@pytest.mark.parametrize("outside", [6, 11])
def test_a_dead_set_that_reaches_out_of_its_segment_is_damage(
    fs: MemoryFileSystem, outside: int
) -> None:
    assert "000000000003.seg has 7 … 10" in damage(judged(fs, {8, outside}))
