"""The security of a node: converts settings to access control and TLS.

Off by default. A node without it permits everything to every client, so it must be reachable from
its own machine only, unless the setting `allow_open` permits more.

- Tokens: a file with the secret (HS256) or the public key (RS256). See
  `topics/token_authentication.py`.
- Peers: the other nodes that blob stores may replicate with, and the token for each.
- TLS, 1.2 or later, on all ports or on none: a PEM file with the certificate chain, and one with
  its private key.

Reads the files that the settings name; the TLS library reads those of the certificate.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

from lithify.blobs.replication.peers import BlobPeer, BlobPeers
from lithify.errors import InvalidInput, InvalidSetting
from lithify.fs import read_file
from lithify.topics.permissions import Permissions
from lithify.topics.token_authentication import TokenKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.topics.definitions.definitions import Definitions

__all__ = [
    "PeerSettings",
    "SecuritySettings",
    "check_host",
    "is_loopback",
    "is_wildcard",
    "make_access",
    "make_peers",
    "make_tls",
    "secret_in",
]


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """The settings of tokens and TLS."""

    token_secret_file: str = ""
    """The bytes of the file are the secret; if they are text, the line end is ignored."""
    token_public_key_file: str = ""
    superusers: tuple[str, ...] = ()
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    allow_open: bool = False
    """Whether a node without tokens may be reachable from other machines."""

    def __post_init__(self) -> None:
        if self.token_secret_file and self.token_public_key_file:
            limit = "not given together with token_secret_file"
            raise InvalidSetting("token_public_key_file", self.token_public_key_file, limit)
        if self.superusers and not self.requires_token:
            limit = "empty, because no token is required"
            raise InvalidSetting("superusers", ", ".join(self.superusers), limit)
        if "" in self.superusers:
            raise InvalidSetting("superusers", self.superusers, "names")
        if self.tls_certificate_file and not self.tls_key_file:
            raise InvalidSetting("tls_key_file", "", "the key of tls_certificate_file")
        if self.tls_key_file and not self.tls_certificate_file:
            raise InvalidSetting("tls_certificate_file", "", "the certificate of tls_key_file")

    @property
    def requires_token(self) -> bool:
        """Whether clients need a token."""
        return bool(self.token_secret_file or self.token_public_key_file)


def check_host(setting: str, host: str, security: SecuritySettings) -> None:
    """Refuse an address that other machines can reach, if clients need no token."""
    if not (security.requires_token or security.allow_open or is_loopback(host)):
        limit = "an address of this machine only, unless tokens are required or allow_open is set"
        raise InvalidSetting(setting, host, limit)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    # A name may resolve to any address, and change: only localhost is defined.
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether the address stands for all addresses of the machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def make_access(
    security: SecuritySettings,
    fs: FileSystem,
    *,
    definitions: Callable[[], Definitions],
    clock: Clock,
) -> Permissions | None:
    """The access control; None if everything is permitted to every client."""
    if security.token_secret_file:
        key = TokenKey.secret(secret_in(_read(fs, "token_secret_file", security.token_secret_file)))
    elif security.token_public_key_file:
        path = security.token_public_key_file
        key = TokenKey.public(_read(fs, "token_public_key_file", path))
    else:
        return None
    return Permissions(key, superusers=security.superusers, definitions=definitions, clock=clock)


class PeerSettings(Protocol):
    """The settings of the nodes that blob stores may replicate with."""

    @property
    def blob_peers(self) -> Sequence[str]:
        """NAME=URL of each."""

    @property
    def blob_peer_token_files(self) -> Sequence[str]:
        """NAME=FILE with its token."""

    @property
    def replication_token_file(self) -> str:
        """The token of those that have none of their own."""


def make_peers(settings: PeerSettings, fs: FileSystem) -> BlobPeers:
    """The nodes that blob stores may replicate with, each with its token."""
    urls = _named("blob_peers", settings.blob_peers)
    files = _named("blob_peer_token_files", settings.blob_peer_token_files)
    for name in files.keys() - urls.keys():
        raise InvalidSetting("blob_peer_token_files", name, "the name of a peer in blob_peers")
    shared = _read_token(fs, "replication_token_file", settings.replication_token_file)
    peers = []
    for name, url in urls.items():
        token = _read_token(fs, "blob_peer_token_files", files.get(name, "")) or shared
        try:
            peers.append(BlobPeer(name, url.rstrip("/"), token))
        except (InvalidInput, ValueError) as error:
            raise InvalidSetting("blob_peers", f"{name}={url}", f"NAME=URL: {error}") from error
    return BlobPeers(peers)


def _named(setting: str, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value) or name in found:
            raise InvalidSetting(setting, text, "NAME=VALUE, each name once")
        found[name] = value
    return found


def _read_token(fs: FileSystem, setting: str, path: str) -> str:
    """The token in a file; empty if no file is named."""
    if not path:
        return ""
    token = _read(fs, setting, path).strip()
    if not token or not token.isascii() or not token.decode().isprintable():
        raise InvalidSetting(setting, path, "a file with one token")
    return token.decode()


def secret_in(data: bytes) -> bytes:
    """The secret in a file."""
    # An editor ends a text with a newline that is not part of the secret; in random bytes it may
    # be.
    text = data.rstrip(b"\r\n")
    return text if text.isascii() and text.decode().isprintable() else data


def _read(fs: FileSystem, setting: str, path: str) -> bytes:
    try:
        return read_file(fs, path)
    except OSError as error:
        raise InvalidSetting(setting, path, f"readable: {error.strerror or error}") from error


def make_tls(security: SecuritySettings) -> ssl.SSLContext | None:
    """The TLS context of all ports; None if they do not use TLS."""
    if not security.tls_certificate_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key that is locked with a password must not make the start prompt for it.
        context.load_cert_chain(security.tls_certificate_file, security.tls_key_file, password="")
    except (OSError, ValueError) as error:
        # An invalid certificate is an OSError, too.
        why = f"a certificate and its key, PEM: {error}"
        raise InvalidSetting("tls_certificate_file", security.tls_certificate_file, why) from error
    return context
