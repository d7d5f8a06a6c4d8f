"""The number of values in JSON, which bounds the time of parsing it."""

from __future__ import annotations

import json

import pytest

from lithify.json_values import count_json_values


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (5, 0),
        ("[,{" * 100, 0),
        ([], 1),
        ([1, 2, 3], 3),
        ({"a": 1, "b": "x,y"}, 2),
        ({"a\\": '"[,', "b": ["\\\\", "]"]}, 4),
    ],
)
def test_values_are_counted_outside_of_texts(value: object, count: int) -> None:
    assert count_json_values(json.dumps(value).encode(), 100) == count


def test_texts_above_the_limit_are_enough() -> None:
    assert count_json_values(json.dumps(["x"] * 50).encode(), 10) == 50
    assert count_json_values(b"[" * 1000, 10) == 1000
