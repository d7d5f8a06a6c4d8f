"""Three `lithify serve` processes: a text that is applied at one node is carried out by owners."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from tests.cli.cluster_members import Member, members, start_all
from tests.cli.test_owners import client_of, directories_of
from tests.patience import PROCESS_S_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_MS = int(PROCESS_S_MAX * 1000)
TOPICS = [f"t{number}" for number in range(3)]
STORES = [f"s{number}" for number in range(3)]
ABSENT = "absent = true\n"
SHAPE = 'namespace = "public/default"\ncapacity_bytes = 8192\nsegment_bytes = 4096\n'


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Member]]:
    with members(tmp_path, 3) as nodes:
        start_all(nodes)
        yield nodes


def apply(node: Member, text: str) -> None:
    answer = httpx.post(f"{node.url}/catalog/apply", content=text, timeout=PROCESS_S_MAX)
    assert answer.is_success, answer.text


def objects(node: Member, kind: str) -> dict[str, Any]:
    """The objects of a kind, by the last part of their names."""
    rows = node.get("/catalog")["objects"]
    return {row["name"].rpartition("/")[2]: row for row in rows if row["kind"] == kind}


def header(topic: str) -> str:
    return f'[topics."public/default/{topic}"]\n'


def test_a_topic_of_another_node_is_dropped_with_its_producer_connected(
    three: list[Member], tmp_path: Path
) -> None:
    apply(three[0], "".join(map(header, TOPICS)))
    # They are spread, so one is on n2.
    (name,) = [name for name, row in objects(three[0], "topic").items() if row["owners"] == ["n2"]]
    old_id = objects(three[0], "topic")[name]["id"]
    client = client_of(three[0])
    producer = client.create_producer(name, send_timeout_millis=TIMEOUT_MS)
    producer.send(b"old")
    (directory,) = directories_of(tmp_path, name)
    assert "n2" in directory.parts

    apply(three[0], header(name) + ABSENT)
    # The producer is disconnected, looks up the topic again, and creates another one by that.
    producer.send(b"new")
    wait_until(lambda: not objects(three[0], "removal"))
    new = objects(three[0], "topic")[name]
    assert new["id"] > old_id
    consumer = client.subscribe(name, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert consumer.receive(timeout_millis=TIMEOUT_MS).data() == b"new"
    client.close()
    apply(three[2], header(name) + ABSENT)
    wait_until(lambda: not objects(three[0], "removal"))
    assert not directories_of(tmp_path, name)


def test_a_topic_that_is_dropped_and_defined_again_at_once_is_empty(
    three: list[Member], tmp_path: Path
) -> None:
    apply(three[0], "".join(map(header, TOPICS)))
    for node, name in zip(three, TOPICS, strict=True):
        node.run("topics", "produce", name, "old")
        old = objects(node, "topic")[name]
        apply(node, header(name) + ABSENT)
        apply(node, header(name))
        new = objects(node, "topic")[name]
        assert new["id"] > old["id"]
        for each in three:
            assert "old" not in each.run("topics", "tail", name)
        node.run("topics", "produce", name, "fresh")
    wait_until(lambda: not objects(three[0], "removal"))
    for name in TOPICS:
        assert "fresh" in three[0].run("topics", "tail", name)
        assert len(directories_of(tmp_path, name)) == 1


def test_stores_are_created_changed_and_dropped_by_their_owners(
    three: list[Member], tmp_path: Path
) -> None:
    apply(three[0], "".join(f"[stores.{name}]\n{SHAPE}" for name in STORES))
    owners = {name: row["owner"] for name, row in objects(three[0], "store").items()}
    assert set(owners.values()) == {"n1", "n2", "n3"}
    for store, owner in owners.items():
        url = f"{three[0].url}/blobs/{store}"
        put = httpx.post(url, content=b"cheese", follow_redirects=True, timeout=PROCESS_S_MAX)
        assert put.is_success, put.text
        for node in three:
            found = httpx.get(f"{node.url}/blobs/{store}/{put.json()['id']}", follow_redirects=True)
            assert found.content == b"cheese"
        assert [each.parts[-3] for each in tmp_path.glob(f"n*/blobs/{store}")] == [owner]
    apply(three[1], "".join(f"[stores.{name}.settings]\npolicy = 'stats'\n" for name in STORES))
    for store in STORES:
        shown = json.loads(three[2].run("blobs", "stats", store, "--json"))
        assert shown["settings"] == {"policy": "stats"}
    apply(three[2], "".join(f"[stores.{name}]\n{ABSENT}" for name in STORES))
    wait_until(lambda: not objects(three[0], "removal"))
    assert not list(tmp_path.glob("n*/blobs/s*"))
