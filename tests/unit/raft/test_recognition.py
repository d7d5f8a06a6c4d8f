"""Who is accepted under which name, and who may vote."""

from __future__ import annotations

import pytest

from lithify.raft.core import Config
from lithify.raft.recognition import KNOWN_MAX, PROBATION_TICKS, Recognition, Standing

OLD, NEW, OWN = "0a" * 16, "0b" * 16, "0c" * 16
THREE = Config(frozenset(("n1", "n2", "n3")))
ADDED = Config(THREE.voters, identities=frozenset({("n2", NEW)}))


def recognition(standing: Standing = Standing.ACCEPTED) -> Recognition:
    return Recognition("n1", OWN, standing, {"n2": OLD})


@pytest.mark.parametrize(
    ("shown", "configs", "is_refused"),
    [
        (OLD, [THREE], False),
        (NEW, [THREE], True),
        ("", [THREE], True),
        (NEW, [], False),
        (NEW, [Config(frozenset(("n1", "n3")))], False),
        (NEW, [ADDED], False),
        (OLD, [ADDED], True),
        # Removed, but that is not committed; added in one group, and a member of another.
        (NEW, [THREE, Config(frozenset(("n1", "n3")))], True),
        (NEW, [ADDED, THREE], True),
    ],
)
def test_another_identity_under_the_name_of_a_member_is_refused(
    shown: str, configs: list[Config], is_refused: bool
) -> None:
    refusal = recognition().refusal("n2", shown, configs)
    assert bool(refusal) == is_refused
    assert not is_refused or "node n2 shows" in refusal


def test_who_was_never_met_is_accepted_and_recorded() -> None:
    known = recognition()
    assert not known.refusal("n3", NEW, [THREE])
    assert known.met("n3", NEW)
    assert not known.met("n3", NEW)
    assert known.refusal("n3", OLD, [THREE])


def test_hearsay_fills_gaps_and_is_bounded() -> None:
    known = recognition()
    assert known.hear({"n1": NEW, "n2": NEW, "n3": NEW})
    assert known.known == {"n2": OLD, "n3": NEW}
    assert not known.hear({f"m{number}": NEW for number in range(KNOWN_MAX)})
    assert len(known.known) == 2


def test_a_new_directory_votes_when_the_others_have_accepted_it() -> None:
    for by, ticks, is_accepted in (
        ({"n2"}, 0, False),
        ({"n2", "n3"}, 0, True),
        ({"n2"}, PROBATION_TICKS, True),
        (set[str](), 10 * PROBATION_TICKS, False),
    ):
        new = recognition(Standing.NEW)
        assert not new.may_vote(THREE)
        assert new.accepted(THREE.voters, by, ticks) == is_accepted
        assert new.may_vote(THREE) == is_accepted


def test_a_directory_that_is_disowned_votes_only_where_the_log_has_its_identity() -> None:
    known = recognition(Standing.NEW)
    assert known.disown()
    assert not known.accepted(THREE.voters, {"n2", "n3"}, PROBATION_TICKS)
    assert not known.may_vote(THREE)
    assert not known.may_vote(Config())
    assert known.may_vote(Config(frozenset(("n1",))))
    assert known.may_vote(Config(THREE.voters, identities=frozenset({("n1", OWN)})))


def test_who_was_accepted_once_is_not_disowned_by_one_peer() -> None:
    known = recognition()
    assert not known.disown()
    assert known.may_vote(THREE)
