"""The leader: accepts proposals, sends entries, decides what is committed.

1. It first appends an empty entry of its term. Only entries of its own term are committed by
   counting; they commit everything before them.
2. Messages with entries are built when `ready()` is called (`flush`), so that all proposals since
   the last call share one message per peer. `progress.py` limits how much is sent ahead. A peer to
   which nothing else is to be sent gets a new commit index in a message of its own, unanswered.
3. An entry is committed when it is durable on a quorum. The leader counts itself only for what its
   own storage has acknowledged.
4. Once per election timeout it counts the members that answered. Without a quorum it steps down,
   because the others may have elected another leader by then.
5. A membership change is in force at once, so it is checked first (`_judge`): a new voter must be a
   learner that answers and has the log, and a quorum must have answered within an election timeout,
   of the voters before the change and of those after it. When the change is committed, a joint
   configuration is left, and a leader that is no longer a voter steps down. A removed member
   receives entries until then, so that it learns of its removal.
6. During a transfer of leadership it accepts no proposals. When the target has the whole log, it is
   told to campaign. If that has no effect within an election timeout, the leader continues.

The object lives as long as the leadership.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lithify.errors import ProtocolError
from lithify.raft.core.configuration import ConfChange, Config, MemberChange, Op
from lithify.raft.core.configuration_change import changed
from lithify.raft.core.errors import (
    Compacted,
    DropReason,
    NotCaughtUp,
    ProposalDropped,
    QuorumAtRisk,
    TransferDropped,
)
from lithify.raft.core.events import QuorumLost, TransferEnded
from lithify.raft.core.messages import (
    AppendReply,
    AppendRequest,
    Commit,
    Heartbeat,
    HeartbeatReply,
    ReadReply,
    ReadRequest,
    Sleep,
    SleepReply,
    TimeoutNow,
    WakeUp,
)
from lithify.raft.core.progress import Flow, Inflight, Progress
from lithify.raft.core.quorum import agreed_index, has_quorum
from lithify.raft.core.read_index import Read, ReadQueue
from lithify.raft.core.ready import ReadState, Role, SendSnapshot
from lithify.raft.core.role_state import RoleState
from lithify.raft.core.sleep import LeaderSleep
from lithify.raft.core.values import ENTRY_BYTES, NOBODY, EntryKind, entry_bytes
from lithify.raft.entry import make_entries
from lithify.raft.errors import EntryUnreadable

if TYPE_CHECKING:
    from lithify.raft.core.member_state import Engine
    from lithify.raft.core.messages import RaftMessage, SnapshotStatus, Unreachable

__all__ = ["Leader"]


class Leader(RoleState):
    """See the module."""

    kind = Role.LEADER
    has_live_leader = True

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.leader = engine.node
        self.progress: dict[str, Progress] = {}
        self._reads = ReadQueue()
        self._sleep = LeaderSleep(engine.settings)
        self._since_heartbeat = 0
        self._transfer_to = NOBODY
        self._transfer_ticks = 0
        self._waiting: deque[tuple[int, int]] = deque()
        """(last index, bytes) of proposals that are not committed or not durable here"""
        self._waiting_bytes = 0
        self._settled = engine.log.last_index
        """The index committed an election timeout ago, or the last one when leadership began."""
        self._committed_before = self._settled

    def begin(self) -> None:
        """Append the first entry of the term."""
        self.members_changed()
        engine = self.engine
        payload = b"" if engine.log.last_index else engine.settings.founding()
        self._append([payload], EntryKind.NOOP)

    # Time.

    def tick(self) -> None:
        """Send heartbeats, and check the quorum once per election timeout."""
        if self.asleep:
            return
        settings = self.engine.settings
        self.elapsed += 1
        self._since_heartbeat += 1
        for progress in self.progress.values():
            progress.silent_ticks += 1
        if self._transfer_to:
            self._transfer_ticks += 1
            if self._transfer_ticks >= settings.election_ticks:
                settings.events(TransferEnded(self.engine.node, self._transfer_to))
                self._transfer_to = NOBODY
        if self.elapsed >= settings.election_ticks:
            self.elapsed = 0
            self._settled = max(self._settled, self._committed_before)
            self._committed_before = self.engine.log.committed
            if not self._active_quorum():
                settings.events(QuorumLost(self.engine.node, self.engine.term))
                self.engine.follow(self.engine.term, NOBODY)
                return
        if settings.sleep_ticks:
            self._sleep.tick(settled=self._is_settled())
        if self._since_heartbeat >= settings.heartbeat_ticks:
            self._since_heartbeat = 0
            if self._sleep.is_offered:
                self._offer_sleep()
                self.asleep = self._sleep.is_complete(self.progress)
            else:
                self._send_heartbeats()

    def _active_quorum(self) -> bool:
        active = {peer for peer, progress in self.progress.items() if progress.recently_active}
        for progress in self.progress.values():
            progress.recently_active = False
        return has_quorum(self.engine.members.config, active | {self.engine.node})

    def _send_heartbeats(self) -> None:
        engine = self.engine
        for peer, progress in self.progress.items():
            # Above `match` the peer's log may differ, so it may treat no more as committed.
            commit = min(progress.match, engine.log.committed)
            engine.outbox.send(Heartbeat(engine.node, peer, engine.term, commit, self._reads.round))

    # Sleep.

    def _is_settled(self) -> bool:
        """Whether all members have the whole log, and no client waits."""
        engine, log = self.engine, self.engine.log
        last, epoch_of = log.last_index, engine.settings.epoch_of
        if not log.committed == log.applied == log.stable == last:
            return False
        if self._transfer_to or not self._reads.is_empty:
            return False
        return all(
            each.match == last and each.flow is Flow.REPLICATE and epoch_of(peer)
            for peer, each in self.progress.items()
        )

    def _offer_sleep(self) -> None:
        engine, round_ = self.engine, self._sleep.round
        node, term, last = engine.node, engine.term, engine.log.last_index
        epoch = engine.settings.epoch_of(node)
        for peer in self.progress:
            engine.outbox.send(Sleep(node, peer, term, last, round_, epoch))

    def wake(self) -> None:
        """Wake the members too."""
        self._sleep.end()
        if self.asleep:
            self.asleep = False
            # Their nodes were heard, otherwise it would have been woken.
            self.elapsed = self._since_heartbeat = 0
            for progress in self.progress.values():
                progress.recently_active = True
            self._send_heartbeats()

    def peer_changed(self, peer: str) -> None:
        """The process of a member has ended, and forgot that it sleeps, or is not heard."""
        progress = self.progress.get(peer)
        if progress is not None and self.asleep:
            self.wake()
            progress.recently_active = False
            progress.silent_ticks = max(progress.silent_ticks, self.engine.settings.election_ticks)

    def check_sleep(self) -> None:
        """Offer the same round again; wake if a member has not answered the last offer."""
        if self._sleep.is_complete(self.progress):
            self._sleep.begin_check()
            self._offer_sleep()
        else:
            self.wake()

    # Proposals.

    def propose(self, payloads: list[bytes]) -> range:
        """Append commands; returns their indexes."""
        if self._transfer_to:
            raise ProposalDropped(DropReason.TRANSFERRING, self.engine.node)
        size = ENTRY_BYTES * len(payloads) + sum(map(len, payloads))
        limit = self.engine.settings.uncommitted_bytes_max
        # If no proposal waits, one is accepted at any size.
        if self._waiting_bytes and self._waiting_bytes + size > limit:
            raise ProposalDropped(DropReason.OVERLOADED, self.engine.node)
        indexes = self._append(payloads, EntryKind.COMMAND)
        self._waiting.append((indexes.stop - 1, size))
        self._waiting_bytes += size
        return indexes

    def propose_change(self, change: ConfChange) -> int:
        """Append a membership change; returns its index."""
        self._check_may_change()
        config = changed(self.engine.members.config, change)
        self._judge(change, config)
        return self._append([config.encode()], EntryKind.CONFIG).start

    def _judge(self, change: ConfChange, after: Config) -> None:
        """Raise unless the group keeps a quorum with these members, judged by recent answers.

        An old acknowledgement proves nothing: the member may have failed since, and a change whose
        quorum does not answer can be neither committed nor undone.
        """
        engine, before = self.engine, self.engine.members.config
        new = after.voters - before.electorate
        if not new <= before.learners:
            raise ProposalDropped(DropReason.LEARNER_FIRST, engine.node)
        limit = engine.settings.election_ticks
        active = {peer for peer, each in self.progress.items() if each.silent_ticks < limit}
        behind = {
            name: self.progress[name].match if name in active else None
            for name in sorted(new)
            if name not in active or self.progress[name].match < self._needed
        }
        if behind:
            raise NotCaughtUp(engine.node, self._needed, behind)
        active.add(engine.node)
        for voters in (before.voters, before.outgoing, after.voters, after.outgoing):
            if not has_quorum(Config(voters), active):
                raise QuorumAtRisk(engine.node, str(change), voters, sorted(voters - active))

    @property
    def _needed(self) -> int:
        """The index that a learner must have to become a voter: all but the most recent entries."""
        return max(self._settled, self.engine.members.index)

    def _check_may_change(self) -> None:
        """Raise unless the configuration in force is final: changes start from a final one only."""
        engine = self.engine
        if self._transfer_to:
            raise ProposalDropped(DropReason.TRANSFERRING, engine.node)
        if engine.members.index > engine.log.committed or engine.members.config.auto_leave:
            raise ProposalDropped(DropReason.CHANGE_IN_FLIGHT, engine.node)
        if not self._term_committed:
            # A change that a predecessor has begun may still become committed.
            raise ProposalDropped(DropReason.TERM_NOT_COMMITTED, engine.node)

    def prepared(self, change: ConfChange) -> ConfChange:
        """The change, or the one that must precede it: new voters are learners first."""
        self._check_may_change()
        config = self.engine.members.config
        changed(config, change)
        new = tuple(
            MemberChange(Op.LEARNER, item.node, item.identity)
            for item in change.changes
            if item.op is Op.VOTER and item.node not in config.members
        )
        return ConfChange(new) if new else change

    def propose_end(self) -> int:
        """Append the end of the group; returns its index."""
        if self._transfer_to:
            raise ProposalDropped(DropReason.TRANSFERRING, self.engine.node)
        return self._append([b""], EntryKind.END).start

    def propose_note(self, payload: bytes) -> int:
        """Append a note for the members; returns its index."""
        return self._append([payload], EntryKind.NOOP).start

    def _append(self, payloads: list[bytes], kind: EntryKind) -> range:
        engine = self.engine
        self._sleep.end()
        first, term = engine.log.last_index + 1, engine.term
        # A plain number: comparing an `IntEnum` is ten times slower, and every member compares it.
        engine.append(make_entries(first, term, payloads, int(kind)))
        return range(first, first + len(payloads))

    def members_changed(self) -> None:
        """Track the progress of all members, and of removed ones until this is committed."""
        engine, settings = self.engine, self.engine.settings
        wanted = engine.members.everyone - {engine.node}
        for peer in [peer for peer in self.progress if peer not in wanted]:
            del self.progress[peer]
        for peer in sorted(wanted - self.progress.keys()):
            inflight = Inflight(settings.inflight_messages_max, settings.inflight_bytes_max)
            self.progress[peer] = Progress(engine.log.last_index + 1, inflight)

    def transfer(self, to: str) -> None:
        """Transfer leadership once the target has the whole log."""
        if to not in self.engine.members.config.voters:
            raise TransferDropped(DropReason.NOT_A_VOTER)
        if to == self.engine.node:
            return
        self._transfer_to, self._transfer_ticks = to, 0
        self._transfer_if_complete(to)

    def hand_over(self) -> None:
        """Transfer leadership to the voter with the longest log, if there is another voter."""
        others = sorted(self.engine.members.config.voters - {self.engine.node})
        if others and not self._transfer_to:
            self.transfer(max(others, key=lambda peer: self.progress[peer].match))

    def _transfer_if_complete(self, peer: str) -> None:
        engine = self.engine
        if peer == self._transfer_to and self.progress[peer].match == engine.log.last_index:
            engine.outbox.send(TimeoutNow(engine.node, peer, engine.term))

    # Sending.

    def flush(self) -> None:
        """Begin a round for new reads, and send entries to every peer that accepts some."""
        if self._reads.has_new:
            self._reads.begin_round()
            self._send_heartbeats()
            self._confirm_reads()
        for peer, progress in self.progress.items():
            self._send_entries(peer, progress)

    def _send_entries(self, peer: str, progress: Progress) -> None:
        engine, log = self.engine, self.engine.log
        last, commit = log.last_index, log.committed
        while not progress.paused:
            first = progress.next
            has_all = first > last and not progress.due
            if has_all and progress.commit_sent >= commit:
                return
            try:
                if has_all and progress.flow is Flow.REPLICATE and self._term_committed:
                    progress.commit_sent = commit
                    engine.outbox.send(Commit(engine.node, peer, engine.term, commit))
                    return
                prev_term = log.term(first - 1)
                entries = log.entries(first, last + 1, engine.settings.append_bytes_max)
            except Compacted:
                self._send_snapshot(peer, progress)
                return
            except EntryUnreadable:
                # It is being repaired; the reply to a heartbeat resumes sending.
                return
            engine.outbox.send(
                AppendRequest(engine.node, peer, engine.term, first - 1, prev_term, entries, commit)
            )
            progress.due = False
            progress.commit_sent = commit
            progress.sent(first - 1 + len(entries), entry_bytes(entries))

    def _send_snapshot(self, peer: str, progress: Progress) -> None:
        # A transfer to a peer that is offline would fail; the reply to a heartbeat resumes it.
        if progress.recently_active:
            progress.await_snapshot()
            engine = self.engine
            engine.snapshots.append(SendSnapshot(peer, engine.term, engine.log.snapshot.index))

    def snapshot_sent(self, status: SnapshotStatus) -> None:
        """Continue after the snapshot, or retry from the peer's last index."""
        progress = self.progress.get(status.peer)
        if progress is None or progress.flow is not Flow.SNAPSHOT:
            return
        progress.probe(status.index + 1 if status.ok else progress.match + 1)
        # Not at once: the peer may still be installing, and a lost peer may come back later.
        progress.waiting = True

    def unreachable(self, report: Unreachable) -> None:
        """Reset what was sent ahead."""
        self.wake()
        progress = self.progress.get(report.peer)
        if progress is not None and progress.flow is Flow.REPLICATE:
            progress.probe(progress.match + 1)

    # Answers.

    def receive(self, message: RaftMessage) -> None:
        """Process replies, and reads of followers."""
        if isinstance(message, AppendReply):
            self._append_reply(message)
        elif isinstance(message, HeartbeatReply):
            self._heartbeat_reply(message)
        elif isinstance(message, ReadRequest):
            self._ask(Read(message.sender, message.context))
        elif isinstance(message, SleepReply):
            self._sleep_reply(message)
        elif isinstance(message, WakeUp):
            self._sleep.end()

    def _append_reply(self, reply: AppendReply) -> None:
        progress, log = self.progress.get(reply.sender), self.engine.log
        if progress is None:
            return
        if reply.index > log.last_index:
            what = f"{reply.sender} has {reply.index} in term {reply.term}"
            raise ProtocolError(f"{what}, but the leader's log ends at {log.last_index}")
        progress.answered()
        if reply.rejected:
            # Entries here with a term above the follower's differ from its log: skip those too.
            hint = min(reply.hint_index, log.last_index)
            progress.rejected(reply.index, log.last_up_to_term(hint, reply.hint_term))
            return
        advanced = progress.acknowledged(reply.index)
        if progress.flow is Flow.PROBE:
            arrived = reply.index >= progress.match
        else:
            arrived = progress.flow is Flow.SNAPSHOT and progress.match + 1 >= log.first_index
        if arrived:
            progress.replicate()
        if advanced:
            self._transfer_if_complete(reply.sender)
            self._commit()

    def _heartbeat_reply(self, reply: HeartbeatReply) -> None:
        progress = self.progress.get(reply.sender)
        if progress is None:
            return
        progress.answered()
        progress.waiting = False
        if progress.match < self.engine.log.last_index or progress.flow is Flow.PROBE:
            # An append or its reply may be lost: the reply to one more message will tell.
            progress.due = True
            if progress.inflight.full:
                progress.inflight.free_oldest()
        progress.round = max(progress.round, reply.round)
        self._confirm_reads()

    def _sleep_reply(self, reply: SleepReply) -> None:
        progress = self.progress.get(reply.sender)
        if progress is not None:
            progress.answered()
            self._sleep.answered(reply)
            self.asleep = self.asleep or self._sleep.is_complete(self.progress)

    # Commits.

    def stored(self) -> None:
        """More of the own log is durable."""
        self._commit()
        self._free_proposals()

    def _free_proposals(self) -> None:
        """Free the space of proposals that are committed and written."""
        done = min(self.engine.log.committed, self.engine.log.stable)
        while self._waiting and self._waiting[0][0] <= done:
            self._waiting_bytes -= self._waiting.popleft()[1]

    @property
    def _term_committed(self) -> bool:
        log = self.engine.log
        return log.term(log.committed) == self.engine.term

    def _commit(self) -> None:
        engine, log = self.engine, self.engine.log
        durable = {peer: progress.match for peer, progress in self.progress.items()}
        durable[engine.node] = log.stable
        index = agreed_index(engine.members.config, durable)
        if index <= log.committed or log.term(index) != engine.term:
            return
        engine.commit_to(index)
        self._free_proposals()
        self._reads.release_early(index)
        if engine.members.index <= index:
            self._members_committed()

    def _members_committed(self) -> None:
        engine, config = self.engine, self.engine.members.config
        if config.auto_leave:
            self._append([changed(config, ConfChange()).encode()], EntryKind.CONFIG)
            return
        removed = engine.node not in config.electorate
        if removed or not self.progress.keys() <= config.members:
            # The last message to removed members tells them that it is committed.
            self.flush()
            self.members_changed()
        if removed:
            engine.follow(engine.term, NOBODY)

    # Reads.

    def read(self, context: int) -> None:
        """Begin a linearizable read of a local client."""
        self._ask(Read(self.engine.node, context))

    def _ask(self, read: Read) -> None:
        self._sleep.end()
        self._reads.add(read, self.engine.log.committed if self._term_committed else None)

    def _confirm_reads(self) -> None:
        engine = self.engine
        rounds = {peer: progress.round for peer, progress in self.progress.items()}
        rounds[engine.node] = self._reads.round
        for index, read in self._reads.confirm(agreed_index(engine.members.config, rounds)):
            if read.node == engine.node:
                engine.reads.append(ReadState(read.context, index))
            else:
                reply = ReadReply(engine.node, read.node, engine.term, read.context, index)
                engine.outbox.send(reply)
