"""A node shows its tokens to the peers that its operator names, to each its own, to no others."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import httpx
import jwt

from tests.cli.nodes import served
from tests.cli.test_blobs import blobs, create
from tests.crash.test_blob_replicas import eventually
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "a secret of more than thirty-two bytes"
SHAPE = {"capacity_bytes": 2**24, "segment_bytes": 2**20}


class Stranger:
    """Listens, remembers what it is shown, and sends every caller elsewhere."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str | None]] = []
        self.elsewhere = ""
        shown = self.shown
        stranger = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                shown.append((self.path, self.headers.get("Authorization")))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(307 if stranger.elsewhere else 404)
                self.send_header("Location", f"{stranger.elsewhere}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = do_PUT = do_HEAD = handle_any

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @contextmanager
    def listening(self) -> Iterator[Stranger]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


def token(name: str) -> str:
    return jwt.encode({"sub": name}, SECRET, "HS256")


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(name)}"}


def test_a_token_is_sent_to_its_peer_only(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(token(f"node at {name}"))
    (tmp_path / "secret").write_text(SECRET)
    data, at = tmp_path / "data", ("--data", str(tmp_path / "data"))
    with (
        Stranger().listening() as stranger,
        Stranger().listening() as first,
        Stranger().listening() as second,
    ):
        # From before there were peers: the list of the store has an address of any node.
        create(at)
        old = f"{stranger.url}/blobs/photos"
        blobs("replicas", "photos", "--set", old, *at)
        first.elsewhere = stranger.url
        settings = {
            "LITHIFY_BLOB_PEERS": f"first={first.url}, second={second.url}",
            "LITHIFY_BLOB_PEER_TOKEN_FILES": (
                f"first={tmp_path / 'first'}, second={tmp_path / 'second'}"
            ),
            "LITHIFY_TOKEN_SECRET_FILE": str(tmp_path / "secret"),
            "LITHIFY_SUPERUSERS": "root",
        }
        with served(data, **settings) as node, httpx.Client(base_url=node.http) as client:
            root = bearer("root")
            client.post(
                "/admin/v2/namespaces/public/default/permissions/ann",
                json=["admin", "consume", "produce"],
                headers=root,
            )
            ann = bearer("ann")
            eventually(
                "the old replica is inactive",
                lambda: (
                    client.get("/blobs/photos/replicas", headers=ann).json()[0]["state"]
                    == "inactive"
                ),
            )
            [row] = client.get("/blobs/photos/replicas", headers=ann).json()
            assert "no peer in the setting blob_peers" in row["error"]
            assert client.get("/blobs/photos/unknown", headers=ann).status_code == 404
            assert "replica is inactive" in node.logged()
            # An administrator of the namespace names an address, or a way around.
            for strange in (old, f"first@{stranger.url}", f"{stranger.url}/blobs/photos/"):
                answer = client.put("/blobs/photos/replicas", json=[strange], headers=ann)
                assert answer.status_code == 400, answer.text
            answer = client.put(
                "/blobs/photos/replicas", json=["first", f"{second.url}/blobs/x"], headers=ann
            )
            assert answer.status_code == 200, answer.text
            client.get("/blobs/photos/unknown", headers=ann)
            eventually("both are asked", lambda: first.shown and second.shown)
            eventually("again", lambda: len(first.shown) > 2)
        assert {shown for _, shown in first.shown} == {f"Bearer {token('node at first')}"}
        assert {shown for _, shown in second.shown} == {f"Bearer {token('node at second')}"}
        assert all(path.startswith("/blobs/x/") for path, _ in second.shown)
        assert stranger.shown == [], "neither a token nor a request, nor by a redirect"


def test_the_token_of_a_node_does_not_open_other_namespaces(tmp_path: Path) -> None:
    """The administrator of one namespace names a store of another as a replica."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "token").write_text(token("root"))
    there, here = free_port(), free_port()
    settings = {
        "LITHIFY_TOKEN_SECRET_FILE": str(tmp_path / "secret"),
        "LITHIFY_SUPERUSERS": "root",
        "LITHIFY_REPLICATION_TOKEN_FILE": str(tmp_path / "token"),
        "LITHIFY_BLOB_PEERS": f"there=http://127.0.0.1:{there}",
    }
    root = bearer("root")
    with (
        served(tmp_path / "a", "--http-port", str(there), **settings) as a,
        served(tmp_path / "b", "--http-port", str(here), **settings) as b,
    ):
        for url in (a.http, b.http):
            for namespace in ("ours", "theirs"):
                made = httpx.put(f"{url}/admin/v2/namespaces/public/{namespace}", headers=root)
                assert made.status_code == 204, made.text
        for url, name, namespace in (
            (a.http, "secret", "public/theirs"),
            (a.http, "shared", "public/ours"),
            (b.http, "thief", "public/ours"),
        ):
            at = f"{url}/blobs/{name}?namespace={namespace}"
            assert httpx.put(at, json=SHAPE, headers=root).status_code == 201
            if url == a.http:
                httpx.post(f"{url}/blobs/{name}", content=b"content", headers=root)
        thief = f"{b.http}/blobs/thief"
        set_to = httpx.put(f"{thief}/replicas", json=["there/secret", "there/shared"], headers=root)
        assert set_to.status_code == 200, set_to.text

        def replicas() -> list[dict[str, object]]:
            rows: list[dict[str, object]] = httpx.get(f"{thief}/replicas", headers=root).json()
            return rows

        eventually("the one is refused", lambda: replicas()[0]["errors"])
        eventually("the other is read", lambda: replicas()[1]["state"] == "caught up")
        secret, shared = replicas()
        assert "namespace public/ours" in str(secret["error"])
        assert (secret["blobs"], shared["blobs"]) == (0, 1)
