"""Uses a data directory while each of its files and directories may not be read, or not be written.

    python -m tests.fault.denied_child DATA PART

PART is a directory in it, or `.` for what is directly in it. Prints a JSON line for each path and
mode: the error, and whether that names the path. Then it checks the contents with all modes as they
were.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import lithify
from lithify.errors import LithifyError

if TYPE_CHECKING:
    from lithify.node.node import Node

TOPIC, STORE = "persistent://public/default/orders", "photos"


class Use:
    """Uses the directory again and again; everything that was acknowledged must be there."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._number = 0
        self.acknowledged: list[bytes] = []
        self.tried: list[bytes] = []

    def begin(self) -> None:
        with lithify.open(str(self._data)) as node:
            node.topics.create(TOPIC)
            node.blobs.create(STORE, capacity_bytes=2**22, segment_bytes=2**20)
            self._write(node)
            node.topics.get(TOPIC).log.roll()
            node.topics.get(TOPIC).compact()
            node.topics.get(TOPIC).log.roll()

    def again(self) -> None:
        with lithify.open(str(self._data)) as node:
            self._write(node)
            self.check(node)

    def _write(self, node: Node) -> None:
        self._number += 1
        value = b"%d" % self._number
        self.tried.append(value)
        node.topics.get(TOPIC).append(key="key", value=value)
        node.blobs.get(STORE).put(value, service="test", blob_id=value.decode())
        self.acknowledged.append(value)

    def check(self, node: Node) -> None:
        messages = [message.value for message in node.topics.get(TOPIC).read()]
        store = node.blobs.get(STORE)
        blobs = [info.blob_id.encode() for info in store.list()]
        for found in (messages, blobs):
            missing = set(self.acknowledged) - set(found)
            assert not missing, f"lost {missing}"
            assert set(found) <= set(self.tried), found
            assert len(found) == len(set(found)), found
        for blob_id in blobs:
            with store.get(blob_id.decode()) as blob:
                assert blob.read() == blob_id

    def denied(self, path: Path, mode: int) -> dict[str, object]:
        """The outcome while a path has the mode."""
        before = path.stat().st_mode
        path.chmod(mode)
        error: Exception | None = None
        try:
            self.again()
        except (LithifyError, OSError) as refused:
            error = refused
        finally:
            if path.exists():
                path.chmod(before)
        text = str(error)
        return {
            "path": str(path.relative_to(self._data)),
            "mode": f"{mode:o}",
            "error": None if error is None else type(error).__name__,
            "text": text,
            "names": str(path) in text,
        }


def paths_of(data: Path, part: str) -> list[Path]:
    if part == ".":
        return [data, *sorted(data.iterdir())]
    return sorted((data / part).rglob("*"))


def main(data: Path, part: str) -> None:
    use = Use(data)
    use.begin()
    for path in paths_of(data, part):
        if path.exists():
            for mode in (0, path.stat().st_mode & 0o555):
                print(json.dumps(use.denied(path, mode)), flush=True)
    with lithify.open(str(data)) as node:
        use.check(node)
    print(json.dumps({"checked": len(use.acknowledged)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
