"""Which node is accepted under which name, and which may vote."""

from __future__ import annotations

import json

import pytest

from lithify.raft.core import Config
from lithify.raft.net.channel import HELLO_BYTES_MAX
from lithify.raft.net.control_frames import Credentials
from lithify.raft.net.peer_recognition import (
    KNOWN_MAX,
    MARKS_MAX,
    PROBATION_TICKS,
    KnownStart,
    PeerRecognition,
    Standing,
    Starts,
)
from lithify.raft.net.wire_format import encode_frame

OLD, NEW, OWN = "0a" * 16, "0b" * 16, "0c" * 16
THREE = Config(frozenset(("n1", "n2", "n3")))
ADDED = Config(THREE.voters, identities=frozenset({("n2", NEW)}))


def recognition(standing: Standing = Standing.ACCEPTED) -> PeerRecognition:
    return PeerRecognition("n1", OWN, standing, {"n2": OLD})


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


def test_an_unknown_node_is_accepted_and_recorded() -> None:
    known = recognition()
    assert not known.refusal("n3", NEW, [THREE])
    assert known.record_met("n3", NEW)
    assert not known.record_met("n3", NEW)
    assert known.refusal("n3", OLD, [THREE])


def test_identities_reported_by_others_fill_gaps_and_are_bounded() -> None:
    known = recognition()
    assert known.merge_known({"n1": NEW, "n2": NEW, "n3": NEW})
    assert known.known == {"n2": OLD, "n3": NEW}
    assert not known.merge_known({f"m{number}": NEW for number in range(KNOWN_MAX)})
    assert len(known.known) == 2


def test_the_names_of_accepted_nodes_are_bounded() -> None:
    known = recognition()
    accepted = [known.record_met(f"m{number}", NEW) for number in range(KNOWN_MAX)]
    assert accepted.count(True) == KNOWN_MAX - 1
    assert len(known.known) == KNOWN_MAX
    assert known.record_met("n2", NEW), "a known node may change its identity"


def test_a_new_directory_votes_when_the_others_have_accepted_it() -> None:
    for by, ticks, is_accepted in (
        ({"n2"}, 0, False),
        ({"n2", "n3"}, 0, True),
        ({"n2"}, PROBATION_TICKS, True),
        (set[str](), 10 * PROBATION_TICKS, False),
    ):
        new = recognition(Standing.NEW)
        assert not new.may_vote(THREE)
        assert new.record_acceptance(THREE.voters, by, ticks) == is_accepted
        assert new.may_vote(THREE) == is_accepted


def test_a_directory_that_is_disowned_votes_only_where_the_log_has_its_identity() -> None:
    known = recognition(Standing.NEW)
    assert known.record_disowned()
    assert not known.record_acceptance(THREE.voters, {"n2", "n3"}, PROBATION_TICKS)
    assert not known.may_vote(THREE)
    assert not known.may_vote(Config())
    assert known.may_vote(Config(frozenset(("n1",))))
    assert known.may_vote(Config(THREE.voters, identities=frozenset({("n1", OWN)})))


def test_an_accepted_node_is_not_disowned_by_one_peer() -> None:
    known = recognition()
    assert not known.record_disowned()
    assert known.may_vote(THREE)


def test_an_older_copy_is_known_by_the_start_that_it_lacks() -> None:
    members = [Config(frozenset({"n1", "n2"}))]
    seen = recognition()
    starts = Starts().again("a").again("b")
    copy = starts
    starts = starts.again("c")
    assert seen.record_start("n2", KnownStart(OLD, 3, "c"))
    assert seen.older_copy("n2", OLD, starts, members) == ""
    # The copy itself, its next start, and the ones after that.
    for mark in ("d", "e", "f", "g"):
        assert "is an older copy" in seen.older_copy("n2", OLD, copy, members)
        copy = copy.again(mark)
    # It continues as it was, and some starts were not met here.
    for mark in ("h", "i", "j"):
        starts = starts.again(mark)
    assert seen.older_copy("n2", OLD, starts, members) == ""
    assert seen.older_copy("n2", OLD, Starts(), members) == "", "of an earlier version"
    assert seen.older_copy("n2", OLD, copy, []) == "", "no member"


def test_newer_starts_reported_by_others_are_recorded() -> None:
    seen = recognition()
    assert seen.record_start("n2", KnownStart(OLD, 3, "c"))
    assert not seen.record_start("n2", KnownStart(OLD, 2, "b"))
    assert not seen.record_start("n2", KnownStart("9" * 32, 9, "x")), (
        "another directory than the known one"
    )
    assert not seen.record_start("n1", KnownStart(OWN, 3, "c")), "no node tells it about itself"
    assert seen.met_starts == {"n2": KnownStart(OLD, 3, "c")}


def test_a_node_finds_that_it_is_an_older_copy_and_is_another_one_then() -> None:
    seen = recognition()
    seen.starts = Starts().again("a")
    assert not seen.is_older_copy(KnownStart(OWN, 1, "a"))
    assert not seen.is_older_copy(KnownStart("9" * 32, 7, "z")), "of another directory"
    assert seen.is_older_copy(KnownStart(OWN, 2, "b"))
    members = Config(frozenset({"n1", "n2", "n3"}))
    assert seen.may_vote(members)
    seen.renounce("8" * 32)
    assert not seen.may_vote(members)


def test_marks_are_bounded() -> None:
    starts = Starts()
    for number in range(MARKS_MAX + 10):
        starts = starts.again(f"{number}")
    assert (starts.number, len(starts.marks)) == (MARKS_MAX + 10, MARKS_MAX)
    assert starts.has(1, "whatever"), "too long ago to tell"
    assert not starts.has(11, "whatever")


def test_a_started_node_checks_with_others_before_it_votes() -> None:
    seen = recognition()
    seen.ticks = 0
    members = Config(frozenset({"n1", "n2", "n3"}))
    seen.accepted_by.add("n2")
    assert not seen.may_vote(members)
    assert seen.may_vote(Config(frozenset({"n1", "n2"})))
    seen.ticks = PROBATION_TICKS
    assert seen.may_vote(members)


def test_a_cluster_refuses_another_but_never_a_member_that_it_knows() -> None:
    seen = recognition()
    members = [Config(frozenset({"n1", "n2"}))]
    assert seen.foreign("n9", "9" * 32, "e" * 32, members) == "", "the own id is not known"
    seen.cluster_id = "d" * 32
    assert "belongs to cluster" in seen.foreign("n9", "9" * 32, "e" * 32, members)
    assert seen.foreign("n9", "9" * 32, "", members) == ""
    assert seen.foreign("n2", OLD, "e" * 32, members) == ""


def test_all_that_a_node_may_know_fits_into_a_greeting() -> None:
    full = PeerRecognition("n1", OWN, Standing.ACCEPTED)
    names = {f"node-{number:059}": "0" * 32 for number in range(KNOWN_MAX + 9)}
    for name, identity in names.items():
        full.merge_known({name: identity})
        full.record_start(name, KnownStart(identity, 2**20, "0" * 8))
        full.showed_start(name, KnownStart(identity, 2**20, "0" * 8))
    assert (len(full.known), len(full.met_starts)) == (KNOWN_MAX, KNOWN_MAX)
    starts = Starts(2**20, ("0" * 8,) * MARKS_MAX)
    assert len(full.starts_shown) == KNOWN_MAX
    met_starts = full.met_starts | {"n" * 64: KnownStart(OWN, 2**20, "0" * 8)}
    shown = [json.dumps(each) for each in (full.known, starts, met_starts)]
    known, marks, met = shown
    message = Credentials(3, "0" * 32, "", known, "0" * 32, marks, met)
    assert len(encode_frame([("", message)])) <= HELLO_BYTES_MAX
