from __future__ import annotations

import pytest

from lithify.fs import MemoryFileSystem
from lithify.log.directory_marks import Deletion, read_deletion, write_deletion
from lithify.log.object_file import ObjectIdentity

ORDERS = ObjectIdentity(5, "orders", 100)
AGAIN = ObjectIdentity(9, "orders", 200)
OTHER_CATALOG = ObjectIdentity(5, "orders", 300)
MARK = Deletion("orders", 150, {"": "aa", "orders-partition-1": "bb"}, ORDERS)
OLD_MARK = Deletion("orders", 150, {"": "aa", "orders-partition-1": "bb"})
PART = "orders-partition-1"


@pytest.mark.parametrize("mark", [MARK, OLD_MARK])
def test_a_mark_is_read_as_it_was_written(mark: Deletion) -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/d")
    write_deletion(fs, "/d", mark)
    assert read_deletion(fs, "/d") == mark


@pytest.mark.parametrize("place", ["", PART])
@pytest.mark.parametrize("found", [AGAIN, OTHER_CATALOG])
@pytest.mark.parametrize("log_id", ["", "aa", "bb", "cc"])
def test_a_mark_does_not_permit_to_remove_another_object(
    place: str, found: ObjectIdentity, log_id: str
) -> None:
    assert not MARK.covers(place, log_id, found)


def test_a_mark_permits_to_remove_its_object_and_what_is_left_of_it() -> None:
    for log_id in ("", "aa"):
        assert MARK.covers("", log_id, ORDERS)
        assert MARK.covers("", log_id, None)
    assert MARK.covers(PART, "bb", ORDERS)
    assert MARK.covers(PART, "bb", None)
    assert MARK.covers(PART, "", ORDERS)
    # It is removed together with the file that names the object.
    assert not MARK.covers(PART, "", None)
    assert not MARK.covers(PART, "cc", ORDERS)
    assert not MARK.covers("orders-partition-2", "", ORDERS)


def test_a_mark_without_an_object_permits_to_remove_only_the_log_that_it_names() -> None:
    for found in (ORDERS, AGAIN):
        assert OLD_MARK.covers("", "aa", found)
        assert not OLD_MARK.covers("", "cc", found)
        # It may be a newer one, whose log cannot be read.
        assert not OLD_MARK.covers("", "", found)
    assert OLD_MARK.covers("", "aa", None)
    assert OLD_MARK.covers(PART, "", None)
    assert not OLD_MARK.covers(PART, "aa", None)
