"""The stores of a node are compacted when they are due or on request."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.compaction.scheduling import BlobCompactions
from lithify.blobs.settings import DAY_MS, BlobSettings
from lithify.blobs.store import BlobStore
from lithify.clock import ManualClock
from lithify.compaction.policies.why_declined import WhyNot
from lithify.compaction.reports.report import Cause
from lithify.compaction.reports.status import CompactionState, CompactionStatus
from lithify.compaction.run.control import WAITING
from lithify.compaction.run.journal import Journal
from lithify.compaction.scheduling.run_order import REST_MS
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import InvalidSetting, JobFailed, RunRefused
from lithify.fs import MemoryFileSystem
from tests.hooked_jobs import HookedJobs
from tests.patience import PROCESS_S_MAX
from tests.unit.blobs.life import RETENTION_MS, Life

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.compaction.run.journal import RunRecord
    from lithify.compaction.tasks.jobs import Check
    from lithify.fs import FileStat


SETTINGS = BlobSettings(deleted_retention_ms=RETENTION_MS, every_ms=DAY_MS)


class Node:
    """Some stores, and what maintains them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lives: dict[str, Life] = {}
        self.queue = RunQueue(self.clock)
        self.compactions = BlobCompactions(self.opened, self.queue)

    def opened(self) -> dict[str, BlobStore]:
        return {name: life.store for name, life in self.lives.items()}

    def add(
        self, name: str, settings: BlobSettings = SETTINGS, fs: MemoryFileSystem | None = None
    ) -> Life:
        """A store, half of which is dead."""
        life = self.lives[name] = Life(fs or MemoryFileSystem(), self.clock, settings)
        for number in range(8):
            life.put(f"blob {number}", 20_000, ttl_ms=None if number % 2 else 0)
        life.roll()
        self.clock.advance(0.001)
        return life

    def settled(self, name: str) -> CompactionStatus:
        """Wait until no run is in progress."""
        while self.compactions.is_busy(self.lives[name].store):
            pass
        return self.compactions.status(name)

    def outcome(self, name: str, request_id: str) -> CompactionStatus:
        while True:
            status = self.compactions.status(name, request_id)
            if status.state is not CompactionState.RUNNING:
                return status

    def runs(self, name: str) -> list[str]:
        self.settled(name)
        return [r.trigger for r in reversed(self.lives[name].store.compaction.history.newest(9))]


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.compactions.close()


def refill(life: Life) -> None:
    life.clock.advance(0.001)
    life.put(f"more {life.clock.now_ms()}", 20_000, ttl_ms=0)
    life.roll()


def test_a_periodic_run_at_the_start_and_then_at_each_interval(node: Node) -> None:
    life = node.add("photos")
    assert node.compactions.status("photos").state is CompactionState.NOT_RUN
    node.compactions.request_due_runs()
    assert node.runs("photos") == ["periodic"]
    refill(life)
    node.compactions.request_due_runs()
    assert node.runs("photos") == ["periodic"], "its time has not come"
    node.clock.advance(DAY_MS / 1000)
    node.compactions.request_due_runs()
    assert node.runs("photos") == ["periodic", "periodic"]


def test_a_request_chooses_a_policy(node: Node) -> None:
    life = node.add("photos", replace(SETTINGS, triggers=("admin",)))
    node.compactions.request_due_runs()
    assert node.runs("photos") == [], "runs only on request"
    node.compactions.request(life.store, "hybrid")
    status = node.settled("photos")
    assert status.report is not None
    assert (status.report.policy, status.report.trigger) == ("hybrid:all", "admin")
    assert status.report.reclaimed_bytes > 0


def test_without_triggers_compaction_is_off(node: Node) -> None:
    life = node.add("photos", replace(SETTINGS, triggers=()))
    node.compactions.request_due_runs()
    assert node.runs("photos") == []
    with pytest.raises(RunRefused, match=r"compaction refused \(triggers\)"):
        node.compactions.request(life.store)
    with pytest.raises(InvalidSetting, match="one of periodic, admin"):
        replace(SETTINGS, triggers=("sometimes",))


def test_a_refused_request_has_a_reason(node: Node) -> None:
    life = node.add("photos", replace(SETTINGS, used_percent_min=50))
    generation = life.store.log.manifest.generation
    node.compactions.request_due_runs()
    report = node.settled("photos").report
    assert report is not None
    assert report.result == "nothing to do"
    assert report.declined is not None
    assert report.declined.why is WhyNot.USED_TOO_LITTLE
    assert life.store.log.manifest.generation == generation
    declined = life.store.compaction.plan().declined
    assert declined == report.declined
    assert "a run would do nothing, used too little" in life.store.compaction.plan().explain()


@pytest.mark.parametrize("policy", ["all", "stats", "hybrid"])
def test_a_run_that_frees_too_few_segments_leaves_nothing_behind(node: Node, policy: str) -> None:
    life = node.add("photos", replace(SETTINGS, reclaim_segments_min=5, policy=policy))
    manifest, files = life.store.log.manifest, sorted(life.fs.list(life.store.directory))
    node.compactions.request_due_runs()
    report = node.settled("photos").report
    assert report is not None
    assert report.declined is not None
    assert report.declined.why in (WhyNot.FREES_TOO_LITTLE, WhyNot.NOTHING_TO_GAIN)
    assert life.store.log.manifest is manifest
    assert sorted(life.fs.list(life.store.directory)) == files
    life.check()


def test_a_store_of_one_segment_is_not_compacted(node: Node) -> None:
    fs = MemoryFileSystem()
    store = BlobStore.create(fs, "/one", capacity_bytes=2**20, segment_bytes=2**20)
    compactions = BlobCompactions(lambda: {"one": store}, RunQueue(node.clock))
    compactions.request_due_runs()
    assert compactions.status("one").state is CompactionState.NOT_RUN
    with pytest.raises(RunRefused, match="has one segment"):
        compactions.request(store)
    store.close()


def test_an_unknown_policy_is_refused_at_once(node: Node) -> None:
    life = node.add("photos")
    with pytest.raises(InvalidSetting, match="one of all, stats, hybrid"):
        node.compactions.request(life.store, "view")


def test_deletes_stay_until_every_replica_has_seen_them(node: Node) -> None:
    life = node.add("photos")
    life.delete("blob 1")
    life.roll()
    delete = life.records[-1]
    life.passed = delete.position - 1
    node.clock.advance((RETENTION_MS + 1) / 1000)
    for _ in range(3):
        life.compact("all")
    assert delete in life.alive("blob 1"), "a replica could bring the blob back"
    life.check()
    life.passed = delete.position
    report = life.compact("all")
    assert report.dropped == {Cause.TOMBSTONE: (1, delete.frame_bytes)}
    life.check()


class Stuck(HookedJobs):
    """A job that begins and waits until it is released, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self._fails = fails

    def before(self, name: str, check: Check) -> None:
        self.began.set()
        if self._fails:
            raise JobFailed(name, "the worker died")
        while not self.let_go.is_set():
            check()


def test_a_run_is_watched_and_cancelled(node: Node) -> None:
    life = node.add("photos")
    manifest = life.store.log.manifest
    stuck = node.queue.jobs = Stuck()
    node.compactions.request(life.store)
    stuck.began.wait()
    assert node.compactions.status("photos").state is CompactionState.RUNNING
    assert node.compactions.cancel("photos")
    status = node.settled("photos")
    assert status.state is CompactionState.ERROR
    assert "cancelled" in status.error
    assert life.store.log.manifest is manifest
    assert not node.compactions.cancel("photos")
    assert not node.compactions.cancel("unknown")


def test_a_request_during_a_dry_run_waits_for_it(node: Node) -> None:
    life = node.add("photos")
    stuck = Stuck()
    plan, given = life.store.compaction.plan, ("all", stuck)
    dry_run = threading.Thread(target=plan, args=given, daemon=True)
    dry_run.start()
    stuck.began.wait()
    request_id = node.compactions.request(life.store, policy="all")
    status = node.compactions.status("photos", request_id)
    assert (status.state, status.phase) == (CompactionState.RUNNING, WAITING)
    stuck.let_go.set()
    dry_run.join()
    status = node.outcome("photos", request_id)
    assert status.report is not None
    assert (status.report.result, status.report.policy) == ("done", "all")


def test_a_request_during_a_run_is_a_separate_run(node: Node) -> None:
    life = node.add("photos")
    stuck = node.queue.jobs = Stuck()
    first = node.compactions.request(life.store, policy="stats")
    stuck.began.wait()
    refill(life)
    node.clock.advance(0.001)
    second = node.compactions.request(life.store, policy="all")
    stuck.let_go.set()
    reports = [node.outcome("photos", each).report for each in (first, second)]
    assert [report.policy for report in reports if report] == ["stats", "all"]
    ids = [report.run_id for report in reports if report]
    assert [r.run_id for r in life.store.compaction.history.newest(9)] == ids[::-1]


def test_a_dry_run_matches_the_run_after_it(node: Node) -> None:
    life = node.add("photos")
    compaction = life.store.compaction
    assert compaction.plan().declined is None
    assert compaction.run().result == "done"
    for _ in range(2):
        generation = life.store.log.manifest.generation
        declined = compaction.plan().declined
        assert declined is not None
        assert declined.why == "nothing to gain"
        report = compaction.run()
        assert (report.result, report.declined) == ("nothing to do", declined)
        assert life.store.log.manifest.generation == generation
        # Sealed and all live: that a run has checked it is no reason to publish.
        life.put(f"more {generation}", 120_000)
        life.roll()


def test_stores_of_one_disk_take_turns(node: Node) -> None:
    first, second = node.add("first"), node.add("second")
    stuck = node.queue.jobs = Stuck()
    node.compactions.request(first.store)
    stuck.began.wait()
    node.compactions.request(second.store)
    assert node.compactions.status("second").phase == WAITING
    stuck.let_go.set()
    assert node.runs("second") == ["admin"]


class OtherDisk(MemoryFileSystem):
    def stat(self, path: str) -> FileStat:
        return replace(super().stat(path), device=2)


class Together(HookedJobs):
    """No run proceeds before all have started."""

    def __init__(self, runs: int) -> None:
        self._all_here = threading.Barrier(runs)
        self._run = threading.local()

    def before(self, name: str, check: Check) -> None:
        if not hasattr(self._run, "has_met"):
            self._run.has_met = self._all_here.wait(timeout=PROCESS_S_MAX) >= 0


def test_stores_of_two_disks_are_compacted_side_by_side(node: Node) -> None:
    first, second = node.add("first"), node.add("second", fs=OtherDisk())
    node.queue.jobs = Together(2)
    node.compactions.request(first.store)
    node.compactions.request(second.store)
    assert node.runs("first") == node.runs("second") == ["admin"]


def test_a_failed_run_is_retried_after_a_pause(node: Node) -> None:
    life = node.add("photos")
    node.queue.jobs = Stuck(fails=True)
    node.compactions.request_due_runs()
    assert "the worker died" in node.settled("photos").error
    node.queue.jobs = LocalJobs()
    node.compactions.request_due_runs()
    assert node.settled("photos").state is CompactionState.ERROR
    node.clock.advance(REST_MS / 1000)
    node.compactions.request_due_runs()
    assert node.settled("photos").state is CompactionState.SUCCESS
    life.judged(life.clock.now_ms(), life.store.log.manifest.horizon)
    life.check()


def test_a_status_survives_a_restart(node: Node) -> None:
    life = node.add("photos")
    node.compactions.request_due_runs()
    before = node.settled("photos")
    life.store.close()
    life.open()
    after = node.compactions.status("photos")
    assert after.report is not None
    assert before.report is not None
    assert after == replace(before, report=after.report)
    assert after.report.run_id == before.report.run_id
    assert after.report.reclaimed_bytes == before.report.reclaimed_bytes > 0


class StuckCopying(HookedJobs):
    """A rewrite that waits for ever behind its first group."""

    def __init__(self) -> None:
        self.copied = threading.Event()

    def behind(self, name: str, check: Check) -> None:
        # The one who was given the result has journalled it.
        self.copied.set()
        while name == "rewrite":
            check()


def cut_off(node: Node, settings: BlobSettings = SETTINGS) -> tuple[Life, RunRecord]:
    """A store that was closed while a run copied, open again; what the run had done."""
    life = node.add("photos", settings)
    for number in range(30):
        life.put(f"large {number}", 60_000, ttl_ms=None if number % 2 else 0)
    life.roll()
    node.clock.advance(0.001)
    stuck = node.queue.jobs = StuckCopying()
    node.compactions.request(life.store)
    stuck.copied.wait()
    life.store.close()
    killed = Journal(life.fs, life.store.directory).read()
    assert killed is not None
    assert 0 < len(killed.targets) < len(killed.groups)
    life.open()
    node.queue.jobs = LocalJobs()
    return life, killed


def test_with_the_admin_trigger_only_a_killed_run_is_resumed_and_no_other_starts(
    node: Node,
) -> None:
    life, killed = cut_off(node, replace(SETTINGS, triggers=("admin",)))
    refill(life)
    node.clock.advance(0.001)
    node.compactions.request_due_runs()
    node.settled("photos")
    [report] = life.store.compaction.history.newest(9)
    assert (report.run_id, report.result) == (killed.run_id, "done")
    life.judged(killed.as_of_ms, killed.horizon)
    life.check()
    assert life.store.statistics().reclaimable_bytes > 20_000, "of what has expired since"


def test_a_run_suspended_by_a_close_resumes_after_the_restart(node: Node) -> None:
    life, killed = cut_off(node)
    assert "interrupted" in node.compactions.status("photos").error
    node.compactions.request_due_runs()
    node.settled("photos")
    [report] = life.store.compaction.history.newest(9)
    assert (report.run_id, report.result) == (killed.run_id, "done")
    names = {segment.name for segment in life.store.log.manifest.segments}
    assert {target.name for target in killed.targets.values()} <= names
    life.judged(killed.as_of_ms, killed.horizon)
    life.check()
    refill(life)
    node.compactions.request_due_runs()
    assert node.runs("photos") == ["admin", "periodic"], "the first one that this node begins"


def test_a_run_that_had_decided_nothing_leaves_nothing_when_its_store_is_closed(node: Node) -> None:
    life = node.add("photos")
    stuck = node.queue.jobs = Stuck()
    node.compactions.request(life.store)
    stuck.began.wait()
    life.store.close()
    assert Journal(life.fs, life.store.directory).read() is None
    life.open()
    life.check()


def test_a_run_slows_down_while_gets_are_slow(node: Node) -> None:
    """The clock moves by itself here: a get that takes long is one that moves it."""
    life = node.add("photos")
    rates = []

    def watch(phase: str, done: int, total: int) -> None:
        for _ in range(100):
            life.store.compaction.latencies.add(0.5)
        node.clock.advance(0.5)
        rates.append(life.store.compaction.rate.read())

    life.store.compaction.run(progress=watch)
    fast = life.settings.pace.bytes_per_s_max
    assert rates[:2] == [None, None], "it starts at the maximum, for which there is no file"
    assert rates[-1] is not None
    assert rates[-1] <= fast // 2
    assert not life.fs.exists(life.store.compaction.rate.path), "and nothing is left of it"
