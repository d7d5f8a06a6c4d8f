"""Watches over the wire: every change arrives, despite lost connections and leaders."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from lithify.raft.client import event_feed
from lithify.raft.client.client import RaftClient
from lithify.raft.kv import client as kv_client
from lithify.raft.kv.client import FROM_NOW, KvClient, WatchReset
from lithify.raft.net.client_operations import (
    ClientOperation,
    NoAnswer,
    OperationRefused,
    encode_watch,
)
from lithify.raft.node import watches
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.node.test_node import client_of, running, settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lithify.raft.kv.format import WatchEvent
    from lithify.raft.node.node import RaftNode


async def some(changes: AsyncIterator[WatchEvent | WatchReset], count: int) -> list[Any]:
    """The next ones: (key, value) of a change, a number for a reset."""
    found: list[Any] = []
    async with asyncio.timeout(PROCESS_S_MAX):
        while len(found) < count:
            change = await anext(changes)
            if isinstance(change, WatchReset):
                found.append(change.revision)
            else:
                found.append((change.key, change.value))
    return found


def watchers(node: RaftNode) -> list[bytes]:
    return list(node.groups["default"].state.watchers)


async def until(condition: Any) -> None:
    async with asyncio.timeout(PROCESS_S_MAX):
        while not condition():
            await asyncio.sleep(0.01)


def test_changes_under_a_prefix_are_sent_as_they_happen(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            await kv.put(b"a/1", b"before")
            await kv.put(b"b/1", b"other")
            async with aclosing(kv.watch(b"a/")) as changes:
                assert await some(changes, 1) == [(b"a/1", b"before")]
                await kv.put(b"b/2", b"other")
                await kv.put(b"a/2", b"new")
                await kv.delete(b"a/1")
                assert await some(changes, 2) == [(b"a/2", b"new"), (b"a/1", None)]
            await until(lambda: not watchers(node))
            async with aclosing(kv.watch(b"a/", FROM_NOW)) as changes:
                next_one = asyncio.create_task(some(changes, 1))
                await until(lambda: len(watchers(node)) == 1)
                await kv.put(b"a/3", b"newer")
                assert await next_one == [(b"a/3", b"newer")]

    asyncio.run(story())


def test_the_watcher_of_a_client_that_vanishes_is_removed(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node:
            async with client_of(node) as client:
                changes = KvClient(client, "default").watch(b"")
                task = asyncio.create_task(some(changes, 1))
                await until(lambda: watchers(node))
            with pytest.raises(NoAnswer, match="the client was closed"):
                await task
            await until(lambda: not watchers(node))

    asyncio.run(story())


def test_watchers_of_a_dead_node_are_removed_by_the_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "SWEEP_TICKS", 5)

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            # As if proposed by another node: no node here has the name.
            await client.ask(
                "default", ClientOperation.PROPOSE, b"\x05\x00\x00" + bytes(8) + b"name"
            )
            await until(lambda: not watchers(node))
            index, _ = await client.ask("default", ClientOperation.PROPOSE, b"")
            assert index > 2, "by a command"

    asyncio.run(story())


def test_a_missed_deletion_is_reported_as_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_client, "PAGE_ROWS", 2)

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            for number in range(5):
                known = (await kv.put(b"k%d" % number, b"v%d" % number)).revision
            await kv.delete(b"k1")
            async with aclosing(kv.watch(b"k", known)) as changes:
                assert await some(changes, 1) == [known + 2]
                # Changes while the rows are read, of some that were and some that were not yet.
                await kv.put(b"k0", b"changed")
                await kv.put(b"k4", b"changed")
                await kv.delete(b"k3")
                view: dict[bytes, bytes | None] = {}
                async with asyncio.timeout(PROCESS_S_MAX):
                    while view.get(b"k3", b"") is not None or len(view) < 4:
                        key, value = (await some(changes, 1))[0]
                        view[key] = value
                await kv.put(b"k9", b"last")
                assert await some(changes, 1) == [(b"k9", b"last")]
            assert view == {b"k0": b"changed", b"k2": b"v2", b"k3": None, b"k4": b"changed"}

    asyncio.run(story())


def test_a_watch_resumes_at_the_next_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as one,
            running(settings(tmp_path, "n2", join=True)) as two,
            client_of(one, two) as client,
        ):
            book = {"n2": str(two.transport.address)}
            await client.ask_json("default", ClientOperation.CHANGE, change="+n2", book=book)
            kv = KvClient(client, "default")
            seen: list[Any] = []

            async def watch() -> None:
                async with aclosing(kv.watch(b"k")) as changes:
                    while True:
                        seen.append(await anext(changes))

            task = asyncio.create_task(watch())
            for number in range(40):
                if number % 10 == 5:
                    to = "n2" if one.groups["default"].leading_term else "n1"
                    await client.ask_json("default", ClientOperation.TRANSFER, to=to)
                await kv.put(b"k%d" % number, b"")
            await until(lambda: len(seen) >= 40)
            task.cancel()
            assert [change.key for change in seen] == [b"k%d" % number for number in range(40)]
            revisions = [change.revision for change in seen]
            assert revisions == sorted(set(revisions))
            await until(lambda: not watchers(one) and not watchers(two))

    asyncio.run(story())


def test_a_client_that_does_not_read_costs_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "UNSENT_BYTES_MAX", 100_000)
    monkeypatch.setattr(event_feed, "INBOX_BYTES_MAX", 50_000)

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            async with aclosing(kv.watch(b"k")) as changes:
                await kv.put(b"k", b"first")
                assert await some(changes, 1) == [(b"k", b"first")]
                for number in range(400):
                    await kv.put(b"k%d" % (number % 7), bytes(100_000) + b"%d" % number)
                # The sockets have taken some; then the node has ended the watch.
                await until(lambda: not watchers(node))
                last: dict[bytes, bytes] = {}
                while len(last) < 7 or max(map(int, last.values())) < 399:
                    key, value = (await some(changes, 1))[0]
                    last[key] = value[100_000:]
            assert sorted(map(int, last.values())) == list(range(393, 400))

    asyncio.run(story())


def test_rows_are_read_past_more_events_than_may_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand before the answer; who did not take them in would wait for it in vain."""
    monkeypatch.setattr(event_feed, "INBOX_BYTES_MAX", 1000)

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            known = (await kv.put(b"k1", b"v1")).revision
            await kv.put(b"k2", b"v2")
            await kv.delete(b"k1")
            async with aclosing(kv.watch(b"k", known)) as changes:
                assert await some(changes, 1) == [known + 3]
                large = [(b"k3", bytes(100_000) + b"%d" % number) for number in range(9)]
                for key, value in large:
                    await kv.put(key, value)
                assert await some(changes, 10) == [(b"k2", b"v2"), *large]

    asyncio.run(story())


def test_clients_leave_a_silent_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "QUIET_S", 0.05)
    monkeypatch.setattr(event_feed, "ANSWER_S", 0.2)

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            async with aclosing(kv.watch(b"k")) as changes:
                task = asyncio.create_task(some(changes, 2))
                await until(lambda: watchers(node))
                (channel,) = node.client_requests.watching._channels
                channel.read_on(wanted=False)
                await until(lambda: len(watchers(node)) == 2)
                await kv.put(b"k", b"1")
                await kv.put(b"k", b"2")
                assert await task == [(b"k", b"1"), (b"k", b"2")]

    asyncio.run(story())


def test_a_connection_has_one_watch(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            watch = b"\x05\x00\x00" + bytes(8)
            await client.ask("default", ClientOperation.WATCH, encode_watch(b"a", watch + b"a"))
            with pytest.raises(OperationRefused, match="has a watch already"):
                await client.ask("default", ClientOperation.WATCH, encode_watch(b"b", watch + b"b"))
            with pytest.raises(OperationRefused, match="has no name"):
                async with RaftClient([node.transport.address]) as other:
                    await other.ask("default", ClientOperation.WATCH, b"")
            assert watchers(node) == [b"a"]

    asyncio.run(story())
