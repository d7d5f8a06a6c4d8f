"""One client of a mixed load on a blob store: puts, gets and deletes, every answer checked.

    python -m tests.http.blob_client URL STORE SEED

It continues until its input ends. Then it prints, as one line of JSON, what was wrong and when each
get was answered and how long it took.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

LIVE_MAX = 200
"""Blobs that it keeps; above it deletes more than it puts."""


class Load:
    """What the client believes is in the store."""

    def __init__(self, url: str, store: str, seed: int) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._at = f"/blobs/{store}"
        self._random = random.Random(seed)
        self._live: dict[str, bytes] = {}
        self._deleted: list[str] = []
        self.wrong: list[str] = []
        self.operations = 0
        self.gets: list[tuple[float, float]] = []

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, str]:
        self.operations += 1
        self._connection.request(method, path, body)
        answer = self._connection.getresponse()
        return answer.status, answer.read(), answer.headers.get("Location", "")

    def expect(self, what: str, right: bool, found: object) -> None:
        if not right:
            self.wrong.append(f"{what}: {found!r}"[:300])

    def step(self) -> None:
        kind = self._random.random()
        if not self._live or kind < (0.2 if len(self._live) < LIVE_MAX else 0.1):
            self.put()
        elif kind < 0.35:
            self.delete()
        elif kind < 0.4 and self._deleted:
            self.get_deleted()
        else:
            self.get()

    def put(self) -> None:
        size = self._random.choice((100, 5_000, 60_000, 200_000))
        content = self._random.randbytes(64) * (size // 64 + 1)
        status, text, place = self.ask("POST", self._at, content)
        self.expect("put", status == 201, (status, text[:100]))
        if status == 201:
            self._live[place] = content

    def get(self) -> None:
        place = self._random.choice(list(self._live))
        began_s = time.monotonic()
        status, content, _ = self.ask("GET", place)
        self.gets.append((began_s, time.monotonic() - began_s))
        right = status == 200 and content == self._live[place]
        self.expect("get", right, (place, status, content[:100]))

    def delete(self) -> None:
        place = self._random.choice(list(self._live))
        status, text, _ = self.ask("DELETE", place)
        self.expect("delete", status == 202, (place, status, text[:100]))
        del self._live[place]
        self._deleted.append(place)

    def get_deleted(self) -> None:
        place = self._random.choice(self._deleted)
        status, text, _ = self.ask("GET", place)
        # Not found once its delete is compacted away.
        self.expect("get of a deleted blob", status in (404, 410), (place, status, text[:100]))

    def check_all(self) -> None:
        """Everything is still as it should be."""
        for place, expected in self._live.items():
            status, content, _ = self.ask("GET", place)
            self.expect("last look", (status, content) == (200, expected), (place, status))


def main(url: str, store: str, seed: int) -> None:
    load = Load(url, store, seed)
    while not select.select([sys.stdin], [], [], 0)[0]:
        load.step()
    load.check_all()
    told = {"wrong": load.wrong, "operations": load.operations, "gets": load.gets}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
