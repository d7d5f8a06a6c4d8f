from __future__ import annotations

import threading

import pytest

from lithify.clock import ManualClock
from lithify.compaction.planning.horizon import Hold, Holds, find_horizon
from lithify.errors import InvalidInput, PositionOutOfRange
from lithify.positions import NO_POSITION, PACKED, pack


def test_the_horizon_is_the_lowest_hold() -> None:
    horizon = find_horizon([Hold("journal", 1500), Hold("active-segment", 1200)])

    assert horizon.position == 1200
    assert [hold.name for hold in horizon.blocking] == ["active-segment"]


def test_no_holds_is_a_mistake_and_not_a_licence_to_judge_everything() -> None:
    with pytest.raises(InvalidInput, match="no holds"):
        find_horizon([])


def test_explain_names_the_hold_its_owner_its_age_and_the_next_one() -> None:
    horizon = find_horizon(
        [
            Hold("snapshot", 1700, since_ms=10_000),
            Hold("journal", 1500, since_ms=10_000),
            Hold("active-segment", 1200, owner="log", since_ms=97_000),
        ]
    )

    assert horizon.explain(100_999) == (
        "horizon 1200, held by active-segment (owner log) for 3 s; next: journal at 1500"
    )


def test_explain_writes_positions_as_the_log_does() -> None:
    horizon = find_horizon([Hold("active-segment", PACKED.last(3)), Hold("lag", pack(4, 17))])

    assert horizon.explain(5, PACKED.show) == (
        "horizon 3:end, held by active-segment; next: lag at 4:17"
    )
    assert find_horizon([Hold("lag", NO_POSITION)]).explain(5, PACKED.show) == (
        "horizon nothing, held by lag"
    )


def test_explain_names_all_blocking_holds() -> None:
    horizon = find_horizon([Hold("build", -1, "idx-2"), Hold("build", -1, "idx-1")])

    assert horizon.explain(5) == "horizon -1, held by build (owner idx-2) and build (owner idx-1)"


def test_an_age_is_never_negative_when_the_wall_clock_steps_back() -> None:
    assert Hold("journal", 4, since_ms=9_000).describe(now_ms=2_000) == "journal for 0 s"


@pytest.mark.parametrize("position", [-2, -100])
def test_a_negative_hold_is_refused(position: int) -> None:
    with pytest.raises(PositionOutOfRange, match="hold journal"):
        Hold("journal", position)


def test_a_hold_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no name"):
        Hold("", 3)


def test_a_hold_moves_forward_and_restarts_its_age_only_then() -> None:
    clock = ManualClock(start_ms=1_000)
    holds = Holds(clock)
    handle = holds.place("active-segment", 10, "log")

    clock.advance(5)
    handle.move(10)
    assert holds.list() == (Hold("active-segment", 10, "log", since_ms=1_000),)

    handle.move(25)
    assert holds.list() == (Hold("active-segment", 25, "log", since_ms=6_000),)
    assert handle.hold == Hold("active-segment", 25, "log", since_ms=6_000)


def test_a_hold_never_moves_back() -> None:
    holds = Holds(ManualClock())
    handle = holds.place("journal", 10)

    with pytest.raises(
        InvalidInput, match="hold journal is at position 10 and cannot go back to 9"
    ):
        handle.move(9)

    assert holds.list()[0].position == 10


def test_holds_that_share_a_name_are_released_one_by_one() -> None:
    holds = Holds(ManualClock())
    first = holds.place("transaction", 5, "tx-1")
    with holds.place("transaction", 7, "tx-2"):
        assert [hold.owner for hold in holds.list()] == ["tx-1", "tx-2"]
    assert [hold.owner for hold in holds.list()] == ["tx-1"]

    first.release()
    first.release()

    assert holds.list() == ()
    assert first.hold is None
    with pytest.raises(InvalidInput, match="released"):
        first.move(8)


def test_a_failing_block_releases_its_hold() -> None:
    holds = Holds(ManualClock())

    with pytest.raises(RuntimeError), holds.place("build", 3):
        raise RuntimeError

    assert holds.list() == ()


def test_many_threads_place_move_and_release_without_losing_one_another() -> None:
    holds = Holds(ManualClock())
    standing = holds.place("active-segment", 1_000)
    lowest: list[int] = []

    def work(number: int) -> None:
        for step in range(200):
            with holds.place("transaction", number, f"tx-{number}") as handle:
                handle.move(number + step)
                lowest.append(find_horizon(holds.list()).position)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(lowest) == 8 * 200
    assert max(lowest) <= 206
    assert holds.list() == (standing.hold,)
