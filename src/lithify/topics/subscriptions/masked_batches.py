"""Masked batches sent to a compacted consumer that may be unable to acknowledge them.

A client without batch index acknowledgements never acknowledges a batch of which it did not receive
all messages. The protocol does not tell which kind of client it is, so this class detects it;
"Durable compacted consumers" in docs/topic-compaction.md has the measurements.

1. A masked batch is **sent**: its messages keep their ids.
2. If a part of it is acknowledged, the client can acknowledge it, and the batch is removed here.
3. If a later entry is acknowledged instead, or all open entries are redelivered, the batch is sent
   **packed** the next time, with other ids, and every client can acknowledge it.
4. The target of a seek is sent by slots until the consumer leaves: its client skips messages at or
   below the index of the seek, which is a slot.

Pure; owned by a subscription. Memory grows with the number of open masked batches, `SENT_MAX` at
most. A batch beyond that limit is redelivered under its original ids.
"""

from __future__ import annotations

from lithify.positions import NO_POSITION

__all__ = ["MaskedBatches"]

SENT_MAX = 10_000
"""Sent batches that are remembered; the lowest position is dropped first."""


class MaskedBatches:
    """The open masked batches of one subscription."""

    def __init__(self) -> None:
        self._sent: dict[int, None] = {}
        """Ascending: positions are sent in that order until all are redelivered."""
        self._packed: set[int] = set()
        self._sought = NO_POSITION

    def add(self, position: int) -> None:
        """Record a batch that was sent with a mask and is wholly unacknowledged."""
        if position != self._sought:
            self._sent[position] = None
            if len(self._sent) > SENT_MAX:
                del self._sent[next(iter(self._sent))]

    def is_sent_packed(self, position: int) -> bool:
        """Is it a batch that the client could not acknowledge?"""
        return position in self._packed

    def acknowledge(self, position: int) -> None:
        """Remove a batch that was acknowledged, whole or in part."""
        self._sent.pop(position, None)
        self._packed.discard(position)

    def acknowledge_up_to(self, position: int) -> None:
        """Remove all batches up to a position."""
        for each in [*self._sent, *self._packed]:
            if each <= position:
                self.acknowledge(each)

    def take_skipped(self, position: int) -> list[int]:
        """The open batches before an acknowledged entry; they will be sent packed."""
        passed = []
        for each in self._sent:
            if each > position:
                break
            passed.append(each)
        for each in passed:
            del self._sent[each]
        self._packed.update(passed)
        return passed

    def redeliver_all(self) -> None:
        """Send all open batches packed the next time."""
        self._packed.update(self._sent)
        self._sent.clear()

    def seek(self, position: int) -> None:
        """Reset after a seek to a position."""
        self._sent.clear()
        self._packed.clear()
        self._sought = position

    def forget_seek(self) -> None:
        """Forget the target of the seek: its consumer has left."""
        self._sought = NO_POSITION
