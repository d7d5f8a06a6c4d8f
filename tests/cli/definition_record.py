"""What clients were told about changes of definitions, compared with the versions of a catalog.

    record = Record()
    change = record.begin("create t1", [added("topic", "persistent://public/default/t1")])
    record.end(change, Outcome.MADE)
    history.add("n1", version, activation, differences)     # as /catalog/diff answers
    problems = history.explain(record)

Every version is one batch, so its effects must be those of exactly one change:

- a change that was acknowledged is exactly one version, appended while the client waited, and it is
  that version if the answer names one; it was answered after its activation
- a change that was refused is no version; one whose outcome is unknown is one, as a whole, or none
- versions have no gaps, their activations ascend, and every node has the same ones
- what had data on a node becomes a removal when it is deleted, and only that

Confirmations of removals are made by nodes, not by clients.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DELAY_MS = 500
"""From the append of a version to its activation, in a cluster."""
SLACK_MS = 50
"""A version that is appended in the millisecond of another one gets a later time."""

Effect = tuple[str, str, str, str]
"""added, changed or removed; kind; name; what tells it from other changes of that object."""
Effects = frozenset[Effect]
NOTHING: Effects = frozenset()


class Outcome(Enum):
    """What a client knows."""

    WAITS = "waits"
    MADE = "made"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNCHANGED = "unchanged"


@dataclass(slots=True, eq=False)
class Change:
    """A change that a client asked for; `possible` are the effects that it may have."""

    text: str
    possible: tuple[Effects, ...]
    called_ms: int
    returned_ms: int = 0
    outcome: Outcome = Outcome.WAITS
    version: int = 0
    """0: the answer has none."""
    answer: str = ""

    def explains(self, version: Version) -> bool:
        """May this change have made the version?"""
        appended_ms = version.activation_ms - DELAY_MS
        return (
            version.effects in self.possible
            and self.outcome not in (Outcome.REFUSED, Outcome.UNCHANGED)
            and self.called_ms - SLACK_MS <= appended_ms
            and (self.outcome is not Outcome.MADE or version.activation_ms <= self.returned_ms)
            and self.version in (0, version.number)
        )


@dataclass(frozen=True, slots=True)
class Version:
    """One version as a node has it."""

    number: int
    activation: int
    effects: Effects
    texts: tuple[str, ...]
    """The differences, to compare nodes."""

    @property
    def activation_ms(self) -> int:
        return self.activation >> 16


class Record:
    """All changes that clients asked for; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: list[Change] = []

    def begin(self, text: str, *possible: Iterable[Effect]) -> Change:
        """A client is about to ask for a change."""
        change = Change(text, tuple(map(frozenset, possible)), now_ms())
        with self._lock:
            self._changes.append(change)
        return change

    @staticmethod
    def end(change: Change, outcome: Outcome, *, version: int = 0, answer: str = "") -> None:
        """The client knows the outcome."""
        change.returned_ms, change.version, change.answer = now_ms(), version, answer
        change.outcome = outcome

    def changes(self) -> list[Change]:
        """Those that were asked for so far."""
        with self._lock:
            return list(self._changes)

    def made(self) -> list[Change]:
        """Those that were acknowledged so far."""
        return [each for each in self.changes() if each.outcome is Outcome.MADE]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def added(kind: str, name: str, marker: str = "") -> Effect:
    return "added", kind, name, marker


def changed(kind: str, name: str, marker: str) -> Effect:
    return "changed", kind, name, marker


def removed(kind: str, name: str) -> Effect:
    return "removed", kind, name, ""


def effects_of(differences: Iterable[Mapping[str, Any]]) -> Effects:
    """The effects of a version, without what nodes do."""
    found: set[Effect] = set()
    for row in differences:
        if row["kind"] == "removal":
            continue
        after = {name: each["after"] for name, each in row["fields"].items()}
        marker = ""
        if row["change"] != "removed":
            settings = after.get("settings") or {}
            times = settings.get("retention_ms") or settings.get("deleted_retention_ms")
            marker = str(times or "".join(settings.get("adminRoles", ())))
            if row["change"] == "changed" and "partitions" in after:
                marker += f"partitions {after['partitions']}"
        found.add((row["change"], row["kind"], row["name"], marker))
    return frozenset(found)


@dataclass(slots=True)
class History:
    """The versions that nodes have answered."""

    versions: dict[int, Version] = field(default_factory=dict)
    objects: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By id: kind and name of what exists after the newest version."""
    seen: dict[str, int] = field(default_factory=dict)
    """By node: its newest version here."""
    problems: list[str] = field(default_factory=list)

    def add(
        self, node: str, number: int, activation: int, differences: Sequence[Mapping[str, Any]]
    ) -> None:
        """A node has answered a version; the first node to do so comes without gaps."""
        texts = tuple(each["text"] for each in differences)
        if number in self.versions:
            self.compare(node, number, activation, texts)
            return
        self.seen[node] = number
        newest = max(self.versions, default=number - 1)
        if number != newest + 1:
            self.problems.append(f"version {number} follows {newest}")
        before = self.versions.get(newest)
        if before is not None and before.activation >= activation:
            self.problems.append(f"version {number} is active before {newest}")
        self.versions[number] = Version(number, activation, effects_of(differences), texts)
        self._fold(number, differences)

    def compare(self, node: str, number: int, activation: int, texts: Iterable[str]) -> None:
        """A node has answered a version that is known."""
        self.seen[node] = number
        known = self.versions[number]
        if (known.activation, known.texts) != (activation, tuple(texts)):
            found = f"{activation} {texts}"
            self.problems.append(f"{node} has another version {number}: {found}, not {known}")

    def _fold(self, number: int, rows: Iterable[Mapping[str, Any]]) -> None:
        removals = {row["id"] for row in rows if row["kind"] == "removal"}
        for row in rows:
            place = row["kind"], row["name"]
            if row["change"] == "added":
                if row["id"] in self.objects and row["kind"] != "removal":
                    self.problems.append(f"version {number} adds {place}, id {row['id']}, again")
                self.objects[row["id"]] = place
            elif row["change"] == "removed":
                if self.objects.get(row["id"], ("",))[0] == row["kind"]:
                    del self.objects[row["id"]]
                has_data = row["kind"] in ("topic", "store")
                if has_data and row["id"] not in removals:
                    self.problems.append(f"version {number} drops {place} without a removal")

    def explain(self, record: Record, after: int = 1) -> list[str]:
        """What cannot be explained by the changes; versions up to `after` are not examined.

        Changes that were acknowledged above the newest version here are not examined either.
        """
        newest = max(self.versions, default=0)
        last_ms = self.versions[newest].activation_ms if newest else 0
        versions = [each for each in self.versions.values() if each.number > after and each.effects]
        changes = record.changes()
        matching = Matching(versions, changes)
        problems = list(self.problems)
        for change in changes:
            is_known = last_ms and change.version <= newest and change.returned_ms <= last_ms
            must_be = change.outcome is Outcome.MADE and NOTHING not in change.possible
            if must_be and not matching.find_version(change, set()) and is_known:
                problems.append(f"no version for {change}")
        for version in versions:
            if version not in matching.makers and not matching.find_change(version, set()):
                alike = [each for each in changes if version.effects in each.possible]
                problems.append(f"no change explains {version}; alike are {alike[-5:]}")
        return problems


class Matching:
    """Which change has made which version.

    First all acknowledged changes get a version, then all versions a change. What has a partner
    keeps one: a path that finds another partner only exchanges them.
    """

    def __init__(self, versions: Iterable[Version], changes: Iterable[Change]) -> None:
        by_effects: dict[Effects, list[Change]] = {}
        for change in changes:
            for possible in change.possible:
                by_effects.setdefault(possible, []).append(change)
        self._changes: dict[Version, list[Change]] = {}
        self._versions: dict[Change, list[Version]] = {}
        for version in versions:
            for change in by_effects.get(version.effects, ()):
                if change.explains(version):
                    self._changes.setdefault(version, []).append(change)
                    self._versions.setdefault(change, []).append(version)
        self.makers: dict[Version, Change] = {}
        self._made: dict[Change, Version] = {}

    def find_version(self, change: Change, tried: set[Version]) -> bool:
        """Give a change a version; False if there is none."""
        for version in self._versions.get(change, ()):
            if version in tried:
                continue
            tried.add(version)
            if version not in self.makers or self.find_version(self.makers[version], tried):
                self._match(version, change)
                return True
        return False

    def find_change(self, version: Version, tried: set[Change]) -> bool:
        """Give a version a change; False if there is none."""
        for change in self._changes.get(version, ()):
            if change in tried:
                continue
            tried.add(change)
            if change not in self._made or self.find_change(self._made[change], tried):
                self._match(version, change)
                return True
        return False

    def _match(self, version: Version, change: Change) -> None:
        self.makers[version] = change
        self._made[change] = version
