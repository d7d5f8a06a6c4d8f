"""A member that receives a snapshot, seen from the leader that sends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.fs import MemoryFileSystem
from lithify.raft.core.configuration import Config
from lithify.raft.core.values import SnapshotMeta
from lithify.raft.kv.machine import KvMachine
from lithify.raft.snapshots.messages import SnapshotAck, SnapshotOffer, SnapshotPiece, TransferState
from lithify.raft.snapshots.receiving import Receiving
from lithify.raft.storage.snapshots.snapshot_file import Head
from lithify.raft.storage.storage import RaftStorage, StorageSettings

if TYPE_CHECKING:
    from lithify.raft.kv.state import KvState
    from lithify.raft.snapshots.messages import TransferMessage

META = SnapshotMeta(9, 1, Config(frozenset(("n1",))))


class Story:
    def __init__(self) -> None:
        storage = RaftStorage(MemoryFileSystem(), "d", StorageSettings())
        storage.open_groups(lambda *_: KvMachine().live_indexes(KvMachine().init()))
        storage.create("g")
        self.machine = KvMachine()
        self.receiving: Receiving[KvState] = Receiving("g", "n2", storage, self.machine, 100)

    def receive(self, message: TransferMessage) -> list[SnapshotAck]:
        """The answers to a message."""
        self.receiving.receive(message, 1, 0)
        return [each for each in self.receiving.take() if isinstance(each, SnapshotAck)]


def test_a_leader_is_answered_while_its_snapshot_replaces_the_log() -> None:
    story = Story()
    machine = story.machine
    offer = SnapshotOffer("n1", "n2", 1, 77, 0, Head(META, machine.version))
    assert len(story.receive(offer)) == 1
    data = b"".join(machine.save(machine.init()))
    last = SnapshotPiece("n1", "n2", 1, 77, 1, data, last=True)
    assert len(story.receive(last)) == 1
    job = story.receiving.due_job()
    assert job is not None
    assert story.receiving.loaded(job, job()) is not None
    story.receiving.answered(META, 0)
    assert story.receiving.received is not None
    # The leader repeats the last message until it gets another answer than this.
    [answer] = story.receive(last)
    assert (answer.number, answer.state) == (1, TransferState.GOING)
    assert story.receive(SnapshotOffer("n1", "n2", 1, 78, 0, Head(META, machine.version))) == []
    story.receiving.finish()
    [done] = story.receiving.take()
    assert isinstance(done, SnapshotAck)
    assert done.state is TransferState.DONE
