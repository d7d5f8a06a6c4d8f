"""Members that cannot start yet, because entries above their snapshots are damaged.

A member must know its whole log before it votes or answers a leader: an entry may hold the
configuration. So a member whose log cannot be read at startup does not start. Other members see it
as a node that is down. Its segments are repaired with entries of other members (`repair.py`); then
it starts normally.

Other members cannot send entries that they have compacted away. A member that needs such an entry
stays as it is, is logged and shown by `overview`, and an operator replaces it (`docs/runbooks.md`).

Called in the node's event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.logger import get_logger
from lithify.raft.repair.repair import Known, Repair
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.errors import EntryUnreadable
    from lithify.raft.pending_work import Job
    from lithify.raft.repair.messages import EntriesFound
    from lithify.raft.storage.storage import GroupStorage, RaftStorage

__all__ = ["BlockedMembers"]

log = get_logger("lithify.raft")


class BlockedMembers:
    """One member that waits for repair."""

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
        """Is all damage that was found so far repaired?"""
        return not self._repair.damages.open

    def tick(self) -> None:
        """Count one tick."""
        self._repair.tick()

    def work(self, others: list[str]) -> tuple[list[RaftMessage], Job | None]:
        """(questions to other nodes, the next job of the worker)."""
        state = self._own.hard_state
        commit = max(state.commit, self._own.log.snapshot_index)
        job = self._repair.next_job(Known(commit, tuple(sorted(others)), state.term))
        return self._repair.take()[0], job

    def receive(self, found: EntriesFound) -> None:
        """Take entries from another member."""
        commit = max(self._own.hard_state.commit, self._own.log.snapshot_index)
        self._repair.receive(found, commit, 0)

    def done(self, job: Job, result: object) -> None:
        """Take the result of a job."""
        self._repair.done(job, result)
