"""The watches of clients: which connection gets what a group's machine sends. One event loop.

1. A client starts a watch with a name and a command after which the machine sends to that name. The
   name is registered for the connection first, then the command is proposed.
2. What the machine sends goes to the connection that is registered for the name. What it sends to
   other names is dropped: only the leader sends, and no client here uses that name.
3. A watch ends, with a second answer to the client, when this node stops leading, because another
   node sends then; and when `UNSENT_BYTES_MAX` are queued for it. The client then watches again,
   there or here, from the last event it has seen. So a client that reads nothing costs at most this
   number of bytes.
4. Every `SWEEP_TICKS`, and at the next tick after a watch has ended, the leader makes the machine
   remove all names that are not registered here. This also removes the names of clients that died,
   and of clients of earlier leaders.

No name in use is removed. A name that the machine knows was registered before, on the node that led
when it was proposed. If that is another node, or if the registration is gone, the client has been
notified and watches again. If it uses the same name, its new command comes after the one that
removes the name, because the leader proposed that before it registered the name again.

Within one term a member leads without interruption or not at all. So a watch gets everything that
is sent while the term is the one in which the leader applied its command here.
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

    from lithify.raft.commands import Done, Result
    from lithify.raft.group.group import Group
    from lithify.raft.machine import Send
    from lithify.raft.net.channel import Channel

    Tell = Callable[[Channel, str, int, LithifyError], None]
    """(channel, group, number of the request, reason of the end)"""

__all__ = ["Watches"]

SWEEP_TICKS = 100
UNSENT_BYTES_MAX = 8 * 2**20
"""One more event may be queued, and the values that a watcher has missed when it starts."""


@dataclass(slots=True)
class _Watch:
    """The registration of a name."""

    group: str
    name: bytes
    channel: Channel
    number: int
    term: int = 0
    """The term in which this node led when the machine learned the name; 0 before."""


class Watches:
    """See the module."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._groups: dict[str, dict[bytes, _Watch]] = {}
        self._channels: dict[Channel, _Watch] = {}
        self._ticks = 0
        self._due: set[str] = set()
        """Groups with names that may not be registered."""
        self._swept: dict[str, int] = {}
        """By group: the term of the newest leadership here whose machine was swept."""

    def begin(
        self, group: Group[Any], channel: Channel, number: int, body: bytes, done: Done
    ) -> None:
        """Start a watch; `done` gets the outcome of its command."""
        name, command = parse_watch(body)
        if channel in self._channels:
            raise InvalidInput("this connection has a watch already")
        before = self._groups.get(group.name, {}).get(name)
        if before is not None:
            # Names are random, so it is the same client, and its old connection is dead.
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
                self._end(watch, _not_leader(group))

        group.propose(command, known)

    def remove_client(self, channel: Channel) -> None:
        """A client has disconnected."""
        watch = self._channels.get(channel)
        if watch is not None:
            self._forget(watch)

    def close_group(self, group: Group[Any]) -> None:
        """A group was removed from this node."""
        self._swept.pop(group.name, None)
        for watch in list(self._groups.get(group.name, {}).values()):
            self._end(watch, _not_leader(group))

    def deliver(self, group: Group[Any], sends: Sequence[Send]) -> None:
        """A group has worked: deliver what it sends, and end watches that get no more."""
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
                self._end(watch, _not_leader(group))

    def tick(
        self, awake: Iterable[Group[Any]], find: Callable[[str], Group[Any] | None]
    ) -> list[Group[Any]]:
        """Count one tick; returns the groups that may have something to do."""
        self._ticks += 1
        due, self._due = self._due, set()
        swept = [group for group in map(find, due) if group is not None]
        swept += (group for group in awake if group.leading_term and self._is_due(group))
        for group in swept:
            group.dismiss_but(self._groups.get(group.name, {}))
        return swept

    def _is_due(self, group: Group[Any]) -> bool:
        if self._swept.get(group.name) != group.leading_term and group.may_note:
            # It has all names of earlier leaders, and may sleep soon.
            self._swept[group.name] = group.leading_term
            return True
        return self._ticks % SWEEP_TICKS == 0

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


def _not_leader(group: Group[Any]) -> ProposalDropped:
    reason = DropReason.NOT_LEADER if group.leader else DropReason.NO_LEADER
    return ProposalDropped(reason, group.leader)
