"""The horizon: the last position compaction may judge, and by name what keeps it there.

How it is found:

1. Everyone who needs entries left alone places a **hold**: the active segment, the journal, a
   snapshot, the low watermark, a running transaction, an index build.
2. A hold's `position` is the last position compaction may judge as far as that hold is concerned;
   -1 lets it judge nothing.
3. The horizon is the minimum over all holds. A log without any hold has no horizon: that is a
   wiring mistake and is refused, because "judge everything" would be the wrong guess.

Invariants: a hold only moves forward, so a horizon once found stays allowed for as long as the
holds it came from live. A hold placed while a run is under way binds the next run; what a reader
needs of the present generation is kept by its pin.

`Hold`, `Horizon` and `find_horizon` are values and arithmetic. `Holds` is the registry a log
carries; any thread may place, move and release.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from lithify.errors import InvalidInput, PositionOutOfRange
from lithify.positions import NO_POSITION, POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.clock import Clock

__all__ = ["Hold", "HoldHandle", "Holds", "Horizon", "find_horizon"]


@dataclass(frozen=True, slots=True)
class Hold:
    """One named reason that keeps the horizon back.

    `since_ms` is when it came to this position; 0 means nobody knows.
    """

    name: str
    position: int
    owner: str = ""
    since_ms: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("a hold has no name, so nobody could tell what it waits for")
        if not NO_POSITION <= self.position <= POSITION_MAX:
            limit = f"from {NO_POSITION} to {POSITION_MAX} in hold {self.name}"
            raise PositionOutOfRange(self.position, limit)

    def describe(self, now_ms: int) -> str:
        """Such as `journal (owner run-7) for 3 s`."""
        owner = f" (owner {self.owner})" if self.owner else ""
        age = f" for {max(0, now_ms - self.since_ms) // 1000} s" if self.since_ms else ""
        return f"{self.name}{owner}{age}"


@dataclass(frozen=True, slots=True)
class Horizon:
    """The minimum of some holds, together with all of them."""

    position: int
    holds: tuple[Hold, ...]

    @property
    def blocking(self) -> tuple[Hold, ...]:
        """The holds at the minimum: all of them must move before the horizon does."""
        return tuple(hold for hold in self.holds if hold.position == self.position)

    def explain(self, now_ms: int, show: Callable[[int], str] = str) -> str:
        """One line that says what keeps the horizon here and what would keep it next.

        `show` writes a position for people.
        """
        held_by = " and ".join(hold.describe(now_ms) for hold in self.blocking)
        line = f"horizon {show(self.position)}, held by {held_by}"
        others = [hold for hold in self.holds if hold.position > self.position]
        if others:
            following = min(others, key=lambda hold: hold.position)
            line += f"; next: {following.name} at {show(following.position)}"
        return line


def find_horizon(holds: Iterable[Hold]) -> Horizon:
    """The horizon under `holds`, of which there must be at least one."""
    everyone = tuple(holds)
    if not everyone:
        raise InvalidInput("no holds: a log always has one, at least that of its active segment")
    return Horizon(min(hold.position for hold in everyone), everyone)


class Holds:
    """The holds of one log, in the order they were placed. Several may share a name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._holds: dict[HoldHandle, Hold] = {}

    def place(self, name: str, position: int, owner: str = "") -> HoldHandle:
        """Keep the horizon at `position` or before, until the handle moves or is released."""
        hold = Hold(name, position, owner, self._clock.now_ms())
        handle = HoldHandle(self)
        with self._lock:
            self._holds[handle] = hold
        return handle

    def list(self) -> tuple[Hold, ...]:
        """All holds at one instant."""
        with self._lock:
            return tuple(self._holds.values())

    def _find(self, handle: HoldHandle) -> Hold | None:
        with self._lock:
            return self._holds.get(handle)

    def _move(self, handle: HoldHandle, position: int) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            hold = self._holds.get(handle)
            if hold is None:
                raise InvalidInput(f"a released hold cannot move to position {position}")
            if position < hold.position:
                raise InvalidInput(
                    f"hold {hold.name} is at position {hold.position} and cannot go back to "
                    f"{position}: entries in between may be judged already"
                )
            if position > hold.position:
                self._holds[handle] = replace(hold, position=position, since_ms=now_ms)

    def _release(self, handle: HoldHandle) -> None:
        with self._lock:
            self._holds.pop(handle, None)


class HoldHandle:
    """What the one who placed a hold keeps; leaving its `with` block releases the hold."""

    __slots__ = ("_registry",)

    def __init__(self, registry: Holds) -> None:
        self._registry = registry

    @property
    def hold(self) -> Hold | None:
        """The hold as it stands, `None` once released."""
        return self._registry._find(self)  # noqa: SLF001  the registry and its handles are one

    def move(self, position: int) -> None:
        """Let compaction judge up to `position`; backward is refused."""
        self._registry._move(self, position)  # noqa: SLF001  the registry and its handles are one

    def release(self) -> None:
        """Hold nothing back any more. A second call does nothing."""
        self._registry._release(self)  # noqa: SLF001  the registry and its handles are one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
