"""A consumer as its subscription sees it, and the types of subscriptions.

Permits count the messages that a client has requested and not yet been sent. A consumer of a shared
or key_shared subscription records the entries it holds, by position. An exclusive or failover
consumer records none: it restarts after mark-delete.

Plain values, changed by `subscription.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import CONFLICT
from lithify.topics.client_info import NOBODY, ClientInfo

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
"""Maximum number of unacknowledged messages of a shared or key_shared consumer."""

PERMITS_MAX = 2**31 - 1
"""Maximum number of permits of one consumer; no client has a queue of this size."""


class SubscriptionType(IntEnum):
    """Subscription types, by the numbers of the protocol."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def single(self) -> bool:
        """Does one consumer receive all entries?"""
        return self in {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}


class ConsumerRefused(InvalidInput):
    """A consumer cannot join; the message has the reason."""


class SubscriptionRemoved(ConsumerRefused):
    """The subscription was removed while a consumer joined; a new one may have its name."""

    exit_code = CONFLICT


class DurabilityDiffers(InvalidInput):
    """A reader wants to join a durable subscription, or a durable consumer a reader's."""

    def __init__(self, name: str, existing: str, requested: str) -> None:
        super().__init__(
            f"subscription {name} is {existing}: a {requested} consumer cannot join it"
        )


class CannotRead(LithifyError):
    """The next entry of a subscription is damaged; the message names the file."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """Why the next entry of a subscription cannot be read, and since when."""

    reason: str
    at_s: float
    """Time of the failure, by the monotonic clock."""


@dataclass(slots=True)
class UnacknowledgedEntry:
    """An entry that was delivered to a consumer and is not acknowledged."""

    messages: int
    slot: int


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer of a subscription."""

    name: str
    priority: int = 0
    slots: Sequence[tuple[int, int]] = ()
    """Sticky key_shared: inclusive ranges of slots; empty for auto-split."""
    permits: int = 0
    paused: bool = False
    """Its connection does not drain, so dispatch skips it."""
    held: dict[int, UnacknowledgedEntry] = field(default_factory=dict)
    unacked_messages: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    client: ClientInfo = NOBODY
    through: int | None = None
    """Compacted: the horizon at the time it joined; None for a consumer that reads the log."""

    def grant(self, permits: int) -> None:
        """Add permits, up to `PERMITS_MAX`."""
        self.permits = min(self.permits + permits, PERMITS_MAX)

    @property
    def ready(self) -> bool:
        """Can it receive another entry?"""
        return self.permits > 0 and not self.paused and self.unacked_messages < UNACKED_MESSAGES_MAX
