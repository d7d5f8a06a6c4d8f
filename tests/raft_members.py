"""Members of a Raft group without threads, for tests that tell a story.

    members = Members("n1", "n2", "n3")
    members.elect("n1")
    members.put(b"key", b"value")

`settle` lets everything happen that can without time passing: messages arrive in order, disks
write, jobs are done. `lose` says which messages are lost on the way.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from lithify.clock import ManualClock
from lithify.errors import WriteFailed
from lithify.fs import MemoryFileSystem
from lithify.raft.commands import CommandResult, Result
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.core import ConfChange, Config, CoreSettings
from lithify.raft.group.group import Group
from lithify.raft.group.removed_members import MemberRemoved
from lithify.raft.group.settings import GroupSettings
from lithify.raft.kv import format as kv
from lithify.raft.kv.machine import KvMachine
from lithify.raft.snapshots.sending import SendingSettings
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.storage import RaftStorage, StorageSettings
from lithify.raft.storage.wal.wal import Rolled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.live_set import LiveSet
    from lithify.raft.core import RaftMessage
    from lithify.raft.machine import Send
    from lithify.raft.pending_work import Job
    from lithify.raft.storage.segment_writer import Flushed

GROUP = "g"
STORAGE = StorageSettings(wal_bytes_max=4000, segments=SegmentLimits(16, 4000))


class Member:
    """One member with its disk; `machine` is recreated at each start."""

    def __init__(
        self,
        name: str,
        fs: MemoryFileSystem,
        settings: GroupSettings,
        machine: Callable[[], Any] = KvMachine,
    ) -> None:
        self.name = name
        self.fs = fs
        self.settings = settings
        self.machine = machine
        self.storage = RaftStorage(fs, "d", STORAGE)
        self.storage.open_groups(self.live_in)
        self.storage.removing = self.remove
        made = machine()
        self.group: Group[Any] = Group(
            self.storage, GROUP, name, made, settings, Random(name).randrange
        )
        self.sends: list[Send] = []

    def live_in(self, _: str, pieces: Iterable[bytes]) -> LiveSet:
        machine = self.machine()
        live: LiveSet = machine.live_indexes(machine.load(pieces))
        return live

    def settle(self) -> list[RaftMessage]:
        """Do all there is to do; the messages that came of it."""
        messages: list[RaftMessage] = []
        while True:
            out = self.group.work()
            self.sends += out.sends
            messages += out.messages
            events = self.storage.wal.flush()
            for event in events:
                if isinstance(event, Rolled):
                    flushed = self.flush(event)
                    self.storage.settle(event, flushed)
                    for each in flushed:
                        self.group.settled(each)
                else:
                    self.group.wal_event(event)
            jobs = out.jobs + out.reads
            for job in jobs:
                self.group.job_done(job, _result(job))
            if not (events or jobs or out.messages or out.again):
                return messages

    def proved_jobs(self) -> list[Job]:
        """The jobs that are due when the write-ahead log has proved what they need."""
        assert not self.group.work().jobs
        for event in self.storage.wal.flush():
            self.group.wal_event(event)
        return self.group.work().jobs

    def flush(self, rolled: Rolled) -> list[Flushed]:
        """Write segments, again and again while the disk refuses, as a node does."""
        while True:
            with suppress(OSError, WriteFailed):
                return self.storage.flush(rolled)

    def remove(self, files: Callable[[], None]) -> None:
        """Remove files; what the disk refuses is found by the next start."""
        with suppress(OSError, WriteFailed):
            files()

    def crash(self) -> Member:
        """The member after a power cut."""
        return Member(self.name, self.fs.crash_clone(Random(1)), self.settings, self.machine)


def _result(job: Job) -> object:
    try:
        return job()
    except (OSError, WriteFailed) as error:
        return error


class Members:
    """See the module."""

    def __init__(
        self,
        *names: str,
        joining: Iterable[str] = (),
        machine: Callable[[], Any] = KvMachine,
        snapshot_entries: int = 10_000,
    ) -> None:
        self.clock = ManualClock()
        self.snapshot_entries = snapshot_entries
        self.lose: Callable[[RaftMessage], bool] = lambda _: False
        self.told: list[RaftMessage] = []
        self.network: list[RaftMessage] = []
        self.all: dict[str, Member] = {}
        for name in (*names, *joining):
            config = Config(frozenset(names)) if name in names else Config()
            fs = MemoryFileSystem(clock=self.clock)
            self.all[name] = Member(name, fs, self.settings(config), machine)

    def settings(self, config: Config) -> GroupSettings:
        return GroupSettings(
            config,
            snapshot_entries=self.snapshot_entries,
            sending=SendingSettings(250, resend_ticks=2, tries_max=3, backoff_ticks=4),
            receive_silence_ticks=8,
            compaction=GroupCompactionSettings(after_drops=None),
            clock=self.clock,
            core=partial(CoreSettings, election_ticks=6),
        )

    def __getitem__(self, name: str) -> Member:
        return self.all[name]

    def settle(self) -> None:
        """Let everything happen that needs no time."""
        while True:
            for member in self.all.values():
                self.network += member.settle()
            if not self.network:
                return
            network, self.network = self.network, []
            for message in network:
                self.told.append(message)
                # Who is told that it is no member is the node's to remove.
                if isinstance(message, MemberRemoved) or self.lose(message):
                    continue
                if message.to in self.all:
                    self.all[message.to].group.receive(message)

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(0.1)
            for member in self.all.values():
                member.group.tick()
            self.settle()

    def elect(self, name: str) -> Group[Any]:
        self.all[name].group.campaign()
        self.settle()
        group = self.all[name].group
        assert group.leader == name
        return group

    def crash(self, name: str) -> None:
        self.all[name] = self.all[name].crash()

    def ask(self, name: str, call: Callable[[Callable[[Result], None]], object]) -> Result:
        """Call, settle, and give the answer."""
        results: list[Result] = []
        call(results.append)
        self.settle()
        (result,) = results
        return result

    def command(self, name: str, command: bytes) -> kv.Reply:
        result = self.ask(name, lambda done: self.all[name].group.propose(command, done))
        assert isinstance(result, CommandResult), result
        return kv.parse_reply(result.reply)

    def put(self, name: str, key: bytes, value: bytes) -> kv.Reply:
        return self.command(name, kv.put(key, value))

    def get(self, name: str, key: bytes) -> bytes | None:
        result = self.ask(name, lambda done: self.all[name].group.read(kv.get(key), done))
        assert isinstance(result, CommandResult), result
        reply = kv.parse_reply(result.reply)
        return reply.value if reply.outcome is kv.KvOutcome.DONE else None

    def change(self, name: str, text: str) -> Result:
        change = ConfChange.parse(text)
        return self.ask(name, lambda done: self.all[name].group.propose_change(change, done))

    def snapshot(self, name: str) -> None:
        self.all[name].group.take_snapshot()
        self.settle()
