"""A directory with groups and without the file NODE: another node does not take it over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.fs import LocalFileSystem
from lithify.raft.kv.machine import kv_machine
from lithify.raft.node.lost_node_file import NodeFileLost
from lithify.raft.node.node import RaftNode
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import running, settings
from tests.unit.raft.node.test_process_requests import alone, get, has_snapshot, put, told

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.raft.node.settings import RaftNodeSettings


def refused(given: RaftNodeSettings) -> str:
    with pytest.raises(NodeFileLost) as raised:
        RaftNode(given, LocalFileSystem(), kv_machine)
    return str(raised.value)


def test_a_lone_node_is_refused_under_another_name_and_continues_under_its_own(
    tmp_path: Path,
) -> None:
    file = tmp_path / "n1" / "NODE"

    async def story() -> None:
        async with running(alone(tmp_path)) as node:
            await put(node, b"k", b"v")
        file.unlink()
        for given in (
            replace(alone(tmp_path), node="n7"),
            replace(alone(tmp_path), node="node-3f9a", is_named=False),
        ):
            why = refused(given)
            assert "NODE is missing, and the groups beside it are of n1, not of n" in why
            assert not file.exists()
        async with running(alone(tmp_path)) as node:
            assert await get(node, b"k") == b"v"

    told(story)


def test_the_members_in_a_snapshot_say_whose_directory_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as one,
            running(settings(tmp_path, "n2", join=True)) as two,
        ):
            await one.requests.add_member("n2", str(two.transport.address), voter=True)
            await put(one, b"k", b"v")
            for node in (one, two):
                node.groups["default"].take_snapshot()
                node.mark(node.groups["default"])
                await until(lambda node=node: has_snapshot(node, "default"))  # type: ignore[misc]
        (tmp_path / "n2" / "NODE").unlink()
        given = settings(tmp_path, "n2", join=True)
        assert "of n1, n2, not of n3" in refused(replace(given, node="n3"))
        assert "of n1, n2, not of n2" not in refused(replace(given, node="x", is_named=False))
        async with running(given) as two:
            assert "default" in two.groups

    told(story)


def test_a_name_is_drawn_for_a_new_directory(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(replace(alone(tmp_path), is_named=False)) as node:
            await put(node, b"k", b"v")

    told(story)
