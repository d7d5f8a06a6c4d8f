"""Opens the Spark session that every job of the pipeline runs in.

`open_session` does, in this order:

1. finds a Java (`java.py`) and names it to Spark by `JAVA_HOME`;
2. names the Python of the workers by `PYSPARK_PYTHON`: this one, so that tasks find the same
   packages. On a cluster a value that is already set stays, because paths differ there;
3. starts the JVM with the settings below, or takes the session this process already has.

| setting | value | why |
|---|---|---|
| `local[*,4]` | four attempts a task | plain `local[*]` fails a job at its first failed task |
| `spark.ui.enabled` | false | saves a second at start and a listening port |
| `spark.python.unix.domain.socket.enabled` | true | a task costs about half as much to start |
| `spark.python.daemon.module` | `daemon.py` | workers begin with the code of the tasks loaded |
| `spark.driver.host`, `.bindAddress` | loopback, local masters only | nobody outside may connect |
| `spark.ui.showConsoleProgress` | false | bars would mix with the output of commands |
| `-XX:TieredStopAtLevel=1` | unless `queries` | the JVM spent half of its time compiling itself |
| log level | error | see `log4j2.properties` |

Invariant: the process's environment changes by `JAVA_HOME` and `PYSPARK_PYTHON` and nothing else.
A process has one session; commands open it when they need it and a node keeps it. With Unix
sockets an idle worker that is told to end may print a `BrokenPipeError` while the session stops:
it wanted to answer a driver that no longer listens. No job is affected.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lithify.compiled import KERNEL_CACHE, cache_to_offer
from lithify.pipeline.daemon import PRELOAD
from lithify.pipeline.java import find_java

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["open_session"]

_LOOPBACK = "127.0.0.1"


def open_session(
    master: str = "local[*,4]",
    *,
    app_name: str = "lithify",
    memory: str = "1g",
    preload: Sequence[str] = (),
    queries: bool = False,
) -> SparkSession:
    """The Spark session of this process; `memory` is the JVM's heap, payload never enters it.

    `preload` names modules that every Python worker begins with. `queries` says that Spark's own
    engine will have much to compute.

    The caller calls `stop()` on it. A session that already exists is returned with the settings
    it has.
    """
    existing = SparkSession.getActiveSession()
    if existing is not None:
        return existing
    is_local = master.startswith("local")
    os.environ["JAVA_HOME"] = find_java(os.environ).path
    if is_local or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName(app_name)
    settings = _settings(memory, preload, is_local=is_local, queries=queries)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _settings(
    memory: str, preload: Sequence[str], *, is_local: bool, queries: bool
) -> dict[str, str]:
    """The settings of the module's table."""
    options = f'-Dlog4j2.configurationFile="{os.path.dirname(__file__)}/log4j2.properties"'
    if not queries:
        options += " -XX:TieredStopAtLevel=1"
    settings = {
        "spark.driver.memory": memory,
        # The user's own options go into spark.driver.extraJavaOptions and come after these.
        "spark.driver.defaultJavaOptions": options,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "lithify.pipeline.daemon",
        f"spark.executorEnv.{PRELOAD}": ",".join(preload),
        f"spark.executorEnv.{KERNEL_CACHE}": cache_to_offer(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local:
        settings |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
    return settings
