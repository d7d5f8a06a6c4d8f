"""What a topic's own readers get, and what it answers for a key, is what a naive replay keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.settings import LogSettings
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.messages.entry_flags import FLAG_BATCH
from lithify.topics.topic import Topic
from tests.oracle import Oracle, Rules, Sent
from tests.topic_life import BINARY, Entries

if TYPE_CHECKING:
    import random

    from lithify.topics.messages.message import Message

STEPS = st.lists(st.sampled_from(["send", "send", "roll", "run", "look"]), max_size=10)
NOBODY = "nobody"


class Beside:
    """A topic beside its oracle."""

    def __init__(self, rng: random.Random, settings: TopicCompactionSettings) -> None:
        self._rng = rng
        self._clock = ManualClock()
        self._entries = Entries(rng, self._clock, readable=True)
        self._oracle = Oracle()
        self._rules = Rules(settings.by_event_time, settings.keep_keyless)
        self._topic = Topic.open(
            MemoryFileSystem(),
            "/topic",
            TopicName.parse("persistent://public/default/t"),
            settings=LogSettings(),
            clock=self._clock,
            events=ignore_events,
            compaction_settings=lambda: settings,
        )

    def send(self) -> None:
        for body, count in self._entries.some(self._rng.choice((1, 5, 12))):
            now, flags = self._clock.now_ms(), FLAG_BATCH if count else 0
            sent = self._topic.writer.append_entries(
                [body], times=[now], counts=[count or 1], flags=flags
            )
            self._oracle.sent(sent.result(), body)

    def roll(self) -> None:
        self._topic.log.roll()

    def run(self) -> None:
        self._topic.compaction.run("test")
        self._oracle.run(self._rules, self._topic.log.manifest.horizon, self._clock.now_ms())

    def look(self) -> None:
        due = self._oracle.view()
        found = list(self._topic.read(compacted=True))
        assert [place(each) for each in found] == [each.id for each in due]
        keys = [(a.key, b.key) for a, b in zip(found, due, strict=True) if not b.opaque]
        assert all(key == expected for key, expected in keys)
        for start in self._rng.sample(found, min(3, len(found))):
            rest = list(self._topic.read(start.id, compacted=True))
            assert rest == found[found.index(start) :]
        newest = self._newest()
        for key in {each.key for each in due} | {NOBODY.encode(), b"", BINARY[0].encode()}:
            if key is not None:
                answer = self._topic.get(key)
                expected = newest.get(key)
                assert (answer and place(answer)) == (expected and expected.id), key

    def _newest(self) -> dict[bytes, Sent]:
        newest: dict[bytes, Sent] = {}
        for each in self._oracle.view():
            if each.key is None or each.is_part:
                continue
            best = newest.get(each.key)
            if best is None or not self._rules.by_event or each.event_ms >= best.event_ms:
                newest[each.key] = each
        return {key: each for key, each in newest.items() if not each.tombstone}


def place(message: Message) -> tuple[int, int]:
    return message.id.ledger << 32 | message.id.entry, message.id.batch_index


@given(st.randoms(use_true_random=False), st.sampled_from(["publish", "event"]), STEPS)
def test_a_topic_gives_its_readers_what_a_naive_replay_keeps(
    rng: random.Random, order: str, steps: list[str]
) -> None:
    settings = TopicCompactionSettings(compaction_order=order, live_ratio_min=0.9)
    beside = Beside(rng, settings)
    for step in [*steps, "send", "run", "look", "send", "look"]:
        getattr(beside, step)()
