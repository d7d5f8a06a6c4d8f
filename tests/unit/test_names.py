from __future__ import annotations

import pytest

from lithify.errors import InvalidInput
from lithify.names import (
    check_namespace_part,
    check_plain_name,
    check_topic_name,
    escape,
    split_partition,
)


@pytest.mark.parametrize("name", ["a", "a-b_c.9", "9", "x" * 128])
def test_plain_names(name: str) -> None:
    check_plain_name("a zone", name)


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", "a b", "a/b", "ä", "x" * 129])
def test_no_plain_names(name: str) -> None:
    with pytest.raises(InvalidInput, match="name of a zone"):
        check_plain_name("a zone", name)


@pytest.mark.parametrize("name", ["a/b", "", ".", "..", "ä", "x" * 201])
def test_no_parts_of_namespaces(name: str) -> None:
    with pytest.raises(InvalidInput, match="tenant"):
        check_namespace_part("tenant", name, "t/n")


@pytest.mark.parametrize("name", ["", "a//b", "../a", "a\n", "ä" * 41, "x" * 201])
def test_no_topics(name: str) -> None:
    with pytest.raises(InvalidInput, match="printable"):
        check_topic_name(name)


def test_a_path_part_has_no_special_characters() -> None:
    assert escape("a.b~c/d ä") == "a%2Eb%7Ec%2Fd%20%C3%A4"
    assert escape("a-b_1") == "a-b_1"


def test_a_partition_has_a_number() -> None:
    assert split_partition("a-partition-12") == ("a", 12)
    assert split_partition("a-partition-x") == ("a-partition-x", -1)
    assert split_partition("-partition-1") == ("-partition-1", -1)
