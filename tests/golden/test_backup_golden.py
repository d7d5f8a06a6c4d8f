"""The bytes of marks and of a backup's list, version 1, as they were first written.

`python tests/golden/test_backup_golden.py` writes files that are missing and leaves the others
alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.log.directory_marks import Deletion, begin_creation, read_deletion, write_deletion
from lithify.log.file_names import CREATING, DELETED
from lithify.node.backup.backup_list import BACKUP, BackupList, CopiedFile, read_list, write_list

GOLDEN = Path(__file__).parent

DELETION = Deletion("persistent://public/default/orders", 1000, {"": "", "orders-p": "5f" * 12})
LIST = BackupList(
    1000,
    2000,
    "/var/lib/lithify",
    {"definitions": CopiedFile(17, 0xA), "blobs/x/MANIFEST": CopiedFile(612, 0xFFFFFFFF)},
)


def deleted() -> bytes:
    fs = MemoryFileSystem()
    write_deletion(fs, "/", DELETION)
    return read_file(fs, f"/{DELETED}")


def creating() -> bytes:
    fs = MemoryFileSystem()
    begin_creation(fs, "/x")
    return read_file(fs, f"/x/{CREATING}")


def backup_list() -> bytes:
    fs = MemoryFileSystem()
    write_list(fs, "/", LIST)
    return read_file(fs, f"/{BACKUP}")


FILES = {
    "deleted_mark_v1.txt": deleted,
    "creating_mark_v1.txt": creating,
    "backup_v1.txt": backup_list,
}


@pytest.mark.parametrize("name", FILES)
def test_the_bytes_are_what_they_were(name: str) -> None:
    assert FILES[name]() == (GOLDEN / name).read_bytes()


def test_version_1_is_read() -> None:
    fs = MemoryFileSystem()
    write_atomic(fs, f"/{DELETED}", (GOLDEN / "deleted_mark_v1.txt").read_bytes())
    write_atomic(fs, f"/{BACKUP}", (GOLDEN / "backup_v1.txt").read_bytes())
    assert read_deletion(fs, "/") == DELETION
    assert read_list(fs, "/") == LIST


if __name__ == "__main__":
    for name, make in FILES.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(make())
