"""Names of topics, and that no name leaves the data directory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.errors import InvalidInput
from lithify.topics.definitions.topic_names import Namespace, TopicName


def test_a_short_name_is_in_the_default_namespace() -> None:
    name = TopicName.parse("orders")
    assert str(name) == "persistent://public/default/orders"
    assert TopicName.parse("public/default/orders") == name


def test_a_partition_knows_the_topic_it_belongs_to() -> None:
    whole = TopicName.parse("orders")
    part = whole.partition_name(3)
    assert (part.partition, part.whole) == (3, whole)
    assert (whole.partition, whole.whole) == (-1, whole)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "persistent://",
        "persistent://a/b",
        "persistent://a/b/",
        "persistent://../b/c",
        "persistent://a/./c",
        "persistent://a/b/..",
        "persistent://a/b/../../etc/passwd",
        "persistent://a/b/c//d",
        "persistent://a/b/line\nbreak",
        "persistent://a/b/nul\0",
        "persistent://a b/c/d",
        "non-persistent://a/b/c",
        "persistent://a/b/" + "x" * 201,
        "persistent://a/b/" + "é" * 100,
    ],
)
def test_bad_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        TopicName.parse(text)


@pytest.mark.parametrize("text", ["a", "a/b/c", "/", "a/..", "a/"])
def test_bad_namespaces_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Namespace.parse(text)


@given(st.text(min_size=1, max_size=40))
def test_a_path_has_three_plain_parts_and_leads_back_to_its_name(local: str) -> None:
    try:
        name = TopicName(Namespace("t", "n"), local)
    except InvalidInput:
        return
    parts = name.path.split("/")
    assert len(parts) == 3
    assert all(part.isascii() and part not in {"", ".", ".."} for part in parts)
    assert TopicName.from_path(name.path) == name
