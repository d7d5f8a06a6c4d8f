from __future__ import annotations

import pytest

from lithify.json_settings import SETTINGS_DEPTH_MAX, changed_settings, encode_settings


def test_parts_of_an_object_are_set_one_by_one() -> None:
    old = {"a": 1, "budget": {"x": 1, "y": 2}}
    assert changed_settings(old, {"budget": {"x": 5}}, ["a", "budget.y"]) == {"budget": {"x": 5}}
    assert old == {"a": 1, "budget": {"x": 1, "y": 2}}, "the old settings stay as they are"


def test_an_object_without_parts_is_unset() -> None:
    assert changed_settings({"budget": {"x": 1}}, {}, ["budget.x", "other.y"]) == {}


def test_the_same_settings_have_the_same_text() -> None:
    assert encode_settings({"b": 1, "a": [True]}) == encode_settings({"a": [True], "b": 1})


@pytest.mark.parametrize("value", [float("nan"), object(), b"x", {1, 2}])
def test_other_values_than_json_are_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is that of json
        encode_settings({"a": value})


def test_settings_have_a_depth() -> None:
    def nested(depth: int) -> dict[str, object]:
        value: object = 1
        for each in range(depth - 1):
            value = [value] if each % 2 else {"a": value}
        return {"a": value}

    assert encode_settings(nested(SETTINGS_DEPTH_MAX))
    for depth in (SETTINGS_DEPTH_MAX + 1, 100_000):
        with pytest.raises(ValueError, match="more than 32 objects and arrays"):
            encode_settings(nested(depth))
