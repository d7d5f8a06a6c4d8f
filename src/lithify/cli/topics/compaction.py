"""`lithify topics`, the verbs of compaction: compact, compaction-status, -history, cancel."""

from __future__ import annotations

from typing import Any

from lithify.cli.client import open_client
from lithify.cli.options import (
    RUNS_SHOWN,
    Archives,
    AsJson,
    Conf,
    Data,
    DryRun,
    Limit,
    Master,
    NoWait,
    SparkOptions,
    Topic,
    Url,
    Watch,
)
from lithify.cli.output import print_result
from lithify.cli.run_progress import TOPICS, run_continues
from lithify.cli.topics.manage import topic_path

__all__ = ["cancel_compaction", "compact", "compaction_history", "compaction_status"]


def _path(topic: str) -> str:
    from lithify.topics.definitions.topic_names import TopicName

    return f"/admin/v2/{topic_path(TopicName.parse(topic))}/compaction"


def compact(
    topic: Topic,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    master: Master = None,
    conf: Conf = None,
    archives: Archives = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compact a topic: keep the newest message of each key. Waits for the run."""
    path = _path(topic)
    query = "?wait=false" if no_wait else ""
    with open_client(data, url, spark=SparkOptions(master, conf, archives)) as client:
        client.start_spark(f"{path}/progress")
        if dry_run:
            rows = client.call("POST", f"{path}/plan{query}", timeout_s=None)
            TOPICS.print_plans(rows, as_json=as_json)
            return
        with run_continues("topics", topic, data):
            with client.open("PUT", path + query) as answer:
                request = answer.headers.get("x-lithify-request", "")
            rows = TOPICS.wait(lambda: client.call("GET", f"{path}/progress?request={request}"))
    TOPICS.print_statuses(rows, as_json=as_json)


def compaction_status(
    topic: Topic,
    watch: Watch = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of the last run on a topic, or the progress of the current one."""
    path = f"{_path(topic)}/progress"
    with open_client(data, url) as client:

        def read() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = client.call("GET", path)
            return rows

        rows = TOPICS.wait(read) if watch else read()
    TOPICS.print_statuses(rows, as_json=as_json)


def cancel_compaction(
    topic: Topic, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Cancel the run on a topic and the requests that wait; the topic stays as it was."""
    from lithify.topics.definitions.topic_names import TopicName

    name = TopicName.parse(topic)
    with open_client(data, url) as client:
        client.call("DELETE", _path(topic))
    print_result({"topic": str(name)}, f"the run on {name} is being cancelled", as_json=as_json)


def compaction_history(
    topic: Topic,
    limit: Limit = RUNS_SHOWN,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the last runs on a topic, newest first."""
    from lithify.topics.definitions.topic_names import TopicName

    name = TopicName.parse(topic)
    with open_client(data, url) as client:
        rows = client.call("GET", f"{_path(topic)}/history?limit={limit}")
    TOPICS.print_history(f"Runs on {name}", rows, as_json=as_json)
