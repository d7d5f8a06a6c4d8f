from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from lithify.catalog.changes import CatalogUpdate
from lithify.catalog.errors import CatalogVersionNotFound, CatalogVersionTrimmed, OutOfOrder
from lithify.catalog.versions import CatalogVersions
from lithify.exit_codes import NOT_FOUND
from lithify.hybrid_time import MAX_TIMESTAMP, MIN_TIMESTAMP, timestamp


def history(latest: int) -> CatalogVersions:
    """Version N is active from N seconds on."""
    versions = CatalogVersions()
    for number in range(1, latest + 1):
        update = CatalogUpdate(number, 0, ())
        versions.append(versions.latest.with_update(update, timestamp(number * 1000)))
    return versions


def test_a_version_is_found_by_its_number() -> None:
    versions = history(300)
    for number in (0, 1, 127, 128, 255, 256, 300):
        assert versions.at_version(number).version == number
    assert (versions.earliest.version, versions.latest.version, len(versions)) == (0, 300, 301)


def test_a_version_is_in_force_from_its_activation_until_the_next() -> None:
    versions = history(3)
    assert versions.at_time(MIN_TIMESTAMP).version == 0
    assert versions.at_time(timestamp(1000) - 1).version == 0
    assert versions.at_time(timestamp(1000)).version == 1
    assert versions.at_time(timestamp(2000) - 1).version == 1
    assert versions.at_time(timestamp(3000)).version == 3
    assert versions.at_time(MAX_TIMESTAMP).version == 3


@pytest.mark.parametrize("version", [-1, 4])
def test_a_version_that_does_not_exist_is_not_found(version: int) -> None:
    with pytest.raises(CatalogVersionNotFound, match="the latest version is 3") as found:
        history(3).at_version(version)
    assert found.value.exit_code == NOT_FOUND


def test_no_version_is_in_force_before_the_least_timestamp() -> None:
    with pytest.raises(CatalogVersionNotFound):
        history(3).at_time(0)


def test_a_snapshot_drops_the_versions_below_it() -> None:
    versions = history(10)
    kept = versions.at_version(4)
    assert versions.replace(versions.at_version(7))
    assert [versions.at_version(number).version for number in (7, 8, 9, 10)] == [7, 8, 9, 10]
    assert versions.earliest.version == 7
    assert kept.version == 4, "a reader keeps its catalog"
    for number in (0, 6):
        with pytest.raises(CatalogVersionTrimmed, match="the earliest version left is 7") as found:
            versions.at_version(number)
        assert found.value.earliest == 7
    with pytest.raises(CatalogVersionTrimmed, match=r"at 1970-01-01T00:00:06\.999Z"):
        versions.at_time(timestamp(6999))
    assert versions.at_time(timestamp(7000)).version == 7


def test_versions_continue_after_a_snapshot() -> None:
    versions = history(5)
    versions.replace(versions.at_version(5))
    versions.append(versions.latest.with_update(CatalogUpdate(6, 0, ()), timestamp(6000)))
    assert (versions.earliest.version, versions.latest.version) == (5, 6)
    assert versions.at_time(timestamp(6000)).version == 6


def test_a_snapshot_of_the_earliest_version_or_below_changes_nothing() -> None:
    versions, before = history(10), history(10)
    versions.replace(versions.at_version(5))
    for number in (3, 5):
        assert not versions.replace(before.at_version(number))
        assert versions.earliest.version == 5


def test_a_snapshot_above_the_latest_version_replaces_all() -> None:
    versions = history(3)
    assert versions.replace(history(9).latest)
    assert (versions.earliest.version, versions.latest.version, len(versions)) == (9, 9, 1)
    assert versions.at_time(timestamp(20_000)).version == 9


def test_versions_are_appended_in_order() -> None:
    versions = history(3)
    for number in (2, 3, 5):
        with pytest.raises(OutOfOrder, match="does not follow version 3"):
            versions.append(history(5).at_version(number))
    assert versions.latest.version == 3


def test_readers_in_other_threads_need_no_lock() -> None:
    versions, all_versions = history(1), history(3000)
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            number = versions.latest.version
            try:
                found = versions.at_time(timestamp(number * 1000)), versions.at_version(number)
            except CatalogVersionTrimmed as error:
                # Dropped since.
                if error.earliest <= number:
                    wrong.append(error)
            else:
                wrong.extend(each.version for each in found if each.version != number)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    for number in range(2, 3001):
        versions.append(all_versions.at_version(number))
        if number % 100 == 0:
            versions.replace(all_versions.at_version(number - 50))
    done.set()
    for each in readers:
        each.join()
    assert wrong == []


def test_a_reader_in_the_middle_of_an_append_finds_whole_versions() -> None:
    versions, more = history(3), history(6)

    class Watched(list[Any]):
        def append(self, value: Any) -> None:
            super().append(value)
            found.append(versions.at_time(MAX_TIMESTAMP).version)

    found: list[int] = []
    kept = versions._kept
    versions._kept = replace(
        kept, catalogs=Watched(kept.catalogs), activations=Watched(kept.activations)
    )
    for number in (4, 5, 6):
        versions.append(more.at_version(number))
    assert found == [3, 4, 4, 5, 5, 6]
