"""`python -m bench.pictures`: draw the pictures of the README and of `docs/how-it-works.md`.

`segments.svg` shows a real run: a log is written with keys from a fixed seed, compacted in place,
and its segments are drawn as they were before and as they are after. The others are diagrams.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.results import ROOT
from bench.svg import Picture
from examples.demo import NewestPerKey
from lithify.compaction.planning.plan import human_bytes
from lithify.compaction.policies.packing import Limits
from lithify.compaction.run.compactor import Compactor, RunSettings
from lithify.fs import LocalFileSystem
from lithify.log.log import Log
from lithify.settings import Durability, LogSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PICTURES", "main"]

PICTURES = ROOT / "docs" / "pictures"

SEGMENT_BYTES = 2**20
ENTRIES = 110_000
KEYS = 24_000
BINS = 24
"""Columns of a full segment."""


# --- the segments of a log before and after a run -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: its size, and the positions of its entries."""

    size: int
    positions: NDArray[np.int64]


def _write(log: Log) -> None:
    rng = np.random.default_rng(2026)
    # Most entries are about keys that were written shortly before, the others about any key.
    for first in range(0, ENTRIES, 10_000):
        often = first * KEYS // ENTRIES + rng.integers(0, KEYS // 6, 10_000)
        keys = np.where(rng.random(10_000) < 0.85, often % KEYS, rng.integers(0, KEYS, 10_000))
        log.append_many([b"order-%010d is at step %12d" % (key, first) for key in keys]).result()


def _segments(log: Log) -> list[Segment]:
    with log.snapshot("picture") as snapshot:
        positions = np.array([entry.position for entry in snapshot.read()])
        found = []
        for ref in snapshot.manifest.segments:
            if ref.entries:
                inside = (positions >= ref.first_position) & (positions <= ref.last_position)
                found.append(Segment(ref.frame_bytes, positions[inside]))
    return found


def _run_once() -> tuple[list[Segment], list[Segment]]:
    """The segments of a log before and after a run."""
    fs = LocalFileSystem()
    settings = LogSettings(segment_bytes_max=SEGMENT_BYTES, durability=Durability.NONE)
    limits = Limits(target_bytes_max=SEGMENT_BYTES, target_entries_max=10_000_000)
    with (
        tempfile.TemporaryDirectory() as directory,
        Log.open(fs, f"{directory}/log", kind="demo", settings=settings) as log,
    ):
        _write(log)
        log.roll()
        before = _segments(log)
        compactor = Compactor(log, fs, NewestPerKey(), settings=RunSettings(limits))
        compactor.run()
        compactor.reclaim()
        return before, _segments(log)


def _draw_row(
    picture: Picture, top: float, segments: list[Segment], live: NDArray[np.int64], scale: float
) -> None:
    """Each segment as columns whose coloured part is the share of live entries."""
    left, height = 24.0, 56.0
    for segment in segments:
        width = segment.size * scale
        bins = max(1, round(BINS * segment.size / SEGMENT_BYTES))
        picture.box(left, top, width, height, "dead")
        for number, part in enumerate(np.array_split(segment.positions, bins)):
            share = np.isin(part, live).mean()
            tall = height * float(share)
            step = width / bins
            picture.box(left + number * step, top + height - tall, step + 0.1, tall, "live")
        picture.box(left, top, width, height, "frame")
        left += width + 3


def draw_segments() -> str:
    """Before and after."""
    before, after = _run_once()
    live = np.concatenate([segment.positions for segment in after])
    sizes = [sum(segment.size for segment in row) for row in (before, after)]
    counts = [sum(len(segment.positions) for segment in row) for row in (before, after)]
    picture = Picture(820, 226, "Segments of a log before and after a compaction run")
    scale = (820 - 48 - 3 * len(before)) / sizes[0]
    for name, top, row, size, count in zip(
        ("before", "after"), (40, 134), (before, after), sizes, counts, strict=True
    ):
        text = f"{len(row)} segments, {human_bytes(size)}, {count:,} entries"
        picture.text(24, top - 10, name, bold=True)
        picture.text(80, top - 10, text, "soft")
        _draw_row(picture, top, row, live, scale)
    picture.box(24, 204, 12, 12, "live")
    picture.text(42, 215, "live: the newest entry of its key", "soft", size=12)
    picture.box(260, 204, 12, 12, "dead")
    picture.text(278, 215, "dead: superseded. Old segments are on the left.", "soft", size=12)
    return picture.render()


# --- diagrams -----------------------------------------------------------------------------------


def draw_node() -> str:
    """The processes of a node."""
    picture = Picture(820, 300, "The processes of a Lithify node")
    picture.named((16, 20, 176, 58), "Pulsar clients", "produce, consume, read")
    picture.named((16, 92, 176, 58), "HTTP, lithify, curl", "blobs, administration")
    picture.named((16, 222, 176, 58), "Your Spark job", 'format("lithify")')
    picture.named(
        (280, 20, 260, 130),
        "lithify serve",
        "one process, one event loop\nwaits for disks in threads\nplans, publishes and reclaims\n"
        "needs no other service",
    )
    picture.named(
        (610, 20, 194, 130),
        "Spark worker",
        "started by the first run\nindexes segments, finds\nsurvivors, rewrites\n"
        "local[*] or a cluster",
        "jvm",
    )
    picture.named(
        (280, 222, 524, 58),
        "data directory",
        "topics/   blobs/   definitions     sealed segments never change",
        "disk",
    )
    picture.arrow((192, 49), (280, 49), both=True)
    picture.text(236, 42, "6650", "soft", anchor="middle", size=11)
    picture.arrow((192, 121), (280, 121), both=True)
    picture.text(236, 114, "8080", "soft", anchor="middle", size=11)
    picture.arrow((540, 70), (610, 70))
    picture.text(575, 62, "tasks", "soft", anchor="middle", size=11)
    picture.arrow((610, 104), (540, 104))
    picture.text(575, 121, "counts", "soft", anchor="middle", size=11)
    picture.arrow((410, 150), (410, 222), both=True)
    picture.text(420, 190, "append, read, publish", "soft", size=11)
    picture.arrow((707, 150), (707, 222), both=True)
    picture.text(700, 190, "payload: file to file", "soft", anchor="end", size=11)
    picture.arrow((280, 251), (192, 251))
    picture.text(236, 244, "segments", "soft", anchor="middle", size=11)
    return picture.render()


def draw_threads() -> str:
    """Processes and threads of a node and of a Raft node."""
    picture = Picture(820, 560, "Processes and threads")
    picture.box(16, 16, 500, 330, "box", radius=8)
    picture.text(28, 38, "lithify serve", bold=True)
    picture.text(136, 38, "one Python process", "soft", size=12)
    parts = (
        ("event loop", "sockets of Pulsar and HTTP, state\nof sessions; never waits for a disk"),
        ("lithify-sync", "fsync: one covers all\nappends before it"),
        ("lithify-topics", "reads, seeks, rolls: a few\nthreads per topic"),
        ("lithify-blobs, -uploads", "get, put, delete of blobs"),
        ("one run thread per disk", "the queue of compaction runs:\ntopics and blob stores"),
        ("lithify-replication", "pulls blobs from peers"),
    )
    for number, (name, text) in enumerate(parts):
        x, y = 30 + 242 * (number % 2), 52 + 98 * (number // 2)
        picture.named((x, y, 230, 84), name, text, "part")
    picture.box(566, 16, 238, 330, "jvm", radius=8)
    picture.text(578, 38, "Spark worker", bold=True)
    picture.text(690, 38, "child process", "soft", size=12)
    picture.named((580, 52, 210, 66), "driver", "one Spark session; stops\nwhen idle", "part")
    picture.named(
        (580, 150, 210, 66), "JVM", "schedules, retries, reports;\nsees no payload", "part"
    )
    picture.named(
        (580, 248, 210, 84),
        "Python workers",
        "one task per segment, bucket\nrange or group",
        "part",
    )
    picture.arrow((516, 85), (566, 85), both=True)
    picture.text(541, 76, "sockets", "soft", anchor="middle", size=11)
    picture.arrow((685, 118), (685, 150), both=True)
    picture.arrow((685, 216), (685, 248), both=True)
    picture.box(16, 362, 788, 182, "box", radius=8)
    picture.text(28, 384, "lithify raft serve", bold=True)
    picture.text(172, 384, "one Python process, members of any number of groups", "soft", size=12)
    raft = (
        ("event loop", "consensus core,\npeers, clients,\nstate machines"),
        ("write-ahead log", "one file for all\ngroups; one fsync\nper round"),
        ("segment writer", "mem tables into\nsegments per group"),
        ("worker", "snapshots and\ncompaction runs"),
        ("readers", "entries that are\nnot in memory"),
    )
    for number, (name, text) in enumerate(raft):
        picture.named((30 + 153 * number, 398, 143, 100), name, text, "part")
    picture.text(30, 524, "Raft does not use Spark: the worker executes compaction runs.", "soft")
    return picture.render()


def draw_run() -> str:
    """The steps of a run."""
    picture = Picture(820, 330, "The steps of a compaction run")
    steps = (
        ("horizon", "the minimum\nof all holds", "nothing"),
        ("live set", "positions that\nstay, by the\nstore's rule", "side files only"),
        ("plan", "drop, rewrite\nor keep each\nsegment", "nothing"),
        (
            "rewrite",
            "live bytes into\nnew files, by\nSpark tasks",
            "files that no\nreader sees",
        ),
        ("publish", "one atomic\nswitch to the\nnew generation", "the new generation\ncounts"),
        ("reclaim", "delete retired\nfiles when no\npin needs them", "only space is\nreleased"),
    )
    for number, (name, text, _) in enumerate(steps):
        x = 16 + 134 * number
        picture.named((x, 44, 118, 96), name, text, "disk" if name == "publish" else "box")
        if number:
            picture.arrow((x - 16, 92), (x, 92))
    picture.text(16, 28, "A run", bold=True)
    picture.text(66, 28, "each step is in the journal before it begins to change files", "soft")
    picture.text(16, 172, "What a kill after this step leaves, besides the journal", bold=True)
    for number, (_, _, left) in enumerate(steps):
        picture.lines(20 + 134 * number, 194, left)
    picture.named(
        (16, 236, 520, 78),
        "killed before publish: the old generation counts",
        "The next run resumes from the journal, or rolls back and deletes\n"
        "the new files. Readers never saw them.",
    )
    picture.named(
        (552, 236, 252, 78),
        "killed after publish",
        "The new generation counts.\nThe next run reclaims.",
        "disk",
    )
    return picture.render()


DRAWN = {
    "segments.svg": draw_segments,
    "node.svg": draw_node,
    "threads.svg": draw_threads,
    "run.svg": draw_run,
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        (PICTURES / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
