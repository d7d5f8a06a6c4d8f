"""Until when a commit may count on the tables that it knows, in a cluster and alone."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from lithify.catalog.commands.tables import AddColumns, ColumnDefinition
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.manager.activation import ALONE, ActivationTiming
from lithify.hybrid_time import MAX_TIMESTAMP, add_ms
from lithify.tables.commit_limits import AHEAD_MS, CommitLimits
from tests.unit.tables.test_tables import ORDERS, Member, opened

if TYPE_CHECKING:
    from pathlib import Path

TIMING = ActivationTiming(delay_ms=500, skew_ms=0)


def limits_of(member: Member, timing: ActivationTiming) -> CommitLimits:
    cluster = member.cluster
    return CommitLimits(cluster.metastore, cluster.catalog, lambda: timing)


def test_a_limit_is_known_without_a_question_until_it_is_near(tmp_path: Path) -> None:
    with ExitStack() as stack:
        member = opened(tmp_path, stack)
        member.execute(CreateZone("z", 1, 1), ORDERS)
        catalog = member.cluster.catalog
        seen = catalog.current
        [table] = seen.tables()
        limits = limits_of(member, TIMING)

        async def story() -> None:
            # Nothing is known yet: this asks in the background.
            assert limits.known_limit(seen, (table.id,)) == 0
            before = catalog.now()
            limit = await limits.limit(seen, (table.id,))
            assert limit >= add_ms(before, AHEAD_MS)
            # It stays known: no time passes for this.
            assert await limits.until_known(limit) >= limit
            await limits.close()

        member.run(story)


def test_a_limit_ends_where_the_table_changes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        member = opened(tmp_path, stack)
        member.execute(CreateZone("z", 1, 1), ORDERS)
        catalog = member.cluster.catalog
        seen = catalog.current
        [table] = seen.tables()
        limits = limits_of(member, ALONE)
        assert limits.known_limit(seen, (table.id,)) == MAX_TIMESTAMP
        member.execute(AddColumns("orders", (ColumnDefinition("more", "int8", nullable=True),)))
        changed = catalog.versions.latest
        assert limits.known_limit(seen, (table.id,)) == changed.activation
        assert limits.known_limit(changed, (table.id,)) == MAX_TIMESTAMP
        assert limits.known_limit(seen, (table.id + 1000,)) == MAX_TIMESTAMP
