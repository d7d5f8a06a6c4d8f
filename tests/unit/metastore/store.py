"""A metastore's machine with its state and log, for unit tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.metastore import command_format as commands
from lithify.metastore import query_format as replies
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.transaction import Delete, Operation, Put, Transaction
from lithify.raft.machine import Meta, QueryRead

if TYPE_CHECKING:
    from lithify.metastore.metastore import KeyValue, Outcome
    from lithify.metastore.query_format import ChangesPage, MetastoreReply, RowsPage


class Store:
    def __init__(self) -> None:
        self.machine = MetastoreMachine()
        self.state = self.machine.init()
        self.log: dict[int, bytes] = {}
        self.index = 0
        self.time_ms = 0

    def do(self, command: bytes) -> MetastoreReply:
        self.index += 1
        self.log[self.index] = command
        meta = Meta(self.index, 1, self.time_ms)
        self.state, reply, effects = self.machine.apply(meta, command, self.state)
        assert not effects
        return replies.parse_reply(reply)

    def ask(self, query: bytes) -> MetastoreReply:
        reply = self.machine.query(self.state, query)
        while isinstance(reply, QueryRead):
            reply = reply.then([self.log[index] for index in reply.indexes])
        return replies.parse_reply(reply)

    def transact(self, transaction: Transaction) -> Outcome:
        reply = self.do(commands.encode_transaction(transaction))
        replies.check_reply(reply)
        return replies.parse_outcome(reply)

    def run(self, *operations: Operation) -> int:
        """Execute operations; the revision."""
        return self.transact(Transaction((), operations)).revision

    def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        return self.run(Put(key, value, lease))

    def delete(self, key: bytes) -> int:
        return self.run(Delete(key))

    def compact(self, revision: int) -> None:
        replies.check_reply(self.do(commands.encode_compact(revision)), revision)

    def purge(self, changes_max: int = 1000) -> None:
        while not self.machine.purge(self.state, changes_max).finished:
            pass

    def rewrite(self, index: int) -> bool:
        """Move a live entry, and delete the old one; was there something to move?"""
        command = self.machine.rewrite_command(self.state, index, self.log[index])
        if command is None:
            return False
        self.do(command)
        self.trim()
        return True

    def readable(self) -> int:
        """The number of revisions above the floor."""
        return sum(number > self.state.floor for number in self.state.revisions.numbers)

    def trim(self) -> None:
        self.log = {index: self.log[index] for index in self.live}

    @property
    def live(self) -> list[int]:
        return list(self.machine.live_indexes(self.state))

    def get(self, key: bytes, revision: int = 0) -> KeyValue | None:
        reply = self.ask(replies.encode_get(key, revision))
        replies.check_reply(reply, revision)
        return replies.parse_row(reply)

    def range(
        self, start: bytes = b"", end: bytes = b"", revision: int = 0, rows_max: int = 0
    ) -> RowsPage:
        reply = self.ask(replies.encode_range(start, end, revision, rows_max))
        replies.check_reply(reply, revision)
        return replies.parse_rows(reply)

    def changes(self, after: int, revisions_max: int = 1000) -> ChangesPage:
        reply = self.ask(replies.encode_changes(b"", b"", after, revisions_max))
        replies.check_reply(reply, after)
        return replies.parse_changes(reply)

    def keys(self) -> list[bytes]:
        return [row.key for row in self.range().rows.rows]
