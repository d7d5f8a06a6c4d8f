"""A simulation of a group: members, their disks and the network, in one process and one thread.

Nothing happens on its own: the caller decides whose work is done next and which message arrives. So
stories can show one interleaving step by step, and a simulator can try many.

1. `collect` takes a member's `Ready` and queues its parts: writes and applies in the member's
   queues, messages in the network.
2. `write` does the oldest write of a member, `apply` its oldest apply; each reports it to the core.
3. `deliver` removes a message from the network and steps it.
4. `crash` discards everything but what was written; `restart` creates a new core from that.

The state machine is the list of applied commands with their indexes; a snapshot is that list at
some index.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.raft.core.messages import Applied, InstallSnapshot, StorageAppended
from lithify.raft.core.raft_core import RaftCore
from lithify.raft.core.storage import MemoryStorage
from lithify.raft.core.values import EntryKind, SnapshotMeta

if TYPE_CHECKING:
    from lithify.raft.core.configuration import Config
    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.core.ready import Ready, SendSnapshot, StorageAppend
    from lithify.raft.core.settings import CoreSettings
    from lithify.raft.entry import Entry

__all__ = ["Actor", "Stage"]

State = tuple[tuple[int, bytes], ...]
"""The applied commands with their indexes."""


@dataclass(slots=True)
class Actor:
    """A member with its disk and its state machine."""

    settings: CoreSettings
    storage: MemoryStorage
    core: RaftCore
    writes: deque[StorageAppend] = field(default_factory=deque)
    applies: deque[list[Entry]] = field(default_factory=deque)
    sends: list[SendSnapshot] = field(default_factory=list)
    state: State = ()
    applied: int = 0
    configs: dict[int, Config] = field(default_factory=dict)
    """The members at each index that was applied, for snapshots."""
    saved: State = ()
    """The state at the storage's snapshot."""


class Stage:
    """See the module."""

    def __init__(self) -> None:
        self.actors: dict[str, Actor] = {}
        self.network: list[RaftMessage] = []
        self._snapshots: dict[tuple[int, int], State] = {}
        """By index and term: the contents of a snapshot."""

    def add(self, settings: CoreSettings, config: Config) -> Actor:
        """Add a member with an empty log; one that joins later begins without members."""
        storage = MemoryStorage(config)
        actor = Actor(settings, storage, RaftCore(settings, storage))
        self.actors[settings.node] = actor
        return actor

    def collect(self, name: str) -> Ready:
        """Take the work of a member, and queue it."""
        actor = self.actors[name]
        ready = actor.core.ready()
        if ready.append is not None:
            actor.writes.append(ready.append)
        if ready.apply:
            actor.applies.append(ready.apply)
        actor.sends += ready.snapshots
        self.network += ready.messages
        return ready

    def write(self, name: str) -> StorageAppend:
        """Do a member's oldest write."""
        actor = self.actors[name]
        append = actor.writes.popleft()
        actor.storage.write(append)
        if append.snapshot is not None:
            # What was handed out before ends below the snapshot, which replaces it.
            actor.applies.clear()
            self._load(actor)
        actor.core.step(StorageAppended(append.number))
        return append

    def apply(self, name: str) -> list[Entry]:
        """Do a member's oldest apply."""
        actor = self.actors[name]
        entries = actor.applies.popleft()
        commands = [(e.index, e.payload) for e in entries if e.kind == EntryKind.COMMAND]
        actor.state += tuple(commands)
        for entry in entries:
            assert entry.index == actor.applied + 1
            actor.applied = entry.index
            actor.configs[entry.index] = actor.core.config_at(entry.index)
        actor.core.step(Applied(actor.applied))
        return entries

    def deliver(self, message: RaftMessage, *, keep: bool = False) -> None:
        """Deliver a message; with `keep` it stays in the network.

        One to a stopped member is lost.
        """
        if not keep:
            self.network.remove(message)
        actor = self.actors.get(message.to)
        if actor is not None:
            actor.core.step(message)

    def compact(self, name: str, index: int) -> SnapshotMeta:
        """Take a snapshot of a member's state at an applied index."""
        actor = self.actors[name]
        snapshot = SnapshotMeta(index, actor.storage.term(index), actor.configs[index])
        actor.saved = tuple(command for command in actor.state if command[0] <= index)
        self._snapshots[index, snapshot.term] = actor.saved
        actor.storage.compact(snapshot)
        return snapshot

    def send_snapshot(self, name: str, request: SendSnapshot) -> SnapshotMeta:
        """Transfer a member's newest snapshot; the receiver is notified when it is complete."""
        actor = self.actors[name]
        actor.sends.remove(request)
        snapshot = actor.storage.snapshot()
        self.network.append(InstallSnapshot(name, request.peer, request.term, snapshot))
        return snapshot

    def crash(self, name: str) -> Actor:
        """Stop a member; data that was not written is lost."""
        return self.actors.pop(name)

    def restart(self, actor: Actor) -> None:
        """Start a stopped member from its disk."""
        actor.core = RaftCore(actor.settings, actor.storage)
        actor.writes.clear()
        actor.applies.clear()
        actor.sends.clear()
        self._load(actor)
        self.actors[actor.settings.node] = actor

    def _load(self, actor: Actor) -> None:
        snapshot = actor.storage.snapshot()
        actor.saved = self._snapshots.get((snapshot.index, snapshot.term), ())
        actor.state, actor.applied = actor.saved, snapshot.index
        actor.configs = {snapshot.index: snapshot.config}
