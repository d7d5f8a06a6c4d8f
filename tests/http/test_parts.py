"""An application to which routes are added path by path answers as the whole one does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import lithify
from lithify.http import create_app
from lithify.http.app import add_routes
from lithify.pulsar.broker import Broker

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI


def endpoint_of(app: FastAPI, method: str, path: str) -> Any:
    """The function that answers; the first route that matches in full, as the router does."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }
    for route in app.router.routes:
        match, child = route.matches(scope)
        if match.name == "FULL":
            return child.get("endpoint", type(route))
    return None


def test_a_path_gets_the_same_route_from_a_part_as_from_the_whole(tmp_path: Path) -> None:
    with lithify.open(str(tmp_path)) as node:
        broker = Broker(node.topics, name="n", version="v")
        whole = create_app(broker, node.blobs)
        described = whole.openapi()["paths"]
        assert len(described) > 80
        for template, methods in described.items():
            path = re.sub(r"\{[^}]*\}", "x", template)
            for method in methods:
                app = create_app(broker, node.blobs, empty=True)
                add_routes(app, path)
                found = endpoint_of(app, method.upper(), path)
                assert found is not None, path
                assert found == endpoint_of(whole, method.upper(), path), (method, path)
