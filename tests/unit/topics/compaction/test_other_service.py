"""A node whose topics are compacted by another service, here a dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.compaction.reports.report import Report
from lithify.compaction.tasks.jobs import ignore_progress
from lithify.positions import NO_POSITION, pack
from lithify.topics.compaction.compaction_service import MessagePosition
from lithify.topics.definitions.policies import Policies
from lithify.topics.disk_steps import run_here
from lithify.topics.messages.message import MessageId, decode_entry
from lithify.topics.subscriptions.subscription import Consumer, SubscriptionType
from tests.http.compacting import AT, NAMESPACE, fill
from tests.http.node import HttpNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.compaction.tasks.jobs import Progress
    from lithify.log.log import Log
    from lithify.log.segments.frame import LogEntry

EXCLUSIVE = SubscriptionType.EXCLUSIVE


class Dictionary:
    """Keeps the newest entry of each key in memory; it never rolls the log nor writes to it."""

    def __init__(self, log: Log, _compaction: object) -> None:
        self._log = log
        self._newest: dict[bytes | None, LogEntry] = {}
        self.runs: list[str] = []
        self.last_compacted_position = NO_POSITION

    def compact(
        self, trigger: str, jobs: object = None, progress: Progress = ignore_progress
    ) -> Report:
        with self._log.snapshot("dictionary") as snapshot:
            for entry in snapshot.read(self.last_compacted_position + 1):
                (message,) = decode_entry(entry)
                self._newest.pop(message.key, None)
                if message.value is not None:
                    self._newest[message.key] = entry
                self.last_compacted_position = entry.position
        self.runs.append(trigger)
        horizon = self.last_compacted_position
        return Report("1", self._log.directory, "dict", trigger, 0, 0, horizon, 0, 0, "done")

    def _retained(self) -> list[LogEntry]:
        return sorted(self._newest.values(), key=lambda entry: entry.position)

    def read_compacted_entries(
        self, start: int, limit: int, through: int | None = None
    ) -> tuple[Sequence[LogEntry], int]:
        last = self.last_compacted_position if through is None else through
        found = [each for each in self._retained() if start <= each.position <= last]
        return found[:limit], found[limit - 1].position if len(found) > limit else last

    def last_message_position(self) -> MessagePosition | None:
        entries = self._retained()
        return MessagePosition(entries[-1].position, -1) if entries else None

    def find_by_publish_time(self, time_ms: int) -> int | None:
        return next((each.position for each in self._retained() if each.time_ms >= time_ms), None)

    def delete_compacted(self) -> None:
        self._newest.clear()
        self.last_compacted_position = NO_POSITION

    def close(self) -> None:
        self._newest.clear()


@pytest.fixture
def node() -> Iterator[HttpNode]:
    with HttpNode(compaction_service=f"{__name__}:Dictionary") as node:
        yield node


def service_of(topic: Any) -> Dictionary:
    found = topic.service
    assert isinstance(found, Dictionary)
    return found


def test_consumers_and_the_library_get_what_it_retains_and_the_log_above_it(node: HttpNode) -> None:
    topic = node.topic()
    for number in range(10):
        node.clock.advance(1)
        topic.append(key=f"k{number % 3}", value=b"%d" % number)
    middle_ms = node.clock.now_ms()
    topic.append(key="k2", value=None)
    topic.compact()
    topic.append(key="k9", value=b"above")
    assert [each.value for each in topic.read(compacted=True)] == [b"7", b"9", b"above"]
    start = topic.reader.times.find(middle_ms, compacted=True)
    assert unpacked(topic, start) == b"9", "8 and its tombstone are gone"
    reader = topic.subscription("r", EXCLUSIVE, durable=False, start=0, compacted=True)
    topic.join(reader, Consumer("c", permits=9), EXCLUSIVE, compacted=True)
    values = []
    while deliveries := topic.dispatch(reader):
        values += [next(decode_entry(each.entry)).value for each in deliveries]
    assert values == [b"7", b"9", b"above"]


def unpacked(topic: Any, position: int) -> bytes | None:
    entries, _ = topic.service.read_compacted_entries(position, 1)
    (message,) = decode_entry(entries[0])
    value: bytes | None = message.value
    return value


def test_triggers_and_retention_go_by_what_it_has_judged(node: HttpNode) -> None:
    """And not by the view in the log's manifest, which it does not have."""
    topic = node.topic()
    topic.policies = lambda: Policies(retention_ms=0)
    node.do("POST", f"{NAMESPACE}/compactionSettings", {"compaction_threshold_messages": 20})
    service = service_of(topic)

    def look() -> list[str]:
        for _ in range(3):
            node.topics.compactions.request_due_runs()
            while node.get(f"{AT}/compaction")["status"] == "RUNNING":
                pass
        node.clock.advance(3600)
        run_here(topic.enforcing())
        topic.maintain_files()
        return service.runs

    fill(topic, 19, 10)
    topic.log.roll()
    assert look() == []
    assert len(list(topic.read())) == 19, "it is to be compacted one day"
    fill(topic, 1, 1)
    topic.log.roll()
    assert look() == ["threshold"], "once"
    assert list(topic.read()) == []
    assert len(list(topic.read(compacted=True))) == 10
    assert topic.last_message_id(service.last_compacted_position) == MessageId(*last_of(service))
    node.do("DELETE", f"{AT}/subscription/__compaction")
    assert service.last_compacted_position == NO_POSITION
    node.refused(404, "DELETE", f"{AT}/subscription/__compaction")


def last_of(service: Dictionary) -> tuple[int, int]:
    found = service.last_message_position()
    assert found is not None
    return found.position >> 32, found.position - pack(found.position >> 32, 0)
