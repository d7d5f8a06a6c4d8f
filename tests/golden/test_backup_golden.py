"""The bytes of marks and of a backup's list, version 1, as they were first written.

`python tests/golden/test_backup_golden.py` writes files that are missing and leaves the others
alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.log.directory_marks import Deletion, begin_creation, read_deletion, write_deletion
from lithify.log.file_names import CREATING, DELETED, OBJECT
from lithify.log.object_file import ObjectIdentity, read_object, write_object
from lithify.node.backup.backup_list import BACKUP, BackupList, CopiedFile, read_list, write_list

GOLDEN = Path(__file__).parent

DELETION = Deletion("persistent://public/default/orders", 1000, {"": "", "orders-p": "5f" * 12})
OBJECT_17 = ObjectIdentity(17, DELETION.name, 500)
DELETION_OF_OBJECT = replace(DELETION, of=OBJECT_17)
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


def deleted_object() -> bytes:
    fs = MemoryFileSystem()
    write_deletion(fs, "/", DELETION_OF_OBJECT)
    return read_file(fs, f"/{DELETED}")


def object_file() -> bytes:
    fs = MemoryFileSystem()
    write_object(fs, "/x", OBJECT_17)
    return read_file(fs, f"/x/{OBJECT}")


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
    "deleted_mark_v1_object.txt": deleted_object,
    "object_v1.txt": object_file,
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
    write_atomic(fs, f"/{DELETED}", (GOLDEN / "deleted_mark_v1_object.txt").read_bytes())
    assert read_deletion(fs, "/") == DELETION_OF_OBJECT
    write_atomic(fs, f"/{OBJECT}", (GOLDEN / "object_v1.txt").read_bytes())
    assert read_object(fs, "/") == OBJECT_17
    assert read_list(fs, "/") == LIST


if __name__ == "__main__":
    for name, make in FILES.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(make())
