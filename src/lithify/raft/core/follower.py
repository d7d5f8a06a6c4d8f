"""A follower: accepts entries, heartbeats and snapshots of the leader of its term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import ProtocolError
from lithify.raft.core.errors import LogTooShort
from lithify.raft.core.events import SnapshotRestored
from lithify.raft.core.messages import (
    AppendReply,
    AppendRequest,
    Commit,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    ReadReply,
    Sleep,
    SleepReply,
    TimeoutNow,
    WakeUp,
)
from lithify.raft.core.ready import ReadState, Role
from lithify.raft.core.values import NOBODY

if TYPE_CHECKING:
    from lithify.raft.core.member_state import Engine
    from lithify.raft.core.messages import RaftMessage

from lithify.raft.core.role_state import RoleState
from lithify.raft.core.sleep import CALL_TICKS, MISSED_CHECKS_MAX

__all__ = ["Follower"]


class Follower(RoleState):
    """Accepts entries from the leader of the term; campaigns when the leader is silent."""

    kind = Role.FOLLOWER

    def __init__(self, engine: Engine, leader: str) -> None:
        super().__init__(engine)
        self.leader = leader
        self._calling = False
        """Was it woken, and has not heard the leader since?"""
        self._missed_checks = 0

    def tick(self) -> None:
        """Campaign when the leader is silent; a member that may not campaign has no leader then.

        So one that was removed, and was not notified, asks whether it is still a member.
        """
        if self.asleep:
            return
        if self._calling and self.leader and self.elapsed % CALL_TICKS == 0:
            engine = self.engine
            engine.outbox.send(WakeUp(engine.node, self.leader, engine.term))
        super().tick()
        if self.elapsed >= self.timeout and self.leader:
            self.forget_leader()

    def receive(self, message: RaftMessage) -> None:
        """Process entries, heartbeats, snapshots, and replies of the leader."""
        if isinstance(message, AppendRequest | Commit | Heartbeat | InstallSnapshot | Sleep):
            self.elapsed = 0
            self._calling = False
            if self.leader != message.sender:
                self.leader = message.sender
                self.engine.report_role()
        if isinstance(message, AppendRequest):
            self._append(message)
        elif isinstance(message, Commit):
            log = self.engine.log
            if log.committed < message.index and log.matches(message.index, message.term):
                self.engine.commit_to(message.index)
        elif isinstance(message, Heartbeat):
            self._heartbeat(message)
        elif isinstance(message, Sleep):
            self._sleep(message)
        elif isinstance(message, InstallSnapshot):
            self._install(message)
        elif isinstance(message, TimeoutNow):
            self.engine.campaign(forced=True)
        elif isinstance(message, ReadReply):
            self.engine.reads.append(ReadState(message.context, message.index))

    def forget_leader(self) -> None:
        """Allow a vote at once: the caller knows that the leader is gone."""
        self.leader = NOBODY
        self.asleep = False
        self.engine.report_role()

    # Sleep.

    def _sleep(self, message: Sleep) -> None:
        engine, log = self.engine, self.engine.log
        if message.index > log.last_index:
            raise LogTooShort(engine.node, message.index, log.last_index)
        if log.committed < message.index and log.matches(message.index, message.term):
            engine.commit_to(message.index)
        done = min(log.stable, log.applied)
        epoch_of, self._missed_checks = engine.settings.epoch_of, 0
        # An offer of a process that has ended since would not be followed by another event.
        self.asleep = (
            message.index == done == log.last_index
            and epoch_of(message.sender) == message.epoch != 0
        )
        node, to, term = engine.node, message.sender, engine.term
        if self.asleep:
            engine.outbox.send(SleepReply(node, to, term, message.round, epoch_of(node)))
        else:
            engine.outbox.send(HeartbeatReply(node, to, term, 0))

    def wake(self) -> None:
        """Call the leader until it is heard."""
        if self.asleep:
            self.asleep, self._calling, self.elapsed = False, True, 0

    def peer_changed(self, peer: str) -> None:
        """If it is the leader's node, it was silent for an election timeout, or has forgotten."""
        if peer == self.leader and (self.asleep or self._calling):
            self.wake()
            self.elapsed = max(self.elapsed, self.engine.settings.election_ticks)

    def check_sleep(self) -> None:
        """Wake if the leader has not repeated its offer."""
        self._missed_checks += 1
        if self._missed_checks > MISSED_CHECKS_MAX:
            self.wake()

    def _append(self, request: AppendRequest) -> None:
        engine, log = self.engine, self.engine.log
        if request.prev_index <= log.committed:
            engine.check_committed(request.sender, request.prev_index, request.prev_term)
            for entry in request.entries:
                if entry.index > log.committed:
                    break
                engine.check_committed(request.sender, entry.index, entry.term)
        if request.prev_index < log.committed:
            # An old message; up to the committed index all logs are the same.
            self._acknowledge(request.sender, log.committed)
            return
        if not log.matches(request.prev_index, request.prev_term):
            self._reject(request)
            return
        entries, last = request.entries, log.last_index
        agreed = request.prev_index + len(entries)
        if entries and (entries[0].index != request.prev_index + 1 or entries[-1].index != agreed):
            span = f"entries {entries[0].index} to {entries[-1].index}"
            raise ProtocolError(f"{request.sender} sends {span} after {request.prev_index}")
        if request.prev_index != last:
            known = 0
            for entry in entries:
                if entry.index > last or log.term(entry.index) != entry.term:
                    break
                known += 1
            entries = entries[known:]
            if entries and entries[0].index <= last:
                engine.cut(entries[0].index - 1)
        if entries:
            engine.append(entries)
        # The request proves nothing about entries of this log after its own.
        engine.commit_to(min(request.commit, agreed))
        self._acknowledge(request.sender, agreed)

    def _acknowledge(self, leader: str, index: int) -> None:
        self.engine.hold(AppendReply(self.engine.node, leader, self.engine.term, index))

    def _reject(self, request: AppendRequest) -> None:
        """Reply with an index up to which the logs may be the same.

        They diverge at or before `prev_index`. Entries here with a term above the leader's differ.
        So the last index with a term not above is the best guess, and skips a whole term of entries
        that only this member has.
        """
        engine, log = self.engine, self.engine.log
        last = min(request.prev_index, log.last_index)
        hint = log.last_up_to_term(last, request.prev_term)
        reply = AppendReply(
            engine.node,
            request.sender,
            engine.term,
            request.prev_index,
            rejected=True,
            hint_index=hint,
            hint_term=log.term(hint),
        )
        engine.hold(reply)

    def _heartbeat(self, message: Heartbeat) -> None:
        engine = self.engine
        if message.commit > engine.log.last_index:
            raise LogTooShort(engine.node, message.commit, engine.log.last_index)
        engine.commit_to(message.commit)
        engine.outbox.send(HeartbeatReply(engine.node, message.sender, engine.term, message.round))

    def _install(self, message: InstallSnapshot) -> None:
        engine, snapshot = self.engine, message.snapshot
        engine.check_committed(message.sender, snapshot.index, snapshot.term)
        if snapshot.index > engine.log.committed:
            if engine.log.matches(snapshot.index, snapshot.term):
                # The log has all of it, but did not know that it is committed.
                engine.commit_to(snapshot.index)
            else:
                engine.settings.events(SnapshotRestored(engine.node, snapshot))
                engine.restore(snapshot)
        self._acknowledge(message.sender, engine.log.committed)
