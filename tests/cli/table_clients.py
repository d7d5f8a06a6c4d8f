"""Clients of tables at nodes that are killed, paused and restarted; they record what was answered.

- `put`: each row is overwritten by one client, with ascending numbers. The last acknowledged one,
  or a later one, must be there.
- `append`: transactions that read two lists of a partition and append to one or both
  (`tests/append_lists.py`).
- `look`: read-only transactions over the lists of all partitions.
- `define`: columns, indexes and tables come and go.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx

from tests.append_lists import Txn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.cluster_members import Member

PARTITIONS = 3
LISTS = 2 * PARTITIONS
"""The keys 0 and 1 are in the first part, and so on; a part is in one partition."""
ROWS = 40
"""Of each client."""
PUTTING = 2
APPENDING = 2
NOTE = "x" * 2000
TIMEOUT_S = 8.0
"""A node that is paused does not answer."""
MAY_FAIL = (400, 404, 409, 410, 503, 504)
UNKNOWN = 504


class NoAnswer(Exception):
    """A request was refused; `is_unknown` says that it may have happened."""

    def __init__(self, *, is_unknown: bool) -> None:
        self.is_unknown = is_unknown
        super().__init__()


class Clients:
    """See the module."""

    def __init__(self, nodes: list[Member]) -> None:
        self.nodes = nodes
        self.txns: list[Txn] = []
        self.put: dict[int, int] = {}
        """By row, the last number that was acknowledged."""
        self.tried: dict[int, int] = {}
        """By row, the last number that was sent."""
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._values = itertools.count(1)
        self._ended = threading.Event()
        jobs: list[Callable[[random.Random], None]] = [self._append] * APPENDING
        jobs += [self._putting(number) for number in range(PUTTING)]
        jobs += [self._look, self._define]
        self._threads = [
            threading.Thread(target=self._repeat, args=(job, random.Random(number)))
            for number, job in enumerate(jobs)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _repeat(self, job: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            while not self._ended.is_set():
                with suppress(NoAnswer):
                    job(rng)
                    continue
                self._ended.wait(0.05)
        except BaseException as error:  # noqa: BLE001  (raised by `end`)
            self.failure = error
            self._ended.set()

    def _ask(self, node: Member, method: str, path: str, **options: Any) -> Any:
        """The JSON of a good answer."""
        url = f"{node.url}{path}"
        try:
            answer = httpx.request(method, url, timeout=TIMEOUT_S, follow_redirects=True, **options)
        except httpx.ConnectError as error:
            raise NoAnswer(is_unknown=False) from error
        except httpx.HTTPError as error:
            raise NoAnswer(is_unknown=True) from error
        if not answer.is_success:
            assert answer.status_code in MAY_FAIL, answer.text
            raise NoAnswer(is_unknown=answer.status_code == UNKNOWN)
        return answer.json() if answer.content else None

    # --- jobs -------------------------------------------------------------------------------

    def _putting(self, client: int) -> Callable[[random.Random], None]:
        def put(rng: random.Random) -> None:
            row = client * ROWS + rng.randrange(ROWS)
            number = self.tried[row] = self.tried.get(row, 0) + 1
            values = {"id": row, "n": number, "note": NOTE}
            self._ask(rng.choice(self.nodes), "POST", "/tables/t/rows", json=values)
            self.put[row] = number
            self.done["put"] += 1

        return put

    def _read_list(self, node: Member, key: int, **given: str) -> list[int]:
        asked = {"key": json.dumps({"part": key // 2, "id": key}), **given}
        row = self._ask(node, "GET", "/tables/l/row", params=asked)
        found: list[int] = json.loads(row["list"])
        return found

    def _append(self, rng: random.Random) -> None:
        node = rng.choice(self.nodes)
        part = rng.randrange(PARTITIONS)
        begun = self._ask(node, "POST", "/tables/transactions", json={})["id"]
        txn = Txn()
        self.txns.append(txn)
        keys = [2 * part, 2 * part + 1]
        rng.shuffle(keys)
        for key in keys:
            txn.reads[key] = self._read_list(node, key, tx=begun)
        for key in keys[: rng.choice([1, 1, 2])]:
            value = txn.appends[key] = next(self._values)
            row = {"part": part, "id": key, "list": json.dumps([*txn.reads[key], value])}
            self._ask(node, "POST", "/tables/l/rows", json=row, params={"tx": begun})
        try:
            self._ask(node, "POST", f"/tables/transactions/{begun}/commit")
        except NoAnswer as error:
            txn.outcome = "unknown" if error.is_unknown else "failed"
            raise
        txn.outcome = "ok"
        self.done["append"] += 1

    def _look(self, rng: random.Random) -> None:
        node = rng.choice(self.nodes)
        body = {"read_only": True}
        begun = self._ask(node, "POST", "/tables/transactions", json=body)["id"]
        found = {key: self._read_list(node, key, tx=begun) for key in range(LISTS)}
        self._ask(node, "POST", f"/tables/transactions/{begun}/rollback")
        # What is serialisable is each partition.
        for part in range(PARTITIONS):
            seen = {key: found[key] for key in (2 * part, 2 * part + 1)}
            self.txns.append(Txn(seen, {}, "ok"))
        self.done["look"] += 1

    def _define(self, rng: random.Random) -> None:
        node, number = rng.choice(self.nodes), rng.randrange(3)
        kind = rng.choice(["add", "drop", "index", "no index", "table", "no table"])
        if kind == "add":
            column = {"name": f"c{number}", "type": "int64", "default": number}
            self._ask(node, "POST", "/tables/t/columns", json={"add": [column]})
        elif kind == "drop":
            self._ask(node, "POST", "/tables/t/columns", json={"drop": [f"c{number}"]})
        elif kind == "index":
            columns = {"columns": rng.choice([["n"], ["note", "n"]])}
            self._ask(node, "PUT", f"/tables/t/indexes/i{number}", json=columns)
        elif kind == "no index":
            self._ask(node, "DELETE", f"/tables/t/indexes/i{number}")
        elif kind == "table":
            column = {"name": "id", "type": "int64"}
            body = {"name": f"x{number}", "columns": [column], "key": ["id"], "zone": "z"}
            self._ask(node, "POST", "/tables", json=body)
        else:
            self._ask(node, "DELETE", f"/tables/x{number}")
        self.done["define"] += 1
        self._ended.wait(rng.random() / 2)
