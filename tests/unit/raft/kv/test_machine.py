"""The key-value machine by itself: what it answers, what it keeps in the log, what it sends."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from lithify.raft import ordered_key_set
from lithify.raft.kv import format as kv
from lithify.raft.kv.format import KvOutcome, KvRow, Reply, WatchEvent
from lithify.raft.kv.machine import KvMachine
from lithify.raft.machine import Meta, QueryRead, ReadEntries, Send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.machine import Effect


class Log:
    """A machine, its state and the log under it."""

    def __init__(self) -> None:
        self.machine = KvMachine()
        self.state = self.machine.init()
        self.commands: dict[int, bytes] = {}
        self.sent: list[tuple[bytes, WatchEvent]] = []

    def do(self, command: bytes) -> Reply:
        index = len(self.commands) + 1
        self.commands[index] = command
        meta = Meta(index, 1, 0)
        self.state, reply, effects = self.machine.apply(meta, command, self.state)
        self.take(effects)
        return kv.parse_reply(reply)

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.sent.append((effect.to, kv.parse_event(effect.data)))
            else:
                assert isinstance(effect, ReadEntries)
                self.take(effect.then(self.read(effect.indexes)))

    def read(self, indexes: Sequence[int]) -> list[bytes]:
        assert set(indexes) <= set(self.live)
        return [self.commands[index] for index in indexes]

    def ask(self, query: bytes) -> bytes:
        reply = self.machine.query(self.state, query)
        while isinstance(reply, QueryRead):
            reply = reply.then(self.read(reply.indexes))
        return reply

    def get(self, key: bytes) -> Reply:
        return kv.parse_reply(self.ask(kv.get(key)))

    def scan(self, prefix: bytes, rows_max: int = 10, after: bytes = b"") -> list[KvRow]:
        return kv.parse_rows(self.ask(kv.scan(prefix, rows_max, after)))

    @property
    def live(self) -> list[int]:
        return list(self.machine.live_indexes(self.state))


def test_a_value_is_read_from_the_log() -> None:
    log = Log()
    assert log.do(kv.put(b"k", b"one")) == Reply(KvOutcome.DONE, 1)
    assert log.get(b"k") == Reply(KvOutcome.DONE, 1, b"one")
    assert log.get(b"other") == Reply(KvOutcome.ABSENT, 0)
    assert b"one" not in b"".join(log.machine.save(log.state))


def test_only_the_newest_values_are_live() -> None:
    log = Log()
    for command in (
        kv.put(b"a", b"1"),
        kv.put(b"b", b"2"),
        kv.put(b"a", b"3"),
        kv.delete(b"missing"),
        kv.compare_and_set(b"b", b"4", b"wrong"),
    ):
        log.do(command)
    assert log.live == [2, 3]
    assert log.do(kv.delete(b"b")) == Reply(KvOutcome.DONE, 2)
    assert log.live == [3]


def test_compare_and_set_compares_value_revision_or_absence() -> None:
    log = Log()
    assert log.do(kv.compare_and_set(b"k", b"1", None)) == Reply(KvOutcome.DONE, 1)
    assert log.do(kv.compare_and_set(b"k", b"2", None)) == Reply(KvOutcome.MISMATCH, 1)
    assert log.do(kv.compare_and_set(b"k", b"2", b"1")) == Reply(KvOutcome.DONE, 3)
    assert log.do(kv.compare_and_set(b"k", b"3", b"1")) == Reply(KvOutcome.MISMATCH, 3)
    assert log.do(kv.compare_and_set(b"k", b"3", 1)) == Reply(KvOutcome.MISMATCH, 3)
    assert log.do(kv.compare_and_set(b"k", b"3", 3)) == Reply(KvOutcome.DONE, 6)
    assert log.do(kv.compare_and_set(b"absent", b"", 0)) == Reply(KvOutcome.MISMATCH, 0)
    assert log.get(b"k").value == b"3"


def test_a_rewritten_value_keeps_its_revision() -> None:
    log = Log()
    log.do(kv.put(b"k", b"v"))
    command = log.machine.rewrite_command(log.state, 1, log.commands[1])
    assert command is not None
    assert log.do(command) == Reply(KvOutcome.DONE, 1)
    assert log.live == [2]
    assert log.get(b"k") == Reply(KvOutcome.DONE, 1, b"v")
    # What was rewritten once can be rewritten again, and one that came too late does nothing.
    assert log.machine.rewrite_command(log.state, 1, log.commands[1]) is None
    again = log.machine.rewrite_command(log.state, 2, log.commands[2])
    assert again is not None
    log.do(kv.put(b"k", b"newer"))
    assert log.do(again) == Reply(KvOutcome.MISMATCH, 0)
    assert log.get(b"k").value == b"newer"
    assert log.live == [3]


def test_a_rewrite_with_another_value_moves_nothing() -> None:
    """Any client can propose one; under its old revision a value must stay what it was."""
    log = Log()
    log.do(kv.put(b"key", b"value"))
    assert log.do(kv.rewrite(b"key", 1, b"forged")) == Reply(KvOutcome.MISMATCH, 1)
    assert log.do(kv.rewrite(b"key", 1, b"")).outcome is KvOutcome.MISMATCH
    assert log.get(b"key") == Reply(KvOutcome.DONE, 1, b"value")
    assert log.live == [1]
    assert log.do(kv.rewrite(b"key", 1, b"value")) == Reply(KvOutcome.DONE, 1)
    assert log.live == [4]


def test_a_scan_continues_after_a_key() -> None:
    log = Log()
    for key in (b"b/2", b"a", b"b/1", b"b/3", b"c", b""):
        log.do(kv.put(key, b"v" + key))
    assert [row.key for row in log.scan(b"b/", 2)] == [b"b/1", b"b/2"]
    assert log.scan(b"b/", 2, after=b"b/2") == [KvRow(b"b/3", b"vb/3", 4)]
    assert [row.key for row in log.scan(b"")] == [b"", b"a", b"b/1", b"b/2", b"b/3", b"c"]
    log.do(kv.delete(b"b/1"))
    log.do(kv.delete(b"c"))
    log.do(kv.put(b"c", b"again"))
    assert [row.key for row in log.scan(b"")] == [b"", b"a", b"b/2", b"b/3", b"c"]


def test_a_watcher_is_sent_every_change_with_the_one_before_it() -> None:
    log = Log()
    assert log.do(kv.watch(b"a/", b"w")) == Reply(KvOutcome.DONE, 1)
    log.do(kv.put(b"a/1", b"x"))
    log.do(kv.put(b"b/1", b"y"))
    log.do(kv.delete(b"a/1"))
    assert log.sent == [
        (b"w", WatchEvent(b"a/1", b"x", 2, 0)),
        (b"w", WatchEvent(b"a/1", None, 4, 2)),
    ]
    assert log.do(kv.unwatch(b"w")).outcome is KvOutcome.DONE
    log.do(kv.put(b"a/1", b"z"))
    assert len(log.sent) == 2


def test_a_late_watcher_gets_the_newest_value_of_each_key() -> None:
    log = Log()
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4")):
        log.do(kv.put(key, value))
    assert log.do(kv.watch(b"", b"w", known=2)).outcome is KvOutcome.DONE
    assert [event for _, event in log.sent] == [
        WatchEvent(b"a", b"3", 3, 2),
        WatchEvent(b"c", b"4", 4, 3),
    ]
    log.do(kv.put(b"b", b"5"))
    assert log.sent[-1][1] == WatchEvent(b"b", b"5", 6, 4)


def test_a_watcher_that_missed_a_deletion_gets_a_reset() -> None:
    log = Log()
    log.do(kv.put(b"a", b"1"))
    log.do(kv.put(b"b", b"2"))
    log.do(kv.delete(b"a"))
    assert log.do(kv.watch(b"", b"w", known=2)) == Reply(KvOutcome.RESET, 4)
    assert not log.sent
    log.do(kv.put(b"c", b"3"))
    assert [event for _, event in log.sent] == [WatchEvent(b"c", b"3", 5, 4)]


def test_a_watcher_that_missed_too_much_gets_a_reset() -> None:
    log = Log()
    for number in range(1001):
        log.do(kv.put(b"%d" % number, b""))
    assert log.do(kv.watch(b"", b"one", known=0)) == Reply(KvOutcome.RESET, 1002)
    assert log.do(kv.watch(b"", b"other", known=1)) == Reply(KvOutcome.DONE, 1003)
    assert len(log.sent) == 1000


def test_a_watcher_may_request_new_changes_only() -> None:
    log = Log()
    log.do(kv.put(b"a", b"1"))
    assert log.do(kv.watch(b"", b"w", known=2**60)) == Reply(KvOutcome.DONE, 2)
    log.do(kv.put(b"a", b"2"))
    assert log.sent == [(b"w", WatchEvent(b"a", b"2", 3, 2))]


def test_a_command_removes_a_watcher_that_has_disconnected() -> None:
    log = Log()
    log.do(kv.watch(b"", b"one"))
    log.do(kv.watch(b"", b"other"))
    assert list(log.machine.audience(log.state)) == [b"one", b"other"]
    log.do(log.machine.farewell(b"one"))
    assert list(log.machine.audience(log.state)) == [b"other"]


def test_a_state_is_loaded_as_it_was_saved() -> None:
    log = Log()
    for number in range(40_000):
        log.do(kv.put(b"key%d" % (number % 30_000), b"v"))
    log.do(kv.delete(b"key7"))
    log.do(kv.watch(b"key1", b"watcher", known=5))
    saved = b"".join(log.machine.save(log.state))
    pieces = log.machine.save(log.state)
    log.do(kv.put(b"late", b"not in it"))
    loaded = log.machine.load(pieces)
    assert b"late" not in loaded.rows
    assert dict(loaded.rows.items()) | {b"late": log.state.rows[b"late"]} == dict(
        log.state.rows.items()
    )
    assert loaded.watchers == log.state.watchers
    assert loaded.deleted == log.state.deleted
    assert list(log.machine.live_indexes(loaded)) == log.live[:-1]
    assert b"".join(log.machine.save(loaded)) == saved
    log.state = loaded
    assert [row.key for row in log.scan(b"key2999", 3)] == [b"key2999", b"key29990", b"key29991"]


@pytest.mark.parametrize("added_max", [0, 2, 1024])
def test_a_scan_sees_each_key_once_whatever_became_of_it(
    added_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_key_set, "ADDED_MAX", added_max)
    log = Log()
    for number in range(10):
        log.do(kv.put(b"key%d" % number, b"v"))
    log.state = log.machine.load(log.machine.save(log.state))
    for _ in range(3):
        log.do(kv.delete(b"key4"))
        assert b"key4" not in [row.key for row in log.scan(b"key", 100)]
        log.do(kv.put(b"key4", b"again"))
        log.do(kv.put(b"key5", b"again"))
        log.do(kv.put(b"key", b"new"))
        keys = [b"key", *(b"key%d" % number for number in range(10))]
        assert [row.key for row in log.scan(b"key", 100)] == keys
    for number in range(8):
        log.do(kv.delete(b"key%d" % number))
    assert [row.key for row in log.scan(b"key", 100)] == [b"key", b"key8", b"key9"]


def test_pages_of_a_scan_meet_whatever_keys_come_and_go() -> None:
    rng = Random(3)
    log = Log()
    model: set[bytes] = set()
    for step in range(600):
        key = b"%d" % rng.randrange(400)
        if rng.random() < 0.6:
            log.do(kv.put(key, b"v"))
            model.add(key)
        else:
            log.do(kv.delete(key))
            model.discard(key)
        if step == 300:
            log.state = log.machine.load(log.machine.save(log.state))
        if step % 7 == 0:
            prefix = rng.choice((b"", b"1", b"39"))
            after = b""
            pages: list[bytes] = []
            while page := [row.key for row in log.scan(prefix, rng.randrange(1, 9), after)]:
                pages += page
                after = page[-1]
            assert pages == sorted(key for key in model if key.startswith(prefix))


def test_pieces_of_a_state_stay_small_when_keys_are_long() -> None:
    log = Log()
    for number in range(100):
        log.do(kv.put(b"%d" % number + bytes(60_000), b"v"))
    pieces = list(log.machine.save(log.state))
    assert len(pieces) > 5
    assert max(map(len, pieces)) < 2_000_000
    assert dict(log.machine.load(pieces).rows.items()) == dict(log.state.rows.items())


@pytest.mark.parametrize(
    "command",
    [b"", b"\x01", b"\x01\xff\xff", b"\x03\x00\x00\x01", b"\x05\x00\x00", b"\x63\x00\x00"],
)
def test_an_unknown_command_changes_nothing(command: bytes) -> None:
    log = Log()
    assert log.do(command) == Reply(KvOutcome.INVALID, 0)
    assert not log.live
    assert kv.parse_reply(log.ask(command[2:])).outcome is KvOutcome.INVALID
