"""A process with a session of its own on a cluster.

python -m tests.spark.cluster_child kill MASTER WORKERS
python -m tests.spark.cluster_child compact MASTER WORKERS DIRECTORY [ARCHIVES]

`kill` kills an executor. `compact` compacts a topic in a data directory by jobs of Spark, and
prints what goes wrong with it, how far it came, and whether it works later, without Spark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lithify
from lithify.errors import LithifyError
from lithify.pipeline import session as session_module
from lithify.pipeline.jobs import SparkJobs
from lithify.pipeline.session import open_session
from lithify.pipeline.spark_target import SparkTarget
from lithify.topics.compaction.topic_compaction import TOPIC_TASKS
from tests.patience import PROCESS_S_MAX, wait_until
from tests.spark.dying import DyingRewriting
from tests.spark.test_topic_compaction import grow, topic

__all__ = ["compact", "kill"]

ORDERS = "persistent://public/default/orders"


def kill(master: str, _: str) -> None:
    """Compact; kill an executor in the middle of a rewrite; compact on."""
    directory = Path.cwd()
    session = open_session(master)
    try:
        jobs = SparkJobs(session, small_weight=0)
        life = topic(directory, jobs, 5)
        grow(life, 1)
        marker = directory / "died"
        dying = DyingRewriting(life.log.manifest.log_id, str(marker), executor=True)
        targets = life.compaction._compactor._targets
        targets._rewriting = dying  # type: ignore[attr-defined]
        grow(life, 2)
        assert marker.exists()
        assert not life.strays()
        print("killed, and nothing is left over")
    finally:
        session.stop()


def compact(master: str, workers: str, data: str, archives: str = "") -> None:
    """Compact by jobs of Spark; the directory is relative."""
    session = open_session(
        SparkTarget(master, ("spark.executor.memory=640m",), archives), preload=TOPIC_TASKS
    )
    with lithify.open(data, durability="none") as node:
        orders = node.topics.get(ORDERS, create=True)
        for number in range(2000):
            orders.append(key=f"k{number % 100}", value=b"x" * 100)
        orders.log.roll()
        # The executors of a cluster come after the session.
        jobs = SparkJobs(session, small_weight=0)
        wait_until(lambda: jobs._executors() == int(workers))
        phases: dict[str, None] = {}
        try:
            orders.compaction.run("test", jobs, lambda phase, *_: phases.setdefault(phase))
        except LithifyError as error:
            print(f"{type(error).__name__}: {error}")
            print(*phases)
        else:
            memory = str(session.conf.get("spark.executor.memory")).replace("m", " MiB")
            print(f"done in {os.environ['PYSPARK_PYTHON']}, with {memory}")
            return
        finally:
            session.stop()
    with lithify.open(data) as node:
        assert node.topics.get(ORDERS).compact().result == "done"
        assert len(list(node.topics.get(ORDERS).read(compacted=True))) == 100
    print("opens, and is compacted later")


if __name__ == "__main__":
    # On a busy machine several JVMs that start together take longer than a master needs.
    session_module.REGISTER_S_MAX = PROCESS_S_MAX
    story = kill if sys.argv[1] == "kill" else compact
    story(*sys.argv[2:])
