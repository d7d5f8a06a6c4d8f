"""No command of any client holds the event loop of a node for more than some milliseconds."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from lithify.pulsar.authorization import FREE, NEEDS
from lithify.pulsar.wire import wire_pb2 as wire
from tests.hostile.holds import check_hold, hold_of
from tests.hostile.node import watched_node
from tests.hostile.worst_frames import WORST, Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = {wire.BaseCommand.Type.Name(kind): kind for kind in WORST}


@contextmanager
def new_crowd(data: Path) -> Iterator[Crowd]:
    with watched_node(data) as node:
        yield Crowd(node)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    with new_crowd(tmp_path_factory.mktemp("held") / "data") as crowd:
        yield crowd


def test_every_command_has_its_worst_frame() -> None:
    assert set(WORST) == {wire.BaseCommand.CONNECT, *FREE, *NEEDS}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_no_command_holds_the_loop(crowd: Crowd, tmp_path: Path, name: str) -> None:
    send = WORST[NAMES[name]]
    check_hold(crowd, lambda at: hold_of(at.node, lambda: send(at)), new_crowd, tmp_path)
