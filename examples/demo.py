"""The main job in one minute: a log of a million keyed entries becomes its newest entry per key.

Run it with `make demo`. It writes to demo-data/orders in the current directory, which it makes
again each time, and exits.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion, SegmentJudgement
from lithify.compaction.planning.plan import human_bytes
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.reports.report import Cause
from lithify.compaction.rewrite.copy_frames import measure_live
from lithify.compaction.run.compactor import Compactor, RunSettings
from lithify.fs import LocalFileSystem
from lithify.live_set import LiveSet
from lithify.log.log import Log
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.settings import LogSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef

DIRECTORY = Path("demo-data/orders")
ENTRIES = 1_000_000
KEYS = 50_000
KEY_BYTES = 16
BATCH = 10_000
SEGMENT_BYTES = 16 * 2**20


class NewestPerKey:
    """Live is the newest entry of each key; a key is the first 16 bytes of a body.

    Keys are read and compared as arrays, never as a Python object each.
    """

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        """Find the last position of each key, then ask which segment holds it."""
        parts = [_keys_of(question.fs, question.directory, s) for s in question.segments]
        keys = np.concatenate([part[0] for part in parts])
        positions = np.concatenate([part[1] for part in parts])
        order = np.lexsort((positions, keys[:, 1], keys[:, 0]))
        ordered = keys[order]
        is_last = np.append((ordered[1:] != ordered[:-1]).any(axis=1), True)
        live = LiveSet.from_array(positions[order[is_last]])
        for segment in question.segments:
            mine = live.slice(segment.first_position, segment.last_position + 1)
            entries, size = measure_live(question.fs, question.directory, segment, mine)
            gone = segment.live_entries - entries, segment.live_bytes - size
            yield SegmentJudgement(mine, entries, size, {Cause.SUPERSEDED: gone})

    def facts(self) -> dict[str, object]:
        """There are none to keep with the log."""
        return {}


def _keys_of(
    fs: FileSystem, directory: str, segment: SegmentRef
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    keys, positions = [], []
    with fs.open_read(f"{directory}/{segment.name}") as file:
        end = SEGMENT_HEADER_BYTES + segment.frame_bytes
        for frames in scan_frames(file, SEGMENT_HEADER_BYTES, end, -1):
            places = frames.offsets[:, None] + np.arange(HEADER_BYTES, HEADER_BYTES + KEY_BYTES)
            keys.append(frames.buffer[places].view("<u8"))
            positions.append(frames.positions.copy())
    return np.concatenate(keys), np.concatenate(positions)


def fill(log: Log, console: Console) -> None:
    """Append a million orders, most of them about keys that come again."""
    rng = np.random.default_rng(2026)
    started = time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %")
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("appending", total=ENTRIES)
        for first in range(0, ENTRIES, BATCH):
            keys = rng.integers(0, KEYS, BATCH).tolist()
            bodies = [
                b"order-%010d status of order %d is %d, said entry %d" % (key, key, i % 7, i)
                for i, key in enumerate(keys, start=first)
            ]
            log.append_many(bodies).result()
            progress.advance(task, BATCH)
    log.roll()
    seconds = time.perf_counter() - started
    console.print(f"Appended {ENTRIES:,} entries in {seconds:.1f} s, each batch fsynced.\n")


def disk_bytes() -> int:
    """What the log takes on disk."""
    return sum(path.stat().st_size for path in DIRECTORY.iterdir())


def main() -> None:
    """Write, plan, compact, reclaim, read back."""
    console = Console()
    fs = LocalFileSystem()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    settings = LogSettings(segment_bytes_max=SEGMENT_BYTES)
    with Log.open(fs, str(DIRECTORY), kind="demo", settings=settings) as log:
        fill(log, console)
        before = disk_bytes()
        limits = Limits(target_bytes_max=SEGMENT_BYTES, target_entries_max=10_000_000)
        compactor = Compactor(log, fs, NewestPerKey(), settings=RunSettings(limits))

        console.print("[bold]What a run would do[/bold] (a dry run, nothing is written)")
        console.print(compactor.plan().explain(), highlight=False, soft_wrap=True)

        console.print("\n[bold]The run[/bold]")
        report = compactor.run()
        phases = ", ".join(f"{name} {s:.2f} s" for name, s in report.seconds_by_phase.items())
        console.print(f"{report.result}: {phases}", highlight=False)
        freed = compactor.reclaim()
        after = disk_bytes()
        with log.snapshot("demo") as snapshot:
            entries = list(snapshot.read())

    table = Table("", "before", "after")
    table.add_row("entries", f"{ENTRIES:,}", f"{len(entries):,}")
    table.add_row("on disk", human_bytes(before), human_bytes(after))
    table.add_row("positions", f"0 … {ENTRIES - 1:,}", f"{entries[0].position:,} … the same")
    console.print(table)
    superseded = report.dropped[Cause.SUPERSEDED][0]
    console.print(f"{superseded:,} superseded entries dropped, {human_bytes(freed.bytes)} freed.")
    key = b"order-%010d" % 4711
    newest = next(entry for entry in entries if entry.body.startswith(key))
    console.print(f"Newest of {key.decode()}: [green]{newest.body[17:].decode()}[/green]\n")
    assert len(entries) == len({entry.body[:KEY_BYTES] for entry in entries})

    console.print("Continue with:")
    for command in ("stat", "verify", "dump --limit 3"):
        verb, *options = command.split(maxsplit=1)
        console.print(f"  .venv/bin/lithify log {verb} {DIRECTORY} {''.join(options)}".rstrip())


if __name__ == "__main__":
    main()
