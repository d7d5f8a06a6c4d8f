"""The nodes of the cluster, as each of them knows the others.

    cluster/node/NAME   {"pulsar": URL, "pulsar_tls": URL, "http": URL, "cluster": "HOST:PORT",
                         "version": "0.1.0", "identity": "…", "leased": true}

Every node writes its own key, in the metastore, and watches those of all. In a cluster of several
nodes the key has a lease, which the node keeps: it is deleted when the node has been silent for
`TTL_MS`. So a node is alive as long as its key is there. A node alone needs no lease, and writes
only when something has changed.

The key has the identity of the data directory of the node. If it has another one, and its lease
does not end within `TAKEN_S`, then two processes use one name: `NodeNameTaken`.

`nodes` may be read by any thread; all else runs in the event loop of the Raft node.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lithify import __version__
from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT
from lithify.logger import get_logger
from lithify.metastore.errors import LeaseNotFound
from lithify.metastore.held_lease import HeldLease
from lithify.metastore.transaction import Compare, Condition, Put, Transaction, prefix_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lithify.clock import Clock
    from lithify.metastore.metastore import KeyValue, Metastore

__all__ = ["NodeAddresses", "NodeNameTaken", "NodeRegistry"]

PREFIX = b"cluster/node/"
TTL_MS = 10_000
TAKEN_S = 3 * TTL_MS / 1000
"""A lease may live twice its time if leaders change; then the name is in use."""
RETRY_S = 1.0

log = get_logger("lithify.node")


class NodeNameTaken(LithifyError):
    """Another process has registered the name of this node."""

    exit_code = CONFLICT

    def __init__(self, node: str, address: str) -> None:
        self.node = node
        at = f" at {address}" if address else ""
        super().__init__(
            f"the name {node} is used by another node{at}, with another data directory: "
            "start this node with a name of its own"
        )


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """How a node is reached; what it does not offer is empty."""

    pulsar: str = ""
    pulsar_tls: str = ""
    http: str = ""
    cluster: str = ""
    version: str = ""
    is_alive: bool = False


class NodeRegistry:
    """See the module."""

    def __init__(self, metastore: Metastore, clock: Clock, node: str, identity: str) -> None:
        self._metastore = metastore
        self._clock = clock
        self._node = node
        self._identity = identity
        self._key = PREFIX + node.encode()
        self._own = NodeAddresses(version=__version__, is_alive=True)
        self._held = HeldLease(metastore, clock, TTL_MS)
        self._is_alone = True
        self._is_announced = False
        self._is_written = False
        self._taken_until_s = 0.0
        """When a name that another node has is in use; 0 while no other has it."""
        self._said = ""
        self._wake = asyncio.Event()
        self._members: dict[str, str] = {}
        self._registered: dict[str, NodeAddresses] = {}
        """What the keys say."""
        self._after = 0
        self.nodes: Mapping[str, NodeAddresses] = MappingProxyType({node: self._own})
        """All members of the cluster, and this node, by name."""

    def announce(self, addresses: NodeAddresses) -> None:
        """The addresses of this node are known, or have changed."""
        self._own = replace(addresses, version=__version__, is_alive=True)
        self._is_announced = True
        self._write_again()

    def set_members(self, members: Iterable[str], book: Mapping[str, str]) -> None:
        """The members of the cluster have changed; `book` has their addresses for nodes."""
        self._members = {name: book.get(name, "") for name in members}
        is_alone = set(self._members) <= {self._node}
        if is_alone != self._is_alone:
            self._is_alone = is_alone
            self._write_again()
        self._publish()

    def _write_again(self) -> None:
        self._is_written = False
        self._wake.set()
        self._publish()

    # --- the own key ------------------------------------------------------------------------

    async def register(self) -> None:
        """Write the own key, and keep it there, until cancelled; raises `NodeNameTaken`."""
        while True:
            self._wake.clear()
            try:
                if not self._is_written:
                    await self._write()
                elif not self._is_alone:
                    await self._keep()
            except NodeNameTaken:
                raise
            except LithifyError as error:
                # No leader, or an outcome that is not known: what is there is read again.
                self._is_written = False
                self._say(f"this node is not registered: {error}")
            pause_s = self._held.keep_s if self._is_written else RETRY_S
            # Not `wait_for`: before Python 3.12 it ignores a cancellation if it was woken too.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _write(self) -> None:
        """Write the own key, if it differs."""
        alone = self._is_alone
        if self._node not in self._members or (alone and not self._is_announced):
            return
        found = await self._metastore.get(self._key)
        if found is not None and self._is_taken(found):
            return
        if not alone and not self._held.is_held:
            await self._held.acquire()
        value, lease = self._value(leased=not alone), 0 if alone else self._held.id
        if found is None or (found.value, found.lease) != (value, lease):
            compare = Compare(self._key, Condition.ABSENT)
            if found is not None:
                compare = Compare(self._key, Condition.REVISION, found.revision)
            put = Put(self._key, value, lease)
            if not (await self._metastore.transact(Transaction((compare,), (put,)))).succeeded:
                return
        if alone:
            await self._held.release()
        # The members, or the addresses, may have changed meanwhile.
        self._is_written = not self._wake.is_set()
        self._say("")

    def _value(self, *, leased: bool) -> bytes:
        addresses = {name: text for name, text in asdict(self._own).items() if name != "is_alive"}
        return json.dumps(addresses | {"identity": self._identity, "leased": leased}).encode()

    def _is_taken(self, found: KeyValue) -> bool:
        """Has another node the key? Raises `NodeNameTaken` if it keeps it."""
        other = json.loads(found.value)
        now_s = self._clock.monotonic_s()
        if not found.lease or other["identity"] == self._identity:
            self._taken_until_s = 0.0
            return False
        self._taken_until_s = self._taken_until_s or now_s + TAKEN_S
        if now_s > self._taken_until_s:
            raise NodeNameTaken(self._node, other["cluster"])
        return True

    def _say(self, what: str) -> None:
        """Log a problem once, until it is over."""
        if what and what != self._said:
            log.warning(what)
        self._said = what

    async def _keep(self) -> None:
        try:
            await self._held.keep()
        except LeaseNotFound:
            # The store has ended it, and deleted the key.
            self._held = HeldLease(self._metastore, self._clock, TTL_MS)
            self._is_written = False
            self._wake.set()

    async def leave(self) -> None:
        """The node stops: the others see it at once, not when the lease ends."""
        await self._held.release()

    # --- all keys ---------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the keys of all nodes."""
        start, end = prefix_range(PREFIX)
        rows: list[KeyValue] = []
        revision, more = 0, True
        while more:
            page = await self._metastore.range(start, end, revision=revision)
            rows += page.rows
            revision, more = page.revision, page.more
            start = rows[-1].key + b"\0" if rows else start
        self._after = revision
        self._registered = {}
        for row in rows:
            self._take(row.key, row.value)
        self._publish()

    async def follow(self) -> None:
        """Follow the keys of all nodes from there, until cancelled."""
        start, end = prefix_range(PREFIX)
        while True:
            try:
                async with aclosing(
                    self._metastore.watch(start, end, after=self._after)
                ) as revisions:
                    async for revision in revisions:
                        for change in revision.changes:
                            self._take(change.key, change.value)
                        self._after = revision.revision
                        self._publish()
            except LithifyError:
                # The history was compacted, or this node is no member: all is read again.
                pass
            await asyncio.sleep(RETRY_S)
            with suppress(LithifyError):
                await self.load()

    def _take(self, key: bytes, value: bytes | None) -> None:
        name = key.removeprefix(PREFIX).decode()
        if value is None:
            # Its addresses remain known as long as it is a member.
            known = self._registered.pop(name, None)
            if known is not None and name in self._members:
                self._registered[name] = replace(known, is_alive=False)
            return
        written = json.loads(value)
        # A node that was alone and is not any longer writes a key with a lease.
        is_alive = bool(written.pop("leased"))
        del written["identity"]
        self._registered[name] = NodeAddresses(**written, is_alive=is_alive)

    def _publish(self) -> None:
        known = {
            name: self._registered.get(name) or NodeAddresses(cluster=address)
            for name, address in self._members.items()
        }
        self.nodes = MappingProxyType(known | {self._node: self._own})
