"""What a store says about its valid bytes, now and later, is what runs then find."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.settings import BlobSettings
from lithify.clock import ManualClock
from lithify.errors import InvalidInput, InvalidSetting
from lithify.fs import MemoryFileSystem
from lithify.log.file_names import key_index_name
from tests.unit.blobs.life import DIRECTORY, RETENTION_MS, Life, Pickling

if TYPE_CHECKING:
    from lithify.blobs.statistics.statistics import StoreStatistics

DAY_MS = 24 * 3_600_000


def a_life(settings: BlobSettings | None = None) -> Life:
    return Life(MemoryFileSystem(), ManualClock(), settings)


def ask(life: Life, buckets: int = 10, span_ms: int = 1000) -> StoreStatistics:
    return life.store.statistics(Pickling(), buckets=buckets, span_ms=span_ms)


def test_a_forecast_of_reclaimable_bytes_is_one_call() -> None:
    life = a_life(BlobSettings(deleted_retention_ms=DAY_MS // 2))
    life.put("stays", 1000)
    life.put("expires tomorrow", 2000, ttl_ms=DAY_MS - 1)
    life.put("deleted", 4000)
    life.put("expires later", 8000, ttl_ms=DAY_MS)
    life.delete("deleted")
    life.roll()
    found = life.store.statistics()
    sizes = {r.blob_id: r.frame_bytes for r in life.records if r.kind == "put"}
    assert found.reclaimable_bytes == 0
    assert found.reclaimable_bytes_in(DAY_MS // 2) == 0
    tomorrow = sizes["expires tomorrow"] + sizes["deleted"]
    assert found.reclaimable_bytes_in(DAY_MS) == tomorrow
    assert found.reclaimable_bytes_in(2 * DAY_MS) == tomorrow + sizes["expires later"]
    with pytest.raises(InvalidInput, match="outside the forecast"):
        found.reclaimable_bytes_in(2 * DAY_MS + 3_600_000)


def test_a_ttl_and_an_undelete_move_the_end() -> None:
    life = a_life()
    for number in range(3):
        life.put(f"b{number}", 1000, ttl_ms=1500)
    life.ttl("b0", 3500)
    life.ttl("b1", None)
    life.delete("b2")
    life.undelete("b2")
    life.roll()
    ending = [span.records for span in ask(life).forecast()]
    assert ending == [0, 2, 0, 2, 0, 0, 0, 0, 0, 0], "b2 and its undelete, then b0 and its ttl"


def test_the_active_segment_is_counted_but_not_reclaimable() -> None:
    life = a_life()
    life.put("a", 1000, ttl_ms=0)
    life.clock.advance(1)
    [active] = ask(life).segments
    assert active.active
    assert (active.records, active.valid_records, active.valid_bytes) == (1, 0, 0)
    assert ask(life).reclaimable_bytes == 0
    life.roll()
    assert ask(life).reclaimable_bytes == life.records[0].frame_bytes


def test_a_large_content_counts_with_its_parts() -> None:
    life = a_life()
    life.put("a", 140_000)
    life.roll()
    assert ask(life).reclaimable_bytes == 0
    assert ask(life).valid_bytes == life.records[0].frame_bytes > 140_000


def test_deletes_that_a_replica_has_not_seen_stay_valid() -> None:
    life = a_life()
    life.put("a", 100)
    life.delete("a")
    life.roll()
    life.clock.advance((RETENTION_MS + 1) / 1000)
    life.compact("all")
    delete = life.records[-1]
    assert ask(life).reclaimable_bytes == delete.frame_bytes
    life.store.replicas_passed = lambda: delete.position - 1
    assert ask(life).reclaimable_bytes == 0
    assert ask(life).valid_records == 1
    life.store.replicas_passed = lambda: delete.position
    assert ask(life).reclaimable_bytes == delete.frame_bytes


def test_a_lost_index_is_rebuilt() -> None:
    life = a_life()
    life.put("a", 1000, ttl_ms=1500)
    life.roll()
    before = ask(life)
    [sealed, _] = life.store.log.manifest.segments
    life.fs.remove(f"{DIRECTORY}/{key_index_name(sealed.name)}")
    assert ask(life) == before


def test_for_people_and_for_machines() -> None:
    life = a_life()
    life.put("a", 1000, ttl_ms=DAY_MS // 16)
    life.put("b", 2000)
    life.roll()
    found = ask(life, buckets=2, span_ms=DAY_MS // 24)
    assert found.explain().splitlines() == [
        "/data/blobs: 3.4 KiB of 19.1 MiB used; 3.1 KiB valid in 2 records, 0 B reclaimable",
        "segment    bytes    valid  share  reclaimable",
        "      1  3.1 KiB  3.1 KiB   100%          0 B",
        "      2      0 B      0 B      -       active",
        " in     ends  records  reclaimable then",
        "2 h  1.1 KiB        1           1.1 KiB",
    ]
    row = found.as_dict()
    assert row["forecast"][1]["bytes"] == life.records[0].frame_bytes
    assert row["segments"][0]["ending_records"] == (0, 1)


def test_forecasts_outside_the_limits_are_refused() -> None:
    life = a_life()
    with pytest.raises(InvalidSetting, match="count"):
        ask(life, buckets=-1)
    with pytest.raises(InvalidSetting, match="span_ms"):
        ask(life, span_ms=0)


@pytest.mark.parametrize("seed", range(8))
def test_a_forecast_matches_the_later_run(seed: int) -> None:
    """For every span: the clock goes to its end, and the plan has as many dead bytes."""
    rng = random.Random(seed)
    life = a_life()
    ids = [f"b{number}" for number in range(12)]
    for _ in range(150):
        step = rng.choice(["put", "put", "delete", "ttl", "undelete", "wait", "roll", "compact"])
        if step == "put":
            life.put(rng.choice(ids), rng.choice((10, 3000)), rng.choice((None, 0, 2500, 7000)))
        elif step == "ttl":
            life.ttl(rng.choice(ids), rng.choice((None, 0, 1200, 5000)))
        elif step == "wait":
            life.clock.advance(rng.choice((0.001, 0.5, 1.0)))
        elif step == "roll":
            life.roll()
        elif step == "compact":
            if rng.random() < 0.3:
                life.compact(rng.choice(["all", "stats"]))
        else:
            getattr(life, step)(rng.choice(ids))
    life.roll()
    found = ask(life)
    assert len(found.forecast()) == 10
    for span in found.forecast():
        life.clock.advance((span.stop_ms - life.clock.now_ms()) / 1000)
        doomed = life.doomed(life.clock.now_ms(), life.store.log.last_position)
        dead = {r.position: r.frame_bytes for r in life.records if r.position in doomed}
        kept = {s.id: s for s in life.store.log.manifest.segments if s.sealed}
        before = sum(s.frame_bytes - s.live_bytes for s in kept.values())
        assert span.reclaimable_bytes == before + sum(dead.values())
