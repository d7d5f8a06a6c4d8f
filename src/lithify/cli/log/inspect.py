"""`lithify log`, the verbs stat, dump and verify, and `check_log`."""

from __future__ import annotations

import base64
import os
import secrets
import sys
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.options import AsJson
from lithify.cli.output import (
    human_count,
    human_time,
    preview,
    print_json,
    print_line,
    progress_bar,
)
from lithify.clock import SystemClock
from lithify.errors import Corrupt, DamagedFrame, LithifyError, ReadFailed, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from lithify.fs import FileSystem
    from lithify.log.segments.frame import LogEntry
    from lithify.log.verify import Verification

__all__ = ["check_log", "dump", "stat", "verify"]

_PREVIEW_BYTES = 64

Directory = Annotated[str, typer.Argument(metavar="PATH", help="Directory of the log.")]


def _identity(command: str) -> dict[str, str]:
    """The owner of a pin, for `open_readonly` and similar functions."""
    return {"owner": f"lithify log {command}, pid {os.getpid()}", "token": secrets.token_hex(8)}


def stat(path: Directory, as_json: AsJson = False) -> None:
    """Show segments, sizes, horizon, pins, retired files and the last runs."""
    from lithify.cli.log.stat import print_stat, read_stat
    from lithify.fs import LocalFileSystem

    clock = SystemClock()
    with progress_bar("reading the active segment", None, clock) as progress:
        found = read_stat(LocalFileSystem(), path, clock, progress=progress, **_identity("stat"))
    if as_json:
        print_json(found.to_json())
    else:
        print_stat(found)


def dump(
    path: Directory,
    start: Annotated[
        int, typer.Option("--from", metavar="P", min=0, help="First position to print.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Maximum number of entries.")
    ] = None,
    compacted: Annotated[
        bool, typer.Option("--compacted", help="Read the compacted view, then the log above it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print entries, one per line: position, time, flags, tag, length, start of the body."""
    from lithify.fs import LocalFileSystem
    from lithify.log.read_only_log import open_readonly

    clock = SystemClock()
    bar: AbstractContextManager[Callable[[int], None]] = progress_bar("dumping", None, clock)
    if sys.stdout.isatty():
        # The entries themselves show the progress.
        bar = nullcontext(lambda _: None)
    pinned = open_readonly(LocalFileSystem(), path, clock=clock, **_identity("dump"))
    with pinned as snapshot, bar as progress:
        width = len(str(max(0, snapshot.last_position)))
        for entry in snapshot.read(start, compacted=compacted, limit=limit):
            if as_json:
                print_json(_entry_json(entry), compact=True)
            else:
                print_line(_entry_line(entry, width))
            progress(entry.frame_bytes)


def _entry_line(entry: LogEntry, width: int) -> str:
    shown = preview(entry.body, _PREVIEW_BYTES)
    line = (
        f"{entry.position:>{width}}  {human_time(entry.time_ms)}  {_flags(entry.flags):<9}  "
        f"{entry.tag:>5}  {len(entry.body):>8}  {shown}"
    )
    return line.rstrip()


def _flags(flags: int) -> str:
    """`-`, `tombstone`, `0x0100`, or `tombstone+0x0100`."""
    from lithify.log.segments.frame import FLAG_TOMBSTONE

    others = flags & ~FLAG_TOMBSTONE
    names = ["tombstone"] if flags & FLAG_TOMBSTONE else []
    return "+".join([*names, *([f"0x{others:04x}"] if others else [])]) or "-"


def _entry_json(entry: LogEntry) -> dict[str, Any]:
    return {
        "position": entry.position,
        "time_ms": entry.time_ms,
        "flags": entry.flags,
        "tag": entry.tag,
        "length": len(entry.body),
        "body": base64.b64encode(entry.body).decode("ascii"),
    }


def verify(path: Directory, as_json: AsJson = False) -> None:
    """Check every byte; if there is damage, print its first place and exit with code 1."""
    from lithify.fs import LocalFileSystem
    from lithify.log.read_only_log import pinned_manifest

    fs, clock = LocalFileSystem(), SystemClock()
    with ExitStack() as stack:
        total_bytes = None
        with suppress(Corrupt, UnsupportedVersion, OSError):
            # A manifest that cannot be read cannot be pinned; the check reports it.
            pin = pinned_manifest(fs, path, clock=clock, **_identity("verify"))
            manifest = stack.enter_context(pin)
            active_bytes = fs.stat(f"{path}/{manifest.active.name}").size
            total_bytes = sum(manifest.sizes().values()) + active_bytes
        progress = stack.enter_context(progress_bar("verifying", total_bytes, clock))
        found = check_log(fs, path, progress)
    if as_json:
        print_json(_verification_json(found))
    else:
        _print_verification(found)
    if found.damage is not None:
        raise typer.Exit(1)


def check_log(fs: FileSystem, directory: str, progress: Callable[[int], None]) -> Verification:
    """Verify a log, and the journal and history of its compaction."""
    from lithify.compaction.reports.report import History
    from lithify.compaction.run.journal import Journal
    from lithify.log.file_names import HISTORY
    from lithify.log.verify import verify_log

    found = verify_log(fs, directory, progress)
    if found.damage is not None:
        return found
    try:
        run = Journal(fs, directory).read()
        History(fs, f"{directory}/{HISTORY}").newest(0)
    except Corrupt as damage:
        return replace(found, damage=damage)
    except OSError as error:
        return replace(found, damage=ReadFailed(error.filename or directory, 0, error))
    if run is None:
        return found
    unfinished = f"run {run.run_id} is unfinished in {run.phase}; the next run resumes or undoes it"
    return replace(found, warnings=(*found.warnings, unfinished))


def _print_verification(found: Verification) -> None:
    from lithify.compaction.planning.plan import human_bytes

    print_line(
        f"{found.directory}: generation {found.generation}, {found.segments} segments, "
        f"{human_count(found.entries)} entries ({human_count(found.dead_entries)} dead), "
        f"{human_bytes(found.bytes)} checked"
    )
    for what, names in (("retired", found.retired), ("orphan", found.orphans)):
        for name in names:
            print_line(f"  {what:<8} {name}")
    for warning in found.warnings:
        print_line(f"  {'warning':<8} {warning}")
    if found.damage is None:
        print_line("no damage")
        return
    print_line("DAMAGED; the check stopped here:")
    for name, value in _damage_json(found.damage).items():
        if value is not None:
            print_line(f"  {name:<8} {value}")


def _verification_json(found: Verification) -> dict[str, Any]:
    return {
        "directory": found.directory,
        "ok": found.damage is None,
        "generation": found.generation,
        "segments": found.segments,
        "entries": found.entries,
        "dead_entries": found.dead_entries,
        "bytes": found.bytes,
        "torn_bytes": found.torn_bytes,
        "retired": found.retired,
        "orphans": found.orphans,
        "warnings": found.warnings,
        "damage": None if found.damage is None else _damage_json(found.damage),
    }


def _damage_json(damage: LithifyError) -> dict[str, Any]:
    """The known details of the damage's position."""
    return {
        "file": getattr(damage, "path", None),
        "offset": damage.offset if isinstance(damage, Corrupt) else None,
        "after": damage.after if isinstance(damage, DamagedFrame) else None,
        "what": damage.what if isinstance(damage, Corrupt) else str(damage),
    }
