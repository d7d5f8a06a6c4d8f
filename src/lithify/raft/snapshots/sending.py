"""Sends a snapshot to one member: its live entries first, then its state. Reads files, no network.

    sender = Sender("n1", request, transfer, storage, settings)
    sender.take()            # messages to send, after each call
    sender.receive(ack); sender.tick()
    sender.ended             # None while in progress, then whether the member has the snapshot

1. It sends the offer. The answer has the index that the member has applied: by Raft's log matching
   it has the live entries up to there, so only those above are sent.
2. Live entries in the order of the log, as many per message as fit, up to `ENTRIES_READ`.
3. The state, in the pieces of the file.
4. The member reports that the snapshot is in force.

Each message waits for the acknowledgement of the one before. A message without an answer is
repeated after some ticks; after `tries_max` times the transfer has failed. It has failed too when
the snapshot's files are deleted because there is a newer one: the group then ends it (`close`).

`Sending` has the transfers to all members: at most one per member. After a failure the next one
waits, each time twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import Corrupt, ReadFailed
from lithify.raft.core.messages import SnapshotStatus
from lithify.raft.core.values import fit
from lithify.raft.errors import EntryUnreadable
from lithify.raft.snapshots.messages import (
    SnapshotEntries,
    SnapshotOffer,
    SnapshotPiece,
    TransferState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.core.ready import SendSnapshot
    from lithify.raft.entry import Entry
    from lithify.raft.snapshots.messages import SnapshotAck, TransferMessage
    from lithify.raft.storage.storage import GroupStorage

__all__ = ["Sender", "Sending", "SendingSettings"]

ENTRIES_READ = 256
"""Live entries that are read at a time."""


@dataclass(frozen=True, slots=True)
class SendingSettings:
    """Limits of a sender; ticks are the group's."""

    entries_bytes_max: int = 1 << 20
    """The maximum of one message; a larger entry has a message of its own."""
    resend_ticks: int = 10
    tries_max: int = 5
    backoff_ticks: int = 50
    backoff_ticks_max: int = 600


class Sender:
    """See the module."""

    def __init__(
        self,
        node: str,
        request: SendSnapshot,
        transfer: int,
        storage: GroupStorage,
        settings: SendingSettings,
    ) -> None:
        assert storage.stored is not None
        self._stored = storage.stored
        self._live = storage.log.state.live
        self._log = storage.log
        self._snapshots = storage.snapshots
        self._settings = settings
        self._address = (node, request.peer, request.term, transfer)
        self.request = request
        self.index = self._stored.index
        self.transfer = transfer
        self.ended: bool | None = None
        self.failure: Exception | None = None
        """The error of a read."""
        self._rest: Iterator[TransferMessage] = iter(())
        self._tries = self._silent_ticks = 0
        self._current: TransferMessage = SnapshotOffer(*self._address, 0, self._stored.head)
        self._out: list[RaftMessage] = [self._current]

    def take(self) -> list[RaftMessage]:
        """Take the messages to be sent."""
        out, self._out = self._out, []
        return out

    def receive(self, ack: SnapshotAck) -> None:
        """Process an acknowledgement; late ones are recognized by their number."""
        if ack.transfer != self.transfer or self.ended is not None:
            return
        self._silent_ticks = self._tries = 0
        if ack.state is not TransferState.GOING:
            self.close(arrived=ack.state is TransferState.DONE)
        elif ack.number == self._current.number:
            if not ack.number:
                self._rest = self._messages(ack.applied)
            try:
                following = next(self._rest, None)
            except (Corrupt, ReadFailed, EntryUnreadable, OSError) as error:
                # The next transfer retries, after the repair.
                self.failure = error
                self.close(arrived=False)
                return
            if following is not None:
                self._current = following
                self._out.append(following)

    def tick(self) -> None:
        """Count one tick."""
        self._silent_ticks += 1
        if self.ended is None and self._silent_ticks >= self._settings.resend_ticks:
            self._silent_ticks = 0
            self._tries += 1
            if self._tries >= self._settings.tries_max:
                self.close(arrived=False)
            else:
                self._out.append(self._current)

    def close(self, *, arrived: bool) -> None:
        """End the transfer."""
        self.ended = arrived
        self._rest = iter(())

    def _messages(self, applied: int) -> Iterator[TransferMessage]:
        """All messages after the offer."""
        number = 0
        for entries in self._entries(applied):
            number += 1
            yield SnapshotEntries(*self._address, number, entries)
        before = None
        for piece in self._snapshots.pieces(self._stored):
            if before is not None:
                number += 1
                yield SnapshotPiece(*self._address, number, before)
            before = piece
        yield SnapshotPiece(*self._address, number + 1, before or b"", last=True)

    def _entries(self, applied: int) -> Iterator[list[Entry]]:
        wanted = self._live.floor(applied + 1)
        for indexes in wanted.chunks(ENTRIES_READ):
            entries = self._log.read(indexes.tolist())
            while entries:
                some = fit(entries, self._settings.entries_bytes_max)
                yield some
                entries = entries[len(some) :]


class Sending:
    """The transfers of one leader; see the module."""

    def __init__(
        self,
        node: str,
        storage: GroupStorage,
        settings: SendingSettings,
        draw: Callable[[int], int],
    ) -> None:
        self._node = node
        self._storage = storage
        self._settings = settings
        self._draw = draw
        self._senders: dict[str, Sender] = {}
        self._waiting: dict[str, tuple[SendSnapshot, int]] = {}
        """(request, ticks until it may start) after a failure."""
        self._failures: dict[str, int] = {}
        self.damage: Exception | None = None
        """The error by which the newest snapshot could not be read."""

    def __bool__(self) -> bool:
        return bool(self._senders)

    @property
    def is_idle(self) -> bool:
        """Is there no transfer, in progress or delayed?"""
        return not (self._senders or self._waiting)

    def begin(self, request: SendSnapshot) -> None:
        """Send the newest snapshot to a member, as the core has requested."""
        failures = self._failures.get(request.peer, 0)
        if failures:
            wait = self._settings.backoff_ticks << min(failures - 1, 16)
            ticks = min(wait, self._settings.backoff_ticks_max)
            self._waiting[request.peer] = request, ticks
        else:
            self._start(request)

    def _start(self, request: SendSnapshot) -> None:
        transfer = self._draw(2**62)
        self._senders[request.peer] = Sender(
            self._node, request, transfer, self._storage, self._settings
        )

    def receive(self, ack: SnapshotAck) -> None:
        """Process an acknowledgement."""
        sender = self._senders.get(ack.sender)
        if sender is not None:
            sender.receive(ack)

    def tick(self) -> None:
        """Count one tick."""
        for sender in self._senders.values():
            sender.tick()
        for peer, (request, ticks) in list(self._waiting.items()):
            if ticks > 1:
                self._waiting[peer] = request, ticks - 1
            else:
                del self._waiting[peer]
                self._start(request)

    def give_up(self) -> None:
        """There is a newer snapshot: the one being sent is not on disk."""
        for sender in self._senders.values():
            sender.close(arrived=False)

    def stop(self) -> None:
        """Another member leads: drop all transfers."""
        self._senders.clear()
        self._waiting.clear()
        self._failures.clear()

    def take(self) -> tuple[list[RaftMessage], list[SnapshotStatus]]:
        """(messages to send, transfers that are over, for the core)."""
        messages: list[RaftMessage] = []
        over: list[SnapshotStatus] = []
        for peer, sender in list(self._senders.items()):
            messages += sender.take()
            if sender.ended is None:
                continue
            del self._senders[peer]
            if sender.failure is not None and not isinstance(sender.failure, EntryUnreadable):
                self.damage = sender.failure
            over.append(SnapshotStatus(peer, sender.index, ok=sender.ended))
            if sender.ended:
                self._failures.pop(peer, None)
            else:
                self._failures[peer] = self._failures.get(peer, 0) + 1
        return messages, over
