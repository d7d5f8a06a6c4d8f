"""The paths of blob stores and blobs, as the verbs of `lithify blobs` request them."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from lithify.errors import InvalidInput

__all__ = ["blob_path", "store_path", "with_query"]


def store_path(store: str) -> str:
    """The path of a store."""
    return f"/blobs/{_part('store', store)}"


def blob_path(store: str, blob_id: str) -> str:
    """The path of a blob."""
    return f"{store_path(store)}/{_part('blob', blob_id)}"


def _part(what: str, name: str) -> str:
    if not name:
        raise InvalidInput(f"the name of a {what} must not be empty")
    return quote(name, safe="")


def with_query(path: str, **values: object) -> str:
    """A path with parameters."""
    return f"{path}?{urlencode(values)}"
