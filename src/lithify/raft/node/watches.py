"""Clients that a group's machine sends to: which connection a name stands for. One event loop.

1. A client asks for a watch: a name, and a command that has the machine send to it. The name is
   noted for the connection first, then the command is proposed.
2. What the machine sends goes out over the connection that its name stands for. What it sends to
   others is dropped: only the leader sends, and nobody listens to it under that name.
3. A watch ends, and the client is told by a second answer, when this node leads no more, because
   somebody else sends then; and when it has `UNSENT_BYTES_MAX` to take and does not take them. It
   then asks anew, there or here, from the last thing that it has seen. So a client that reads
   nothing costs so many bytes, and no more.
4. Every `SWEEP_TICKS`, and at the next tick after a watch has ended, the leader has the machine
   forget all names that stand for no connection here. That is also how those go whose client died,
   or whose leader did.

No name is swept that is still of use. One that the machine knows was noted before, on the node that
led when it was proposed; if that is another node, or if the note is gone, the client has been told
and asks anew. Should it use the same name again, its command comes behind the one that forgets it,
because the leader has proposed that before it noted the name again.

In one term a member leads without a break or not at all. So a watch gets everything that is sent
while the term is the one in which its command was applied here, by the leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, LithifyError
from lithify.raft.core import DropReason, ProposalDropped
from lithify.raft.errors import ClientTooSlow
from lithify.raft.net.client_operations import parse_watch
from lithify.raft.net.control_frames import ClientEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lithify.raft.group.group import Group
    from lithify.raft.group.proposals_and_reads import Done, Result
    from lithify.raft.machine import Send
    from lithify.raft.net.channel import Channel

    Tell = Callable[[Channel, str, int, LithifyError], None]
    """(channel, group, number of the request, why nothing more will come)"""

__all__ = ["Watches"]

SWEEP_TICKS = 100
UNSENT_BYTES_MAX = 8 * 2**20
"""One event more may come on top, and the values that a watcher has missed when it begins."""


@dataclass(slots=True)
class _Watch:
    """What a name stands for."""

    group: str
    name: bytes
    channel: Channel
    number: int
    term: int = 0
    """In which this node led when the machine came to know the name; 0 before."""


class Watches:
    """See the module."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._groups: dict[str, dict[bytes, _Watch]] = {}
        self._channels: dict[Channel, _Watch] = {}
        self._ticks = 0
        self._due: set[str] = set()
        """Groups in which names may stand for nothing."""

    def begin(
        self, group: Group[Any], channel: Channel, number: int, body: bytes, done: Done
    ) -> None:
        """A client wants to be told; `done` gets what came of its command."""
        name, command = parse_watch(body)
        if channel in self._channels:
            raise InvalidInput("this connection has a watch already")
        before = self._groups.get(group.name, {}).get(name)
        if before is not None:
            # Names are drawn, so it is the same client, and its old connection is dead.
            self._forget(before)
        watch = _Watch(group.name, name, channel, number)
        self._channels[channel] = watch
        self._groups.setdefault(group.name, {})[name] = watch

        def known(result: Result) -> None:
            if isinstance(result, LithifyError):
                self._forget(watch)
                done(result)
                return
            done(result)
            watch.term = group.leading_term
            if not watch.term:
                self._end(watch, _elsewhere(group))

        group.propose(command, known)

    def remove_client(self, channel: Channel) -> None:
        """A client is gone."""
        watch = self._channels.get(channel)
        if watch is not None:
            self._forget(watch)

    def close_group(self, group: Group[Any]) -> None:
        """A group is not here any more."""
        for watch in list(self._groups.get(group.name, {}).values()):
            self._end(watch, _elsewhere(group))

    def deliver(self, group: Group[Any], sends: Sequence[Send]) -> None:
        """A group has done its work: what it sends goes out, and watches end that get no more."""
        watches = self._groups.get(group.name)
        if not watches:
            return
        for send in sends:
            watch = watches.get(send.to)
            if watch is None or not watch.term:
                continue
            if watch.channel.unsent_bytes > UNSENT_BYTES_MAX:
                self._end(watch, ClientTooSlow(watch.channel.peer, UNSENT_BYTES_MAX))
            else:
                watch.channel.send(group.name, ClientEvent(watch.number, send.data))
        for watch in list(watches.values()):
            if watch.term not in (0, group.leading_term):
                self._end(watch, _elsewhere(group))

    def tick(self, groups: Iterable[Group[Any]]) -> None:
        """One unit of time went by."""
        self._ticks += 1
        due, self._due = self._due, set()
        for group in groups:
            if group.leading_term and (group.name in due or self._ticks % SWEEP_TICKS == 0):
                group.dismiss_but(self._groups.get(group.name, {}))

    def _end(self, watch: _Watch, why: LithifyError) -> None:
        self._forget(watch)
        self._tell(watch.channel, watch.group, watch.number, why)

    def _forget(self, watch: _Watch) -> None:
        if self._channels.pop(watch.channel, None) is not None:
            watches = self._groups[watch.group]
            del watches[watch.name]
            if not watches:
                del self._groups[watch.group]
            self._due.add(watch.group)


def _elsewhere(group: Group[Any]) -> ProposalDropped:
    reason = DropReason.NOT_LEADER if group.leader else DropReason.NO_LEADER
    return ProposalDropped(reason, group.leader)
