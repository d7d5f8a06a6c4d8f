"""One member of one group: consensus core, storage and machine combined. No threads, no clock.

    group = Group(storage, "orders", "n1", KvMachine(), GroupSettings(members), random.randrange)
    group.propose(command, done)            # and `read`, `receive`, `tick`, …: events
    group.wal_event(event); group.job_done(job, result)
    out = group.work()                      # messages to send, jobs for the worker

All calls come from one thread and return at once. `work` processes the events and can be called at
any time. The write-ahead log, the segment writer, the worker and the readers work in their own
threads and report by `wal_event`, `settled` and `job_done`. So a program runs a group with several
threads and an event loop (`raft/node/node.py`), and a simulator with none.

`work` repeats these steps until nothing is left to do:

1. Proposals and reads of this round go to the core, together.
2. The core's `Ready` is processed: writes go to `DurableWrites`, entries are applied to the machine
   and their proposals answered, transfers of snapshots start.
3. Reads whose index is applied are answered, or become jobs of a reader (`machine_queries.py`).
4. Durable appends are acknowledged to the core, which may then have more to do.
5. Jobs: write a snapshot, load a received one, install it (`finish_install.py`), compact segments.

A member applies only what is durable on it, so the state is never ahead of the log.

A member that may have lost acknowledged entries does not vote for a time (`possible_loss.py`).

A member whose committed entries differ from the leader's, or that has lost some, stops (`stopped`):
it sends, applies and answers nothing until it is removed. The node and its other groups continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lithify.errors import LogClosed
from lithify.events import WriteRefused
from lithify.raft.backup.group_backup import Saved, live_entries
from lithify.raft.commands import single
from lithify.raft.compaction.group_compaction import CompactionOutcome, GroupCompaction, RunWanted
from lithify.raft.compaction.live_entry_rewrites import LiveEntryRewrites
from lithify.raft.core import (
    Applied,
    DropReason,
    MemberStopped,
    ProposalDropped,
    RaftCore,
    ReadDropped,
    Role,
    StorageAppended,
)
from lithify.raft.core.values import EntryKind, HardState, SnapshotMeta, entry_bytes
from lithify.raft.errors import EntryUnreadable
from lithify.raft.group.apply_committed import apply_entries, apply_many_of
from lithify.raft.group.durable_votes_and_entries import DurableWrites
from lithify.raft.group.finish_install import Installing
from lithify.raft.group.machine_effects import MachineEffects
from lithify.raft.group.machine_queries import MachineQueries
from lithify.raft.group.overview import disk_overview, place_overview
from lithify.raft.group.possible_loss import PossibleLoss
from lithify.raft.group.proposals import Proposals
from lithify.raft.group.reads import Reads
from lithify.raft.group.removed_members import (
    LONELY_TICKS,
    MemberRemoved,
    believes,
    is_foreign,
    removal_notice,
)
from lithify.raft.group.ticked_parts import TickedParts
from lithify.raft.pending_work import Job, Outgoing
from lithify.raft.repair.messages import EntriesFound, EntriesWanted
from lithify.raft.repair.repair import Known, Repair
from lithify.raft.snapshots.messages import SnapshotAck, SnapshotOffer, TransferMessage
from lithify.raft.snapshots.receiving import Receiving
from lithify.raft.snapshots.sending import Sending
from lithify.raft.snapshots.taking import ApplyPosition, SnapshotTaking
from lithify.raft.storage.file_names import group_of, is_drawn, key_of
from lithify.raft.storage.log_view import StoredLog
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.wal.wal import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from lithify.errors import LithifyError
    from lithify.raft.commands import Done, RunDone
    from lithify.raft.core import ConfChange, Config, RaftMessage, Ready, Status
    from lithify.raft.core.messages import PeerChanged, SleepCheck, Unreachable
    from lithify.raft.entry import Entry
    from lithify.raft.group.reads import Request
    from lithify.raft.group.settings import GroupSettings
    from lithify.raft.machine import Machine
    from lithify.raft.storage.segment_writer import Flushed
    from lithify.raft.storage.storage import RaftStorage
    from lithify.raft.storage.wal.wal import WalEvent

__all__ = ["Group"]

S = TypeVar("S")

PATIENCE_ELECTIONS = 3
"""Election timeouts that clients of an unseated leader wait for the next one: an election may fail.
"""


class Group(Generic[S]):
    """See the module."""

    def __init__(
        self,
        storage: RaftStorage,
        name: str,
        node: str,
        machine: Machine[S],
        settings: GroupSettings,
        draw: Callable[[int], int],
    ) -> None:
        """Open a group that is in the storage, or create it."""
        self.name = name
        self.node = node
        self.settings = settings
        self._storage = storage
        self._machine = machine
        self._apply_many = apply_many_of(machine)
        self._own = own = storage.groups.get(name) or storage.create(name)
        self._loss = PossibleLoss(storage, own, node)
        view = StoredLog(own, settings.members)
        meta = view.snapshot()
        found = None if own.stored is None else own.snapshots.pieces(own.stored)
        state = machine.init() if found is None else machine.load(found)
        self._at = ApplyPosition(meta.index, meta.term, meta.config, state)
        core_settings = self._loss.restrict(settings.core(node, draw))
        self.election_ticks = core_settings.election_ticks
        self._core = RaftCore(core_settings, view)
        self._appends = DurableWrites(name, storage.wal, own.log)
        self._proposals = Proposals(name, PATIENCE_ELECTIONS * core_settings.election_ticks)
        self._reads = Reads(draw(2**62), core_settings.election_ticks)
        self._queries = MachineQueries(machine, own.log)
        self._snapshots = SnapshotTaking(own, machine, settings.snapshot_entries)
        self._effects = MachineEffects(own.log, self._snapshots)
        self._sending = Sending(node, own, settings.sending, draw)
        self._receiving = Receiving(name, node, storage, machine, settings.receive_silence_ticks)
        self._installing = Installing[S](name, storage)
        self.compaction = GroupCompaction(
            storage.fs,
            own.directory,
            own.log,
            storage.limits,
            settings.clock,
            settings.compaction,
            storage.latencies,
        )
        self._compacting: Job | None = None
        self._repair = Repair(node, storage, own, self._snapshots.request)
        self._moving = LiveEntryRewrites(machine, own.log, self._proposals.add, settings.rewriting)
        transfers = (self._sending, self._receiving, self._installing, self._snapshots)
        self._ticked = TickedParts(*transfers, self._repair, self._moving, self._effects)
        self._role, self._term, self._leader = Role.FOLLOWER, self._core.term, ""
        self._lonely_ticks = 0
        self._out = Outgoing()
        self.stopped: MemberStopped | None = None
        self.note: bytes = b""
        """The first note to the members that was applied here; the node takes it."""

    # --- events -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Count one tick."""
        self._lonely_ticks = 0 if self._leader else self._lonely_ticks + 1
        if self.stopped is not None:
            return
        self._core.tick()
        self._proposals.tick(leads=self._role is Role.LEADER)
        self._reads.tick(self._leader if self._leader != self.node else "")
        self._ticked.tick()
        if self._role is Role.LEADER:
            for command in self._effects.due():
                self._proposals.add([command], _ignore_result)

    @property
    def needs_ticks(self) -> bool:
        """Would a tick do something? If not, none would before the next event."""
        if self.stopped is not None or not self._core.asleep:
            return True
        parts = (self._proposals, self._reads, self.compaction, self._ticked)
        return not all(part.is_idle for part in parts)

    def receive(self, message: RaftMessage) -> None:
        """Process a message of another member."""
        if self.stopped is not None:
            return
        try:
            if isinstance(message, SnapshotAck):
                self._sending.receive(message)
            elif isinstance(message, TransferMessage):
                if isinstance(message, SnapshotOffer) and message.term == self._core.term:
                    meta = message.head.meta
                    self._core.check_committed(message.sender, meta.index, meta.term)
                self._receiving.receive(message, self._core.term, self._at.index)
            elif isinstance(message, EntriesFound | EntriesWanted):
                self._repair.receive(message, self._core.status().commit, self._at.index)
            else:
                self._core.step(message)
        except EntryUnreadable:
            # As if the message were lost: the sender retries, and the entry is being repaired.
            return
        except MemberStopped as error:
            self.stop(error)

    def stop(self, error: MemberStopped) -> None:
        """Stop participating in the group."""
        self.stopped = error
        self._role, self._leader = Role.FOLLOWER, ""
        self._moving.stop()
        self.close(None)

    def report(self, what: Unreachable | PeerChanged | SleepCheck) -> None:
        """Report to the core what is known about other nodes."""
        if self.stopped is None:
            self._core.step(what)

    def save_commit(self) -> None:
        """Queue the commit index for the disk: a start without the others knows it then."""
        status = self._core.status()
        if self.stopped is None and status.config.members != {self.node}:
            self._storage.wal.save(self.name, HardState(status.term, status.vote, status.commit))

    def propose(self, command: bytes, done: Done) -> None:
        """Propose a command, on the leader; `done` gets the machine's reply or an error."""
        self._proposals.add([command], single(done))

    def propose_many(self, commands: Sequence[bytes], done: RunDone) -> None:
        """Propose a run of commands, in order; `done` is called for parts of it."""
        self._proposals.add(commands, done)

    def propose_change(self, change: ConfChange, done: Done) -> None:
        """Propose a change of members."""
        self._proposals.add_change(change, done)

    def read(self, query: bytes, done: Done) -> None:
        """Query the machine, on any member; linearizable."""
        self._reads.add(query, done)

    def query_local(self, query: bytes, done: Done) -> bool:
        """Query at the state that this member has applied; False: not answered, `work` follows."""
        if self.stopped is None:
            self._query([(query, done)])
        else:
            done(self.stopped)
        return not self._out.reads

    def dismiss_but(self, present: Container[bytes]) -> None:
        """On the leader: make the machine stop sending to clients that are not present."""
        for name in self._machine.audience(self._at.state) if self.leading_term else ():
            if name not in present:
                self._proposals.add([self._machine.farewell(name)], _ignore_result)

    def propose_end(self, done: Done) -> None:
        """Propose the end of the group."""
        self._proposals.add_change(None, done)

    @property
    def may_note(self) -> bool:
        """Is this member the leader, and has it applied everything of earlier terms?"""
        return self._role is Role.LEADER and self._at.term == self._term

    def propose_note(self, note: bytes) -> None:
        """Write a note to the members into the log."""
        self._core.propose_note(note)

    def transfer(self, to: str) -> None:
        """Transfer leadership; raises `TransferDropped` if that is impossible."""
        if self.stopped is not None:
            raise self.stopped
        self._core.transfer(to)

    def campaign(self) -> None:
        """Start an election now."""
        self._core.campaign()

    def take_snapshot(self) -> None:
        """Take a snapshot, regardless of the last one."""
        self._snapshots.request()

    def save(self) -> Saved:
        """The state and the entries it needs, at this moment; the worker reads them later."""
        at, machine = self._at, self._machine
        head = Head(SnapshotMeta(at.index, at.term, at.config), machine.version)
        live, pieces = machine.live_indexes(at.state), machine.save(at.state)
        return Saved(group_of(self.name), head, live, pieces, live_entries(self._own.log, live))

    def compact(self) -> None:
        """Merge segments, whatever the triggers say."""
        self.compaction.request(RunWanted())

    def rewrite(self) -> None:
        """On the leader: move scattered live entries to the head of the log."""
        if self._role is Role.LEADER:
            self._moving.begin()

    def wal_event(self, event: WalEvent) -> None:
        """Process an event of the write-ahead log, for this group or for an install of it."""
        if isinstance(event, WriteRefused):
            # Nothing is applied and answered here before it is durable; another member may do so.
            self._core.hand_over()
        elif isinstance(event, Written) and event.group != self.name:
            self._receiving.written(event)
        else:
            self._appends.wal_event(event)

    def settled(self, flushed: Flushed) -> None:
        """Entries of this group went to segments, and the storage has taken these in.

        The segment that was the newest may be compacted now.
        """
        if flushed.refs:
            self.compaction.request_drop()

    def job_done(self, job: Job, result: object) -> None:
        """Take the result or error of a job."""
        if self._snapshots.is_job(job):
            if self._snapshots.done(result):
                self._sending.give_up()
                self.compaction.request_drop()
                if self._moving.is_due:
                    self.rewrite()
        elif self._receiving.is_job(job):
            question = self._receiving.loaded(job, result)
            if question is not None and self.stopped is None:
                try:
                    self._core.step(question)
                except MemberStopped as error:
                    self.stop(error)
                else:
                    self._do_ready(self._core.ready(), asked=True)
        elif self._queries.is_job(job):
            self._queries.done(job, result, self._at.index, self._at.state)
        elif self._installing.is_job(job):
            self._install(result)
        elif self._repair.is_job(job):
            self._compacting = None if job is self._compacting else self._compacting
            self._repair.done(job, result)
        elif job is self._compacting:
            self._compacting = None
            assert isinstance(result, CompactionOutcome | BaseException)
            self.compaction.done(result)

    # --- work -------------------------------------------------------------------------------

    def work(self) -> Outgoing:
        """Do everything that can be done; returns the work for others."""
        if self.stopped is not None:
            self._proposals.refuse_new(self.stopped)
            self._reads.close(self.stopped)
            return Outgoing()
        self._moving.work(self._at.state)
        self._proposals.submit(self._core, self.settings.clock.now_ms())
        self._reads.submit(self._core)
        self._acknowledge()
        while True:
            while not _is_empty(ready := self._core.ready()):
                self._do_ready(ready)
            self._follow(ready)
            self._answer_reads()
            self._transfer()
            if not self._acknowledge():
                break
        if not self._at.ended:
            self._begin_jobs()
        trusted = self._loss.end(self._at.term)
        self._out.jobs += () if trusted is None else (trusted,)
        self._out.sends = self._effects.take()
        out, self._out = self._out, Outgoing()
        return out

    def _do_ready(self, ready: Ready, *, asked: bool = False) -> None:
        if asked:
            wanted = None if ready.append is None else ready.append.snapshot
            self._receiving.answered(wanted, ready.commit)
        self._follow(ready)
        self._out.messages += ready.messages
        if ready.append is not None:
            self._appends.submit(ready.append)
        if ready.apply and not self._at.ended:
            self._apply(ready.apply)
        for request in ready.snapshots:
            self._sending.begin(request)
        self._reads.confirm(ready.reads)

    def _follow(self, ready: Ready) -> None:
        """Take in who leads; a leader that steps down sends nothing else."""
        if (ready.term, ready.leader, ready.role) == (self._term, self._leader, self._role):
            return
        if ready.term != self._term:
            self._receiving.abort()
        if (ready.term, ready.leader) != (self._term, self._leader):
            self._reads.drop_unconfirmed(ready.leader)
            self._sending.stop()
            self._moving.stop()
        self._term, self._leader, self._role = ready.term, ready.leader, ready.role

    def _acknowledge(self) -> bool:
        """Acknowledge durable appends to the core; returns whether there was one."""
        number = self._appends.take_done()
        if number is None:
            return False
        self._core.step(StorageAppended(number))
        return True

    # --- applying ---------------------------------------------------------------------------

    def _apply(self, entries: list[Entry]) -> None:
        members = self._at.config.members
        for entry in entries if not self.note else ():
            if entry.kind == EntryKind.NOOP and entry.payload:
                self.note = entry.payload
                break
        for step in apply_entries(self._apply_many, self._at, entries):
            if step.effects:
                leads = self._role is Role.LEADER
                self._effects.do(step.effects, self._at.index, leads=leads)
            self._proposals.complete_applied(step.index, step.term, step.replies, self._leader)
        self._snapshots.applied(len(entries), entry_bytes(entries))
        self._core.step(Applied(self._at.index))
        if members != self._at.config.members:
            self._notify_removed(members)

    def _notify_removed(self, members: frozenset[str]) -> None:
        """Notify those of these members that were removed."""
        notices = map(self.removal_notice, sorted(members - {self.node}))
        self._out.messages += (each for each in notices if each is not None)

    def _answer_reads(self) -> None:
        self._query(self._reads.take_due(self._at.index))
        self._out.again = self._reads.is_due(self._at.index)

    def _query(self, due: Iterable[Request]) -> None:
        self._out.reads += self._queries.start(due, self._at.index, self._at.state)

    # --- snapshots --------------------------------------------------------------------------

    def _transfer(self) -> None:
        """Send the messages of transfers, and report finished ones to the core."""
        messages, over = self._sending.take()
        self._out.messages += messages
        if self._sending.damage is not None:
            self._snapshots.renew(self._sending.damage)
            self._sending.damage = None
        for status in over:
            self._core.step(status)
        self._out.messages += self._receiving.take()

    def _install(self, result: object) -> None:
        """Take a snapshot in that has become the log on disk, unless the disk refused."""
        installed = self._installing.done(result)
        if installed is None:
            return
        received = installed.received
        self._storage.installed(received.install, received.live, installed.written)
        meta = received.install.head.meta
        self._at = ApplyPosition(meta.index, meta.term, meta.config, received.state)
        self._effects.forget_timers()
        self._proposals.complete_passed(meta.index)
        self._appends.resume_after_install()
        self._receiving.finish()
        self._snapshots.tidy()
        self.compaction.request_drop()

    def _begin_jobs(self) -> None:
        ready = self._appends.installing is not None
        install = self._installing.due_job(self._receiving.received, ready=ready)
        snapshot = None
        if not self._installing.is_active:
            # Otherwise it would be of a state that is about to be replaced.
            snapshot = self._snapshots.due_job(self._at, sending=bool(self._sending))
        load = self._receiving.due_job()
        if self._compacting is None:
            # Only one of the two: both replace segments.
            repair = None if self._installing.is_active else self._repair_job()
            run = self.compaction.next_job() if repair is None else None
            self._compacting = repair if run is None else Job("compact", run)
            if self._compacting is not None:
                self._out.jobs.append(self._compacting)
        messages, answers = self._repair.take()
        self._out.messages += messages
        self._out.reads += answers
        self._out.jobs += (job for job in (snapshot, load, install) if job is not None)

    def _repair_job(self) -> Job | None:
        if not self._repair.damages.open:
            return None
        status = self._core.status()
        known = Known(status.commit, tuple(sorted(status.config.members)), status.term)
        return self._repair.next_job(known)

    # --- state ------------------------------------------------------------------------------

    @property
    def leader(self) -> str:
        """The leader, as far as this member knows; empty if unknown."""
        return self._leader

    @property
    def ended(self) -> bool:
        """Has the group ended? Then only its files are left to delete."""
        return self._at.ended

    @property
    def is_lonely(self) -> bool:
        """Should it ask other nodes whether it is still a member?"""
        return self._lonely_ticks > 0 and self._lonely_ticks % LONELY_TICKS == 0

    def removal_notice(self, who: str) -> MemberRemoved | None:
        """What this member can tell a removed one."""
        return removal_notice(self._core.status(), self._at.term, who)

    def believes(self, word: MemberRemoved) -> bool:
        """Does the message prove that this member was removed?"""
        return believes(self._core.status(), word)

    def is_foreign(self, message: RaftMessage) -> bool:
        """Is a message from another group that has the same key?"""
        core = self._core
        if is_drawn(key_of(self.name)):
            return False
        return is_foreign(message, core.open_configs, core.leader, core.term)

    def close(self, error: LithifyError | None) -> None:
        """Answer all pending requests; without an error, that the outcome is unknown."""
        self._proposals.refuse_new(error or ProposalDropped(DropReason.NO_LEADER))
        self._proposals.close(error)
        dropped = error or ReadDropped(DropReason.NO_LEADER)
        self._reads.close(dropped)
        self._queries.close(dropped)
        self._sending.stop()
        self._receiving.abort()
        self.compaction.close(error or LogClosed(f"{self.name} takes no further part"))

    @property
    def term(self) -> int:
        """The current term."""
        return self._core.term

    @property
    def leading_term(self) -> int:
        """The term in which this member leads; 0 if it does not lead."""
        return self._term if self._role is Role.LEADER else 0

    @property
    def applied_index(self) -> int:
        """The index of the last entry that the machine has applied."""
        return self._at.index

    @property
    def state(self) -> S:
        """The state of the machine after the last applied command; only the machine changes it."""
        return self._at.state

    def overview(self) -> dict[str, Any]:
        """The state of the member, as JSON."""
        stopped = {} if self.stopped is None else {"role": "stopped", "stopped": str(self.stopped)}
        return {
            "group": group_of(self.name),
            "key": key_of(self.name),
            "node": self.node,
            **place_overview(self._core.status()),
            "may_vote": self._core.may_vote,
            "in_doubt": bool(self._loss),
            **stopped,
            "applied_index": self._at.index,
            "snapshots_taken": self._snapshots.taken,
            **disk_overview(self._storage.fs, self._own),
            **self.compaction.overview(),
            **self._repair.damages.overview(),
        }

    def status(self) -> Status:
        """The state of the consensus core."""
        return self._core.status()

    @property
    def config(self) -> Config:
        """The members in force."""
        return self._core.config

    @property
    def open_configs(self) -> list[Config]:
        """The configurations that may be the committed one."""
        return self._core.open_configs


def _ignore_result(*_: object) -> None:
    """The callback of commands without a client: of timers, and of farewells."""


def _is_empty(ready: Ready) -> bool:
    return not (
        ready.append is not None or ready.messages or ready.apply or ready.snapshots or ready.reads
    )
