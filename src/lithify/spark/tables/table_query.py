"""A query of a table, from the options of a DataFrame.

    http://NODE:8080/tables/TABLE      at a running node of the cluster
    DATA/tables/TABLE                  in the data directory of a node that does not run

| option      |                                                                          |
|-------------|--------------------------------------------------------------------------|
| `timestamp` | read what was there then: ISO 8601, UTC without a zone, or a timestamp   |
| `version`   | read what was there last while a version of the catalog was in force     |
| `prefix`    | a JSON object with values of the first columns of the key                |
| `columns`   | the requested columns, separated by commas                               |
| `token`     | for a node that requires one                                             |

Runs on the driver, in the processes of Spark that plan a query.
"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lithify.errors import InvalidInput
from lithify.fs import LocalFileSystem
from lithify.hybrid_time import timestamp
from lithify.spark.place import data_of
from lithify.spark.tables.node_scan import NodeScan, new_name
from lithify.spark.tables.stopped_node import read_stopped
from lithify.spark.tables.table_parts import TablePart, split_range
from lithify.spark.time_option import time_option_ms
from lithify.tables.keys import columns_of, prefix_bounds
from lithify.tables.reads import numbers_with
from lithify.tables.rows import leading_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.spark.tables.node_scan import ScanMoment
    from lithify.tables.partition_files import PartitionFiles

__all__ = ["OPTIONS", "TableQuery"]

OPTIONS = ("path", "timestamp", "version", "prefix", "columns", "token")
ASKED_AT_ONCE = 8
"""Partitions of which a node is asked for the files at the same time."""
_TABLE = re.compile(r"(.*)/tables/([^/]+)/?")


@dataclass(frozen=True, slots=True)
class TableQuery:
    """See the module."""

    node: str
    """The address of a node; empty for a directory."""
    data: str
    """A data directory; empty for a node."""
    table: str
    at: int = 0
    """A timestamp; 0 is now."""
    version: int | None = None
    prefix: Mapping[str, Any] = field(default_factory=dict)
    token: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TableQuery:
        """Parse the options; `InvalidInput` names an invalid one."""
        unknown = sorted(options.keys() - set(OPTIONS))
        if unknown:
            valid = ", ".join(OPTIONS)
            raise InvalidInput(f"a table has no option {unknown[0]!r}; there are: {valid}")
        path = options["path"]
        match = _TABLE.fullmatch(path)
        if match is None:
            raise InvalidInput(f"{path} must be DATA/tables/TABLE or http://NODE/tables/TABLE")
        node, data = "", os.path.abspath(match[1].removeprefix("file://"))
        if path.startswith(("http://", "https://")):
            url = urlsplit(match[1])
            node, data = f"{url.scheme}://{url.netloc}", ""
        at, version = options.get("timestamp", ""), options.get("version")
        if at and version is not None:
            raise InvalidInput("a query reads at a timestamp or at a version, not at both")
        if version is not None and not version.strip().isdecimal():
            raise InvalidInput(f"version {version!r} must be a version of the catalog")
        return cls(
            node,
            data,
            unquote(match[2]),
            _timestamp(at) if at else 0,
            None if version is None else int(version),
            _prefix(options.get("prefix", "{}")),
            options.get("token", ""),
        )

    def moment(self) -> ScanMoment:
        """The table as of the moment that a query would read."""
        if self.data:
            return read_stopped(
                LocalFileSystem(), self.data, self.table, self.at, self.version
            ).moment
        scan = self._scan()
        try:
            return self._hold(scan)
        finally:
            scan.release()

    def plan(self, *, split: bool = True) -> tuple[ScanMoment, list[TablePart]]:
        """The parts of the query, or whole partitions. A scan at a node is held afterwards."""
        if self.data:
            fs = LocalFileSystem()
            found = read_stopped(fs, self.data, self.table, self.at, self.version, self._numbers)
            return found.moment, self._parts(found.moment, found.files, None, split=split)
        scan = self._scan()
        moment = self._hold(scan)
        try:
            _, is_here = data_of(LocalFileSystem(), self.node, self.token)
            with ThreadPoolExecutor(ASKED_AT_ONCE) as threads:
                numbers = list(self._numbers(moment))
                files = dict(zip(numbers, threads.map(scan.files, numbers), strict=True))
            if not is_here:
                files = {number: (found[0], None) for number, found in files.items()}
            parts = self._parts(moment, files, scan, split=split)
        except BaseException:
            scan.release()
            raise
        if not parts:
            scan.release()
        return moment, parts

    def _scan(self) -> NodeScan:
        return NodeScan(self.node, self.token, self.table, new_name())

    def _hold(self, scan: NodeScan) -> ScanMoment:
        return scan.hold(str(self.at) if self.at else "", self.version)

    def _numbers(self, moment: ScanMoment) -> range:
        self._bounds(moment)
        return numbers_with(moment.table, moment.partitions, self.prefix)

    def _bounds(self, moment: ScanMoment) -> tuple[bytes, bytes]:
        columns = columns_of(moment.table, moment.table.key)
        values = leading_values(moment.table, "key", columns, self.prefix)
        return prefix_bounds(moment.table.id, columns, values, nullable=False)

    def _parts(
        self,
        moment: ScanMoment,
        files: Mapping[int, tuple[int, PartitionFiles | None]],
        scan: NodeScan | None,
        *,
        split: bool,
    ) -> list[TablePart]:
        fs, (low, high) = LocalFileSystem(), self._bounds(moment)
        planned = []
        for number, (revision, found) in files.items():
            ranges = [(low, high)]
            if found is not None and split:
                ranges = split_range(fs, found, low, high)
            if revision:
                planned += [(number, revision, found, *bounds) for bounds in ranges]
        return [
            TablePart(moment.table, *each, moment.timestamp, scan, at, len(planned))
            for at, each in enumerate(planned)
        ]


def _timestamp(text: str) -> int:
    """A timestamp, or the last one of a millisecond."""
    if text.isdecimal():
        return int(text)
    return timestamp(time_option_ms("timestamp", text), 2**16 - 1)


def _prefix(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"prefix is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput('prefix must be a JSON object, such as {"customer": 7}')
    return value
