"""Rules for the names of tenants, namespaces, topics, blob stores and the like. Pure.

Tenants and namespaces consist of letters, digits and -=:._ ; a topic may also have any other
printable character, except that its parts between slashes must not be empty, "." or "..". All
other names consist of letters, digits, `-`, `_` and `.` and begin with a letter or digit, so that
paths and URLs can hold them without escapes.

In a path every character of a topic's name that is not a letter, digit, - or _ is escaped as %XX,
so that a path stays within its directory and is unique.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote

from lithify.errors import InvalidInput

__all__ = [
    "NAME_CHARACTERS_MAX",
    "PLAIN_NAME_CHARACTERS_MAX",
    "check_namespace_part",
    "check_plain_name",
    "check_store_name",
    "check_topic_name",
    "escape",
    "split_partition",
]

NAME_CHARACTERS_MAX = 200
"""An escaped name has up to 3 times as many bytes; most file systems allow 255 per path part."""

PLAIN_NAME_CHARACTERS_MAX = 128
PATH_PART_BYTES_MAX = 240

_PART = re.compile(r"[-=:.\w]+", re.ASCII)
_PLAIN = re.compile(r"[-\w]+", re.ASCII)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*")
_NO_PARTS = frozenset({"", ".", ".."})
_PARTITION = re.compile(r"(.+)-partition-(\d{1,6})")


def check_namespace_part(what: str, part: str, name: str) -> None:
    """Raise unless a tenant or namespace may have the name `part`; `name` is the full name."""
    if len(part) > NAME_CHARACTERS_MAX or part in {".", ".."} or not _PART.fullmatch(part):
        raise InvalidInput(
            f"{what} {part!r} of {name!r} must have 1 to {NAME_CHARACTERS_MAX} letters, digits "
            "or -=:._"
        )


def check_topic_name(local: str) -> None:
    """Raise unless a topic may have the name, which is without its namespace."""
    if (
        not 1 <= len(local) <= NAME_CHARACTERS_MAX
        or not local.isprintable()
        or not _NO_PARTS.isdisjoint(local.split("/"))
        or len(escape(local)) > PATH_PART_BYTES_MAX
    ):
        raise InvalidInput(
            f"topic {local!r} must have 1 to {NAME_CHARACTERS_MAX} printable characters "
            f"(at most {PATH_PART_BYTES_MAX} bytes escaped), its parts between slashes not "
            "empty, '.' or '..'"
        )


def check_plain_name(what: str, name: str) -> None:
    """Raise unless the name consists of characters that paths and URLs hold as they are."""
    if len(name) > PLAIN_NAME_CHARACTERS_MAX or not _PLAIN_NAME.fullmatch(name):
        raise InvalidInput(
            f"name of {what} {name!r} must have 1 to {PLAIN_NAME_CHARACTERS_MAX} letters, digits "
            "or -_. and begin with a letter or digit"
        )


def check_store_name(name: str) -> None:
    """Raise unless the name is valid for a blob store."""
    check_plain_name("a blob store", name)


def split_partition(local: str) -> tuple[str, int]:
    """The topic of a partition and the number of the partition; -1 if it is not a partition."""
    match = _PARTITION.fullmatch(local)
    return (match[1], int(match[2])) if match else (local, -1)


@lru_cache(1024)
def escape(part: str) -> str:
    """A part of a name as a part of a path."""
    # The fast path: most names need no escape.
    if _PLAIN.fullmatch(part):
        return part
    # quote() does not escape "." and "~"; a part must not be "." or "..".
    return quote(part, safe="").replace(".", "%2E").replace("~", "%7E")
