from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import lithify
from lithify.errors import InvalidSetting, LogClosed, LogLocked
from lithify.node.catalog.reconciler import CatalogReconciler
from lithify.node.cluster import Cluster
from lithify.settings import Durability
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = "persistent://public/default/orders"


def test_a_library_appends_reads_and_finds_everything_again(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with lithify.open(data) as node:
        topic = node.topics.create(ORDERS)
        topic.append(key="4711", value=b"new")
        paid = topic.append(key="4711", value=b"paid", properties={"by": "card"})
        topic.append(key="4711", value=None)
    with lithify.open(data) as node:
        topic = node.topics.get(ORDERS)
        messages = list(topic.read())
        assert [(m.key, m.value) for m in messages] == [
            (b"4711", b"new"),
            (b"4711", b"paid"),
            (b"4711", None),
        ]
        assert messages[1].properties == {"by": "card"}
        assert [m.value for m in topic.read(start=paid)] == [b"paid", None]


def test_a_data_directory_belongs_to_one_node_at_a_time(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with lithify.open(data):
        with pytest.raises(LogLocked) as caught:
            lithify.open(data)
        assert caught.value.owner == f"library, pid {os.getpid()}"
    lithify.open(data).close()


def test_a_closed_node_is_closed_once_and_for_all(tmp_path: Path) -> None:
    node = lithify.open(str(tmp_path / "data"))
    topic = node.topics.create(ORDERS)
    node.close()
    node.close()
    with pytest.raises(LogClosed):
        topic.append(value=b"too late")


def test_no_request_of_the_thread_that_follows_the_catalog_waits_without_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for kind, name in ((Cluster, "opened"), (CatalogReconciler, "start")):
        function = getattr(kind, name)

        def called(of: Any, function: Any = function, name: str = name) -> None:
            order.append(name)
            function(of)

        monkeypatch.setattr(kind, name, called)
    with lithify.open(str(tmp_path / "data")):
        assert order == ["opened", "start"]


def test_settings_are_arguments_and_the_environment_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITHIFY_DURABILITY", "none")
    with lithify.open(str(tmp_path / "a")) as node:
        assert node.topics.settings.log.durability is Durability.ALWAYS
    with lithify.open(str(tmp_path / "b"), durability=Durability.INTERVAL) as node:
        assert node.topics.settings.log.durability is Durability.INTERVAL
    with pytest.raises(InvalidSetting):
        lithify.open(str(tmp_path / "c"), segment_bytes_max=1)
    assert not (tmp_path / "c").exists()


def test_a_data_directory_is_private_and_one_that_is_not_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    with lithify.open(str(data)) as node:
        node.topics.create(ORDERS).append(value=b"secret")
    for path in (data, *data.rglob("*")):
        assert not path.stat().st_mode & 0o077, path

    def said() -> list[str]:
        # A thread that an earlier test has left may write records of its own.
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if str(data) in line]

    assert not said()
    data.chmod(0o755)
    lithify.open(str(data)).close()
    [line] = said()
    assert f"chmod 700 {data}" in line


def test_paths_of_a_relative_data_directory_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with lithify.open("data") as node:
        assert node.topics.create(ORDERS).log.directory.startswith(f"{tmp_path}/data/")
        node.blobs.create("photos", capacity_bytes=16 * 2**20, segment_bytes=2**20)
        assert node.blobs.get("photos").log.directory.startswith(f"{tmp_path}/data/")


def test_a_process_that_forgets_to_close_its_node_ends(tmp_path: Path) -> None:
    script = f"import lithify; node = lithify.open({str(tmp_path / 'data')!r}); print('open')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PROCESS_S_MAX,
        check=False,
    )
    assert done.stdout == "open\n"
    assert "failed" not in done.stderr
