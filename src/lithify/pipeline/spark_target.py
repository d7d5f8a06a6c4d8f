"""The Spark to use: its master, further settings, an environment to ship.

    SparkTarget("spark://h1:7077", conf=("spark.executor.memory=4g",), archives="env.tar.gz#env")

`local`, `local[N]`, `local[N,F]` run on this machine, with N threads (`*`: one per core) and F
attempts per task. The supported clusters are `spark://HOST:PORT[,HOST:PORT…]`,
`k8s://[https://]HOST[:PORT]`, `yarn` and `local-cluster[W,C,M]`. Anything else is refused before a
JVM is started.

The address is tried before Spark starts: Spark itself tries for a minute, and does not say why it
failed. Pure except for `reach_master`; starts nothing and needs no Spark.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from lithify.errors import InvalidSetting, SparkUnreachable

__all__ = ["LOCAL_MASTER", "SparkTarget", "is_local", "reach_master"]

LOCAL_MASTER = "local[*,4]"
"""Four attempts per task; plain `local[*]` fails a job at its first failed task."""

CONNECT_S_MAX = 3.0
"""Per address; a connection within a data centre takes milliseconds."""

_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?"
    r"|spark://[^/:,\s]+:\d+(,[^/:,\s]+:\d+)*"
    r"|k8s://\S+"
    r"|yarn"
    r"|local-cluster\[\d+,\d+,\d+\]"
)
_KNOWN = "local, local[N], local[N,ATTEMPTS], spark://HOST:PORT, k8s://URL or yarn"
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """Checked when it is created; `InvalidSetting` names the setting as `{prefix}master` and so on.

    `archives` has the format of Spark's `spark.archives`: files separated by commas, each unpacked
    in the working directory of every executor under the name after `#`. Unless another setting
    names the executors' Python, it is `bin/python` of the first one.
    """

    master: str = LOCAL_MASTER
    conf: tuple[str, ...] = ()
    archives: str = ""
    prefix: str = ""

    def __post_init__(self) -> None:
        if not _MASTER.fullmatch(self.master):
            raise InvalidSetting(f"{self.prefix}master", self.master, _KNOWN)
        for each in self.conf:
            if not re.fullmatch(r"[^=\s]+=.*", each, re.DOTALL):
                raise InvalidSetting(f"{self.prefix}conf", each, "KEY=VALUE")

    def settings(self) -> dict[str, str]:
        """The Spark settings that were given."""
        given = dict(each.split("=", 1) for each in self.conf)
        return given | ({"spark.archives": self.archives} if self.archives else {})

    def python(self) -> str | None:
        """The executors' Python, if it is given."""
        named = self.settings().get("spark.pyspark.python")
        if named or not self.archives:
            return named
        file, _, name = self.archives.split(",")[0].partition("#")
        return f"./{name or file.rpartition('/')[2]}/bin/python"


def is_local(master: str) -> bool:
    """Whether tasks run on this machine, as this user."""
    return re.match(r"local(\[|$)", master) is not None


def reach_master(master: str) -> None:
    """Raise `SparkUnreachable` unless the address of a master accepts connections."""
    reasons = []
    for host, port in _addresses(master):
        try:
            with socket.create_connection((host, port), CONNECT_S_MAX):
                return
        except OSError as error:
            reasons.append(error.strerror or str(error))
    if reasons:
        raise SparkUnreachable(master, "; ".join(dict.fromkeys(reasons)))


def _addresses(master: str) -> list[tuple[str, int]]:
    if master.startswith("spark://"):
        pairs = (each.rpartition(":") for each in master.removeprefix("spark://").split(","))
        return [(host, int(port)) for host, _, port in pairs]
    if master.startswith("k8s://"):
        url = master.removeprefix("k8s://")
        parts = urlsplit(url if "://" in url else f"https://{url}")
        return [(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443))]
    return []
