"""A real process on the real file system is killed with SIGKILL at random moments, fifty times."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from typing import TYPE_CHECKING

from lithify.fs import LocalFileSystem
from lithify.log.file_names import FileKind, parse_name
from lithify.log.verify import verify_log
from tests.crash import child

if TYPE_CHECKING:
    from pathlib import Path

LIVES = 50


def test_fifty_lives_end_by_sigkill(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.child"])
    directory = str(tmp_path / "log")
    acknowledged, removed_up_to, below_maybe, below = -1, -1, 0, 0
    rng = random.Random(2026)
    for life in range(LIVES):
        hear, say = context.Pipe(duplex=False)
        process = context.Process(target=child.live, args=(directory, life, below_maybe, say))
        process.start()
        say.close()
        words = rng.randint(1, 60)
        while True:
            try:
                word, number = hear.recv()
            except EOFError:
                break
            if word == "a":
                acknowledged = max(acknowledged, number)
            elif word == "c":
                below_maybe = number
            else:
                removed_up_to, below = number, below_maybe
            words -= 1
            if not words:
                # It continues meanwhile, so this hits it in the middle of anything.
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
        process.join()
        hear.close()
        assert process.exitcode == -signal.SIGKILL, f"life {life} ended by itself"
        _check(directory, acknowledged, below_maybe, min(removed_up_to + 1, below), life)


def _check(directory: str, acknowledged: int, below_maybe: int, gone: int, life: int) -> None:
    fs = LocalFileSystem()
    with child.open_log(directory) as log:
        child.compactor_of(log, below_maybe).recover()
        with log.snapshot() as snapshot:
            entries = list(snapshot.read())
        recovered = {entry.position for entry in entries}
        assert [e.position for e in entries] == sorted(recovered), f"life {life}"
        assert all(entry.body == child.body_of(entry.position) for entry in entries), life
        due = {p for p in range(acknowledged + 1) if p >= below_maybe or not child.is_doomed(p)}
        assert not due - recovered, f"life {life} lost {sorted(due - recovered)[:5]}"
        back = {p for p in recovered if p < gone and child.is_doomed(p)}
        assert not back, f"life {life} brought back {sorted(back)[:5]}"
        manifest = log.manifest
        known = manifest.sizes().keys() | {r.name for r in manifest.retired}
        settled = {FileKind.LOCK, FileKind.MANIFEST, FileKind.HISTORY}
        strays = [n for n in fs.list(directory) if parse_name(n).kind not in settled]
        assert set(strays) <= known, f"life {life} left {set(strays) - known}"
    assert verify_log(fs, directory).damage is None
