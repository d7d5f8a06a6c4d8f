"""Compares the entries of an index with the rows of its table, at one moment.

    checked = check_index(query, "by_note", jobs_of)

1. Each partition is a task. It reads all rows and computes the entry that each must have, and reads
   all entries. It adds up a digest of each entry on both sides: equal counts and sums mean equal
   entries, in any order, and nothing is kept in memory.
2. If they differ, the task reads both again, in rounds with at most `ROUND_ENTRIES` of them: the
   range of the digest decides in which round an entry is. So it finds the differences.

Partitions whose segments have less than `SMALL_BYTES` in all are compared in this process,
otherwise as Spark jobs: decoding a row takes about ten microseconds, starting Spark a few seconds.

Called by the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from lithify.catalog.errors import ObjectNotFound
from lithify.catalog.objects import IndexStatus, ObjectKind
from lithify.compaction.tasks.jobs import ignore_progress, no_check
from lithify.metastore.transaction import prefix_range
from lithify.raft.kv.format import digest_of
from lithify.spark.tables.table_parts import read_stored
from lithify.tables.errors import IndexNotAvailable
from lithify.tables.keys import index_entry_key, primary_key, space_of
from lithify.tables.rows import decode_row, key_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.catalog.objects import IndexDescriptor
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.spark.tables.table_parts import TablePart
    from lithify.spark.tables.table_query import TableQuery

__all__ = ["SMALL_BYTES", "IndexCheck", "check_index"]

SMALL_BYTES = 64 << 20
ROUND_ENTRIES = 250_000
EXAMPLES_MAX = 10
"""Differences that are described."""
_DIGESTS = 1 << 128


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """The outcome; the index is right if there is no difference."""

    rows: int = 0
    entries: int = 0
    missing: int = 0
    """Rows without their entry."""
    superfluous: int = 0
    """Entries of no row."""
    examples: tuple[str, ...] = ()

    @property
    def differences(self) -> int:
        """All of them."""
        return self.missing + self.superfluous

    def plus(self, other: IndexCheck) -> IndexCheck:
        """Both together."""
        return IndexCheck(
            self.rows + other.rows,
            self.entries + other.entries,
            self.missing + other.missing,
            self.superfluous + other.superfluous,
            (*self.examples, *other.examples)[:EXAMPLES_MAX],
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """The index in a partition."""

    part: TablePart
    index: IndexDescriptor


def check_index(query: TableQuery, name: str, jobs_of: Callable[[bool], Jobs]) -> IndexCheck:
    """Compare an index with its table; `jobs_of` gets whether the table is large."""
    moment, parts = query.plan(split=False)
    try:
        index = next((each for each in moment.indexes if each.name == name), None)
        if index is None:
            raise ObjectNotFound(ObjectKind.INDEX, f"{moment.table.name}.{name}")
        if index.status is not IndexStatus.AVAILABLE:
            raise IndexNotAvailable(moment.table.name, name, index.status)
        tasks = [_Task(part, index) for part in parts]
        weights = [_bytes_of(part) for part in parts]
        found = jobs_of(sum(weights) >= SMALL_BYTES).run(
            "verify index", _check, tasks, weights=weights, check=no_check, progress=ignore_progress
        )
        return reduce(IndexCheck.plus, (each for _, each in found), IndexCheck())
    finally:
        if parts and parts[0].scan is not None:
            parts[0].scan.release()


def _bytes_of(part: TablePart) -> int:
    """What a task reads; at least 1."""
    files = part.files
    return 1 + (0 if files is None else sum(each.ref.frame_bytes for each in files.spans))


def _check(task: _Task, check: Callable[[], None]) -> IndexCheck:
    rows, wanted = _sum(_expected(task), check)
    entries, stored = _sum(_entries(task), check)
    if (rows, wanted) == (entries, stored):
        return IndexCheck(rows, entries)
    rounds = -(-max(rows, entries) // ROUND_ENTRIES)
    found = [_differences(task, number, rounds) for number in range(rounds)]
    return reduce(IndexCheck.plus, found, IndexCheck(rows, entries))


def _sum(entries: Iterator[tuple[bytes, bytes]], check: Callable[[], None]) -> tuple[int, int]:
    """How many entries there are, and the sum of their digests."""
    count = total = 0
    for entry in entries:
        count += 1
        total += _digest(entry)
        if count % 10_000 == 0:
            check()
    return count, total % _DIGESTS


def _digest(entry: tuple[bytes, bytes]) -> int:
    key, value = entry
    return int.from_bytes(digest_of(len(key).to_bytes(4, "big") + key + value), "big")


def _differences(task: _Task, number: int, rounds: int) -> IndexCheck:
    def is_in_round(entry: tuple[bytes, bytes]) -> bool:
        return _digest(entry) * rounds // _DIGESTS == number

    wanted = set(filter(is_in_round, _expected(task)))
    superfluous = set()
    for entry in filter(is_in_round, _entries(task)):
        if entry in wanted:
            wanted.discard(entry)
        else:
            superfluous.add(entry)
    examples = [f"missing: {_describe(task, each)}" for each in sorted(wanted)[:EXAMPLES_MAX]]
    examples += [f"superfluous: entry {key.hex()}" for key, _ in sorted(superfluous)[:EXAMPLES_MAX]]
    return IndexCheck(
        missing=len(wanted), superfluous=len(superfluous), examples=tuple(examples[:EXAMPLES_MAX])
    )


def _describe(task: _Task, wanted: tuple[bytes, bytes]) -> str:
    """The key of the row that has no entry."""
    table = task.part.table
    for row in _rows(task):
        if _entry_of(task, row) == wanted:
            return f"the entry of row { ({name: row[name] for name in key_names(table)}) }"
    return f"entry {wanted[0].hex()}"


def _rows(task: _Task) -> Iterator[dict[str, Any]]:
    part = task.part
    for _, data, stops in read_stored(part, part.low, part.high):
        start, values = 0, data.tobytes()
        for stop in stops.tolist():
            yield decode_row(part.table, values[start:stop])
            start = stop


def _entry_of(task: _Task, row: dict[str, Any]) -> tuple[bytes, bytes]:
    table, index = task.part.table, task.index
    value = primary_key(table, row) if index.unique else b""
    return index_entry_key(table, index, row), value


def _expected(task: _Task) -> Iterator[tuple[bytes, bytes]]:
    return (_entry_of(task, row) for row in _rows(task))


def _entries(task: _Task) -> Iterator[tuple[bytes, bytes]]:
    bounds = prefix_range(space_of(task.index.id))
    for keys, data, stops in read_stored(task.part, *bounds, with_keys=True):
        assert keys is not None
        start, values = 0, data.tobytes()
        for key, stop in zip(keys, stops.tolist(), strict=True):
            yield key, values[start:stop]
            start = stop
