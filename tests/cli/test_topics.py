from __future__ import annotations

import json
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import jwt
import pytest
from typer.testing import CliRunner

import lithify
from lithify.cli.main import app
from lithify.topics.subscriptions.subscription import SubscriptionType
from tests.cli.nodes import COMMAND, served
from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = "persistent://public/default/orders"


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITHIFY_URL", raising=False)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def succeed(*arguments: str, stdin: bytes = b"") -> str:
    result = CliRunner().invoke(app, ["topics", *arguments], input=stdin)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def fail(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["topics", *arguments])
    assert result.exit_code > 0
    assert result.stdout == ""
    return result.stderr.removeprefix("lithify: error: ").rstrip("\n")


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --- create, list, stats, delete: the same at a node and on its directory -----------------------


def the_life_of_a_topic(*where: str) -> None:
    assert succeed("create", "orders", *where) == f"created {ORDERS}\n"
    created = succeed("create", "parts", "--partitions", "2", "--json", *where)
    assert json.loads(created) == {"topic": "persistent://public/default/parts", "partitions": 2}
    assert "exists" in fail("create", "orders", *where)
    names = [ORDERS, *(f"persistent://public/default/parts-partition-{n}" for n in range(2))]
    assert succeed("list", *where).splitlines() == names
    assert json.loads(succeed("list", "--json", *where)) == names
    stats = json.loads(succeed("stats", "parts", "--json", *where))
    assert sorted(stats["partitions"]) == names[1:]
    assert succeed("stats", "orders", *where).startswith(f"{ORDERS}\n  storage    ")
    assert succeed("delete", "parts", *where) == "deleted persistent://public/default/parts\n"
    assert json.loads(succeed("delete", "orders", "--json", *where)) == {"topic": ORDERS}
    assert json.loads(succeed("list", "--json", *where)) == []
    assert fail("delete", "orders", *where) == f"topic {ORDERS} does not exist"
    assert fail("stats", "orders", *where) == f"topic {ORDERS} does not exist"


def test_topics_of_a_data_directory(data: str) -> None:
    the_life_of_a_topic("--data", data)


def test_topics_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path / "data") as node:
        the_life_of_a_topic("--url", node.http)
        monkeypatch.setenv("LITHIFY_URL", node.http)
        assert succeed("list") == ""
        name = "persistent://public/default/with/slash and ünïcode"
        succeed("create", name)
        assert succeed("list") == f"{name}\n"
        assert fail("list", "--namespace", "no/where")
        assert f"pid {node.process.pid}" in fail("list", "--data", str(tmp_path / "data"))


def test_the_token_of_the_environment_is_sent_to_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a secret of more than thirty-two bytes"
    (tmp_path / "secret").write_text(f"{secret}\n")
    (tmp_path / "node.toml").write_text(
        f'token_secret_file = "{tmp_path}/secret"\nsuperusers = ["ann"]\n'
    )
    with served(tmp_path / "data", "--config", str(tmp_path / "node.toml")) as node:
        monkeypatch.setenv("LITHIFY_URL", node.http)
        assert "a token is needed" in fail("list")
        monkeypatch.setenv("LITHIFY_TOKEN", jwt.encode({"sub": "bob"}, secret, "HS256"))
        assert fail("create", "orders") == "'bob' may not admin in public/default"
        monkeypatch.setenv("LITHIFY_TOKEN", jwt.encode({"sub": "ann"}, secret, "HS256"))
        assert succeed("create", "orders") == f"created {ORDERS}\n"


def test_stats_show_subscriptions(data: str) -> None:
    with lithify.open(data) as node:
        topic = node.topics.get("orders", create=True)
        topic.subscription("billing", SubscriptionType.SHARED, durable=True, start=0)
        for _ in range(3):
            topic.append(value=b"x")
    lines = succeed("stats", "orders", "--data", data).splitlines()
    assert lines[-3:] == [
        "Subscriptions",
        "  name     type       backlog  unacked  consumers",
        "  billing  Exclusive        3        0          0",
    ]


# --- produce and tail ---------------------------------------------------------------------------


def produce_and_tail(*where: str) -> None:
    options = ("--key", "k", "--property", "by=card", *where)
    assert succeed("produce", "orders", "new", "paid", *options) == "1:0\n1:1\n"
    assert rows(succeed("produce", "orders", "--json", *where, stdin=b"a\n\xff\n")) == [
        {"id": "1:2"},
        {"id": "1:3"},
    ]
    found = rows(succeed("tail", "orders", "--json", *where))
    assert [(row["id"], row["key"], row.get("value")) for row in found] == [
        ("1:0", "k", "new"),
        ("1:1", "k", "paid"),
        ("1:2", None, "a"),
        ("1:3", None, None),
    ]
    assert found[0]["properties"] == {"by": "card"}
    assert found[3]["value_base64"] == "/w=="
    first, *_, last = succeed("tail", "orders", *where).splitlines()
    assert first.startswith("1:0 ")
    assert first.endswith("Z  k  new")
    assert last.endswith(r"Z  -  \xff")
    assert [row["id"] for row in rows(succeed("tail", "orders", "--json", "--limit", "1", *where))]
    from_there = ("--from", "1:1", "--limit", "2", "--json")
    assert [row["id"] for row in rows(succeed("tail", "orders", *from_there, *where))] == [
        "1:1",
        "1:2",
    ]
    assert "does not exist" in fail("tail", "nowhere", *where)
    assert "must be LEDGER:ENTRY" in fail("tail", "orders", "--from", "5", *where)
    assert succeed("produce", "orders", "--json", *where, stdin=b"") == ""
    assert succeed("produce", "orders", *where, stdin=b"x" * 100_000 + b"\n\nlast") == (
        "1:4\n1:5\n1:6\n"
    )
    ends = rows(succeed("tail", "orders", "--limit", "3", "--json", *where))
    assert [len(row["value"] or "") for row in ends] == [100_000, 0, 4]


def test_tail_prints_produced_messages(data: str) -> None:
    produce_and_tail("--data", data)


def test_tail_prints_messages_produced_at_a_node(tmp_path: Path) -> None:
    with served(tmp_path / "data") as node:
        produce_and_tail("--url", node.http)


@contextmanager
def follow(url: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [COMMAND, "topics", "tail", "orders", "--follow", "--json", "--url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_value(following: subprocess.Popen[str]) -> Any:
    assert following.stdout is not None
    with at_most(PROCESS_S_MAX, following.kill):
        return json.loads(following.stdout.readline())["value"]


def test_tail_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    with served(tmp_path / "data") as node:
        where = ("--url", node.http)
        succeed("produce", "orders", "first", *where)
        with follow(node.http) as following:
            assert next_value(following) == "first"
            succeed("produce", "orders", "second", *where)
            assert next_value(following) == "second"
            unloaded = f"{node.http}/admin/v2/persistent/public/default/orders/unload"
            assert httpx.put(unloaded).status_code == 204
            succeed("produce", "orders", "third", *where)
            assert next_value(following) == "third"
            following.send_signal(signal.SIGINT)
            out, err = following.communicate(timeout=PROCESS_S_MAX)
            assert (following.returncode, out, err) == (0, "", "")


def test_a_follower_stops_with_the_topic_and_with_the_node(tmp_path: Path) -> None:
    with served(tmp_path / "data") as node:
        where = ("--url", node.http)
        succeed("produce", "orders", "first", *where)
        with follow(node.http) as following:
            assert next_value(following) == "first"
            succeed("delete", "orders", *where)
            assert following.communicate(timeout=PROCESS_S_MAX) == ("", "")
            assert following.returncode == 0
        succeed("produce", "orders", "again", *where)
        with follow(node.http) as following:
            assert next_value(following) == "again"
            code, _, lines = node.end(signal.SIGTERM)
            assert (code, "level=error" in lines) == (0, False), lines
            assert following.communicate(timeout=PROCESS_S_MAX) == ("", "")


def test_a_follower_names_the_node_that_was_killed(tmp_path: Path) -> None:
    with served(tmp_path / "data") as node:
        succeed("produce", "orders", "first", "--url", node.http)
        with follow(node.http) as following:
            assert next_value(following) == "first"
            node.end(signal.SIGKILL)
            _, err = following.communicate(timeout=PROCESS_S_MAX)
            assert following.returncode == 5
            assert json.loads(err)["error"].startswith(f"no node answers at {node.http} (it ended")
            assert err.count("\n") == 1


def test_a_data_directory_is_not_followed(data: str) -> None:
    succeed("create", "orders", "--data", data)
    assert "no --follow" in fail("tail", "orders", "--follow", "--data", data)


def test_tail_shows_the_last_ones_wherever_segments_end(data: str) -> None:
    with lithify.open(data) as node:
        topic = node.topics.get("orders", create=True)
        for number in range(12):
            topic.append(value=b"%d" % number)
            if number % 5 == 4:
                topic.log.roll()

    def values(*options: str) -> list[int]:
        shown = rows(succeed("tail", "orders", "--json", "--data", data, *options))
        return [int(row["value"]) for row in shown]

    assert values() == list(range(2, 12))
    for limit in range(15):
        assert values("--limit", str(limit)) == list(range(12))[max(0, 12 - limit) :]
    assert values("--from", "2:3") == list(range(8, 12))
    assert values("--from", "2:3", "--limit", "2") == [8, 9]


def test_an_empty_topic_has_no_tail(data: str) -> None:
    succeed("create", "orders", "--data", data)
    assert succeed("tail", "orders", "--data", data) == ""


# --- wrong use ----------------------------------------------------------------------------------


def test_reading_creates_nothing(tmp_path: Path, data: str) -> None:
    assert fail("list", "--data", data) == f"{data} is not a data directory"
    assert fail("tail", "orders", "--data", data) == f"{data} is not a data directory"
    assert list(tmp_path.iterdir()) == []
    with lithify.open(data):
        pass
    assert fail("tail", "orders", "--data", data) == f"topic {ORDERS} does not exist"


def test_an_unreachable_node_is_named_with_what_to_do() -> None:
    told = fail("list", "--url", "http://127.0.0.1:1")
    assert told.startswith("no node answers at http://127.0.0.1:1 (")
    assert told.endswith("--data a data directory that no node serves")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("list", "--url", "file:///etc"), "must begin with http:// or https://"),
        (("list", "--data", "d", "--url", "http://x"), "give one of them"),
        (("create", "../../etc", "--data", "d"), "tenant '..' of '../..' must have"),
        (("tail", "t", "--data", "d", "--from", "5"), "is not a data directory"),
        (("produce", "t", "v", "--data", "d", "--property", "x"), "must be NAME=VALUE"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in fail(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_is_no_message_id_is_refused(data: str) -> None:
    succeed("create", "orders", "--data", data)
    for start in ("5", "1:-1", "a:b", "1:2:3", "¹:1"):
        told = fail("tail", "orders", "--data", data, "--from", start)
        assert told == f"message id {start!r} must be LEDGER:ENTRY"
