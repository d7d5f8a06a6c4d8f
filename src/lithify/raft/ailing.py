"""Members that cannot begin yet, because entries above their snapshots are damaged.

A member must know its whole log before it votes or answers a leader: one of the entries may say who
the members are. So a member whose log cannot be read at the start does not begin. To the others it
is a node that is down. Its segments are repaired with the entries of others (`repair.py`), and then
it begins as if nothing had been.

What others have compacted away they cannot give. Such a member stays as it is, is logged and shown
by `overview`, and is replaced by hand (`docs/runbooks.md`).

The node's event loop calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.logger import get_logger
from lithify.raft.names import group_of
from lithify.raft.repair import Known, Repair

if TYPE_CHECKING:
    from lithify.raft.core.messages import Message
    from lithify.raft.errors import EntryUnreadable
    from lithify.raft.jobs import Job
    from lithify.raft.repair_messages import EntriesFound
    from lithify.raft.storage import GroupStorage, RaftStorage

__all__ = ["Ailing"]

log = get_logger("lithify.raft")


class Ailing:
    """One such member."""

    def __init__(
        self, node: str, storage: RaftStorage, own: GroupStorage, error: EntryUnreadable
    ) -> None:
        self._own = own
        self._repair = Repair(node, storage, own, self._cannot)
        self.reason = str(error)
        self._warned = False
        log.error("member waits for repair", group=group_of(own.group), reason=self.reason)

    def _cannot(self) -> None:
        if not self._warned:
            self._warned = True
            what = "the other members have compacted it away: replace this member"
            log.error("member cannot be repaired", group=group_of(self._own.group), reason=what)
            self.reason = f"{self.reason}; {what}"

    @property
    def is_repaired(self) -> bool:
        """Is all damage repaired that was found so far?"""
        return not self._repair.damages.open

    def tick(self) -> None:
        """Time has passed."""
        self._repair.tick()

    def work(self, others: list[str]) -> tuple[list[Message], Job | None]:
        """(questions to other nodes, what the worker is to do)."""
        state = self._own.hard_state
        commit = max(state.commit, self._own.log.snapshot_index)
        job = self._repair.next_job(Known(commit, tuple(sorted(others)), state.term))
        return self._repair.take()[0], job

    def receive(self, found: EntriesFound) -> None:
        """Another member gives entries."""
        commit = max(self._own.hard_state.commit, self._own.log.snapshot_index)
        self._repair.receive(found, commit, 0)

    def done(self, job: Job, result: object) -> None:
        """A job has ended."""
        self._repair.done(job, result)
