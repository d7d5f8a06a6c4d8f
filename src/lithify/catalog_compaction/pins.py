"""Named pins: versions of the catalog that outsiders need, such as a long export or a Spark job.

    pin = await place_pin(metastore, clock, NamedPin("export", 17, "n1", "Monday", expires_ms))
    await release_pin(metastore, "export")
    pins = await read_pins(metastore)

A pin is the key `catalog_pin/<name>`, with a JSON object as its value: the fields of `NamedPin` but
the name, and `"format": 1`. It keeps its version and all later ones until it expires.

Neither a pin nor a run can overlook the other. A pin is put by a transaction that demands that the
snapshot of the catalog is the one that was read, and that is not above the version. A run publishes
a snapshot by a transaction that demands that no pin has changed since it has read them.

A key that cannot be read as a pin permits nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.update_log.format import SNAPSHOT_KEY, SnapshotPointer
from lithify.compaction.planning.horizon import Hold
from lithify.errors import InvalidInput
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

__all__ = ["NamedPin", "NamedPins", "place_pin", "read_pins", "release_pin"]

PREFIX = b"catalog_pin/"
TEXT_MAX = 200
"""Characters of a name, an owner or a reason."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class NamedPin:
    """A pin; see the module."""

    name: str
    version: int
    """The first version that stays."""
    owner: str
    reason: str
    expires_ms: int
    since_ms: int = 0
    """When it was placed."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("a pin has no name")
        for what, text in (("name", self.name), ("owner", self.owner), ("reason", self.reason)):
            if len(text) > TEXT_MAX:
                limit = f"at most {TEXT_MAX} fit"
                raise InvalidInput(f"{what} of a pin has {len(text)} characters, {limit}")
        if not 0 <= self.version < 2**63 or not 0 <= self.expires_ms < 2**62:
            raise InvalidInput(f"pin {self.name}: its version or its expiry is out of range")

    @property
    def hold(self) -> Hold:
        """As a hold of the kernel."""
        owner = f"{self.owner}: {self.reason}" if self.reason else self.owner
        return Hold(f"pin {self.name}", self.version, owner, self.since_ms)


@dataclass(frozen=True, slots=True)
class NamedPins:
    """All pins, as they were at a revision."""

    named: tuple[NamedPin, ...]
    unreadable: tuple[Hold, ...]
    revision: int

    def holds(self, now_ms: int) -> tuple[Hold, ...]:
        """Of those that have not expired."""
        return (*(each.hold for each in self.named if each.expires_ms > now_ms), *self.unreadable)

    @property
    def unchanged(self) -> Compare:
        """Demands that no pin was placed, moved or released since."""
        start, end = prefix_range(PREFIX)
        return Compare(start, Condition.RANGE_UNCHANGED, self.revision, end=end)


async def place_pin(metastore: Metastore, clock: Clock, pin: NamedPin) -> None:
    """Place a pin, or change it; `CatalogVersionTrimmed` if its version is gone."""
    now_ms = clock.now_ms()
    if pin.expires_ms <= now_ms:
        raise InvalidInput(f"pin {pin.name} has expired before it is placed")
    put = Put(PREFIX + pin.name.encode(), _encode(pin, now_ms))
    while True:
        found = await metastore.get(SNAPSHOT_KEY)
        earliest = 0 if found is None else SnapshotPointer.parse(found.value).version
        if pin.version < earliest:
            raise CatalogVersionTrimmed(f"of version {pin.version}", earliest)
        revision = 0 if found is None else found.revision
        same = Compare(SNAPSHOT_KEY, Condition.REVISION, revision)
        if (await metastore.transact(Transaction((same,), (put,)))).succeeded:
            return


async def release_pin(metastore: Metastore, name: str) -> bool:
    """Remove a pin; was it there?"""
    delete = Delete(PREFIX + name.encode())
    return (await metastore.transact(Transaction(then=(delete,)))).changed


async def read_pins(metastore: Metastore) -> NamedPins:
    """All pins."""
    start, end = prefix_range(PREFIX)
    named: list[NamedPin] = []
    unreadable: list[Hold] = []
    revision, more = 0, True
    while more:
        # All pages are read at the revision of the first one.
        page = await metastore.range(start, end, revision=revision)
        for row in page.rows:
            pin = _parse(row)
            if pin is None:
                name = row.key.removeprefix(PREFIX).decode(errors="replace")[:TEXT_MAX]
                unreadable.append(Hold(f"pin {name}, which is unreadable", NO_POSITION))
            else:
                named.append(pin)
        revision, more = page.revision, page.more
        start = page.rows[-1].key + b"\0" if page.rows else start
    return NamedPins(tuple(named), tuple(unreadable), revision)


async def delete_expired(metastore: Metastore, pins: NamedPins, now_ms: int) -> None:
    """Delete the pins that have expired, unless one was changed meanwhile."""
    for pin in pins.named:
        if pin.expires_ms <= now_ms:
            key = PREFIX + pin.name.encode()
            same = Compare(key, Condition.REVISION_AT_MOST, pins.revision)
            await metastore.transact(Transaction((same,), (Delete(key),)))


def _encode(pin: NamedPin, now_ms: int) -> bytes:
    fields = asdict(pin) | {"since_ms": now_ms, "format": _FORMAT}
    del fields["name"]
    return json.dumps(fields).encode()


def _parse(row: KeyValue) -> NamedPin | None:
    try:
        fields = json.loads(row.value)
        if fields["format"] != _FORMAT:
            return None
        return NamedPin(
            row.key.removeprefix(PREFIX).decode(),
            int(fields["version"]),
            str(fields["owner"]),
            str(fields["reason"]),
            int(fields["expires_ms"]),
            int(fields["since_ms"]),
        )
    except (ValueError, TypeError, KeyError, InvalidInput):
        return None
