"""When the groups of a node work: once for all events that came together.

    rounds.mark(name, group)            # it works in the next turn of the loop
    alone = rounds.begin()              # groups that are marked from here on …
    rounds.end(alone=alone)             # … work at once, unless a round is due anyway

1. Requests of clients wait for the next turn. So those of many connections share one append, one
   message to each peer, and one round of the disk.
2. What comes from peers and from the disk has been collected there, and is worked on at once.
3. What a round sends goes out at its end, so that all groups share a frame to each node. Messages
   of a group that is alone in the round do not wait until it has applied entries. Then the thread
   of the write-ahead log is woken: it takes the interpreter's lock, and the peers' disks can work
   meanwhile.

An error ends the node. Called in its event loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.raft.storage.file_names import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.group.group import Group
    from lithify.raft.net.transport import Transport
    from lithify.raft.pending_work import SendNow
    from lithify.raft.storage.wal.wal import Wal

__all__ = ["WorkRounds"]


class WorkRounds:
    """See the module."""

    def __init__(
        self,
        wal: Wal,
        transport: Callable[[], Transport],
        work: Callable[[Group[Any], SendNow], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._wal = wal
        self._transport = transport
        self._work = work
        self._failed = failed
        self.marked: dict[str, Group[Any]] = {}
        """The groups that work in the next round, by name."""
        self._is_due = False

    def mark(self, name: str, group: Group[Any]) -> None:
        """A group has an event."""
        self.marked[name] = group
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def forget(self, name: str) -> None:
        """A group has left."""
        self.marked.pop(name, None)

    def begin(self) -> bool:
        """Events follow that came together; returns whether no round is due."""
        alone, self._is_due = not self._is_due, True
        return alone

    def end(self, *, alone: bool) -> None:
        """They were all; `alone` is what `begin` has returned."""
        if alone:
            self._run()

    def stop(self) -> None:
        """No group works any longer."""
        self.marked, self._is_due = {}, True

    def _run(self) -> None:
        marked, self.marked, self._is_due = self.marked, {}, False
        wal, unsent = self._wal, self._transport().unsent
        wal.hold()
        unsent.hold()
        try:
            for group in marked.values():
                self._work(group, partial(self._send, key_of(group.name), len(marked)))
        except Exception as error:  # noqa: BLE001  (the state of the node is not known to be right)
            self._failed(error)
        finally:
            unsent.send()
            wal.wake()

    def _send(self, key: str, groups: int, messages: list[RaftMessage]) -> None:
        """Send messages of one of the groups of a round."""
        transport = self._transport()
        for message in messages:
            transport.send(key, message)
        if messages and groups == 1:
            transport.unsent.send()
            transport.unsent.hold()
