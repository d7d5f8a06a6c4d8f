"""A process that runs members of many groups: their logs, connections and clients.

    node = RaftNode(RaftNodeSettings("n1", "data/n1", listen, peers), fs, machine_of)
    await node.run(stop, ready)
    index, reply = await node.propose("orders", command)    # in its event loop, while it runs

1. It opens the directory, and every group in it, each with the machine that `machine_of` returns
   for its name. A new node creates the first group of its cluster, whose first members are itself
   and its peers, or those of them that are voters. It creates none if it joins.
2. It listens and connects (`raft/net/transport.py`), starts the threads that wait for the disk
   (`raft/storage/disk_threads.py`), and ticks.
3. Each event (a tick, messages, requests, reports of the disk) goes to its group at once and marks
   the group. Before the loop waits again, each marked group works once (`work_rounds.py`).
4. On `stop` it disconnects clients, writes what is queued for the disk, and closes the directory. A
   stop without all that loses nothing either.

A leader's message to an unknown group creates the group here, without members: the node was added
to it, and the log has its members. A group that has ended, or from which this node was removed
(`raft/group/removed_members.py`), leaves the list of groups first; then its files are deleted.

Clients use the name of a group, nodes its key; its files have names of their own
(`raft/storage/file_names.py`). A node has at most one group of a name. Other nodes must accept
a new directory before it votes (`raft/net/peer_recognition.py`).

An error in a thread of the disk, or in a group, stops the node: its state is not known to be right.
A member that finds its own log wrong (`MemberStopped`) only stops itself, and is recorded as
stopped until it is removed from its group; the other groups continue.

A node without an address is a cluster of one: it opens no port, and its groups have no other
members. The only voter of a group leads it at once. If the groups do have other members, it only
reads what it knows to be committed: it connects to nothing, does not vote, and refuses all other
requests of its process (`MemberReadsOnly`).

Everything except the threads of `raft/storage/disk_threads.py` runs in one event loop.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, ProtocolError, WriteFailed
from lithify.events import WriteRefused
from lithify.fs.remove_tree import remove_tree
from lithify.logger import get_logger
from lithify.raft.backup.node_backups import BACKUPS, Backups
from lithify.raft.compaction.run_requests import RunRequests
from lithify.raft.core import AppendRequest, Config, Heartbeat, MemberStopped, Unreachable
from lithify.raft.core.values import HardState
from lithify.raft.errors import EntryUnreadable, GroupAbsent
from lithify.raft.group.event_logging import GroupLogLines
from lithify.raft.group.group import Group
from lithify.raft.group.overview import wal_overview
from lithify.raft.group.removed_members import NEVER_LEFT, EndKnown, MemberQuery, MemberRemoved
from lithify.raft.net.client_operations import ClientOperation
from lithify.raft.net.transport import Handlers, Transport
from lithify.raft.node.client_requests import ClientRequestHandler
from lithify.raft.node.cluster_id import ClusterIdDiscovery
from lithify.raft.node.group_listeners import GroupListeners
from lithify.raft.node.identity import NodeIdentity
from lithify.raft.node.identity_saving import IdentitySaving
from lithify.raft.node.member_notices import MemberNotices
from lithify.raft.node.node_questions import NodeQuestions
from lithify.raft.node.node_ticks import NodeTicks
from lithify.raft.node.process_requests import ProcessRequests
from lithify.raft.node.work_rounds import WorkRounds
from lithify.raft.repair.blocked_members import BlockedMembers
from lithify.raft.repair.messages import EntriesFound
from lithify.raft.snapshots.messages import SnapshotOffer
from lithify.raft.storage.disk_threads import DiskThreads
from lithify.raft.storage.file_names import (
    WAL,
    check_group,
    check_key,
    group_of,
    is_drawn,
    key_of,
    new_key,
)
from lithify.raft.storage.storage import RaftStorage
from lithify.raft.storage.wal.wal import Rolled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lithify.fs import FileSystem
    from lithify.live_set import LiveSet
    from lithify.raft.commands import CommandResult
    from lithify.raft.core import CoreSettings, RaftMessage
    from lithify.raft.machine import Machine
    from lithify.raft.net.client_operations import Address
    from lithify.raft.node.settings import RaftNodeSettings
    from lithify.raft.pending_work import Job
    from lithify.raft.storage.segment_writer import Flushed
    from lithify.raft.storage.wal.wal import WalEvent

    MachineOf = Callable[[str], Machine[Any]]
    """Creates the machine of the group with a name; raises `InvalidInput` if there is none."""

__all__ = ["RaftNode"]

IGNORED_MAX = 256
"""Senders of ignored messages that are logged."""

log = get_logger("lithify.raft")


class RaftNode:
    """See the module."""

    def __init__(self, settings: RaftNodeSettings, fs: FileSystem, machine_of: MachineOf) -> None:
        """Open the directory; `LogLocked` if another process has it, `WriteFailed` without room."""
        self.settings = settings
        self._machine_of = machine_of
        self._draw = random.SystemRandom().randrange
        self.groups: dict[str, Group[Any]] = {}
        self.listeners = GroupListeners(settings.node, self.groups)
        self.notices = MemberNotices(self)
        self.questions = NodeQuestions(self)
        self.ailing: dict[str, BlockedMembers] = {}
        """By key: members that cannot start before they are repaired."""
        self._members: dict[str, Config] = {}
        """By group: the configuration for which connections were last checked."""
        self._ignored: set[tuple[str, str]] = set()
        """(key, sender) of messages that are ignored; each is logged once."""
        self.reads_only = False
        """It has no address, and its groups have other members."""
        self._founding = ClusterIdDiscovery(self)
        self._ticks = NodeTicks(self, self._draw)
        try:
            self._storage = RaftStorage(fs, settings.data, settings.storage)
            try:
                self.identity = NodeIdentity(fs, settings.data, settings.node, settings.cluster)
                self._open()
            except BaseException:
                self._storage.close()
                raise
        except OSError as error:
            if error.filename is not None:
                raise
            # A refused write does not name the path.
            raise WriteFailed(settings.data, error) from error
        wal = self._storage.wal
        self._rounds = WorkRounds(wal, lambda: self.transport.unsent, self._work, self._fail)
        self._failed: asyncio.Future[None]
        self._disk: DiskThreads
        self.transport: Transport
        self._answering: ClientRequestHandler
        self.backups: Backups
        self.runs: RunRequests[Group[Any]]

    def _open(self) -> None:
        identity, settings = self.identity, self.settings
        remove_tree(self._storage.fs, f"{settings.data}/{BACKUPS}")
        # A node that has lost NODE keeps its groups.
        known = None if identity.is_new else identity.files
        listed = identity.is_listed
        self._storage.open_groups(self._live_of, known, identity.is_gone, is_listed=listed)
        identity.groups |= {key_of(files): [] for files in self._storage.groups} | identity.groups
        identity.book |= settings.peers
        founds = not settings.join and settings.node in settings.first_members
        if identity.is_new and founds:
            identity.groups[settings.first_group] = settings.first_members
        if not founds:
            identity.recognition.record_acceptance((), (), 0)
        self._end_probation()
        identity.start(is_seen=settings.listen is not None)
        for key in identity.groups:
            self._begin_or_repair(key)
        if settings.listen is None:
            self._check_alone()

    def _check_alone(self) -> None:
        """Without an address, members of groups with other nodes are only read."""
        own, book = self.identity.node, self.identity.book
        if self.ailing or not self.groups:
            # Another node must repair it, or add it to a group.
            names = ", ".join(sorted(book)) or "other nodes"
            broken = "".join(f"; {each.reason}" for each in self.ailing.values())
            what = f"node {own} needs an address, because it waits for {names}{broken}"
            raise InvalidInput(what)
        self.reads_only = bool(self.others)

    @property
    def others(self) -> list[str]:
        """The other members of all groups."""
        found = {name for config in self.configs() for name in config.members}
        return sorted(found - {self.identity.node})

    def _live_of(self, files: str, pieces: Iterable[bytes]) -> LiveSet:
        """The live indexes of a group's state."""
        machine = self._machine_of(group_of(files))
        return machine.live_indexes(machine.load(pieces))

    def _begin_or_repair(self, key: str) -> None:
        self.ailing.pop(key, None)
        identity = self.identity
        try:
            group = self._begin(key)
        except EntryUnreadable as error:
            own = self._storage.groups[identity.files_of(key)]
            self.ailing[key] = BlockedMembers(identity.node, self._storage, own, error)
            return
        if key in identity.stopped:
            group.stop(MemberStopped(identity.stopped[key]))

    def _nurse(self) -> None:
        """Repair members that cannot start, and start those that are repaired."""
        for key, member in list(self.ailing.items()):
            member.tick()
            if member.is_repaired:
                self._begin_or_repair(key)
                continue
            messages, job = member.work(list(self.identity.book))
            for message in messages:
                self.transport.send(key, message)
            if job is not None:
                self._disk.run(job, partial(member.done, job))

    def _begin(self, key: str, machine: Machine[Any] | None = None) -> Group[Any]:
        identity, files = self.identity, self.identity.files_of(key)
        first = frozenset(identity.groups.get(key, ()))
        recognition = identity.recognition
        alone = first == {identity.node}
        # Members that are added later find the identity of the first one in the log.
        own = frozenset({(identity.node, recognition.own)}) if alone else frozenset()
        members = Config(first, identities=own)
        is_alone = self.settings.listen is None
        notices = GroupLogLines(group_of(key), is_alone=is_alone)
        made = self.settings.group.core

        def core(node: str, draw: Callable[[int], int]) -> CoreSettings:
            given = self._ticks.sleeping(group_of(key), made(node, draw))
            given = replace(given, may_vote=recognition.may_vote, events=notices.take)
            return (
                given
                if is_drawn(key)
                else replace(given, founding=self._founding.id_for_first_entry)
            )

        settings = replace(self.settings.group, members=members, core=core)
        stored = self._storage.groups.get(files) or self._storage.create(files)
        left = identity.left.get(key, NEVER_LEFT)
        if stored.hard_state.term <= left.term:
            stored.hard_state = HardState(left.term + 1, identity.node)
        if machine is None:
            machine = self._machine_of(group_of(key))
        group = Group(self._storage, files, identity.node, machine, settings, self._draw)
        self.groups[group_of(key)] = group
        self._ticks.worked(group)
        return group

    def _find(self, files: str) -> Group[Any] | None:
        """The group with these files, if it is here."""
        group = self.groups.get(group_of(files))
        return group if group is not None and group.name == files else None

    # --- running ----------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, ready: Callable[[Address], None]) -> None:
        """Run until `stop` is set; `ready` gets the address, with port 0 if there is no port."""
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        async with AsyncExitStack() as stack:
            stack.callback(self._close)
            self._disk = DiskThreads(
                self._storage, written=self._written, flushed=self._flushed, failed=self._fail
            )
            stack.push_async_callback(self._disk.close)
            self._storage.removing = self._disk.remove
            self.backups = Backups(self._storage.fs, self.settings.data, self._disk)
            fs, data, queue = self._storage.fs, self.settings.data, self.settings.queue
            self.runs = RunRequests(self.identity.node, fs, data, self._disk, self.mark, queue)
            stack.push_async_callback(self._finish_groups)
            self._answering = ClientRequestHandler(self)
            stack.callback(self._answering.changes.close)
            self.requests = ProcessRequests(self, self._answering)
            handlers = Handlers(
                self._heard,
                self._answering.ask,
                self._unreachable,
                self._answering.forget,
                self.configs,
                self._accepted,
                self._disowned,
                self._outdated,
                self._ticks.heard,
            )
            settings, saving = self.settings, IdentitySaving(self.identity)
            self.transport = Transport(
                self.identity, saving, handlers, settings.tls, settings.secret
            )
            if not self.reads_only:
                await self.transport.start(settings.listen, settings.advertised_host)
            stack.push_async_callback(self.transport.close)
            stack.callback(self.listeners.close)
            stack.push_async_callback(self.requests.close)
            stack.push_async_callback(self.questions.close)
            self._campaign_alone()
            if not self.reads_only:
                ticking = asyncio.create_task(self._ticks.run())
                stack.callback(ticking.cancel)
            ready(self.transport.address)
            stopping = asyncio.create_task(stop.wait())
            ends: list[asyncio.Future[Any]] = [stopping, self._failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        if self._failed.done():
            self._failed.result()

    def _campaign_alone(self) -> None:
        """Lead the groups that need no other voter at once, not after an election timeout."""
        for group in self.groups.values():
            if group.config.electorate == {self.identity.node}:
                group.campaign()
            self.mark(group)

    async def _finish_groups(self) -> None:
        await self.runs.close(self.groups.values())
        for group in self.groups.values():
            group.save_commit()

    def _close(self) -> None:
        # All work is done, and no thread is left for more.
        self._rounds.stop()
        self._storage.close()

    def tick(self, tick: int, awake: Iterable[Group[Any]]) -> None:
        """Tick what is not a group; those that are awake have been ticked."""
        self.identity.recognition.ticks = tick
        self._end_probation()
        self.notices.tick(tick)
        for group in self._answering.watching.tick(awake, self._find):
            self.mark(group)
        self._answering.handovers.tick()
        self._nurse()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """An error in the block stops the node."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (see the module)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            log.error("the node ends", reason=str(error))
            self._failed.set_exception(error)

    # --- work -------------------------------------------------------------------------------

    def mark(self, group: Group[Any]) -> None:
        """A group has an event: it works before the loop waits again, unless it has left."""
        if self._find(group.name) is group:
            self._rounds.mark(group_of(group.name), group)

    def _work(self, group: Group[Any]) -> None:
        out = group.work()
        for message in out.messages:
            self.transport.send(key_of(group.name), message)
        for job in out.jobs:
            self._disk.run(job, partial(self._job_done, group, job))
        for job in out.reads:
            self._disk.read(job, partial(self._job_done, group, job))
        self._answering.watching.deliver(group, out.sends)
        self.listeners.worked(group)
        self._ticks.worked(group)
        if out.again:
            self.mark(group)
        if group.ended:
            self.leave(group, ended=True)
        elif group.stopped is not None:
            self._stopped(group, group.stopped)
        self._founding.check_group(group)
        if self._members.get(group.name) is not group.config:
            self._members[group.name] = group.config
            self.transport.recheck()

    def _stopped(self, group: Group[Any], error: MemberStopped) -> None:
        """Record that a member no longer participates in its group."""
        key = key_of(group.name)
        if key not in self.identity.stopped:
            what = "member stopped; remove it from its group and add it again"
            log.error(what, group=key, reason=str(error))
            self.identity.stop(key, str(error))
            self._ticks.wake_others()

    def _job_done(self, group: Group[Any], job: Job, result: object) -> None:
        if isinstance(result, Exception):
            log.error("a job failed", group=group.name, job=job.what, reason=str(result))
        if self._find(group.name) is group:
            with self.guarded():
                group.job_done(job, result)
            self.mark(group)

    # --- events -----------------------------------------------------------------------------

    def _heard(self, messages: list[tuple[str, RaftMessage]]) -> None:
        alone = self._rounds.begin()
        try:
            for key, message in messages:
                self._hear(key, message)
        finally:
            self._rounds.end(alone=alone)

    def _hear(self, key: str, message: RaftMessage) -> None:
        if key in self.ailing:
            # Other members see it as down.
            if isinstance(message, EntriesFound):
                self.ailing[key].receive(message)
            return
        group = self._find(self.identity.files_of(key))
        if group is not None and group.is_foreign(message):
            self._ignore(key, message, "they are of another group with the same name")
            return
        if isinstance(message, MemberQuery | MemberRemoved | EndKnown):
            self.notices.receive(key, group, message)
            return
        if group is None:
            group = self._joined(key, message)
        if group is not None and self.identity.left.get(key, NEVER_LEFT).hears(message):
            try:
                group.receive(message)
            except ProtocolError:
                # It closes only its connection.
                raise
            except Exception as error:  # noqa: BLE001  (see `guarded`)
                self._fail(error)
            self.mark(group)

    def _ignore(self, key: str, message: RaftMessage, why: str) -> None:
        """Log once that messages of a node for a group are ignored."""
        if (key, message.sender) not in self._ignored and len(self._ignored) < IGNORED_MAX:
            self._ignored.add((key, message.sender))
            what = f"messages ignored: {why}"
            log.error(what, group=key, sender=message.sender, message=str(message))

    def _unreachable(self, key: str, peer: str) -> None:
        group = self._find(self.identity.files_of(key))
        if group is not None:
            with self.guarded():
                group.report(Unreachable(peer))
            self.mark(group)

    def _written(self, events: list[WalEvent]) -> None:
        alone = self._rounds.begin()
        with self.guarded():
            for event in events:
                if isinstance(event, Rolled | WriteRefused):
                    # An installing group waits for the first; the second concerns all.
                    told = list(self.groups.values())
                else:
                    found = self._find(event.group.partition("/")[0])
                    told = [] if found is None else [found]
                for group in told:
                    group.wal_event(event)
                    self.mark(group)
        self._rounds.end(alone=alone)

    def _flushed(self, rolled: Rolled, done: list[Flushed]) -> None:
        with self.guarded():
            self._storage.settle(rolled, done)
            for flushed in done:
                group = self._find(flushed.group)
                if group is not None:
                    group.settled(flushed)
        for group in self.groups.values():
            self.mark(group)

    def wal_overview(self) -> dict[str, int]:
        """The size of the write-ahead log, as JSON."""
        found = wal_overview(self._storage.fs, f"{self._storage.directory}/{WAL}")
        wal = self._storage.wal
        return found | {"wal_cut_bytes": wal.cut_bytes, "wal_damaged": int(wal.is_doubtful)}

    # --- identities -------------------------------------------------------------------------

    def _outdated(self) -> None:
        """Other nodes know a later start of this directory: it is an older copy."""
        with self.guarded():
            what = "this data directory is an older copy; remove the node and add it again"
            log.error(what, node=self.identity.node)
            self.identity.renounce()
            self.transport.disconnect("the data directory is an older copy")

    @property
    def storage(self) -> RaftStorage:
        """The files of all groups."""
        return self._storage

    @property
    def has_failed(self) -> bool:
        """Has an error ended the node?"""
        return self._failed.done()

    def configs(self) -> list[Config]:
        """The configurations of all groups, including uncommitted ones."""
        return [config for group in self.groups.values() for config in group.open_configs]

    def _accepted(self, peer: str) -> None:
        self.identity.recognition.accepted_by.add(peer)
        with self.guarded():
            self._end_probation()

    def _end_probation(self) -> None:
        first = self.identity.groups.get(self.settings.first_group, [])
        recognition = self.identity.recognition
        if recognition.record_acceptance(first, recognition.accepted_by, recognition.ticks):
            self.identity.save()

    def _disowned(self, peer: str, reason: str) -> None:
        """A peer knows another directory by this name: remove groups that this one has created."""
        if not self.identity.recognition.record_disowned():
            return
        with self.guarded():
            self.identity.save()
            log.error("this node waits to be removed and added again", peer=peer, reason=reason)
            for group in list(self.groups.values()):
                first = self.identity.groups.get(key_of(group.name), [])
                if len(first) > 1 and not group.status().last_index:
                    self.leave(group, ended=False)

    # --- requests of the process ------------------------------------------------------------

    async def propose(self, group: str, command: bytes) -> CommandResult:
        """Have a command applied by the leader of a group, wherever that is."""
        return await self.requests.ask(group, ClientOperation.PROPOSE, command)

    async def read(self, group: str, query: bytes, *, local: bool = False) -> CommandResult:
        """Query the machine of a group: linearizable, or at the state of this node."""
        if local:
            return await self.requests.read_local(group, query)
        return await self.requests.ask(group, ClientOperation.READ, query)

    # --- groups -----------------------------------------------------------------------------

    def create(self, name: str, members: list[str]) -> Group[Any]:
        """Create a group with this node as its first member; the caller adds the others."""
        check_group(name)
        if name in self.groups:
            raise InvalidInput(f"group {name} is there already")
        if self.identity.node not in members:
            raise InvalidInput(f"node {self.identity.node} is not one of the members {members}")
        machine = self._machine_of(name)
        key = new_key(name, self._draw(2**64))
        # First: a group without recorded first members never has a leader.
        self.identity.begin(key, [self.identity.node])
        group = self._begin(key, machine)
        group.campaign()
        self.mark(group)
        return group

    def _joined(self, key: str, message: RaftMessage) -> Group[Any] | None:
        """An unknown group sends a message: this node may have been added to it."""
        is_leaders = isinstance(message, AppendRequest | Heartbeat | SnapshotOffer)
        if not is_leaders or key in self.identity.dropped:
            return None
        if group_of(check_key(key)) in self.groups:
            # Its name is used by a group that may have ended while this node was down.
            return None
        try:
            machine = self._machine_of(group_of(key))
        except InvalidInput as error:
            self._ignore(key, message, str(error))
            return None
        log.info("added to a group", group=key)
        self.identity.begin(key, [])
        return self._begin(key, machine)

    def leave(self, group: Group[Any], *, ended: bool) -> None:
        """Leave a group and delete its files."""
        files, name = group.name, group_of(group.name)
        log.info("left a group", group=key_of(files), ended=ended)
        if ended:
            others = group.status().config.members - {self.identity.node}
            self.identity.drop(key_of(files), sorted(others))
        else:
            self.identity.leave(key_of(files), group.status())
        # A crash from here on leaves files that the next start deletes.
        del self.groups[name]
        self._rounds.forget(name)
        self._ticks.forget(name)
        if group.leading_term and not ended:
            self._ticks.wake_others()
        self._members.pop(files, None)
        self._answering.watching.close_group(group)
        self.listeners.left(group)
        # If it has applied the end, later proposals are not done; otherwise it is unknown.
        group.close(GroupAbsent(name, self.identity.node) if group.ended else None)
        self.notices.notify_ended(key_of(files))
        self._storage.forget(files)
        self._disk.remove(partial(self._storage.remove_files, files))
