"""The checker of append histories finds what is not serialisable."""

from __future__ import annotations

from tests.append_lists import Txn, problem_of


def test_one_after_the_other_is_serialisable() -> None:
    one = Txn({1: [], 2: []}, {1: 10}, "ok")
    two = Txn({1: [10], 2: []}, {2: 20}, "ok")
    lost = Txn({1: [10]}, {1: 11}, "unknown")
    refused = Txn({1: [10]}, {1: 12}, "failed")
    assert problem_of([one, two, lost, refused], {1: [10], 2: [20]}) == ""
    assert problem_of([one, two, lost, refused], {1: [10, 11], 2: [20]}) == ""


def test_two_that_have_not_seen_each_other_are_not() -> None:
    one = Txn({1: [], 2: []}, {1: 10}, "ok")
    two = Txn({1: [], 2: []}, {2: 20}, "ok")
    assert "then" in problem_of([one, two], {1: [10], 2: [20]})


def test_a_read_that_sees_half_of_a_transaction_is_not() -> None:
    both = Txn({1: [], 2: []}, {1: 10, 2: 20}, "ok")
    half = Txn({1: [10], 2: []}, {}, "ok")
    assert "then" in problem_of([both, half], {1: [10], 2: [20]})


def test_values_that_are_lost_repeated_refused_or_invented_are_found() -> None:
    done = Txn({1: []}, {1: 10}, "ok")
    assert "0 times" in problem_of([done], {1: []})
    assert "2 times" in problem_of([done], {1: [10, 10]})
    assert "is in list" in problem_of([Txn({}, {1: 10}, "failed")], {1: [10]})
    assert "has no writer" in problem_of([done], {1: [10, 11]})
    assert "never was" in problem_of([done, Txn({1: [11]}, {}, "ok")], {1: [10]})
