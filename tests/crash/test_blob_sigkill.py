"""A process that compacts a blob store is killed with SIGKILL while it copies.

The next one resumes where it stopped: what was copied is used, nothing is in the result twice, and
every blob is what it was.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.errors import BlobDeleted
from lithify.blobs.store import BlobStore
from lithify.compaction.limits.budget import Budget
from lithify.compaction.run.journal import Journal
from lithify.events import RunRecovered
from lithify.fs import LocalFileSystem
from lithify.log.verify import verify_log
from tests.crash import blob_child

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT_BYTES = 2**18


def fill(directory: str) -> dict[str, bytes]:
    """A store of a dozen segments, half of which is dead; what must be found in it."""
    rng, blobs = random.Random(11), dict[str, bytes]()
    with BlobStore.create(
        LocalFileSystem(),
        directory,
        capacity_bytes=100 * SEGMENT_BYTES,
        segment_bytes=SEGMENT_BYTES,
        settings=blob_child.settings(Budget()),
    ) as store:
        for number in range(300):
            content = rng.randbytes(rng.choice((1000, 5000, 20_000, 70_000)))
            store.put(content, service="s", blob_id=f"blob {number}")
            blobs[f"blob {number}"] = content
        for blob_id in rng.sample(sorted(blobs), 150):
            store.delete(blob_id)
            del blobs[blob_id]
    return blobs


def kill_while_it_copies(directory: str, master: str) -> None:
    context = multiprocessing.get_context("spawn")
    hear, say = context.Pipe(duplex=False)
    process = context.Process(target=blob_child.compact, args=(directory, master, say))
    process.start()
    say.close()
    copied = 0
    while copied < 2:
        phase, done, total = hear.recv()
        copied += phase == "rewrite" and 0 < done < total
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    hear.close()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    "master", ["", pytest.param("local[2,4]", marks=pytest.mark.slow)], ids=["here", "spark"]
)
def test_the_next_run_resumes_the_killed_one(tmp_path: Path, master: str) -> None:
    fs, directory, events = LocalFileSystem(), str(tmp_path / "store"), list[object]()
    blobs = fill(directory)
    kill_while_it_copies(directory, master)
    killed = Journal(fs, directory).read()
    assert killed is not None
    assert 0 < len(killed.targets) < len(killed.groups)

    settings = blob_child.settings(Budget())
    with BlobStore.open(fs, directory, settings=settings, events=events.append) as store:
        assert "interrupted" in store.compaction.status().error
        report = store.compaction.recover()
        assert report is not None
        assert (report.run_id, report.result) == (killed.run_id, "done")
        [recovered] = [event for event in events if isinstance(event, RunRecovered)]
        assert f"{len(killed.targets)} groups are copied" in recovered.action
        names = {segment.name for segment in store.log.manifest.segments}
        assert {target.name for target in killed.targets.values()} <= names
        for blob_id, content in blobs.items():
            with store.get(blob_id) as blob:
                assert blob.read() == content
        for number in range(300):
            if f"blob {number}" not in blobs:
                with pytest.raises(BlobDeleted):
                    store.get(f"blob {number}")
        listed = [info.blob_id for info in store.list()]
        assert sorted(listed) == sorted(blobs), "each of them once"
    assert verify_log(fs, directory).damage is None
