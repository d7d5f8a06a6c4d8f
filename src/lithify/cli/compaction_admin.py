"""Where the commands on compaction work: at a node, over HTTP, or on a directory nobody serves.

Both ways give the same rows, those of `http/compaction.py`. A node has runs done by its worker; on
a directory this process opens a Spark session of its own, when it is first needed.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from lithify.cli.admin import Refused, RemoteNode, open_place, topic_path
from lithify.cli.spark_options import SparkOptions
from lithify.errors import OUTCOME_UNKNOWN, LithifyError, RunRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.compaction.control import RunControl
    from lithify.compaction.jobs import Jobs
    from lithify.pipeline.target import SparkTarget
    from lithify.topics.names import TopicName
    from lithify.topics.store import Topics
    from lithify.topics.topic import Topic

    Row = dict[str, Any]
    Watch = Callable[[Row], None]
    """Is told the status of each partition again and again."""

__all__ = [
    "CompactionAdmin",
    "RunForgotten",
    "known_requests",
    "nothing_runs",
    "open_compaction",
    "spark_jobs",
    "wait_query",
    "watched",
]

POLL_S = 0.2


class RunForgotten(LithifyError):
    """The node was started again while a run was waited for."""

    exit_code = OUTCOME_UNKNOWN


class CompactionAdmin(Protocol):
    """What can be done about compaction from afar; rows of each partition."""

    def run(self, name: TopicName, watch: Watch, *, waits: bool) -> list[Row]:
        """Compact and wait for the end; the status after it.

        A run that does not wait is refused while another one has the log or its disk.
        """

    def plan(self, name: TopicName, *, waits: bool) -> list[Row]:
        """What a run would do."""

    def status(self, name: TopicName) -> list[Row]:
        """How the last run went, or how far it is."""

    def cancel(self, name: TopicName) -> None:
        """Stop the run that is going on, and forget those that wait."""

    def history(self, name: TopicName, limit: int) -> list[Row]:
        """The reports of the last runs, newest first."""

    def get(self, name: TopicName, key: str) -> Row | None:
        """The newest message of a key."""


@contextmanager
def open_compaction(
    data: str | None, url: str | None, spark: SparkOptions | None = None
) -> Iterator[CompactionAdmin]:
    """What the options name."""
    with open_place(data, url, spark=spark) as place, ExitStack() as stack:
        if isinstance(place, RemoteNode):
            yield _Remote(place)
        else:
            yield _Local(place.topics, (spark or SparkOptions()).target(), stack)


class _Remote:
    def __init__(self, node: RemoteNode) -> None:
        self._node = node

    def run(self, name: TopicName, watch: Watch, *, waits: bool) -> list[Row]:
        path = f"{topic_path(name)}/compaction"
        with self._node.open("PUT", f"admin/v2/{path}{wait_query(waits=waits)}") as answer:
            request = answer.headers["x-lithify-request"]
        while True:
            with known_requests():
                rows: list[Row] = self._node.call("GET", f"{path}/progress?request={request}")
            for row in rows:
                watch(row)
            if all(row["status"] != "RUNNING" for row in rows):
                return rows
            time.sleep(POLL_S)

    def plan(self, name: TopicName, *, waits: bool) -> list[Row]:
        path = f"{topic_path(name)}/compaction/plan{wait_query(waits=waits)}"
        rows: list[Row] = self._node.call("POST", path, timeout_s=None)
        return rows

    def status(self, name: TopicName) -> list[Row]:
        rows: list[Row] = self._node.call("GET", f"{topic_path(name)}/compaction/progress")
        return rows

    def cancel(self, name: TopicName) -> None:
        self._node.call("DELETE", f"{topic_path(name)}/compaction")

    def history(self, name: TopicName, limit: int) -> list[Row]:
        path = f"{topic_path(name)}/compaction/history?limit={limit}"
        rows: list[Row] = self._node.call("GET", path)
        return rows

    def get(self, name: TopicName, key: str) -> Row | None:
        from urllib.parse import quote

        try:
            path = f"/topics/{topic_path(name)}/keys/{quote(key, safe='')}"
            row: Row = self._node.call("GET", path)
        except Refused as error:
            if "no message of key" in str(error):
                return None
            raise
        return row


class _Local:
    def __init__(self, topics: Topics, target: SparkTarget, stack: ExitStack) -> None:
        self._topics = topics
        self._target = target
        self._stack = stack

    def run(self, name: TopicName, watch: Watch, *, waits: bool) -> list[Row]:
        jobs = self._jobs()
        for topic in self._parts(name):
            row = {"topic": str(topic.name)}
            topic.service.compact("command", jobs, watched(row, watch, waits=waits))
        rows = self.status(name)
        for row in rows:
            watch(row)
        return rows

    def plan(self, name: TopicName, *, waits: bool) -> list[Row]:
        from lithify.topics.compaction_plan import plan_row

        jobs = self._jobs()
        return [plan_row(topic, jobs, waits=waits) for topic in self._parts(name)]

    def status(self, name: TopicName) -> list[Row]:
        return [
            {"topic": str(topic.name), **topic.compaction.status().row()}
            for topic in self._parts(name)
        ]

    def cancel(self, name: TopicName) -> None:
        raise nothing_runs(str(name))

    def history(self, name: TopicName, limit: int) -> list[Row]:
        from lithify.compaction.record import report_row

        rows = [
            {"topic": str(topic.name), **report_row(report)}
            for topic in self._parts(name)
            for report in topic.compaction.history.newest(limit)
        ]
        return sorted(rows, key=lambda row: -int(row["started_ms"]))[:limit]

    def get(self, name: TopicName, key: str) -> Row | None:
        from lithify.topics.tail import row_of

        found = [
            message
            for message in (topic.get(key) for topic in self._parts(name))
            if message is not None
        ]
        return row_of(max(found, key=lambda each: each.publish_time_ms)) if found else None

    def _parts(self, name: TopicName) -> list[Topic]:
        count = self._topics.partitions(name)
        parts = [name.partition_name(number) for number in range(count)] if count else [name]
        return [self._topics.get(part) for part in parts]

    def _jobs(self) -> Jobs:
        from lithify.topics.compaction import TOPIC_TASKS

        return spark_jobs(self._target, TOPIC_TASKS, self._stack)


def spark_jobs(target: SparkTarget, tasks: Sequence[str], stack: ExitStack) -> Jobs:
    """Jobs on a Spark of this process's own, which ends with the stack."""
    from lithify.pipeline.jobs import SparkJobs
    from lithify.pipeline.session import open_session

    session = open_session(target, preload=tasks)
    stack.callback(session.stop)
    return SparkJobs(session)


def nothing_runs(name: str) -> RunRefused:
    """What a cancel is told in a directory that no node serves."""
    return RunRefused("run", f"no node serves this directory, so no run on {name} is going on")


@contextmanager
def known_requests() -> Iterator[None]:
    """A node that does not know a request any more was started again since."""
    try:
        yield
    except Refused as error:
        if "nothing is known of request" in str(error):
            raise RunForgotten(f"{error}; compaction-history lists the runs that ended") from error
        raise


def wait_query(*, waits: bool) -> str:
    """What a node is asked with by one who does not want to wait."""
    return "" if waits else "?wait=false"


def watched(row: Row, watch: Watch, *, waits: bool) -> RunControl:
    """The control of a run in this process, whose status is told to `watch` at each step."""
    from lithify.compaction.control import RunControl

    def tell(phase: str, done: int, total: int) -> None:
        how_far = {"status": "RUNNING", "phase": phase, "done": done, "total": total}
        watch({**row, **how_far, "waitsFor": control.waits_for})

    control = RunControl(tell, waits=waits)
    return control
