"""Batches that a compacted consumer got with a mask, and that it may not be able to acknowledge.

A client that does not acknowledge by index never speaks of a batch of which it did not get all
messages. Which kind of client it is nobody says, so it is found out; "Durable compacted consumers"
in docs/topic-compaction.md has what was measured.

1. A masked batch is **sent**: its messages have the ids that they always had.
2. If any of it is acknowledged, the client can speak of it, and it is forgotten here.
3. If a later entry is acknowledged instead, or everything that is open is delivered again, the
   batch goes **packed** the next time, with other ids, and can be acknowledged by everybody.
4. The entry that was sought goes by slots until the consumer leaves: its client leaves out what is
   at or below the index that it sought, and that means slots.

Pure; owned by a subscription. Memory follows the masked batches that are open, `SENT_MAX` at most;
of one that was forgotten for that, messages come again under the ids that they had.
"""

from __future__ import annotations

from lithify.positions import NO_POSITION

__all__ = ["MaskedBatches"]

SENT_MAX = 10_000


class MaskedBatches:
    """Those of one subscription."""

    def __init__(self) -> None:
        self._sent: dict[int, None] = {}
        """In the order of positions: they are sent in that order, until all come again."""
        self._packed: set[int] = set()
        self._sought = NO_POSITION

    def add(self, position: int) -> None:
        """A batch went out with a mask, all of it open."""
        if position != self._sought:
            self._sent[position] = None
            if len(self._sent) > SENT_MAX:
                del self._sent[next(iter(self._sent))]

    def is_sent_packed(self, position: int) -> bool:
        """Is it one that the client could not speak of?"""
        return position in self._packed

    def acknowledge(self, position: int) -> None:
        """It was acknowledged, or a part of it."""
        self._sent.pop(position, None)
        self._packed.discard(position)

    def acknowledge_up_to(self, position: int) -> None:
        """Everything up to there was acknowledged."""
        for each in [*self._sent, *self._packed]:
            if each <= position:
                self.acknowledge(each)

    def take_passed_over(self, position: int) -> list[int]:
        """Those that are open although an entry behind them was acknowledged: they go packed."""
        found = []
        for each in self._sent:
            if each > position:
                break
            found.append(each)
        for each in found:
            del self._sent[each]
        self._packed.update(found)
        return found

    def redeliver_all(self) -> None:
        """All that is open will be delivered once more."""
        self._packed.update(self._sent)
        self._sent.clear()

    def seek(self, position: int) -> None:
        """The subscription begins again there."""
        self._sent.clear()
        self._packed.clear()
        self._sought = position

    def forget_seek(self) -> None:
        """Whoever sought it has left."""
        self._sought = NO_POSITION
