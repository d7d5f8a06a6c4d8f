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

from lithify.errors import CONFLICT, InvalidInput
from lithify.topics.client import NOBODY, Client

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["UNACKED_MESSAGES_MAX", "Consumer", "ConsumerRefused", "Held", "SubscriptionType"]

UNACKED_MESSAGES_MAX = 50_000
"""That a consumer of a shared or key_shared subscription may hold."""


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

    exit_code = CONFLICT


@dataclass(slots=True)
class Held:
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
    held: dict[int, Held] = field(default_factory=dict)
    unacked_messages: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    client: Client = NOBODY
    through: int | None = None
    """The horizon it found when it joined to read compacted; None if it reads the log."""

    @property
    def ready(self) -> bool:
        """May it get another entry?"""
        return self.permits > 0 and not self.paused and self.unacked_messages < UNACKED_MESSAGES_MAX
