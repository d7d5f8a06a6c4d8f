"""Compaction over HTTP: run, status, history, cancel, settings, statistics, deleting the view."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import RunRefused
from lithify.fs import write_atomic
from lithify.positions import pack
from lithify.topics.compaction.compaction_service import LogCompactionService
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.subscriptions.subscription import Consumer, SubscriptionType
from tests.hooked_jobs import Halted
from tests.http.compacting import AT, NAMESPACE, fill, finished
from tests.http.node import ORDERS, HttpNode
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.compaction.reports.report import Report
    from lithify.topics.topic import Topic


@pytest.fixture
def node() -> Iterator[HttpNode]:
    with HttpNode() as node:
        yield node


def view_of(topic: Topic) -> dict[bytes | None, bytes | None]:
    return {each.key: each.value for each in topic.read(compacted=True)}


# --- runs -------------------------------------------------------------------------------------


def test_a_topic_is_compacted_on_request_as_pulsars_tools_do_it(node: HttpNode) -> None:
    topic = node.topic()
    assert node.get(f"{AT}/compaction") == {"status": "NOT_RUN", "lastError": ""}
    fill(topic, 1000, 10)
    node.do("PUT", f"{AT}/compaction")
    assert finished(node) == {"status": "SUCCESS", "lastError": ""}
    assert view_of(topic) == {b"k%d" % n: b"v%d" % (990 + n) for n in range(10)}
    stats = node.get(f"{AT}/stats")["compaction"]
    assert stats["lastCompactionRemovedEventCount"] == 990
    assert stats["lastCompactionSucceedTimestamp"] > 0
    assert stats["lastCompactionFailedTimestamp"] == 0
    assert stats["lastCompactionDurationTimeInMills"] == 0, "by a clock that stands still"
    assert len(stats) == 4
    internal = node.get(f"{AT}/internalStats")
    assert internal["compactedLedger"]["entries"] == 10
    cursor = internal["cursors"]["__compaction"]
    assert cursor["properties"] == {"CompactedTopicLedger": internal["compactedLedger"]["ledgerId"]}
    assert cursor["numberOfEntriesSinceFirstNotAckedMessage"] == 0
    fill(topic, 3, 3)
    view = node.get(f"{AT}/stats")["subscriptions"]["__compaction"]
    assert (view["msgBacklog"], view["isDurable"], view["consumers"]) == (3, True, [])
    metrics = node.ask("GET", "/metrics").text
    labels = f'{{cluster="standalone",namespace="public/default",topic="{ORDERS}"}}'
    assert f"pulsar_compaction_removed_event_count_total{labels} 990.0" in metrics
    assert f"pulsar_compaction_compacted_entries_count{labels} 10.0" in metrics


def test_the_name_of_the_view_is_reserved(node: HttpNode) -> None:
    node.topic()
    assert "__compaction" in node.refused(412, "PUT", f"{AT}/subscription/__compaction")
    assert node.get(f"{AT}/subscriptions") == []


def test_a_run_with_nothing_new_reports_it_and_is_not_in_the_history(node: HttpNode) -> None:
    fill(node.topic(), 100, 10)
    node.do("PUT", f"{AT}/compaction")
    finished(node)
    node.do("PUT", f"{AT}/compaction")
    assert finished(node)["status"] == "SUCCESS"
    [row] = node.get(f"{AT}/compaction/progress")
    assert row["report"]["result"] == "nothing to do"
    [report] = node.get(f"{AT}/compaction/history")
    assert (report["result"], report["trigger"]) == ("done", "admin")
    assert report["topic"] == ORDERS


def test_a_request_during_a_run_or_a_dry_run_is_a_separate_run(
    node: HttpNode,
) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    topic.log.roll()
    dry = Halted()
    dry_run = threading.Thread(target=topic.compaction.plan, args=(dry,), daemon=True)
    dry_run.start()
    assert dry.begun.wait(PROCESS_S_MAX)
    requests = []
    for _ in range(2):
        answer = node.ask("PUT", f"/admin/v2{AT}/compaction")
        assert answer.status_code == 204
        requests.append(answer.headers["x-lithify-request"])
        [row] = node.get(f"{AT}/compaction/progress?request={requests[-1]}")
        assert (row["status"], row["phase"]) == ("RUNNING", "WAITING")
    dry.go_on.set()
    dry_run.join()
    results = []
    for request in requests:
        while True:
            [row] = node.get(f"{AT}/compaction/progress?request={request}")
            if row["status"] != "RUNNING":
                break
        results.append(row["report"]["result"])
    assert results == ["done", "nothing to do"]
    assert "request 00 for a run on public/default/orders is unknown" in node.refused(
        404, "GET", f"{AT}/compaction/progress?request=00"
    )


def test_a_dry_run_reports_that_there_is_nothing_to_gain(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    [row] = node.ask("POST", f"/admin/v2{AT}/compaction/plan").json()
    assert row["declined"] is None, "a run would seal the active ledger"
    node.do("PUT", f"{AT}/compaction")
    finished(node)
    generation = topic.log.manifest.generation
    [row] = node.ask("POST", f"/admin/v2{AT}/compaction/plan").json()
    assert row["declined"]["why"] == "nothing to gain"
    assert "nothing to gain" in row["text"]
    node.do("PUT", f"{AT}/compaction")
    finished(node)
    [row] = node.get(f"{AT}/compaction/progress")
    assert row["report"]["declined"]["why"] == "nothing to gain"
    assert topic.log.manifest.generation == generation


def test_a_dry_run_is_refused_during_a_run_that_can_be_cancelled(
    node: HttpNode,
) -> None:
    fill(node.topic(), 100, 10)
    jobs = node.topics.compactions.queue.jobs = Halted()
    node.do("PUT", f"{AT}/compaction")
    assert jobs.begun.wait(PROCESS_S_MAX)
    assert "is in progress" in node.refused(409, "POST", f"{AT}/compaction/plan?wait=false")
    assert node.get(f"{AT}/compaction")["status"] == "RUNNING"
    node.do("DELETE", f"{AT}/compaction")
    found = finished(node)
    assert found["status"] == "ERROR"
    assert "cancel" in found["lastError"]
    assert [row["result"] for row in node.get(f"{AT}/compaction/history")] == ["cancelled"]
    assert "no run" in node.refused(409, "DELETE", f"{AT}/compaction")
    assert node.get(f"{AT}/stats")["compaction"]["lastCompactionFailedTimestamp"] > 0
    node.topics.compactions.queue.jobs = LocalJobs()
    node.do("PUT", f"{AT}/compaction")
    assert finished(node)["status"] == "SUCCESS"


def test_a_run_taken_from_the_queue_is_cancelled_before_it_starts(
    node: HttpNode,
) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    cancelled = []

    class Late(LogCompactionService):
        def compact(self, *given: Any, **more: Any) -> Report:
            cancelled.append(node.topics.compactions.cancel(topic))
            return super().compact(*given, **more)

    topic.service = Late(topic.log, topic.compaction)
    node.do("PUT", f"{AT}/compaction")
    found = finished(node)
    assert cancelled == [True]
    assert (found["status"], "cancelled" in found["lastError"]) == ("ERROR", True)
    assert topic.log.manifest.view is None
    topic.service = LogCompactionService(topic.log, topic.compaction)
    node.do("PUT", f"{AT}/compaction")
    assert finished(node)["status"] == "SUCCESS", "a cancel is for one run only"


def test_a_run_cancelled_before_it_waits_for_the_disk_does_not_start(
    node: HttpNode,
) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    asked = []

    class Late(LogCompactionService):
        def compact(self, *given: Any, **more: Any) -> Report:
            asked.append(node.topics.compactions.cancel(topic))
            raise RunRefused("disk", "another run is on this disk")

    topic.service = Late(topic.log, topic.compaction)
    node.do("PUT", f"{AT}/compaction")
    assert finished(node)["status"] == "NOT_RUN"
    assert asked == [True]


def test_one_topic_waits_for_the_other(node: HttpNode) -> None:
    fill(node.topic(), 100, 10)
    fill(node.topic("persistent://public/default/other"), 100, 10)
    jobs = node.topics.compactions.queue.jobs = Halted()
    node.do("PUT", f"{AT}/compaction")
    assert jobs.begun.wait(PROCESS_S_MAX)
    other = "/persistent/public/default/other"
    node.do("PUT", f"{other}/compaction")
    [row] = node.get(f"{other}/compaction/progress")
    assert (row["status"], row["phase"]) == ("RUNNING", "WAITING")
    assert row["waitsFor"] == f"disk: pid {os.getpid()} compacts public/default/orders"
    for at in (AT, other):
        assert "compaction refused (topic): a run on" in node.refused(
            409, "PUT", f"{at}/compaction?wait=false"
        )
    fill(node.topic("persistent://public/default/third"), 1, 1)
    third = "/persistent/public/default/third/compaction"
    assert "compacts public/default/orders" in node.refused(409, "PUT", f"{third}?wait=false")
    assert node.get(third)["status"] == "NOT_RUN"
    jobs.go_on.set()
    assert finished(node)["status"] == finished(node, other)["status"] == "SUCCESS"


def test_all_partitions_are_compacted_together(node: HttpNode) -> None:
    node.do("PUT", f"{AT}/partitions", 3)
    for number in range(3):
        fill(node.topics.get(f"{ORDERS}-partition-{number}"), 50, 5)
    node.do("PUT", f"{AT}/compaction")
    for number in range(3):
        assert finished(node, f"{AT}-partition-{number}")["status"] == "SUCCESS"
    assert len(node.get(f"{AT}/compaction/history")) == 3
    node.refused(405, "GET", f"{AT}/compaction")


def test_a_plan_changes_nothing(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    topic.log.roll()
    before = topic.log.manifest
    answer = node.ask("POST", f"/admin/v2{AT}/compaction/plan")
    [row] = answer.json()
    assert row["topic"] == ORDERS
    assert "horizon" in row["text"]
    assert row["plan"]
    assert (row["active_entries"], "not included" in row["text"]) == (0, False)
    assert topic.log.manifest == before


def test_a_plan_names_unjudged_entries_and_the_holds_of_a_run(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    topic.log.roll()
    fill(topic, 7, 7)
    before = topic.log.manifest
    [row] = node.ask("POST", f"/admin/v2{AT}/compaction/plan").json()
    assert (row["active_entries"], row["active_bytes"]) == (7, topic.log.active_bytes)
    assert "not included: 7 entries" in row["text"]
    node.do("POST", f"{AT}/compactionSettings", {"compaction_lag_min_ms": 3_600_000})
    [row] = node.ask("POST", f"/admin/v2{AT}/compaction/plan").json()
    assert "held by minimum lag" in row["text"]
    assert topic.log.manifest == before


def test_status_and_history_survive_a_restart(node: HttpNode) -> None:
    fill(node.topic(), 100, 10)
    node.do("PUT", f"{AT}/compaction")
    finished(node)
    before = node.get(f"{AT}/stats")["compaction"]
    node.do("PUT", f"{AT}/unload")
    assert node.get(f"{AT}/compaction") == {"status": "SUCCESS", "lastError": ""}
    assert node.get(f"{AT}/stats")["compaction"] == before
    assert len(node.get(f"{AT}/compaction/history?limit=5")) == 1


def test_the_topic_that_is_not_there_is_not_found(node: HttpNode) -> None:
    for method, path in (("PUT", ""), ("GET", ""), ("DELETE", ""), ("GET", "/history")):
        node.refused(404, method, f"{AT}/compaction{path}")


# --- deleting ---------------------------------------------------------------------------------


def test_the_view_is_deleted_and_rebuilt(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    at = f"{AT}/subscription/__compaction"
    node.refused(404, "DELETE", at)
    node.do("PUT", f"{AT}/compaction")
    finished(node)
    node.do("DELETE", at)
    assert node.get(f"{AT}/internalStats")["compactedLedger"]["ledgerId"] == -1
    assert "__compaction" not in node.get(f"{AT}/internalStats")["cursors"]
    assert len(list(topic.read(compacted=True))) == 100
    node.do("PUT", f"{AT}/compaction")
    assert finished(node)["status"] == "SUCCESS"
    assert len(view_of(topic)) == 10


def test_a_topic_is_deleted_during_a_run(node: HttpNode) -> None:
    fill(node.topic(), 100, 10)
    jobs = node.topics.compactions.queue.jobs = Halted()
    node.do("PUT", f"{AT}/compaction")
    assert jobs.begun.wait(PROCESS_S_MAX)
    node.do("DELETE", AT)
    node.refused(404, "GET", f"{AT}/compaction")
    jobs.go_on.set()
    fill(node.topic(), 10, 10)
    node.do("PUT", f"{AT}/compaction")
    assert finished(node)["status"] == "SUCCESS"


# --- triggers ---------------------------------------------------------------------------------


def look(node: HttpNode, topic: Topic) -> str | None:
    """Let the node look for what is due; the trigger of the run that this has begun."""
    seen = len(topic.compaction.history.newest(1000))
    node.topics.compactions.request_due_runs()
    finished(node)
    newest = topic.compaction.history.newest(1000)
    return newest[0].trigger if len(newest) > seen else None


def test_triggers_of_a_topic(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    assert look(node, topic) is None, "nothing is set"
    node.do("POST", f"{AT}/compactionThreshold", 2000)
    assert look(node, topic) == "threshold"
    fill(topic, 10, 10)
    assert look(node, topic) is None, "too few bytes"
    node.do("POST", f"{AT}/compactionSettings", {"compaction_threshold_messages": 20})
    assert look(node, topic) is None, "too few messages"
    fill(topic, 10, 10)
    assert look(node, topic) == "threshold"
    fill(topic, 1, 1)
    node.do("POST", f"{AT}/compactionSettings", {"compaction_lag_max_ms": 5000})
    assert look(node, topic) is None
    node.clock.advance(5)
    assert look(node, topic) == "lag"
    node.do("DELETE", f"{AT}/compactionSettings")
    node.do("POST", f"{NAMESPACE}/compactionSettings", {"compaction_every_ms": 60_000})
    node.clock.advance(61)
    assert look(node, topic) is None, "nothing new"
    fill(topic, 1, 1)
    assert look(node, topic) == "periodic"
    fill(topic, 1, 1)
    assert look(node, topic) is None, "it was just done"
    node.clock.advance(61)
    node.do("POST", f"{AT}/compactionSettings", {"compaction_enabled": False})
    assert look(node, topic) is None, "switched off"


# --- settings ---------------------------------------------------------------------------------


def test_settings_of_a_topic_come_before_those_of_its_namespace(node: HttpNode) -> None:
    topic = node.topic()
    assert node.get(f"{AT}/compactionThreshold") is None
    assert node.get(f"{NAMESPACE}/compactionThreshold") is None
    node.do("PUT", f"{NAMESPACE}/compactionThreshold", 1000)
    assert node.get(f"{AT}/compactionThreshold?applied=true") == 1000
    node.do("POST", f"{AT}/compactionThreshold", 10)
    assert node.get(f"{AT}/compactionThreshold") == 10
    assert topic.compaction.settings().compaction_threshold_bytes == 10
    node.do("DELETE", f"{AT}/compactionThreshold")
    node.do("POST", f"{AT}/compactionSettings", {"compaction_order": "event", "live_ratio_min": 1})
    assert topic.compaction.settings().by_event_time
    applied = node.get(f"{AT}/compactionSettings?applied=true")
    assert (applied["compaction_threshold_bytes"], applied["live_ratio_min"]) == (1000, 1)
    assert node.get(f"{NAMESPACE}/compactionSettings") == {"compaction_threshold_bytes": 1000}
    node.do("DELETE", f"{NAMESPACE}/compactionThreshold")
    node.do("DELETE", f"{AT}/compactionSettings")
    assert node.get(f"{AT}/compactionSettings") == {}


DEFAULTS = asdict(TopicCompactionSettings())


def values_of(name: str) -> list[Any]:
    """Three for a setting, each another than the one before it, the first not the default."""
    default = DEFAULTS[name]
    if isinstance(default, bool):
        return [not default, default, not default]
    if name == "compaction_order":
        return ["event", "publish", "event"]
    if name.startswith("compaction_pace_"):
        return [default * factor for factor in (2, 3, 4)]
    return [0.1, 0.2, 0.3] if isinstance(default, float) else [2**20, 2**21, 2**22]


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_setting_can_be_set_for_node_namespace_and_topic(name: str) -> None:
    by_node, by_namespace, by_topic = values_of(name)
    with HttpNode(compaction=TopicCompactionSettings(**{name: by_node})) as node:
        topic = node.topic()

        def applies(value: Any) -> None:
            assert getattr(topic.compaction.settings(), name) == value
            assert node.get(f"{AT}/compactionSettings?applied=true") == {**DEFAULTS, name: value}

        applies(by_node)
        node.do("POST", f"{NAMESPACE}/compactionSettings", {name: by_namespace})
        applies(by_namespace)
        node.do("POST", f"{AT}/compactionSettings", {name: by_topic})
        applies(by_topic)
        node.do("POST", f"{AT}/compactionSettings", {name: None})
        applies(by_namespace)
        node.do("DELETE", f"{NAMESPACE}/compactionSettings")
        applies(by_node)


def test_invalid_settings_are_refused_by_name(node: HttpNode) -> None:
    node.topic()
    for at in (AT, NAMESPACE):
        method = "POST" if at is AT else "PUT"
        assert "-1" in node.refused(412, method, f"{at}/compactionThreshold", -1)
        settings = f"{at}/compactionSettings"
        assert "setting speed is unknown" in node.refused(412, "POST", settings, {"speed": 1})
        assert "key_ttl_ms" in node.refused(412, "POST", settings, {"key_ttl_ms": "long"})
        assert "keep_keyless" in node.refused(412, "POST", settings, {"keep_keyless": 1})
        assert "publish or event" in node.refused(
            412, "POST", settings, {"compaction_order": "size"}
        )
        node.refused(412, "POST", settings, {"compaction_read_bytes_per_s": -5})
    assert node.get(f"{AT}/compactionSettings") == {}


# --- beside it --------------------------------------------------------------------------------


def test_the_log_is_kept_until_it_is_compacted_and_the_view_outlives_it(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    node.do("POST", f"{AT}/compactionThreshold", 10**9)
    node.do("POST", f"{AT}/retention", nothing)
    node.do("POST", f"{AT}/trim")
    assert len(list(topic.read())) == 100, "it is to be compacted one day"
    node.do("PUT", f"{AT}/compaction")
    finished(node)
    node.do("POST", f"{AT}/trim")
    assert not list(topic.read())
    assert len(view_of(topic)) == 10


def test_the_newest_message_of_a_key(node: HttpNode) -> None:
    fill(node.topic(), 100, 10)
    at = "/topics/persistent/public/default/orders/keys"
    for _ in range(2):
        row = node.ask("GET", f"{at}/k3").json()
        assert (row["key"], row["value"]) == ("k3", "v93")
        node.do("PUT", f"{AT}/compaction")
        finished(node)
    missing = node.ask("GET", f"{at}/a%20b%2Fc")
    assert missing.status_code == 404
    assert "no message of key 'a b/c'" in missing.json()["reason"]


def test_a_second_deletion_of_the_view_is_refused(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    node.do("PUT", f"{AT}/compaction")
    finished(node)
    jobs = node.topics.compactions.queue.jobs = Halted()
    node.do("PUT", f"{AT}/compaction")
    assert jobs.begun.wait(PROCESS_S_MAX)
    first = threading.Thread(target=topic.compaction.delete_view)
    first.start()
    at = f"{AT}/subscription/__compaction"
    while "being deleted" not in node.ask("DELETE", f"/admin/v2{at}").text:
        pass
    jobs.go_on.set()
    first.join()
    node.refused(404, "DELETE", at)


def test_a_damaged_history_is_set_aside_and_stops_nothing(node: HttpNode) -> None:
    topic = node.topic()
    fill(topic, 100, 10)
    node.do("PUT", f"{AT}/compaction")
    finished(node)
    node.do("PUT", f"{AT}/unload")
    write_atomic(node.fs, f"{topic.log.directory}/HISTORY", b"00000000 {}\n" * 2)
    found = node.get(f"{AT}/compaction")
    assert (found["status"], found["lastError"]) == ("NOT_RUN", "")
    assert node.get(f"{AT}/stats")["compaction"]["lastCompactionSucceedTimestamp"] == 0
    assert node.fs.exists(f"{topic.log.directory}/HISTORY.damaged-1")


def trimmed(node: HttpNode) -> tuple[Topic, list[int]]:
    """A topic whose first messages are in the view only; all publish times."""
    topic = node.topics.get(ORDERS, create=True)
    times = []
    for number in range(40):
        times.append(node.clock.now_ms())
        topic.append(key=f"k{number}" if number < 4 else "last", value=b"v")
        node.clock.advance(1)
    topic.service.compact("test")
    node.clock.advance(2)
    node.do("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    topic.maintain()
    topic.maintain()
    assert topic.log.manifest.segments[0].first_position > pack(1, 3), "the head was not trimmed"
    return topic, times


def test_a_time_is_found_in_the_view_where_the_log_is_trimmed(node: HttpNode) -> None:
    topic, times = trimmed(node)

    def found(time_ms: int) -> int:
        answer = node.get(f"{AT}/messageid/{time_ms}")
        return pack(answer["ledgerId"], answer["entryId"])

    retained = [m.id.ledger << 32 | m.id.entry for m in topic.read(compacted=True)]
    assert len(retained) == 5
    for number in range(4):
        assert found(times[number]) == retained[number]
        assert found(times[number] - 1) == retained[number]
    assert found(times[4]) == retained[4], "what was between them is gone"
    assert found(times[-1] + 1) == topic.log.next_position
    assert found(-1) == found(0) == retained[0]
    assert found(10**30) == topic.log.next_position


def test_a_compacted_subscription_is_moved_to_a_time_in_the_view(node: HttpNode) -> None:
    topic, times = trimmed(node)
    kind = SubscriptionType.EXCLUSIVE
    each = topic.subscription("s", kind, durable=True, start=topic.log.next_position)
    consumer = Consumer("c", permits=100)
    topic.join(each, consumer, kind, compacted=True)
    topic.leave(each, consumer)
    node.do("POST", f"{AT}/subscription/s/resetcursor/{times[2]}")
    topic.join(each, consumer, kind, compacted=True)
    found = [delivery.entry.time_ms for delivery in topic.dispatch(each)]
    assert found == [times[2], times[3], times[-1]]
