"""Replicas that lose contact with each other, and the state of their blobs afterwards."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.errors import ReplicaAnswerInvalid, ReplicaNotCurrent
from lithify.blobs.purge_bounds import NOTHING
from lithify.blobs.records import BlobRecordKind
from lithify.blobs.replication.blob_stream import read_records
from lithify.blobs.replication.replicator import Replicator
from lithify.blobs.replication.tokens_and_pages import BlobChange, BlobChanges, Token
from lithify.compaction.reports.report import Cause
from lithify.errors import InvalidInput, PlanStale
from tests.unit.blobs.life import Meddling
from tests.unit.blobs.replicas import (
    RETENTION_MS,
    Chunks,
    Replica,
    SkewedClock,
    Wire,
    World,
    all_changes,
    url_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.fs import MemoryFileSystem


@pytest.fixture
def world() -> World:
    return World(1, trouble=False)


def put(world: World, replica: Replica, content: bytes = b"content") -> str:
    info = replica.store.put(content, service="tests")
    world.contents[info.blob_id] = content
    world.note(replica, info.blob_id)
    return info.blob_id


def compact_all(world: World, *replicas: Replica) -> None:
    """Long after the retention: twice, because a delete outlives its put by a run."""
    world.clock.advance(2 * RETENTION_MS / 1000)
    for replica in replicas:
        for _ in range(2):
            replica.roll()
            replica.store.compaction.run()


def restore(replica: Replica, fs: MemoryFileSystem) -> None:
    replica.store.abandon()
    replica.fs = fs
    replica.open()


def test_puts_changes_and_deletes_reach_the_other_replicas(world: World) -> None:
    a, b, c = world.replicas
    kept, gone = put(world, a, bytes(70_000)), put(world, b)
    world.heal()
    assert (c.content(kept), c.content(gone)) == (bytes(70_000), b"content")
    info = c.store.head(kept)
    assert info.put == a.store.head(kept).put
    c.store.delete(gone)
    c.store.delete(kept)
    c.store.undelete(kept)
    expiry_ms = c.clock.now_ms() + 1000
    c.store.ttl(kept, expiry_ms)
    world.heal()
    assert (a.content(gone), b.content(gone)) == (None, None)
    assert [r.store.head(kept).life_version for r in world.replicas] == [1, 1, 1]
    assert [r.store.head(kept).expiry_ms for r in world.replicas] == [expiry_ms] * 3


def test_changes_made_apart_end_in_one_state(world: World) -> None:
    a, b, c = world.replicas
    blob_id = put(world, a)
    world.heal()
    world.clock.advance(0.5)
    a.store.delete(blob_id)
    world.clock.advance(0.5)
    b.store.ttl(blob_id, None)
    world.heal()
    assert [r.content(blob_id) for r in world.replicas] == [None] * 3, "a later ttl is no undelete"
    c.store.undelete(blob_id)
    a.store.undelete(blob_id)
    b.store.undelete(blob_id)
    b.store.delete(blob_id)
    world.heal()
    assert [r.content(blob_id) for r in world.replicas] == [None] * 3


def test_a_delete_stays_until_every_replica_has_seen_it(world: World) -> None:
    a, b, c = world.replicas
    blob_id = put(world, a)
    world.heal()
    c.away = True
    a.store.delete(blob_id)
    for _ in range(3):
        world.step("pull", b)
        world.step("pull", a)
        compact_all(world, a, b)
    assert [change.deleted for change in all_changes(a.store)] == [True]
    assert a.store.purged().position == -1
    world.heal()
    assert c.content(blob_id) is None
    compact_all(world, a, b, c)
    assert all_changes(a.store) == all_changes(b.store) == all_changes(c.store) == []


def test_a_replica_that_was_no_peer_for_long_revives_nothing(world: World) -> None:
    a, b, c = world.replicas
    blob_id, other = put(world, a), put(world, b)
    world.heal()
    a.store.replication.set_peers([b.url])
    b.store.replication.set_peers([a.url])
    a.store.delete(blob_id)
    for _ in range(2):
        world.step("pull", b)
        world.step("pull", a)
        compact_all(world, a, b)
    assert a.rank(blob_id) is b.rank(blob_id) is None, "it is forgotten"
    assert c.content(blob_id) is not None
    a.store.replication.set_peers([b.url, c.url])
    b.store.replication.set_peers([a.url, c.url])
    new = put(world, c)
    with pytest.raises(ReplicaNotCurrent, match="http://c/"):
        a.replicator.pull(c.url)
    world.heal()
    for replica in world.replicas:
        assert replica.content(blob_id) is None
        assert replica.content(other) == replica.content(new) == b"content"
    assert sum(status.swept for status in c.replicator.status()) == 1


def let_expire(world: World, replica: Replica, blob_id: str) -> None:
    replica.store.ttl(blob_id, replica.clock.now_ms() + 100)
    world.note(replica, blob_id)


def test_a_replica_that_was_no_peer_does_not_revive_expired_blobs(world: World) -> None:
    a, b, c = world.replicas
    blob_id, other = put(world, a), put(world, b)
    world.heal()
    a.store.replication.set_peers([b.url])
    b.store.replication.set_peers([a.url])
    let_expire(world, a, blob_id)
    for _ in range(2):
        world.step("pull", b)
        world.step("pull", a)
        compact_all(world, a, b)
    assert a.rank(blob_id) is b.rank(blob_id) is None, "it is forgotten"
    assert c.content(blob_id) is not None, "it was never told"
    world.lists_change = True
    world.heal()
    world.check_same()
    assert [replica.content(other) for replica in world.replicas] == [b"content"] * 3


def test_a_blob_replicated_with_its_ttl_is_not_restored_without_it(world: World) -> None:
    a, b, c = world.replicas
    b.away = True
    blob_id = put(world, a)
    world.step("pull", c)
    c.away, b.away = True, False
    let_expire(world, a, blob_id)
    world.step("pull", b)
    assert b.store.head(blob_id).expiry_ms == a.store.head(blob_id).expiry_ms
    # The one who was told of the ttl is gone for ever: the others have it from the next one.
    b.store.replication.set_peers([c.url])
    c.store.replication.set_peers([b.url])
    compact_all(world, b)
    assert b.rank(blob_id) is not None, "c has not received it"
    a.away, c.away = True, False
    for replica in (b, c, b):
        world.step("pull", replica)
    assert b.content(blob_id) is c.content(blob_id) is None


def test_a_ttl_that_passed_before_the_content_arrived_is_kept(world: World) -> None:
    a, b, c = world.replicas
    a.clock, b.clock = SkewedClock(world.clock, 1000), SkewedClock(world.clock, 0)
    for replica in (a, b):
        replica.store.close()
        replica.open()
    b.away = True
    blob_id = put(world, a)
    world.step("pull", c)
    c.away, b.away = True, False
    let_expire(world, a, blob_id)
    world.clock.advance(0.2)
    world.step("pull", b)
    assert b.content(blob_id) is None, "it is over by the clock of a"
    a.away, c.away = True, False
    world.step("pull", b)
    assert b.content(blob_id) is None, "c has it without the ttl"


def test_a_replica_that_was_read_but_has_not_requested_is_not_new(world: World) -> None:
    a, b, c = world.replicas
    blob_id = put(world, c)
    for replica in (a, b):
        world.step("pull", replica)
    a.store.replication.set_peers([b.url])
    b.store.replication.set_peers([a.url])
    a.store.delete(blob_id)
    world.note(a, blob_id)
    for _ in range(2):
        world.step("pull", b)
        world.step("pull", a)
        compact_all(world, a, b)
    a.kill()
    assert a.rank(blob_id) is b.rank(blob_id) is None, "it is forgotten"
    world.lists_change = True
    world.heal()
    world.check_same()
    assert sum(status.swept for status in c.replicator.status()) == 1


def forgotten_by_two(world: World) -> str:
    """A blob that c has, d does not know, and a and b have deleted and forgotten."""
    a, b, c, d = world.replicas
    d.away = True
    blob_id = put(world, a)
    for replica in (b, c):
        world.step("pull", replica)
    for one, other in ((a, b), (b, a)):
        one.store.replication.set_peers([other.url])
    a.store.delete(blob_id)
    for _ in range(2):
        world.step("pull", b)
        world.step("pull", a)
        compact_all(world, a, b)
    assert a.rank(blob_id) is b.rank(blob_id) is None, "it is forgotten"
    assert c.content(blob_id) is not None
    world.list_all()
    d.away = False
    return blob_id


def test_two_replicas_that_return_together_do_not_exchange_purged_blobs() -> None:
    world = World(1, trouble=False, lists_change=True)
    blob_id = forgotten_by_two(world)
    a, _, c, d = world.replicas
    d.replicator.pull(a.url)
    with pytest.raises(ReplicaNotCurrent, match="purged at http://a/blobs/s: it is not read"):
        d.replicator.pull(c.url)
    world.heal()
    assert [replica.content(blob_id) for replica in world.replicas] == [None] * 4
    assert d.rank(blob_id) is not None, "it has received the delete that the sweep has made"


def test_a_new_replica_with_a_purged_blob_is_not_read_until_it_has_swept() -> None:
    world = World(1, trouble=False, lists_change=True)
    blob_id = forgotten_by_two(world)
    a, b, c, d = world.replicas
    d.replicator.pull(c.url)
    assert d.content(blob_id) is not None, "it knows no replica that has purged it"
    for _ in range(2):
        for other in (a, b):
            d.replicator.pull(other.url)
            with pytest.raises(ReplicaNotCurrent, match="purged here"):
                other.replicator.pull(d.url)
    for other in (a, b):
        while c.replicator.pull(other.url):
            pass
    d.replicator.pull(c.url)
    assert d.content(blob_id) is None, "c has swept"
    world.heal()
    assert [replica.content(blob_id) for replica in world.replicas] == [None] * 4


def test_an_earlier_sweep_does_not_cover_a_later_purge_at_a_lower_position() -> None:
    before = NOTHING.with_dropped(100, 5000)
    swept = Token("log", 10, swept=before.count)
    assert swept.covers(before)
    after = before.with_dropped(20, 4000)
    assert (after.position, after.time_ms) == (before.position, before.time_ms)
    assert not swept.covers(after)
    assert Token("log", 101).covers(after)
    assert Token("log", 0, known=100).covers(after), "it was read once, and is read again"


def test_a_content_in_flight_while_its_delete_is_purged_is_refused(
    world: World,
) -> None:
    a, b, c = world.replicas
    blob_id = put(world, c)
    a.replicator.pull(c.url)
    b.replicator.pull(a.url)
    assert b.content(blob_id) is not None
    b.store.delete(blob_id)
    put(world, c)

    def meanwhile() -> None:
        """All hear of the delete, show that they have, and it is dropped."""
        for _ in range(2):
            for replica in (a, c):
                replica.replicator.pull(b.url)
        compact_all(world, b)
        assert b.rank(blob_id) is None

    class Slow(Wire):
        @contextmanager
        def records(self, blob_ids: Sequence[str]) -> Iterator[Chunks]:
            pieces = c.store.replication.feed.records([blob_id])
            head = next(pieces)
            meanwhile()
            yield Chunks([head, *pieces])

    slow = Replicator(b.store.replication, lambda _: Slow(world, b, c), b.clock)
    with pytest.raises(PlanStale, match="has purged deletes since the request to a replica"):
        slow.pull(c.url)
    assert b.content(blob_id) is None


def test_an_undelete_during_a_run_that_drops_the_content_restores_it(
    world: World,
) -> None:
    a, b, c = world.replicas
    blob_id = put(world, a)
    world.heal()
    c.store.delete(blob_id)
    world.heal()
    a.store.undelete(blob_id)
    world.clock.advance(2 * RETENTION_MS / 1000)
    b.roll()
    report = b.store.compaction.run(jobs=Meddling(lambda: world.step("pull", b)))
    assert report.dropped[Cause.DELETED][0] == 1, "here the retention was over"
    assert b.content(blob_id) == b"content"
    world.heal()
    assert c.content(blob_id) == b"content"


def test_a_run_drops_no_delete_for_an_undelete_that_is_not_durable(world: World) -> None:
    a, b, _ = world.replicas
    blob_id = put(world, a)
    world.heal()
    a.store.delete(blob_id)
    world.heal()
    b.roll()
    a.store.undelete(blob_id)
    replication = b.store.replication
    replication.applier.take(a.store.changes_since(None).changes, replication.purged())
    world.clock.advance(2 * RETENTION_MS / 1000)
    b.store.compaction.run()
    replication.applier.forget()
    b.kill()
    rank = b.rank(blob_id)
    assert rank is not None
    assert rank[0] == 1, "the delete is gone, so the undelete must be there"


def test_a_blob_swept_by_mistake_can_be_undeleted(world: World) -> None:
    a, b, c = world.replicas
    old = put(world, a)
    world.heal()
    a.store.replication.set_peers([b.url])
    b.store.replication.set_peers([a.url])
    lonely = put(world, c)
    world.clock.advance(1)
    a.store.delete(old)
    for _ in range(2):
        world.step("pull", b)
        world.step("pull", a)
        compact_all(world, a, b)
    a.store.replication.set_peers([b.url, c.url])
    b.store.replication.set_peers([a.url, c.url])
    world.heal()
    assert [r.content(lonely) for r in world.replicas] == [None] * 3
    c.store.undelete(lonely)
    world.heal()
    assert [r.content(lonely) for r in world.replicas] == [b"content"] * 3


def test_an_old_copy_of_a_replica_revives_nothing(world: World) -> None:
    a, b, c = world.replicas
    blob_id = put(world, a)
    world.heal()
    copy = c.fs.crash_clone(world.rng)
    a.store.delete(blob_id)
    later = put(world, b)
    for _ in range(2):
        world.heal()
        compact_all(world, *world.replicas)
    restore(c, copy)
    assert c.content(blob_id) is not None
    world.heal()
    for replica in world.replicas:
        assert replica.content(blob_id) is None
        assert replica.content(later) == b"content"


def test_a_lost_file_of_tokens_costs_a_comparison_and_nothing_else(world: World) -> None:
    a, b, c = world.replicas
    blobs = [put(world, a, b"%d" % number) for number in range(20)]
    a.store.delete(blobs[0])
    world.note(a, blobs[0])
    world.heal()
    compact_all(world, a, b, c)
    fetched = world.seen["contents"]
    for replica in world.replicas:
        world.step("forget_tokens", replica)
    world.heal()
    world.check_same()
    assert world.seen["contents"] == fetched
    assert [status.swept for r in world.replicas for status in r.replicator.status()] == [0] * 6


def test_a_token_continues_in_the_segment_that_replaced_its_own(world: World) -> None:
    a = world.replicas[0]
    for _ in range(2):
        for number in range(20):
            put(world, a, b"%d" % number)
        a.roll()
    first = a.store.changes_since(None, 5)
    assert first.more
    assert first.token.segment != "", "it is in the index of a segment"
    for change in first.changes[::2]:
        a.store.delete(change.blob_id)
    compact_all(world, a)
    assert len(a.store.log.manifest.segments) == 2, "all is in one segment, and the active one"
    assert a.store.purged().position == -1, "two peers have not passed the deletes"
    told = [change.blob_id for change in first.changes]
    page = a.store.changes_since(first.token, 5)
    told += [change.blob_id for change in page.changes]
    while page.more:
        page = a.store.changes_since(page.token, 5)
        told += [change.blob_id for change in page.changes]
    assert set(told) == set(world.contents)
    again = a.store.changes_since(page.token)
    assert (again.changes, again.more, again.behind) == ((), False, 0)


def test_a_token_of_another_log_or_beyond_the_end_starts_from_the_beginning(world: World) -> None:
    a, b, _ = world.replicas
    blob_id = put(world, a)
    whole = a.store.changes_since(None)
    assert not whole.reset
    for token in (b.store.changes_since(None).token, Token(whole.token.log_id, 1000)):
        page = a.store.changes_since(token)
        assert page.reset
        assert [change.blob_id for change in page.changes] == [blob_id]


def test_a_store_with_replicas_chooses_ids_itself(world: World) -> None:
    a = world.replicas[0]
    with pytest.raises(InvalidInput, match="'mine': a store with replicas generates the ids"):
        a.store.put(b"", service="tests", blob_id="mine")
    a.store.replication.set_peers([])
    a.store.put(b"", service="tests", blob_id="mine")


@pytest.mark.parametrize(
    "urls",
    [
        ["ftp://a/b"],
        ["http:///b"],
        ["http://a/b?c"],
        ["http://a/b#c"],
        ["http://me:secret@a/b"],
        ["http://a/\x00"],
        ["http://a/b c"],
        ["http://a/ä"],
        ["http://a/\ud800"],
        [url_of("a")] * 2,
    ],
)
def test_peers_are_checked(world: World, urls: list[str]) -> None:
    replication = world.replicas[0].store.replication
    before = replication.peers
    with pytest.raises(InvalidInput, match="replica"):
        replication.set_peers(urls)
    assert replication.peers == before


def test_a_truncated_or_changed_stream_is_detected(world: World) -> None:
    a = world.replicas[0]
    ids = [put(world, a, b"x" * 300), "nobody", put(world, a, b"")]
    data = b"".join(a.store.replication.feed.records(ids))

    def read(data: bytes) -> list[tuple[str, bytes]]:
        stream = Chunks([data[:7], data[7:]])
        return [(record.put.blob_id, part.read(1000)) for record, part in read_records(stream)]

    assert read(data) == [(ids[0], b"x" * 300), (ids[2], b"")]
    for end in range(len(data)):
        with pytest.raises(ReplicaAnswerInvalid):
            read(data[:end])
    for at in range(8, 60):
        with pytest.raises(ReplicaAnswerInvalid, match="CRC"):
            read(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_answers_of_a_replica_are_checked() -> None:
    change = BlobChange("id", BlobRecordKind.TTL, 1, 2, 3, 4, 5, 6)
    assert BlobChange.from_row(change.to_row()) == change
    rows: list[object] = [None, [], [*change.to_row(), 1], ["", 1, *[0] * 6], ["id", 5, *[0] * 6]]
    rows += [["id", 1, -1, *[0] * 5], ["id", True, *[0] * 6], ["i" * 1025, 1, *[0] * 6]]
    for row in rows:
        with pytest.raises(ReplicaAnswerInvalid):
            BlobChange.from_row(row)
    values: list[object] = [None, {}, {"changes": 1}, []]
    for value in values:
        with pytest.raises(ReplicaAnswerInvalid):
            BlobChanges.from_json(value)
