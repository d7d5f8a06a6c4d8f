"""Named holds on the history: they keep a revision and all later ones readable.

    await place_hold(metastore, clock, NamedHold("backup", 4711, "n1", "backup of Monday"))
    ...
    await release_hold(metastore, "backup")

A hold is the key `hold/<name>`, with a JSON object as its value: the fields of `NamedHold` but the
name and the lease, and `"version": 1`. With a lease it ends when its owner does.

A hold is placed in two steps. (1) Put the key. (2) Read at its revision: if the floor has risen
above that before, the read is refused, and the hold is removed. A run (`history_compaction.py`)
raises the floor only if no hold was put since it has read them; so either the run sees the hold, or
step 2 sees the run.

A hold moves forward only. A key that cannot be read as a hold permits nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.compaction.planning.horizon import Hold
from lithify.errors import InvalidInput
from lithify.metastore.errors import RevisionCompacted, RevisionNotReached
from lithify.metastore.transaction import (
    Compare,
    Condition,
    Delete,
    Put,
    Transaction,
    prefix_range,
)
from lithify.positions import NO_POSITION

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.metastore.metastore import KeyValue, Metastore

__all__ = ["HOLDS", "NamedHold", "list_holds", "place_hold", "release_hold"]

HOLDS = b"hold/"
TEXT_MAX = 200
"""Characters of a name, an owner or a reason."""


@dataclass(frozen=True, slots=True)
class NamedHold:
    """A hold; see the module."""

    name: str
    revision: int
    """The first revision that stays readable."""
    owner: str
    reason: str
    since_ms: int = 0
    """When it was placed or moved."""
    lease: int = 0
    """The lease that it ends with; 0 for none."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("a hold has no name")
        for what, text in (("name", self.name), ("owner", self.owner), ("reason", self.reason)):
            if len(text) > TEXT_MAX:
                limit = f"at most {TEXT_MAX} fit"
                raise InvalidInput(f"{what} of a hold has {len(text)} characters, {limit}")
        if not 1 <= self.revision < 2**63:
            raise InvalidInput(f"hold {self.name} is at revision {self.revision}, must be above 0")

    @property
    def hold(self) -> Hold:
        """As a hold of the kernel: the revisions before it may be compacted."""
        owner = f"{self.owner}: {self.reason}" if self.reason else self.owner
        return Hold(f"hold {self.name}", self.revision - 1, owner, self.since_ms)


async def place_hold(metastore: Metastore, clock: Clock, hold: NamedHold) -> None:
    """Place a hold, or move it forward.

    Raises `RevisionCompacted` or `RevisionNotReached` if its revision cannot be read.
    """
    key = _key(hold.name)
    while True:
        found = await metastore.get(key)
        before = None if found is None else _parse(found)
        if isinstance(before, NamedHold) and before.revision > hold.revision:
            what = f"hold {hold.name} is at revision {before.revision}"
            raise InvalidInput(f"{what} and cannot go back to {hold.revision}")
        unchanged = Compare(key, Condition.REVISION, 0 if found is None else found.revision)
        put = Put(key, _encode(hold, clock.now_ms()), hold.lease)
        if (await metastore.transact(Transaction((unchanged,), (put,)))).succeeded:
            break
    try:
        await metastore.get(key, revision=hold.revision)
    except (RevisionCompacted, RevisionNotReached):
        await release_hold(metastore, hold.name)
        raise


async def release_hold(metastore: Metastore, name: str) -> bool:
    """Remove a hold; was it there?"""
    return (await metastore.transact(Transaction(then=(Delete(_key(name)),)))).changed


async def list_holds(metastore: Metastore) -> tuple[list[NamedHold | Hold], int]:
    """All holds, and the revision at which these were all; `Hold` for an unreadable one."""
    start, end = prefix_range(HOLDS)
    found: list[NamedHold | Hold] = []
    since = 0
    while True:
        page = await metastore.range(start, end)
        found += map(_parse, page.rows)
        # A hold that was put behind the first page has a later revision than that.
        since = since or page.revision
        if not page.more:
            return found, since
        start = page.rows[-1].key + b"\0"


def _key(name: str) -> bytes:
    return HOLDS + name.encode()


def _encode(hold: NamedHold, now_ms: int) -> bytes:
    fields = {
        "version": 1,
        "revision": hold.revision,
        "owner": hold.owner,
        "reason": hold.reason,
        "since_ms": now_ms,
    }
    return json.dumps(fields).encode()


def _parse(row: KeyValue) -> NamedHold | Hold:
    name = row.key.removeprefix(HOLDS).decode(errors="replace")
    try:
        fields = json.loads(row.value)
        if fields["version"] != 1:
            raise ValueError(fields["version"])  # noqa: TRY301  (as any other unreadable value)
        numbers = int(fields["revision"]), int(fields["since_ms"])
        texts = str(fields["owner"]), str(fields["reason"])
        return NamedHold(name, numbers[0], *texts, numbers[1], row.lease)
    except (ValueError, TypeError, KeyError, InvalidInput):
        return Hold(f"hold {name[:TEXT_MAX]}, which is unreadable", NO_POSITION)
