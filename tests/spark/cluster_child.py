"""A process with a session of its own on a cluster, an executor of which it kills.

python -m tests.spark.cluster_child DIRECTORY MASTER
"""

from __future__ import annotations

import sys
from pathlib import Path

from lithify.pipeline.jobs import SparkJobs
from lithify.pipeline.session import open_session
from tests.spark.dying import DyingRewriting
from tests.spark.test_topic_compaction import grow, topic

__all__ = ["main"]


def main(directory: Path, master: str) -> None:
    """Compact; kill an executor in the middle of a rewrite; compact on."""
    session = open_session(master)
    try:
        jobs = SparkJobs(session, small_weight=0)
        life = topic(directory, jobs, 5)
        grow(life, 1)
        marker = directory / "died"
        dying = DyingRewriting(life.log.manifest.log_id, str(marker), executor=True)
        life.compaction._compactor._rewriting = dying
        grow(life, 2)
        assert marker.exists()
        assert not life.strays()
        print("killed, and nothing is left over")
    finally:
        session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
