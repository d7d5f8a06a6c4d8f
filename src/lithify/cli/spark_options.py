"""The options of commands that start a Spark of their own, on a data directory.

    --master M        the Spark master; local[*,4] by default
    --conf KEY=VALUE  a setting of Spark, any number of times
    --archives FILES  an environment for the executors of a cluster, as `spark.archives`

A node has settings of the same meaning: `compaction_master`, `compaction_conf` and
`compaction_archives`. What they may be is in `pipeline/target.py`.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lithify.pipeline.target import SparkTarget

__all__ = ["Archives", "Conf", "Master", "SparkOptions"]

Master = Annotated[
    str | None,
    typer.Option(metavar="M", help="With --data: the Spark master; local[*,4] by default."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="With --data: a setting of Spark."),
]
Archives = Annotated[
    str | None,
    typer.Option(metavar="FILES", help="With --data: an environment to ship to executors."),
]


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """As they were given."""

    master: str | None = None
    conf: list[str] | None = None
    archives: str | None = None

    @property
    def first_given(self) -> str | None:
        """The name of one that was given."""
        for name in ("master", "conf", "archives"):
            if getattr(self, name) is not None:
                return f"--{name}"
        return None

    def target(self) -> SparkTarget:
        """What they name."""
        from lithify.pipeline.target import LOCAL_MASTER, SparkTarget

        return SparkTarget(
            self.master if self.master is not None else LOCAL_MASTER,
            tuple(self.conf or ()),
            self.archives or "",
            prefix="--",
        )
