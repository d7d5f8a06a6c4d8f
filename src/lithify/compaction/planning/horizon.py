"""The horizon: the last position that compaction may judge, and the holds that determine it.

1. Each component that needs entries to stay places a **hold**: the active segment, the journal, a
   snapshot, the low watermark, a running transaction, an index build.
2. A hold's `position` is the last position that compaction may judge under that hold; -1 permits
   none.
3. The horizon is the minimum over all holds. A log without any hold has no horizon: that is a
   programming error and is refused, because "judge everything" would be unsafe.

Invariants: a hold only moves forward, so a horizon stays permitted while its holds exist. A hold
placed during a run applies to the next run; a reader's pin keeps what it needs of the current
generation.

`Hold`, `Horizon` and `find_horizon` are pure. `Holds` is the registry of a log; any thread may
place, move and release.
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
    """One named reason that limits the horizon.

    `since_ms` is when it reached this position; 0 means unknown.
    """

    name: str
    position: int
    owner: str = ""
    since_ms: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("a hold has no name: the name says what the horizon waits for")
        if not NO_POSITION <= self.position <= POSITION_MAX:
            limit = f"from {NO_POSITION} to {POSITION_MAX} in hold {self.name}"
            raise PositionOutOfRange(self.position, limit)

    def describe(self, now_ms: int) -> str:
        """For example `journal (owner run-7) for 3 s`."""
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
        """The holds at the minimum: all of them must move before the horizon can."""
        return tuple(hold for hold in self.holds if hold.position == self.position)

    def explain(self, now_ms: int, show: Callable[[int], str] = str) -> str:
        """One line with the holds that limit the horizon, and the next ones that would.

        `show` formats a position.
        """
        held_by = " and ".join(hold.describe(now_ms) for hold in self.blocking)
        line = f"horizon {show(self.position)}, held by {held_by}"
        others = [hold for hold in self.holds if hold.position > self.position]
        if others:
            next_hold = min(others, key=lambda hold: hold.position)
            line += f"; next: {next_hold.name} at {show(next_hold.position)}"
        return line


def find_horizon(holds: Iterable[Hold]) -> Horizon:
    """The horizon of `holds`, of which there must be at least one."""
    everyone = tuple(holds)
    if not everyone:
        raise InvalidInput("no holds: a log always has one, at least that of its active segment")
    return Horizon(min(hold.position for hold in everyone), everyone)


class Holds:
    """The holds of one log, in order of placement. Several may share a name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._holds: dict[HoldHandle, Hold] = {}

    def place(self, name: str, position: int, owner: str = "") -> HoldHandle:
        """Keep the horizon at or before `position` until the handle moves or is released."""
        hold = Hold(name, position, owner, self._clock.now_ms())
        handle = HoldHandle(self)
        with self._lock:
            self._holds[handle] = hold
        return handle

    def list(self) -> tuple[Hold, ...]:
        """A consistent snapshot of all holds."""
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
    """The handle of a placed hold; leaving its `with` block releases the hold."""

    __slots__ = ("_registry",)

    def __init__(self, registry: Holds) -> None:
        self._registry = registry

    @property
    def hold(self) -> Hold | None:
        """The current hold, `None` after release."""
        return self._registry._find(self)  # noqa: SLF001  the registry and its handles are one

    def move(self, position: int) -> None:
        """Move the hold forward to `position`; moving backward is refused."""
        self._registry._move(self, position)  # noqa: SLF001  the registry and its handles are one

    def release(self) -> None:
        """Release the hold. A second call does nothing."""
        self._registry._release(self)  # noqa: SLF001  the registry and its handles are one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
