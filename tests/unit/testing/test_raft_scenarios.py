"""The runner of stories: it keeps what people wrote and says what it does not understand."""

from __future__ import annotations

import pytest

from lithify.errors import InvalidInput
from lithify.testing.raft_scenarios import play

TOLD = """# A group of one.

add-nodes n1
elect n1
----
n1 is leader at term 1

# It takes what it gets.
propose n1 a
stabilize
----
n1 has 2
n1 has done write 3: [2/1 "a"]
n1 has applied [2/1 "a"]
"""


def test_a_story_with_the_expected_output_is_unchanged() -> None:
    assert play(TOLD) == TOLD


def test_a_story_is_rewritten_where_its_output_has_changed() -> None:
    assert play(TOLD.replace("n1 has 2", "n1 has 3")) == TOLD
    only_commands = TOLD.split("\n----", maxsplit=1)[0] + "\n"
    assert play(only_commands) == TOLD.split("\n\n# It takes", maxsplit=1)[0] + "\n"


@pytest.mark.parametrize(
    "command", ["dance n1", "tick n1", "add-nodes n1\nsend-snapshot n1 n2"], ids=str
)
def test_invalid_input_is_named(command: str) -> None:
    with pytest.raises(InvalidInput, match=r"dance|n1"):
        play(command)
