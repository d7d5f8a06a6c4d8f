"""A consumer as its subscription sees it, and the types of subscriptions.

Permits count messages that its client has asked for and not been sent. What a consumer of a shared
or key_shared subscription holds is remembered here, by position; an exclusive or failover one
begins again behind mark-delete, so nothing is.

Plain values: `subscription.py` changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from lithify.errors import CONFLICT, InvalidInput, LithifyError
from lithify.topics.producers.client import NOBODY, ClientInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "PERMITS_MAX",
    "UNACKED_MESSAGES_MAX",
    "CannotRead",
    "Consumer",
    "ConsumerRefused",
    "DurabilityDiffers",
    "ReadFailure",
    "SubscriptionRemoved",
    "SubscriptionType",
    "UnacknowledgedEntry",
]

UNACKED_MESSAGES_MAX = 50_000
"""That a consumer of a shared or key_shared subscription may hold."""


PERMITS_MAX = 2**31 - 1
"""Of one consumer, however many it asks for; no client has a queue of this size."""


class SubscriptionType(IntEnum):
    """By the numbers of the protocol."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def single(self) -> bool:
        """Does one consumer get everything?"""
        return self in {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}


class ConsumerRefused(InvalidInput):
    """A consumer cannot join; the text says why."""


class SubscriptionRemoved(ConsumerRefused):
    """It was removed before a consumer had joined it; there may be another one of its name."""

    exit_code = CONFLICT


class DurabilityDiffers(InvalidInput):
    """A reader asks for a durable subscription, or a durable consumer for a reader's."""

    def __init__(self, name: str, there: str, wanted: str) -> None:
        super().__init__(f"subscription {name} is {there}: a {wanted} consumer cannot join it")


class CannotRead(LithifyError):
    """The next entry of a subscription is damaged; the text names the file."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """An entry that a subscription has to deliver cannot be read."""

    reason: str
    at_s: float
    """By the clock that only grows."""


@dataclass(slots=True)
class UnacknowledgedEntry:
    """An entry that a consumer has and has not acknowledged."""

    messages: int
    slot: int


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer of a subscription."""

    name: str
    priority: int = 0
    slots: Sequence[tuple[int, int]] = ()
    """Sticky key_shared: inclusive ranges of slots; empty means that they are dealt out."""
    permits: int = 0
    paused: bool = False
    """Its connection does not drain: it gets nothing for now."""
    held: dict[int, UnacknowledgedEntry] = field(default_factory=dict)
    unacked_messages: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    client: ClientInfo = NOBODY
    through: int | None = None
    """The horizon it found when it joined to read compacted; None if it reads the log."""

    def grant(self, permits: int) -> None:
        """Let it get so many messages more."""
        self.permits = min(self.permits + permits, PERMITS_MAX)

    @property
    def ready(self) -> bool:
        """May it get another entry?"""
        return self.permits > 0 and not self.paused and self.unacked_messages < UNACKED_MESSAGES_MAX
