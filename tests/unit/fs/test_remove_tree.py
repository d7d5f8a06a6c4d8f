"""A directory is removed with everything in it, whatever others do there meanwhile."""

from __future__ import annotations

import pytest

from lithify.errors import WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.fs.remove_tree import TRIES, remove_tree
from lithify.testing.faulty_fs import Fault, FaultyFileSystem


class Busy(MemoryFileSystem):
    """A file appears in the directory, and one that was listed goes, this many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def list(self, path: str) -> list[str]:
        names = super().list(path)
        if path == "tree" and self.left:
            self.left -= 1
            self.open_append(f"tree/new{self.left}").close()
            if self.left % 2:
                super().remove(f"tree/{names[0]}")
        return names


def plant(fs: MemoryFileSystem) -> None:
    for directory in ("tree", "tree/below"):
        fs.mkdir(directory)
        for number in range(TRIES):
            fs.open_append(f"{directory}/{number}").close()


@pytest.mark.parametrize("times", [0, 1, 2, TRIES - 1])
def test_files_created_during_a_removal_are_removed_too(times: int) -> None:
    fs = Busy(times)
    plant(fs)
    remove_tree(fs, "tree")
    assert not fs.exists("tree")
    remove_tree(fs, "tree")


def test_retries_are_bounded() -> None:
    fs = Busy(10**6)
    plant(fs)
    with pytest.raises(WriteFailed, match="tree"):
        remove_tree(fs, "tree")


def test_a_failing_disk_is_reported_at_once() -> None:
    inner = MemoryFileSystem()
    plant(inner)
    fs = FaultyFileSystem(inner, [Fault.parse("remove * EIO")])
    with pytest.raises(WriteFailed, match="tree"):
        remove_tree(fs, "tree")
    assert len(inner.list("tree")) == TRIES + 1
