"""A node's security from its settings: files read, contradictions refused, open only on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jwt
import pytest

from lithify.blobs.errors import ReplicaNoPeer
from lithify.clock import ManualClock
from lithify.errors import InvalidSetting
from lithify.fs import MemoryFileSystem, write_atomic
from lithify.node.security import (
    SecuritySettings,
    check_host,
    make_access,
    make_peers,
    make_tls,
)
from lithify.node.settings import NodeSettings
from lithify.topics.definitions.definitions import Definitions

if TYPE_CHECKING:
    from lithify.topics.permissions import Permissions

SECRET = b"a secret of more than thirty-two bytes"


def access(security: SecuritySettings, **files: bytes) -> Permissions | None:
    fs = MemoryFileSystem()
    fs.mkdir("d")
    for name, data in files.items():
        write_atomic(fs, f"d/{name}", data)
    return make_access(security, fs, definitions=Definitions.initial, clock=ManualClock())


def test_it_is_off_by_default() -> None:
    security = SecuritySettings()
    assert access(security) is None
    assert make_tls(security) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_an_open_node_may_listen_to_its_own_machine(host: str) -> None:
    check_host("pulsar_host", host, SecuritySettings())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "node.example", "127.0.0.1.x"])
def test_an_open_node_listens_to_others_only_on_purpose(host: str) -> None:
    with pytest.raises(InvalidSetting, match="http_host"):
        check_host("http_host", host, SecuritySettings())
    check_host("http_host", host, SecuritySettings(allow_open=True))
    check_host("http_host", host, SecuritySettings(token_secret_file="d/secret"))
    tls = SecuritySettings(tls_certificate_file="c", tls_key_file="k")
    with pytest.raises(InvalidSetting, match="allow_open"):
        check_host("http_host", host, tls)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_end_of_a_line_does_not_belong_to_a_secret(end: bytes) -> None:
    found = access(SecuritySettings(token_secret_file="d/secret"), secret=SECRET + end)
    assert found is not None
    assert found.authenticate(jwt.encode({"sub": "ann"}, SECRET).encode()).name == "ann"


def test_a_secret_of_random_bytes_is_used_as_it_is() -> None:
    secret = bytes(range(200, 240)) + b"\n"
    found = access(SecuritySettings(token_secret_file="d/secret"), secret=secret)
    assert found is not None
    assert found.authenticate(jwt.encode({"sub": "ann"}, secret).encode()).name == "ann"


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="not given together"):
        SecuritySettings(token_secret_file="a", token_public_key_file="b")
    with pytest.raises(InvalidSetting, match="superusers"):
        SecuritySettings(superusers=("root",))
    with pytest.raises(InvalidSetting, match="superusers"):
        SecuritySettings(token_secret_file="a", superusers=("root", ""))
    with pytest.raises(InvalidSetting, match="tls_key_file"):
        SecuritySettings(tls_certificate_file="c")
    with pytest.raises(InvalidSetting, match="tls_certificate_file"):
        SecuritySettings(tls_key_file="k")


def test_missing_or_wrong_files_stop_the_start() -> None:
    with pytest.raises(InvalidSetting, match="token_secret_file is 'd/none'"):
        access(SecuritySettings(token_secret_file="d/none"))
    with pytest.raises(InvalidSetting, match="at least 32 bytes"):
        access(SecuritySettings(token_secret_file="d/secret"), secret=b"short")
    with pytest.raises(InvalidSetting, match="RSA public key"):
        access(SecuritySettings(token_public_key_file="d/key"), key=b"no key")
    with pytest.raises(InvalidSetting, match="tls_certificate_file"):
        make_tls(SecuritySettings(tls_certificate_file="/none", tls_key_file="/none"))
    with pytest.raises(InvalidSetting, match="tls_certificate_file"):
        make_tls(SecuritySettings(tls_certificate_file=__file__, tls_key_file=__file__))


def test_peers_have_their_own_token_or_the_shared_one() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("d")
    for name in ("own", "shared"):
        write_atomic(fs, f"d/{name}", name.encode() + b"\n")
    settings = NodeSettings(
        blob_peers=("one=http://one:8080/", "two=https://two"),
        blob_peer_token_files=("one=d/own",),
        replication_token_file="d/shared",
    )
    peers = make_peers(settings, fs)
    assert peers.url_of("one", "photos") == "http://one:8080/blobs/photos"
    assert peers.connect("http://one:8080/blobs/photos", "a/b")._token == "own"
    assert peers.connect("https://two/blobs/photos", "a/b")._token == "shared"
    with pytest.raises(ReplicaNoPeer, match="blob_peers"):
        peers.connect("http://three/blobs/photos", "a/b")


@pytest.mark.parametrize(
    ("peers", "files"),
    [
        (["one"], []),
        (["one=ftp://x"], []),
        (["one=http://a", "one=http://b"], []),
        (["one=http://user@a"], []),
        (["o/ne=http://a"], []),
        (["one=http://a"], ["two=d/own"]),
        (["one=http://a"], ["one=d/missing"]),
    ],
)
def test_peers_that_cannot_be_are_refused(peers: list[str], files: list[str]) -> None:
    settings = NodeSettings(blob_peers=tuple(peers), blob_peer_token_files=tuple(files))
    with pytest.raises(InvalidSetting, match="blob_peer"):
        make_peers(settings, MemoryFileSystem())
