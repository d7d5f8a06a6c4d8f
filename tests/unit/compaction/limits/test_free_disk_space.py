from __future__ import annotations

import pytest

from lithify.compaction.limits.free_disk_space import reserve_scratch
from lithify.errors import RunRefused
from lithify.fs.memory import MemoryFileSystem


def test_scratch_space_that_cannot_suffice_is_refused_with_all_numbers() -> None:
    fs = MemoryFileSystem(capacity_bytes=1_000)
    reserve_scratch(fs, "/", needed_bytes=1_000, scratch_bytes=None)
    reserve_scratch(fs, "/", needed_bytes=600, scratch_bytes=600)

    with pytest.raises(RunRefused) as caught:
        reserve_scratch(fs, "/", needed_bytes=601, scratch_bytes=600)
    assert caught.value.limit == "scratch space"
    assert caught.value.detail == (
        "needs 601 bytes on the disk of /, available 1000 bytes, limit 600 bytes"
    )

    with pytest.raises(RunRefused, match=r"needs 1001 bytes .* available 1000 bytes, limit none"):
        reserve_scratch(fs, "/", needed_bytes=1_001, scratch_bytes=None)
