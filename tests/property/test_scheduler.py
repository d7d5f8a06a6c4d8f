from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.compaction.scheduling.run_order import (
    BACKOFF_MS_MAX,
    CompactNow,
    Result,
    Schedule,
    Wait,
)
from lithify.compaction.scheduling.triggers import Observation, Trigger

PERIOD_MS = 10_000
IDLE = Observation(period_ms=PERIOD_MS)
LAGGING = replace(IDLE, oldest_unjudged_ms=0, lag_ms_max=500)
REACHED = replace(IDLE, reached="much")

HOT = st.sampled_from(
    [
        REACHED,
        replace(IDLE, unfinished=True),
        LAGGING,
        replace(LAGGING, reached="much", unfinished=True),
    ]
)


@settings(deadline=None)
@given(
    hot=st.lists(HOT, max_size=6),
    asked=st.booleans(),
    idle=st.integers(1, 6),
    run_ms=st.lists(st.integers(100, 2_000), min_size=1, max_size=20),
)
def test_idle_logs_run_within_a_period_and_one_round(
    hot: list[Observation], asked: bool, idle: int, run_ms: list[int]
) -> None:
    scheduler = Schedule()
    names = [f"hot-{number}" for number in range(len(hot))]
    names += [f"idle-{number}" for number in range(idle)]
    for name in names:
        scheduler.add(name, "d", since_ms=0)
    last_ms = dict.fromkeys(names, 0)
    bound_ms = PERIOD_MS + len(names) * max(run_ms)
    now_ms = 0
    turns = 0
    while now_ms < 4 * bound_ms:
        for number, observation in enumerate(hot):
            scheduler.observe(f"hot-{number}", observation, now_ms)
            if asked and scheduler.due_trigger(f"hot-{number}", now_ms) is not Trigger.ADMIN:
                scheduler.request(f"hot-{number}", now_ms)
        for number in range(idle):
            scheduler.observe(f"idle-{number}", IDLE, now_ms)
        answer = scheduler.next("d", now_ms)
        if isinstance(answer, Wait):
            assert answer.until_ms is not None
            assert answer.until_ms > now_ms
            now_ms = answer.until_ms
            continue
        assert now_ms - last_ms[answer.name] <= bound_ms
        last_ms[answer.name] = now_ms
        scheduler.started(answer, now_ms)
        now_ms += run_ms[turns % len(run_ms)]
        turns += 1
        scheduler.finished(answer.name, now_ms, Result.DONE)
    for name in names:
        assert now_ms - last_ms[name] <= bound_ms + max(run_ms)


RESULTS = {"fail": Result.FAILED, "finish": Result.DONE}


def seen(amount: int) -> Observation:
    reached = "much" * (amount % 2)
    return Observation(amount, 500, reached, PERIOD_MS, unfinished=amount % 3 == 0)


def begin(scheduler: Schedule, disk: str, running: dict[str, str], now_ms: int) -> None:
    """Begin what is next on a disk, if anything is."""
    answer = scheduler.next(disk, now_ms)
    if disk in running:
        assert answer == Wait(None, f"{running[disk]} is running on disk {disk}")
    elif isinstance(answer, CompactNow):
        assert (answer.name == "z") == (disk == "e")
        scheduler.started(answer, now_ms)
        running[disk] = answer.name
    else:
        assert answer.until_ms is None or answer.until_ms > now_ms


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["observe", "request", "start", "finish", "fail", "tick"]),
        st.integers(0, 3),
        st.integers(0, 3_000),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_one_log_runs_per_disk_and_the_queue_never_stalls(
    steps: list[tuple[str, int, int]],
) -> None:
    scheduler = Schedule()
    disks = {"a": "d", "b": "d", "c": "d", "z": "e"}
    for name, disk in disks.items():
        scheduler.add(name, disk, since_ms=0)
    running: dict[str, str] = {}
    now_ms = 0
    for what, number, amount in steps:
        name = "abcz"[number]
        disk = disks[name]
        if what == "tick":
            now_ms += amount
        elif what == "observe":
            scheduler.observe(name, seen(amount), now_ms)
        elif what == "request":
            scheduler.request(name, now_ms)
        elif what == "start":
            begin(scheduler, disk, running, now_ms)
        elif disk in running:
            scheduler.finished(running.pop(disk), now_ms, RESULTS[what])
    for name in running.values():
        scheduler.finished(name, now_ms, Result.DONE)

    # Without requests, with every retry and visit due, all logs get their turn and then rest.
    now_ms += PERIOD_MS + BACKOFF_MS_MAX
    for name in disks:
        scheduler.observe(name, IDLE, now_ms)
    turns: list[str] = []
    while isinstance(answer := scheduler.next("d", now_ms), CompactNow):
        turns.append(answer.name)
        scheduler.started(answer, now_ms)
        scheduler.finished(answer.name, now_ms, Result.DONE)
    assert set(turns) == {"a", "b", "c"}, "persons' requests are runs of their own"


@settings(deadline=None)
@given(order=st.permutations(["a", "b", "c", "d", "e"]), hot=st.booleans())
def test_requests_come_first_and_in_order_whatever_else_waits(order: list[str], hot: bool) -> None:
    scheduler = Schedule()
    for name in "abcdefg":
        scheduler.add(name, "d", since_ms=0)
        if hot:
            scheduler.observe(name, replace(REACHED, unfinished=True), now_ms=0)
    for name in order:
        scheduler.request(name, now_ms=20_000)

    turns = []
    for _ in order:
        answer = scheduler.next("d", 20_000)
        assert isinstance(answer, CompactNow)
        assert answer.trigger is Trigger.ADMIN
        turns.append(answer.name)
        scheduler.started(answer, 20_000)
        scheduler.finished(answer.name, 20_000, Result.DONE)

    assert turns == order
