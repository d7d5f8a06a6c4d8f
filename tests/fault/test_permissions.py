"""Files and directories that the process may not read or write.

The error names the path, nothing acknowledged is lost, and everything works when the mode is as it
was before.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lithify.errors import ReadFailed
from lithify.exit_codes import FAILED, USAGE
from lithify.fs import MemoryFileSystem
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.fault.permissions import run_without_privileges
from tests.unit.log.helpers import contents, fill, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED_MEMORY = "/dev/shm"

NOT_NEEDED = {
    "RESERVE": "space for a full disk",
    "definitions.copy": "written again from the catalog",
    "metastore": "reports of runs",
    "topics/public/default/orders/log/000000000001.keys": "a key index, which only runs read",
    "topics/public/default/orders/log/HISTORY": "reports of runs",
}
"""What the test uses works without it."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: a hundred starts sync much."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as made:
        yield Path(made)


@pytest.mark.parametrize("part", [".", "blobs", "raft", "topics"])
def test_a_denied_file_or_directory_is_named_and_nothing_is_lost(
    directory: Path, part: str
) -> None:
    done = run_without_privileges("-m", "tests.fault.denied_child", directory / "data", part)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    *rows, last = map(json.loads, done.stdout.splitlines())
    assert last["checked"] > 0
    assert [row for row in rows if row["error"] and not row["names"]] == []
    errors = {row["error"] for row in rows}
    assert errors <= {None, "OpenFailed", "PermissionError", "ReadFailed", "WriteFailed"}
    unread = {row["path"] for row in rows if row["mode"] == "0" and row["error"] is None}
    assert unread <= NOT_NEEDED.keys()


def serve(*options: object, **environ: str) -> tuple[int, str]:
    ports = ("--pulsar-port", 0, "--http-port", 0)
    done = run_without_privileges("-m", "lithify", "serve", *ports, *options, **environ)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_node_does_not_start_on_a_directory_that_it_may_not_use(directory: Path) -> None:
    data = directory / "data"
    data.mkdir()
    for mode in (0, 0o500):
        data.chmod(mode)
        code, text = serve("--data", data)
        assert (code, text.count("\n")) == (FAILED, 1), text
        assert text.startswith(f"lithify: error: {data}/")
        assert text.endswith(": Permission denied\n")


def test_a_node_does_not_start_with_a_file_of_settings_that_it_may_not_read(
    directory: Path,
) -> None:
    closed = directory / "closed"
    closed.write_text("")
    closed.chmod(0)
    data = ("--data", directory / "data")
    found = {
        FAILED: serve("--config", closed, *data),
        USAGE: serve(*data, LITHIFY_TOKEN_SECRET_FILE=str(closed)),
    }
    for expected, (code, text) in found.items():
        assert (code, text.count("\n")) == (expected, 1), text
        assert str(closed) in text
        assert "Permission denied" in text


def test_a_segment_that_may_not_be_read_is_an_error_of_the_read() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    log = open_log(fs)
    fill(log, 3)
    log.roll()
    log.close()
    log = open_log(fs)
    fs.add(Fault("open_read", "*.seg", count=None, kind="EACCES"))
    with pytest.raises(ReadFailed, match=r"\.seg at byte 0: Permission denied"):
        contents(log)
    fs.clear()
    assert len(contents(log)) == 3
