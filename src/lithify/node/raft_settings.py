"""The settings of the Raft node of a process, from those of the node.

The name of a node is permanent. If none is given, it is the one in the data directory, and a random
one at the first start: `node-3f9a`. The Raft node writes it, as the owner of the directory, unless
the directory was another node's (`raft/node/lost_node_file.py`).

Reads the files that the settings name.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, InvalidSetting
from lithify.fs import read_file
from lithify.fs.permissions import warn_if_readable
from lithify.node.security import is_wildcard, secret_in
from lithify.raft.net.client_operations import Address
from lithify.raft.net.cluster_secret import ClusterSecret
from lithify.raft.net.transport import Tls
from lithify.raft.node.identity import stored_owner
from lithify.raft.node.settings import RaftNodeSettings

if TYPE_CHECKING:
    from lithify.fs import FileSystem
    from lithify.node.settings import NodeSettings

__all__ = ["make_raft_settings"]

NAME_BYTES = 2


def make_raft_settings(
    settings: NodeSettings, fs: FileSystem, directory: str, first_group: str
) -> RaftNodeSettings:
    """The settings of the Raft node with its data in a directory, which may not exist yet."""
    cluster, security = settings.clustering, settings.security
    owner = stored_owner(fs, directory)
    drawn = f"node-{token_hex(NAME_BYTES)}"
    listen = None
    if cluster.cluster_port is not None:
        listen = Address(cluster.cluster_host, cluster.cluster_port)
    tls = None
    if cluster.cluster_authority_file:
        own = (security.tls_certificate_file, security.tls_key_file)
        tls = Tls(cluster.cluster_authority_file, *own)
    return RaftNodeSettings(
        cluster.node or (drawn if owner is None else owner[0]),
        directory,
        listen,
        cluster.addresses,
        first_group=first_group,
        keeps_first_group=True,
        join=cluster.join,
        is_named=bool(cluster.node) or owner is not None,
        cluster=cluster.cluster,
        tls=tls,
        secret=_read_secret(fs, cluster.cluster_secret_file),
        advertised_host=settings.advertised_host if is_wildcard(cluster.cluster_host) else "",
        tick_ms=cluster.tick_ms,
    )


def _read_secret(fs: FileSystem, path: str) -> ClusterSecret | None:
    if not path:
        return None
    try:
        data = read_file(fs, path)
    except OSError as error:
        limit = f"readable: {error.strerror or error}"
        raise InvalidSetting("cluster_secret_file", path, limit) from error
    warn_if_readable(fs, path)
    try:
        return ClusterSecret(secret_in(data))
    except InvalidInput as error:
        raise InvalidSetting("cluster_secret_file", path, f"a secret: {error}") from error
