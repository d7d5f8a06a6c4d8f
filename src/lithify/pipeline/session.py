"""Opens the Spark session of the pipeline's jobs.

`open_session` does, in this order:

1. return the session of this process, if there is one;
2. try the address of the master (`spark_target.py`);
3. find a Java (`java.py`) and set `JAVA_HOME`;
4. set `PYSPARK_PYTHON` to the Python of the workers: this one, so that tasks find the same
   packages. On a cluster it is that of the shipped environment; otherwise an existing value is
   kept, because paths differ there;
5. start the JVM with the settings below and those of the target, which take precedence. It is
   killed if a standalone master has not answered within `REGISTER_S_MAX`. An error is one line,
   with the settings of the target that may be the cause; Java's own output is its detail
   (`jvm_stderr.py`).

| setting | value | why |
|---|---|---|
| `local[*,4]` | four attempts per task | plain `local[*]` fails a job at its first failed task |
| `spark.ui.enabled` | false | saves a second at start and a listening port |
| `spark.python.unix.domain.socket.enabled` | true | a task costs about half as much to start |
| `spark.python.daemon.module` | `python_daemon.py` | workers start with the tasks' code loaded |
| `spark.driver.host`, `.bindAddress` | loopback, local masters only | no other host may connect |
| `spark.ui.showConsoleProgress` | false | bars would mix with the output of commands |
| `-XX:TieredStopAtLevel=1` | unless `queries` | the JVM spent half of its time compiling itself |
| umask of the JVM | 077 | its sockets are in the temporary directory |
| log level | error | see `log4j2.properties` |

The JVM and its child processes create files, and sockets without passwords, for this user only.

Invariant: the process's environment changes by `JAVA_HOME` and `PYSPARK_PYTHON` and nothing else. A
process has one session; commands open it when they need it and a node keeps it. With Unix sockets
an idle worker may print a `BrokenPipeError` while the session stops: it tried to answer a driver
that no longer listens. No job is affected.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lithify.compiled import KERNEL_CACHE, cache_to_offer
from lithify.errors import SparkNotStarted, SparkUnreachable
from lithify.pipeline.java import find_java
from lithify.pipeline.jvm_stderr import JavaErrors, java_reason
from lithify.pipeline.python_daemon import PRELOAD
from lithify.pipeline.spark_target import LOCAL_MASTER, SparkTarget, is_local, reach_master

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["open_session"]

_LOOPBACK = "127.0.0.1"

REGISTER_S_MAX = 30.0
"""A master registers an application within a second, if its machine is not busy."""
POLL_S = 0.1


def open_session(
    target: SparkTarget | str = LOCAL_MASTER,
    *,
    app_name: str = "lithify",
    memory: str = "1g",
    preload: Sequence[str] = (),
    queries: bool = False,
) -> SparkSession:
    """The Spark session of this process; `memory` is the JVM's heap, payload never enters it.

    `preload` names modules that every Python worker imports at its start. `queries`: Spark SQL will
    do much of the work.

    The caller calls `stop()` on it. An existing session is returned with its own settings. Raises
    `SparkUnreachable` or `SparkNotStarted`.
    """
    if isinstance(target, str):
        target = SparkTarget(target)
    existing = SparkSession.getActiveSession()
    if existing is not None:
        return existing
    reach_master(target.master)
    here = is_local(target.master)
    os.environ["JAVA_HOME"] = find_java(os.environ).path
    if here or "PYSPARK_PYTHON" not in os.environ or target.python():
        os.environ["PYSPARK_PYTHON"] = target.python() or sys.executable
    builder = SparkSession.builder.master(target.master).appName(app_name)
    settings = _settings(memory, preload, is_local=here, queries=queries) | target.settings()
    for name, value in settings.items():
        builder = builder.config(name, value)
    return _start(builder, target, settings | {"spark.master": target.master})


def _start(
    builder: SparkSession.Builder, target: SparkTarget, settings: dict[str, str]
) -> SparkSession:
    """Step 5."""
    master = target.master
    started, gave_up = threading.Event(), threading.Event()
    if master.startswith("spark://"):
        threading.Thread(target=_give_up, args=(started, gave_up), daemon=True).start()
    before = os.umask(0o077)
    java = JavaErrors()
    try:
        _start_java(settings, java)
        session = builder.getOrCreate()
    except Exception as error:
        if gave_up.is_set():
            reason = f"it has not registered the application for {REGISTER_S_MAX:.0f} s"
            raise SparkUnreachable(master, reason) from error
        lines = java.kept()
        reason = _reason(error, lines)
        options = _options(target, [*lines, reason])
        raise SparkNotStarted(master, reason, options, "\n".join(lines)) from error
    finally:
        started.set()
        os.umask(before)
    java.pass_on()
    return session


def _start_java(settings: dict[str, str], java: JavaErrors) -> None:
    """Start the JVM, unless this process has one from an earlier session."""
    if SparkContext._gateway is None:  # noqa: SLF001  (it has no public equivalent)
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(settings.items()))
        with java.writing() as descriptor:
            gateway = launch_gateway(conf, {"stderr": descriptor})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def _give_up(started: threading.Event, gave_up: threading.Event) -> None:
    """Kill the JVM if the master has not registered this application in time; that ends the wait.

    The names below have no public equivalents. A context has its `_jsc` once it is registered.
    """
    waited_s = 0.0
    while not started.wait(POLL_S):
        if getattr(SparkContext._active_spark_context, "_jsc", None) is not None:  # noqa: SLF001
            return
        gateway: Any = SparkContext._gateway  # noqa: SLF001
        waited_s += POLL_S if gateway is not None else 0
        if waited_s >= REGISTER_S_MAX:
            gave_up.set()
            gateway.proc.kill()
            # The next session of this process needs a new one.
            SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
            return


def _reason(error: Exception, lines: list[str]) -> str:
    """The message of Java or Spark, in one line."""
    java: Any = getattr(error, "java_exception", None)
    if java is None and lines:
        return java_reason(lines)
    text = str(error if java is None else java.getMessage())
    if java is not None and " " not in text:
        # The name of a class without a message.
        text = str(java.toString())
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def _options(target: SparkTarget, lines: list[str]) -> str:
    """The settings that a failure mentions; if none, all given ones."""
    given = dict(each.split("=", 1) for each in target.conf)
    text = "\n".join(lines)
    named = [key for key, value in given.items() if key in text or (value and value in text)]
    option = f"{target.prefix}conf"
    return ", ".join(f"{option} {key}" for key in named or given)


def _settings(
    memory: str, preload: Sequence[str], *, is_local: bool, queries: bool
) -> dict[str, str]:
    """The settings of the module's table."""
    options = f'-Dlog4j2.configurationFile="{os.path.dirname(__file__)}/log4j2.properties"'
    if not queries:
        options += " -XX:TieredStopAtLevel=1"
    settings = {
        "spark.driver.memory": memory,
        # The user's own options are in spark.driver.extraJavaOptions and come after these.
        "spark.driver.defaultJavaOptions": options,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "lithify.pipeline.python_daemon",
        f"spark.executorEnv.{PRELOAD}": ",".join(preload),
        f"spark.executorEnv.{KERNEL_CACHE}": cache_to_offer(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local:
        settings |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
    return settings
