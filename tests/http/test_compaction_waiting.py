"""Requests for runs and dry runs that wait, or are refused, and whom they leave alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.hooked_jobs import Halted
from tests.http.compacting import AT, fill, finished
from tests.http.node import ORDERS, HttpNode
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def node() -> Iterator[HttpNode]:
    with HttpNode() as node:
        yield node


def test_the_partitions_of_a_topic_do_not_refuse_each_other(node: HttpNode) -> None:
    node.do("PUT", f"{AT}/partitions", 3)
    for number in range(3):
        fill(node.topics.get(f"{ORDERS}-partition-{number}"), 50, 5)
    jobs = node.topics.compactions.queue.jobs = Halted()
    node.do("PUT", f"{AT}/compaction?wait=false")
    assert jobs.begun.wait(PROCESS_S_MAX)
    assert "is in progress" in node.refused(409, "PUT", f"{AT}/compaction?wait=false")
    jobs.go_on.set()
    for number in range(3):
        assert finished(node, f"{AT}-partition-{number}")["status"] == "SUCCESS"


def test_a_partition_that_is_compacted_refuses_the_request_for_all(node: HttpNode) -> None:
    node.do("PUT", f"{AT}/partitions", 3)
    for number in range(3):
        fill(node.topics.get(f"{ORDERS}-partition-{number}"), 50, 5)
    jobs = node.topics.compactions.queue.jobs = Halted()
    node.do("PUT", f"{AT}-partition-2/compaction")
    assert jobs.begun.wait(PROCESS_S_MAX)
    node.refused(409, "PUT", f"{AT}/compaction?wait=false")
    jobs.go_on.set()
    assert finished(node, f"{AT}-partition-2")["status"] == "SUCCESS"
    assert [node.get(f"{AT}-partition-{n}/compaction")["status"] for n in (0, 1)] == ["NOT_RUN"] * 2


def test_dry_runs_that_wait_leave_the_threads_to_others(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)

    async def story() -> list[int]:
        plan = f"/admin/v2{AT}/compaction/plan"
        with topic.compaction.runs.turn():  # As a dry run has it that takes long.
            # More than the loop has threads.
            plans = [asyncio.create_task(node.asks("POST", plan)) for _ in range(40)]
            status = node.asks("GET", f"/admin/v2{AT}/compaction")
            answer = await asyncio.wait_for(status, PROCESS_S_MAX)
        assert answer.json()["status"] == "NOT_RUN"
        return [answer.status_code for answer in await asyncio.gather(*plans)]

    assert node.loop.run_until_complete(story()) == [200] * 40
