"""The bytes of the key-value machine, version 1, as they were first written. They never change.

`python -m tests.golden.test_kv_golden` writes the file if it is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lithify.raft.kv import format as kv
from lithify.raft.kv.format import KvOutcome, KvRow, Reply, WatchEvent
from lithify.raft.kv.machine import KvMachine
from lithify.raft.machine import Meta
from tests.golden.named_bytes import named_bytes

if TYPE_CHECKING:
    from lithify.raft.kv.state import KvState

GOLDEN = Path(__file__).parent / "kv_v1.txt"


def commands() -> dict[str, bytes]:
    """One of each kind."""
    return {
        "put": kv.put(b"key", b"value"),
        "delete": kv.delete(b"key"),
        "cas-absent": kv.compare_and_set(b"key", b"value", None),
        "cas-revision": kv.compare_and_set(b"key", b"value", 258),
        "cas-value": kv.compare_and_set(b"key", b"value", b"before"),
        "rewrite": kv.rewrite(b"key", 772, b"value"),
        "watch": kv.watch(b"prefix/", b"watcher", 9),
        "unwatch": kv.unwatch(b"watcher"),
    }


def state() -> KvState:
    machine = KvMachine()
    made = machine.init()
    for index, command in enumerate(
        (
            kv.put(b"a", b"one"),
            kv.put(b"bb", b"two"),
            kv.delete(b"a"),
            kv.rewrite(b"bb", 2, b"two"),
            kv.watch(b"b", b"watcher", 3),
            kv.put(b"ccc", b"three"),
        ),
        1,
    ):
        made = machine.apply(Meta(index, 1, 0), command, made)[0]
    return made


def written() -> str:
    lines = commands() | {
        "get": kv.get(b"key"),
        "scan": kv.scan(b"prefix/", 10, b"prefix/7"),
        "reply": Reply(KvOutcome.DONE, 258, b"value").encode(),
        "row": kv.encode_row(KvRow(b"key", b"value", 258)),
        "event-put": kv.encode_event(WatchEvent(b"key", b"value", 258, 257)),
        "event-delete": kv.encode_event(WatchEvent(b"key", None, 259, 258)),
    }
    for number, piece in enumerate(KvMachine().save(state())):
        lines[f"piece-{number}"] = piece
    return "".join(f"{name} {data.hex()}\n" for name, data in lines.items())


def test_version_1_is_still_written() -> None:
    assert written() == GOLDEN.read_text()


def test_commands_of_version_1_are_still_understood() -> None:
    found = named_bytes(GOLDEN)
    for name in ("put", "cas-absent", "cas-revision", "cas-value", "rewrite"):
        assert kv.parse_key(found[name])[1] == b"key"
        assert kv.value_at(found[name]) == b"value"
    assert kv.parse_event(found["event-delete"]) == WatchEvent(b"key", None, 259, 258)
    assert kv.parse_reply(found["reply"]) == Reply(KvOutcome.DONE, 258, b"value")


def test_a_state_of_version_1_is_still_read() -> None:
    found = named_bytes(GOLDEN)
    machine, expected = KvMachine(), state()
    loaded = machine.load([found["piece-0"], found["piece-1"]])
    assert dict(loaded.rows.items()) == dict(expected.rows.items())
    assert loaded.watchers == expected.watchers
    assert loaded.deleted == expected.deleted == 3
    assert list(machine.live_indexes(loaded)) == [4, 6]


if __name__ == "__main__" and not GOLDEN.exists():
    GOLDEN.write_text(written())
