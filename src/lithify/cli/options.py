"""The options and arguments that several verbs share, each defined once.

Those of one verb are in its module, those of `lithify raft` in `raft/options.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lithify.pipeline.spark_target import SparkTarget

__all__ = [
    "NAMESPACE",
    "RUNS_SHOWN",
    "All",
    "Archives",
    "AsJson",
    "Conf",
    "ConfigFile",
    "Data",
    "DataAlone",
    "DryRun",
    "Limit",
    "Master",
    "Missing",
    "NoWait",
    "Settings",
    "SparkOptions",
    "Store",
    "StoreNamespace",
    "Topic",
    "Unclaimed",
    "Url",
    "Watch",
    "Yes",
]

NAMESPACE = "public/default"
RUNS_SHOWN = 10

# --- where -------------------------------------------------------------------------------------

Data = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="A data directory that no node serves."),
]
DataAlone = Annotated[
    str, typer.Option("--data", metavar="DIR", help="A data directory that no node serves.")
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="HTTP address of the node; default: LITHIFY_URL, then http://127.0.0.1:8080.",
    ),
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Settings file, in TOML.")
]

# --- what --------------------------------------------------------------------------------------

Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="persistent://TENANT/NAMESPACE/NAME, or NAME in public/default."
    ),
]
Store = Annotated[str, typer.Argument(metavar="STORE", help="Name of the blob store.")]
StoreNamespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        metavar="TENANT/NAMESPACE",
        help="Namespace of the store; its permissions apply.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting, such as policy=stats; repeatable."
    ),
]
Unclaimed = Annotated[
    bool,
    typer.Option(
        "--unclaimed", help="List directories without a definition instead, of all namespaces."
    ),
]
Missing = Annotated[
    bool,
    typer.Option("--missing", help="List those whose files are gone instead, of all namespaces."),
]
All = Annotated[bool, typer.Option("--all", help="Adopt everything that is unclaimed.")]

# --- how ---------------------------------------------------------------------------------------

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

# --- runs of compaction ------------------------------------------------------------------------

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what a run would do; change nothing.")
]
NoWait = Annotated[
    bool,
    typer.Option("--no-wait", help="Exit with code 4 if another run has the log or its disk."),
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show progress until the run has ended.")
]
Limit = Annotated[int, typer.Option(metavar="N", min=0, max=1000, help="Number of runs to list.")]
Master = Annotated[
    str | None,
    typer.Option(metavar="M", help="With --data: the Spark master; default: local[*,4]."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="With --data: a setting of Spark; repeatable."
    ),
]
Archives = Annotated[
    str | None,
    typer.Option(metavar="FILES", help="With --data: a Python environment for the executors."),
]


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The unparsed values of --master, --conf and --archives.

    A node has the settings `compaction_master`, `compaction_conf` and `compaction_archives`
    instead. Valid values are described in `pipeline/spark_target.py`.
    """

    master: str | None = None
    conf: list[str] | None = None
    archives: str | None = None

    @property
    def first_given(self) -> str | None:
        """The first option with a value."""
        for name in ("master", "conf", "archives"):
            if getattr(self, name) is not None:
                return f"--{name}"
        return None

    def target(self) -> SparkTarget:
        """The checked values; raises `InvalidSetting`."""
        from lithify.pipeline.spark_target import LOCAL_MASTER, SparkTarget

        return SparkTarget(
            self.master if self.master is not None else LOCAL_MASTER,
            tuple(self.conf or ()),
            self.archives or "",
            prefix="--",
        )
