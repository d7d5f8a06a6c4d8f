"""Replicas of blob stores from the command line."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from tests.cli.nodes import served
from tests.cli.test_blobs import as_json, blobs, create, refused
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = PROCESS_S_MAX
ABSENT = "http://127.0.0.1:1/blobs/photos"


def test_replicas_at_nodes_are_set_and_shown(tmp_path: Path) -> None:
    with (
        served(tmp_path / "a") as a,
        served(tmp_path / "b", LITHIFY_BLOB_PEERS=f"a={a.http}") as b,
    ):
        for node in (a, b):
            create(("--url", node.http))
        (tmp_path / "cat").write_bytes(os.urandom(1000))
        blobs("put", "photos", str(tmp_path / "cat"), "--url", a.http)
        url = f"{a.http}/blobs/photos"
        at = ("photos", "--url", b.http)
        [row] = as_json("replicas", *at, "--set", "a")
        assert row["url"] == url
        deadline_s = time.monotonic() + PATIENCE_S
        while row["state"] != "caught up":
            # Another process does it: it is asked until it has.
            assert time.monotonic() < deadline_s, row
            [row] = as_json("replicas", *at)
        assert (row["behind"], row["blobs"], row["content_bytes"]) == (0, 1, 1000)
        shown = blobs("replicas", *at)
        assert shown.startswith("Replicas of photos\n")
        assert "caught up" in shown
        assert f"blob_peers of the node names: a ({a.http})" in refused(
            "replicas", *at, "--set", ABSENT
        )
        assert len(as_json("replicas", *at)) == 1


def test_replicas_of_a_directory_are_set_for_the_node_that_will_serve_it(tmp_path: Path) -> None:
    at = ("--data", str(tmp_path))
    create(at)
    assert blobs("replicas", "photos", *at).splitlines()[0] == "Replicas of photos"
    other = "http://127.0.0.1:2/blobs/photos"
    rows = as_json("replicas", "photos", "--set", ABSENT, "--set", other, *at)
    assert [(row["url"], row["state"]) for row in rows] == [(ABSENT, "new"), (other, "new")]
    with served(tmp_path, LITHIFY_BLOB_PEERS="absent=http://127.0.0.1:1") as node:
        [row, _] = as_json("replicas", "photos", "--url", node.http)
        deadline_s = time.monotonic() + PATIENCE_S
        while not row["errors"]:
            assert time.monotonic() < deadline_s, row
            [row, _] = as_json("replicas", "photos", "--url", node.http)
        assert f"replica {ABSENT} cannot be asked" in blobs(
            "replicas", "photos", "--url", node.http
        )
        [_, row] = as_json("replicas", "photos", "--url", node.http)
        assert (row["url"], row["state"]) == (other, "inactive")
        assert "no peer in the setting blob_peers" in row["error"]
        assert "replica is inactive" in node.logged()
    assert as_json("replicas", "photos", "--set", "", *at) == []
