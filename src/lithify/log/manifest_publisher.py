"""Publishes manifests, in the one process that writes the log.

A publish replaces the manifest by one rename. If the file system fails during it, the publisher
does not know which of the two generations is on disk. It then reads the manifest back ("settles")
before anything else is written, and continues with the generation it reads. If the directory could
not be fsynced after the rename, that generation is valid only after such an fsync; until then every
write is refused, because a power cut could bring the old generation back. The same holds for the
generation that an open reads: its writer may have been killed before that fsync, so the first write
makes it. A log that is only read makes none.

Files that a new generation no longer names become **retired**: the manifest lists them, with the
generation that retired them, until `reclaim` has deleted them.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lithify.errors import WriteFailed
from lithify.events import Published, WriteRefused
from lithify.log.file_names import MANIFEST, key_index_name
from lithify.log.manifest import Manifest, Retired, read_manifest, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from lithify.events import EventSink
    from lithify.fs import FileSystem

__all__ = ["ManifestPublisher"]


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A publish of unknown outcome."""

    manifest: Manifest
    adopt: Callable[[Manifest], None]
    drop: Callable[[], None]


def _nothing(*_: object) -> None:
    return


class ManifestPublisher:
    """Holds the current manifest and replaces it."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        manifest: Manifest,
        events: EventSink,
        *,
        names_synced: bool,
    ) -> None:
        """Start with a manifest; `names_synced`: its directory is known to be fsynced since."""
        self._fs = fs
        self._directory = directory
        self._events = events
        self._unsettled: _Unsettled | None = None
        self._names_synced = names_synced
        self.failed = False
        """Did a publish fail, with an outcome that is still unknown?"""
        self.lock = threading.RLock()
        self.manifest = manifest

    def publish(
        self,
        edit: Callable[[Manifest], Manifest],
        why: str,
        adopt: Callable[[Manifest], None] = _nothing,
        drop: Callable[[], None] = _nothing,
    ) -> Manifest:
        """Publish `edit(manifest)` as the next generation.

        Generation and retired files are filled in here. `adopt` is called with the new manifest
        once it is on disk, `drop` once it is certain that it is not; after an error either call
        may come later, from `settle`.
        """
        with self.lock:
            assert self.settled
            old = self.manifest
            edited = replace(edit(old), generation=old.generation + 1)
            new = replace(edited, retired=(*edited.retired, *_newly_retired(old, edited)))
            try:
                write_manifest(self._fs, self._directory, new)
            except BaseException as error:
                # Set only now, so that appends do not wait for a publish in progress.
                self._unsettled = _Unsettled(new, adopt, drop)
                self._names_synced = False
                self.failed = True
                if not isinstance(error, OSError):
                    raise
                self._events(WriteRefused(self._directory, MANIFEST, str(error)))
                with suppress(WriteFailed):
                    self.settle()
                raise WriteFailed(f"{self._directory}/{MANIFEST}", error) from error
            self.manifest = new
            adopt(new)
            self._events(Published(self._directory, new.generation, why))
            return new

    @property
    def settled(self) -> bool:
        """Is the generation on disk known, and durable?"""
        return self._unsettled is None and self._names_synced

    def settle(self) -> None:
        """Resolve an interrupted publish by reading the manifest; raises if that fails."""
        with self.lock:
            path = f"{self._directory}/{MANIFEST}"
            try:
                pending = self._unsettled
                if pending is not None:
                    found = read_manifest(self._fs, self._directory)
                    self._unsettled = None
                    if found.generation == pending.manifest.generation:
                        self.manifest = pending.manifest
                        pending.adopt(pending.manifest)
                    else:
                        pending.drop()
                if not self._names_synced:
                    self._fs.sync_dir(self._directory)
                    self._names_synced = True
                self.failed = False
            except OSError as error:
                raise WriteFailed(path, error) from error

    def delete(
        self,
        candidates: tuple[Retired, ...],
        oldest_pinned: int | None,
        forget: Callable[[str], None],
        pace: Callable[[int], None],
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> frozenset[Retired]:
        """Delete retired files that no pinned generation names; the only place that deletes.

        `undisturbed` is entered for each file and may raise.

        A crash here leaves names in `retired` whose files are missing: the next call ignores them.
        The caller must list the candidates before the pins: a new pin may cover a file that is
        retired in between.
        """
        ripe = frozenset(
            retired
            for retired in candidates
            if oldest_pinned is None or retired.generation <= oldest_pinned
        )
        for retired in sorted(ripe, key=lambda retired: retired.name):
            pace(retired.file_bytes)
            with undisturbed():
                forget(retired.name)
                try:
                    self._remove(retired.name)
                except OSError as error:
                    raise WriteFailed(f"{self._directory}/{retired.name}", error) from error
        return ripe

    def _remove(self, name: str) -> None:
        for path in (name, key_index_name(name)) if name.endswith(".seg") else (name,):
            with suppress(FileNotFoundError):
                self._fs.remove(f"{self._directory}/{path}")


def _newly_retired(old: Manifest, new: Manifest) -> list[Retired]:
    kept = new.sizes()
    return [
        Retired(name, size, new.generation)
        for name, size in old.sizes().items()
        if name not in kept
    ]
