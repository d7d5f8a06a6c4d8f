"""The settings of a node as a member of a cluster. Checked when created. Pure.

Without `cluster_port` a node is a cluster of one: it opens no port for other nodes. Otherwise the
nodes and clients of the cluster port must show that they belong to it: by certificates of one
authority, by the cluster secret, or by both. Without either, the port is for this machine only and
the node may require neither tokens nor TLS of its own clients, unless `allow_open` is set: else the
cluster port would be a way around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.catalog_compaction.runner import CatalogTrimming
from lithify.errors import InvalidInput, InvalidSetting
from lithify.node.security import is_loopback
from lithify.raft.core.configuration import check_name
from lithify.raft.net.client_operations import parse_address
from lithify.settings import check_range

if TYPE_CHECKING:
    from lithify.node.security import SecuritySettings

__all__ = ["ClusterSettings", "check_cluster"]

_TRIMMING = CatalogTrimming()
VOTERS_MAX = 5
"""The number of nodes of a new cluster, all of which vote; nodes that join may be learners."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """See the module; every value is checked when the object is created."""

    node: str = ""
    """The name of the node; empty: see `raft_settings.py`."""
    cluster: str = "lithify"
    """The name of the cluster: nodes of other clusters are refused."""
    cluster_host: str = "127.0.0.1"
    cluster_port: int | None = None
    peers: tuple[str, ...] = ()
    """The other nodes of a new cluster, each as NAME=HOST:PORT.

    This node may be among them, with its port, so that all nodes have the same list.
    """
    join: bool = False
    """Start no cluster: wait until the node is added to one."""
    cluster_secret_file: str = ""
    cluster_authority_file: str = ""
    """The authority of the certificates of all nodes; the own one is `tls_certificate_file`."""
    tick_ms: int = 100
    """The unit of all timeouts of Raft."""

    catalog_versions_min: int = _TRIMMING.versions_min
    catalog_age_ms: int = _TRIMMING.age_ms
    catalog_away_ms: int | None = _TRIMMING.away_ms
    """See `CatalogTrimming` for these three."""

    @property
    def trimming(self) -> CatalogTrimming:
        """The settings of catalog compaction."""
        return CatalogTrimming(self.catalog_versions_min, self.catalog_age_ms, self.catalog_away_ms)

    def __post_init__(self) -> None:
        _ = self.trimming  # Its constructor checks it.
        for name in ("cluster", "cluster_host"):
            if not getattr(self, name):
                raise InvalidSetting(name, "", "named")
        if self.node:
            _checked("node", self.node, self.node)
        check_range("tick_ms", self.tick_ms, 1, 60_000)
        if self.cluster_port is None:
            if self.peers or self.join:
                raise InvalidSetting("cluster_port", None, "given with peers or join")
            return
        check_range("cluster_port", self.cluster_port, 0, 65_535)
        peers = self.addresses
        if peers and not self.node:
            raise InvalidSetting("node", "", "named, because it has peers, which name it too")
        if len(peers) >= VOTERS_MAX and not self.join:
            limit = f"at most {VOTERS_MAX - 1} other nodes; start further ones with join"
            raise InvalidSetting("peers", len(peers), limit)

    @property
    def addresses(self) -> dict[str, str]:
        """The other nodes by name."""
        found: dict[str, str] = {}
        for text in self.peers:
            name, equals, address = text.partition("=")
            if not equals or name in found:
                raise InvalidSetting("peers", text, "NAME=HOST:PORT, each name once")
            _checked("peers", text, name)
            try:
                parsed = parse_address(address)
            except InvalidInput as error:
                raise InvalidSetting("peers", text, f"NAME=HOST:PORT: {error}") from error
            if name == self.node and parsed.port != self.cluster_port:
                limit = f"another node, or this one with its cluster_port {self.cluster_port}"
                raise InvalidSetting("peers", text, limit)
            found[name] = str(parsed)
        found.pop(self.node, None)
        return found


def _checked(setting: str, text: str, name: str) -> None:
    try:
        check_name(name)
    except InvalidInput as error:
        raise InvalidSetting(setting, text, f"a valid name: {error}") from error


def check_cluster(cluster: ClusterSettings, security: SecuritySettings) -> None:
    """Refuse a cluster port that is more open than the node's other ports."""
    if cluster.cluster_authority_file and not security.tls_certificate_file:
        limit = "given with tls_certificate_file, the certificate that the node shows"
        raise InvalidSetting("cluster_authority_file", cluster.cluster_authority_file, limit)
    proves = bool(cluster.cluster_secret_file or cluster.cluster_authority_file)
    if cluster.cluster_port is None or proves or security.allow_open:
        return
    how = "unless cluster_secret_file, cluster_authority_file or allow_open is set"
    if security.requires_token or security.tls_certificate_file:
        limit = f"off, because the other ports require tokens or TLS, {how}"
        raise InvalidSetting("cluster_port", cluster.cluster_port, limit)
    if not is_loopback(cluster.cluster_host):
        limit = f"an address of this machine only, {how}"
        raise InvalidSetting("cluster_host", cluster.cluster_host, limit)
