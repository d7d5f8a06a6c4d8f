"""Configurations: their text, what changes make of them, and which one is in force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.errors import InvalidInput
from lithify.raft.core import ConfChange, Config, EntryKind, InvalidChange, MemberChange, Mode, Op
from lithify.raft.core.configuration_change import Membership, changed
from lithify.raft.entry import Entry

names = st.sampled_from(["n1", "n2", "n3", "n4"])
sets = st.frozensets(names)
configs = st.builds(Config, sets, sets, sets, sets, auto_leave=st.booleans())
changes = st.lists(st.builds(MemberChange, st.sampled_from(Op), names), max_size=4).map(tuple)


def three() -> Config:
    return Config(frozenset(("n1", "n2", "n3")))


def entry(index: int, config: Config) -> Entry:
    return Entry(index, 1, config.encode(), EntryKind.CONFIG)


@given(configs)
def test_a_configuration_survives_its_text(config: Config) -> None:
    assert Config.parse(config.encode()) == config


@given(st.builds(ConfChange, changes, st.sampled_from(Mode)))
def test_a_change_survives_its_text(change: ConfChange) -> None:
    expected = change if change.changes else ConfChange()
    assert ConfChange.parse(str(change)) == expected


@pytest.mark.parametrize("text", ["", "n4", "+", "+n4,", "soon:+n4", "+n 4", "*n4", "+n4;-n1"])
def test_other_text_is_refused_and_named(text: str) -> None:
    with pytest.raises(InvalidChange, match=r"change|name"):
        ConfChange.parse(text)


def test_a_name_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(InvalidChange, match="'n 1'"):
        Config(frozenset(("n 1",)))


@given(st.lists(st.builds(ConfChange, changes, st.sampled_from(Mode)), max_size=8))
def test_no_change_makes_a_voter_a_learner_too_or_leaves_no_voters(
    asked: list[ConfChange],
) -> None:
    config = three()
    for change in asked:
        try:
            config = changed(config, change)
        except InvalidChange:
            continue
        assert config.voters
        assert not config.learners & config.electorate
        assert config.learners_next <= config.outgoing - config.voters
        assert config.joint or not config.learners_next
        assert config.joint or not config.auto_leave


@given(st.builds(MemberChange, st.sampled_from(Op), names))
def test_a_change_at_once_moves_one_voter_so_that_majorities_overlap(change: MemberChange) -> None:
    try:
        after = changed(three(), ConfChange((change,)))
    except InvalidChange:
        return
    assert len(after.voters ^ three().voters) <= 1


def test_a_configuration_takes_effect_with_its_entry_and_is_undone_with_it() -> None:
    members = Membership(0, three())
    four = changed(three(), ConfChange.parse("+n4"))
    assert members.add([Entry(1, 1, b"x", EntryKind.COMMAND), entry(2, four)])
    assert (members.index, members.config) == (2, four)
    assert members.cut(1)
    assert (members.index, members.config) == (0, three())
    assert not members.cut(0)


def test_a_removed_member_may_campaign_until_the_removal_is_committed() -> None:
    members = Membership(0, three())
    members.add([entry(1, changed(three(), ConfChange.parse("-n1")))])
    assert members.may_campaign("n1")
    assert "n1" in members.everyone
    members.settle(1)
    assert not members.may_campaign("n1")
    assert "n1" not in members.everyone


def test_members_of_an_index_are_known_until_it_is_applied() -> None:
    members = Membership(0, three())
    four = changed(three(), ConfChange.parse("+n4"))
    members.add([entry(5, four)])
    members.settle(9)
    assert (members.at(4), members.at(5)) == (three(), four)
    members.forget(5)
    assert members.at(7) == four
    with pytest.raises(InvalidInput, match="index 4"):
        members.at(4)


def test_a_snapshot_replaces_uncommitted_entries() -> None:
    members = Membership(0, three())
    four = changed(three(), ConfChange.parse("+n4"))
    members.add([entry(3, four)])
    members.restore(9, Config(frozenset(("n7",))))
    assert members.config.voters == {"n7"}
    assert members.everyone == {"n7"}
    assert members.at(5) == three()
