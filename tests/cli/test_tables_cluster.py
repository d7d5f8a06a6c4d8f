"""`lithify tables` at three real nodes: each takes every command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lithify.exit_codes import NOT_FOUND
from tests.cli.cluster_members import members, start_all

if TYPE_CHECKING:
    from pathlib import Path


def test_a_transaction_is_used_and_committed_through_other_nodes(tmp_path: Path) -> None:
    with members(tmp_path, 3, tick_ms=50) as nodes:
        start_all(nodes)
        one, two, three = nodes
        one.run("tables", "create", "t", "--column", "id:int32", "--key", "id")
        transaction = one.run("tables", "tx", "begin").strip()
        assert transaction.startswith("n1.")
        two.run("tables", "put", "t", "id=5", "--tx", transaction)
        assert json.loads(three.run("tables", "get", "t", "id=5", "--tx", transaction, "--json"))
        assert three.try_run("tables", "get", "t", "id=5")[0] == NOT_FOUND
        assert three.run("tables", "tx", "commit", transaction) == "committed\n"
        for node in nodes:
            assert json.loads(node.run("tables", "scan", "t", "--json")) == {"id": 5}
