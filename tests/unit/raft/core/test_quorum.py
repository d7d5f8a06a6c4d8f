"""Majorities, against their definition: some majority that agrees."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from lithify.raft.core import Config
from lithify.raft.core.quorum import VoteTally, agreed_index, has_quorum, tally

NAMES = ["n1", "n2", "n3", "n4", "n5"]
nodes = st.frozensets(st.sampled_from(NAMES))
configs = st.builds(Config, nodes.filter(bool), nodes)


def majorities(voters: frozenset[str]) -> list[tuple[str, ...]]:
    return list(combinations(sorted(voters), len(voters) // 2 + 1)) if voters else [()]


@given(configs, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9)))
def test_an_index_is_agreed_on_if_a_majority_of_each_half_has_it(
    config: Config, indexes: dict[str, int]
) -> None:
    def agreed(index: int) -> bool:
        return all(
            any(all(indexes.get(n, 0) >= index for n in some) for some in majorities(half))
            for half in (config.voters, config.outgoing)
        )

    found = agreed_index(config, indexes)
    assert agreed(found)
    assert not agreed(found + 1)


@given(configs, st.dictionaries(st.sampled_from(NAMES), st.booleans()))
def test_an_election_is_won_or_lost_when_no_other_vote_can_change_it(
    config: Config, votes: dict[str, bool]
) -> None:
    def won(yes: set[str]) -> bool:
        halves = (config.voters, config.outgoing)
        return all(any(set(some) <= yes for some in majorities(half)) for half in halves)

    yes = {name for name, vote in votes.items() if vote}
    best = yes | (config.electorate - votes.keys())
    expected = VoteTally.WON if won(yes) else VoteTally.OPEN if won(best) else VoteTally.LOST
    assert tally(config, votes) is expected
    assert has_quorum(config, yes) == won(yes)
