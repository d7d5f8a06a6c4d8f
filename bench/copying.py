"""Processes that do the least a compaction has to: `python -m bench.copying WHAT …`.

    copy OUT FRACTION FILE…        read every byte of the files and write so much of it, with fsync
    recompress DIRECTORY ID…       open and compress again every batch of these segments of a log

Each prepares itself, prints `ready`, and for each line it then reads does its work once and prints
the seconds. `Workers` are some of them side by side, two for instance: one for each core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

from lithify.fs import LocalFileSystem
from lithify.log.open_segments import OpenSegment
from lithify.log.read_only_log import find_manifest
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.topics.messages.message import compress, decompress_as, parse_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Workers", "serve"]

PIECE_BYTES = 2**20


class Workers:
    """Processes that share a job."""

    def __init__(self, commands: Sequence[Sequence[str]], module: str = "bench.copying") -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for words in commands
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            with process:
                process.kill()

    def run(self) -> float:
        """Once; the seconds until all are done."""
        began_s = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout is not None
            float(process.stdout.readline())
        return time.perf_counter() - began_s


def copy(out: str, fraction: float, paths: Sequence[str]) -> None:
    buffer = memoryview(bytearray(PIECE_BYTES))
    target = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    read = written = 0
    for path in paths:
        source = os.open(path, os.O_RDONLY)
        while count := os.readv(source, [buffer]):
            read += count
            if written < read * fraction:
                written += os.write(target, buffer[:count])
        os.close(source)
    os.fsync(target)
    os.close(target)


def batches(directory: str, ids: Sequence[int]) -> list[tuple[int, bytes, int]]:
    """(codec, payload, its size when opened) of all batches in these segments."""
    fs, found = LocalFileSystem(), []
    for ref in find_manifest(fs, directory).segments:
        if ref.id in ids:
            segment = OpenSegment(fs, directory, ref)
            first = ref.first_position - 1
            with segment.file:
                for frames in scan_frames(
                    segment.file, SEGMENT_HEADER_BYTES, segment.frames_end, first
                ):
                    for entry in frames.entries():
                        metadata, payload = parse_entry(entry.body)
                        size = metadata.uncompressed_size
                        found.append((int(metadata.compression), bytes(payload), size))
    return found


def recompress(found: Sequence[tuple[int, bytes, int]]) -> None:
    for codec, payload, size in found:
        compress(codec, decompress_as(codec, payload, size))


def serve(work: Callable[[], None], clean: Callable[[], None]) -> None:
    """Work for each line that is read, and clean up after that."""
    print("ready", flush=True)
    for _ in sys.stdin:
        began_s = time.perf_counter()
        work()
        print(time.perf_counter() - began_s, flush=True)
        clean()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["copy", out, fraction, *paths]:
            serve(lambda: copy(out, float(fraction), paths), lambda: os.unlink(out))
        case ["recompress", directory, *ids]:
            prepared = batches(directory, [int(each) for each in ids])
            serve(lambda: recompress(prepared), lambda: None)
        case other:
            sys.exit(f"unknown: {other}")
