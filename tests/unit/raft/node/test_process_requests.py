"""A process uses the groups of its node without a socket, and those of others with one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lithify.errors import InvalidInput, InvalidSetting, LithifyError
from lithify.exit_codes import CONFLICT
from lithify.fs import LocalFileSystem
from lithify.raft.core import CannotLead
from lithify.raft.errors import GroupAbsent, MemberAbsent, OutcomeUnknown
from lithify.raft.kv import format as kv
from lithify.raft.kv.format import KvOutcome
from lithify.raft.kv.machine import KvMachine, kv_machine
from lithify.raft.net.client_operations import (
    Address,
    ClientOperation,
    MayHaveHappened,
    NoAnswer,
    OperationRefused,
    parse_address,
)
from lithify.raft.net.cluster_secret import ClusterSecret
from lithify.raft.node import process_requests
from lithify.raft.node.node import RaftNode
from lithify.raft.node.settings import RaftNodeSettings
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import running, settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

SECRET = ClusterSecret(b"the secret of this cluster")


def alone(directory: Path, **more: Any) -> RaftNodeSettings:
    return RaftNodeSettings("n1", str(directory / "n1"), None, tick_ms=20, **more)


def told(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PROCESS_S_MAX):
            await story()

    asyncio.run(limited())


async def put(node: RaftNode, key: bytes, value: bytes, group: str = "default") -> int:
    index, reply = await node.propose(group, kv.put(key, value))
    assert kv.parse_reply(reply).outcome is KvOutcome.DONE
    return index


async def get(node: RaftNode, key: bytes, group: str = "default", *, local: bool = False) -> bytes:
    _, reply = await node.read(group, kv.get(key), local=local)
    return kv.parse_reply(reply).value


def leader_of(node: RaftNode, group: str = "default") -> str:
    return node.groups[group].leader


def has_snapshot(node: RaftNode, group: str) -> bool:
    return bool(node.groups[group].overview()["snapshot_index"])


def note(heard: list[tuple[str, int]], _: str, leader: str, term: int) -> None:
    heard.append((leader, term))


class Loud(KvMachine):
    """Another machine: its answers are louder."""

    def query(self, state: Any, query: bytes) -> bytes:
        return b"LOUD " + query


def machines(name: str) -> KvMachine:
    if name == "unknown":
        raise InvalidInput("there is no machine for group unknown")
    return Loud() if name == "loud" else KvMachine()


# --- a node alone -------------------------------------------------------------------------------


def test_a_node_without_an_address_is_a_cluster_of_one_and_leads_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        for value in (b"1", b"2"):
            # An election timeout would take a minute.
            slow = RaftNodeSettings(
                "n1", str(tmp_path / "n1"), None, tick_ms=6000, first_group="metastore"
            )
            async with running(slow) as node:
                assert list(node.groups) == ["metastore"]
                assert node.transport.book == {}
                index = await put(node, b"k", value, "metastore")
                assert await get(node, b"k", "metastore") == value
                assert (await node.read("metastore", kv.get(b"k"), local=True)).index == index

    told(story)


def test_each_group_has_the_machine_of_its_name_also_after_a_restart(tmp_path: Path) -> None:
    made: list[str] = []

    def machine_of(name: str) -> KvMachine:
        made.append(name)
        return machines(name)

    async def story() -> None:
        for _ in range(2):
            node = RaftNode(alone(tmp_path), LocalFileSystem(), machine_of)
            stop = asyncio.Event()
            task = asyncio.create_task(node.run(stop, lambda _: None))
            await until(partial(leader_of, node))
            if "loud" not in node.groups:
                node.create("loud", ["n1"])
                with pytest.raises(InvalidInput, match="no machine for group unknown"):
                    node.create("unknown", ["n1"])
            await put(node, b"k", b"v", "loud")
            assert (await node.read("loud", b"hey")).reply == b"LOUD hey"
            assert (await node.read("default", b"")).reply != b"LOUD "
            node.groups["loud"].take_snapshot()
            node.mark(node.groups["loud"])
            await until(partial(has_snapshot, node, "loud"))
            stop.set()
            await task
            assert sorted(node.groups) == ["default", "loud"], "nothing of the unknown one"
            for live in tmp_path.glob("n1/groups/loud@*/snapshots/*/live"):
                live.unlink()
        assert made.count("loud") == 3, "once for its live indexes, which the second start lacks"

    told(story)


def test_without_an_address_a_member_of_a_cluster_is_only_read(tmp_path: Path) -> None:
    peers = {"n2": "127.0.0.1:1"}

    async def story() -> None:
        async with running(settings(tmp_path, "n1", peers=peers)):
            pass
        node = RaftNode(alone(tmp_path), LocalFileSystem(), kv_machine)
        assert node.reads_only
        assert node.others == ["n2"]
        node.storage.close()

    told(story)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"peers": {"n2": "h:1"}}, "listen is None"),
        ({"join": True}, "listen is None"),
        ({"listen": Address("h", 1), "voters": ("n9",)}, "voters is 'n9'"),
        (
            {"listen": Address("h", 1), "peers": {f"n{n}": "h:1" for n in range(2, 7)}},
            "voters is .*more than 5 nodes",
        ),
    ],
)
def test_settings_that_make_no_cluster_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        RaftNodeSettings(**{"node": "n1", "data": "d", "listen": None} | given)


def test_a_group_that_is_nowhere_is_absent(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(alone(tmp_path)) as node:
            for ask in (
                node.propose("no", b""),
                node.read("no", b""),
                node.read("no", b"", local=True),
            ):
                with pytest.raises(GroupAbsent, match="no group 'no' on node n1"):
                    await ask
            with pytest.raises(GroupAbsent):
                await node.listeners.wait_applied("no", 1)

    told(story)


def test_listeners_are_notified_of_leaders_and_applied_entries(tmp_path: Path) -> None:
    leaders: list[tuple[str, str, int]] = []
    applied: list[int] = []

    async def story() -> None:
        async with running(alone(tmp_path)) as node:
            await until(lambda: node.groups["default"].leader)
            node.listeners.on_leader(lambda *given: leaders.append(given))
            assert leaders == [("default", "n1", 1)], "who leads already"
            await put(node, b"k", b"v")
            group = node.groups["default"]
            node.listeners.on_applied(lambda name: applied.append(node.groups[name].applied_index))
            before = group.applied_index
            waiting = asyncio.create_task(node.listeners.wait_applied("default", before + 50))
            never = asyncio.create_task(node.listeners.wait_applied("default", 2**40))
            await asyncio.gather(*(put(node, b"k%d" % n, b"v") for n in range(100)))
            await waiting
            assert applied == sorted(set(applied)), "once for each round of work"
            assert applied[-1] == before + 100
            assert len(applied) < 100
            node.create("orders", ["n1"])
            await until(lambda: leaders[-1] == ("orders", "n1", 1))
            await node.requests.ask("orders", ClientOperation.DROP, b"{}")
            await until(lambda: leaders[-1][:2] == ("orders", ""))
        with pytest.raises(GroupAbsent):
            await never

    told(story)


def test_requests_in_progress_end_when_the_node_stops(tmp_path: Path) -> None:
    async def story() -> None:
        peers = {"n2": "127.0.0.1:1"}
        async with running(settings(tmp_path, "n1", peers=peers)) as node:
            # There is no quorum: it goes to the other node, which is not there.
            proposed = asyncio.create_task(node.propose("default", b""))
            read = asyncio.create_task(node.read("default", b""))
            await until(lambda: node.requests._tasks)
        for task in (proposed, read):
            with pytest.raises(LithifyError):
                await task
        with pytest.raises(NoAnswer, match="the node stops"):
            await node.propose("default", b"")

    told(story)


def test_an_unknown_outcome_stays_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with running(alone(tmp_path)) as node:
            group = node.groups["default"]

            def unknown(_: bytes, done: Any) -> None:
                done(OutcomeUnknown("default", 7))

            monkeypatch.setattr(group, "propose", unknown)
            with pytest.raises(MayHaveHappened, match="the outcome of proposal 7 is unknown"):
                await node.propose("default", b"")
            monkeypatch.setattr(group, "propose", lambda *_: None)
            ask = node.requests.ask("default", ClientOperation.PROPOSE, b"", 0.05)
            with pytest.raises(MayHaveHappened, match="no answer in time"):
                await ask
            monkeypatch.setattr(group, "read", lambda *_: None)
            with pytest.raises(NoAnswer, match="no answer in time"):
                await node.requests.ask("default", ClientOperation.READ, b"", 0.05)

    told(story)


# --- several nodes ------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [None, SECRET])
def test_members_forward_to_the_leader_and_come_and_go(
    tmp_path: Path, secret: ClusterSecret | None
) -> None:
    async def story() -> None:
        heard: dict[str, list[tuple[str, int]]] = {"n2": [], "n3": []}
        async with (
            running(settings(tmp_path, "n1", secret=secret)) as one,
            running(settings(tmp_path, "n2", join=True, secret=secret)) as two,
            running(settings(tmp_path, "n3", join=True, secret=secret)) as three,
        ):
            for node in (two, three):
                name = node.identity.node
                node.listeners.on_leader(partial(note, heard[name]))
            await one.requests.add_member("n2", str(two.transport.address), voter=True)
            await until(lambda: "default" in two.groups and two.groups["default"].leader)
            # The leader changes the members, whichever node is asked.
            await two.requests.add_member("n3", str(three.transport.address), voter=False)
            await two.requests.add_member("n3", str(three.transport.address), voter=False)
            assert str(one.groups["default"].config) == "voters n1 n2, learners n3"
            await until(lambda: "default" in three.groups and three.groups["default"].leader)
            assert heard["n2"][-1][0] == heard["n3"][-1][0] == "n1", "a learner hears it too"
            for number, node in enumerate((one, two, three)):
                index = await put(node, b"k%d" % number, b"v")
                await node.listeners.wait_applied("default", index)
                assert await get(node, b"k%d" % number, local=True) == b"v"
                assert await get(three, b"k%d" % number) == b"v"
            await one.requests.ask("default", ClientOperation.TRANSFER, b'{"to": "n2"}')
            await put(one, b"k", b"later")
            assert await get(three, b"k") == b"later"
            await until(lambda: heard["n3"][-1][0] == "n2")
            await one.requests.create_group("orders", ["n1", "n2"])
            await put(two, b"k", b"v", "orders")
            with pytest.raises(InvalidInput, match="the address of node n9 is not known here"):
                await one.requests.create_group("jobs", ["n1", "n9"])
            await one.requests.remove_member("n3")
            await until(lambda: "default" not in three.groups)
            assert heard["n3"][-1][0] == ""
            await until(lambda: str(one.groups["default"].config) == "voters n1 n2")
            # It is no member, and still a node of the cluster: others answer.
            assert await get(three, b"k") == b"later"

    told(story)


def test_leadership_goes_to_a_voter_only_and_the_refusal_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as one,
            running(settings(tmp_path, "n2", join=True)) as two,
        ):
            await one.requests.add_member("n2", str(two.transport.address), voter=False)
            await until(lambda: "default" in two.groups and leader_of(two))
            for node, kind in ((one, CannotLead), (two, OperationRefused)):
                why = "n2 cannot lead: it is a learner. The voters are n1"
                with pytest.raises(kind, match=why) as refused:
                    await node.requests.transfer("default", "n2")
                assert refused.value.exit_code == CONFLICT
                with pytest.raises(MemberAbsent, match="n9 is not a member of the cluster: n1, n2"):
                    await node.requests.transfer("default", "n9")
            assert leader_of(two) == "n1"

    told(story)


def test_a_cluster_has_five_voters_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_requests, "VOTERS_MAX", 1)

    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as one,
            running(settings(tmp_path, "n2", join=True)) as two,
        ):
            await until(lambda: one.groups["default"].leader)
            at = str(two.transport.address)
            with pytest.raises(InvalidInput, match=r"the cluster has 1 voters: n1\. n2 can be a"):
                await one.requests.add_member("n2", at, voter=True)
            with pytest.raises(InvalidInput, match="must be like 127"):
                await one.requests.add_member("n2", "somewhere", voter=False)
            await one.requests.add_member("n2", at, voter=False)
            await one.requests.add_member("n1", str(one.transport.address), voter=True)

    told(story)


def test_only_the_named_voters_found_a_cluster(tmp_path: Path) -> None:
    async def story() -> None:
        peers = {"n2": "127.0.0.1:1"}
        given = settings(tmp_path, "n1", peers=peers, voters=("n1",))
        other = settings(tmp_path, "n2", peers={"n1": "127.0.0.1:1"}, voters=("n1",))
        async with running(given) as one, running(other) as two:
            await put(one, b"k", b"v")
            assert str(one.groups["default"].config) == "voters n1"
            assert two.groups == {}
            await one.requests.add_member("n2", str(two.transport.address), voter=False)
            await until(lambda: "default" in two.groups)
            assert await get(two, b"k") == b"v"

    told(story)


def test_other_nodes_get_the_advertised_host(tmp_path: Path) -> None:
    async def story() -> None:
        given = settings(tmp_path, "n1", advertised_host="localhost")
        async with running(given) as one:
            at = parse_address(one.transport.book["n1"])
            assert at.host == "localhost"
            async with running(settings(tmp_path, "n2", join=True)) as two:
                await one.requests.add_member("n2", str(two.transport.address), voter=False)
                await until(lambda: two.identity.book.get("n1") == str(at))

    told(story)
