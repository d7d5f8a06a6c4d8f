"""The catalog of one node: changes, lookups, and a start with a long history.

`catalog-changes`: threads change settings of topics, and each waits for its change. The other side
are writes to the metastore of the same node, by as many threads in the same way.

`catalog-lookup`: the catalog in force at a time, in memory, against a lookup in a dict.

`catalog-start`: the start of a node after many versions, all but the last ten replaced by a
snapshot. The other side is a node in which the same topics were defined at once. The metastore
keeps its history for an hour, so the deleted versions are still in it; in `(compacted)` that time
has passed. The node was idle for a moment before it was stopped, and has shortened its log. The
note compares the processor time of both sides, which says more on a busy machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import lithify
from bench.earlier import serving_until_ready
from bench.harness import Case
from bench.make_topics import define_topics
from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.commands.topics import AlterTopic, CreateTopic
from lithify.catalog.versions import CatalogVersions
from lithify.metastore.log_shortening import has_long_log
from lithify.metastore.transaction import Put, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.node.node import Node
    from lithify.topics.definitions.definitions import Definitions
    from lithify.topics.definitions.topic_names import TopicName

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

THREADS = 64
TOPICS = 100
VALUE = os.urandom(256)
LAST_VERSIONS = 10
IN_PROGRESS = 64
NAMESPACE = "public/default"
CHECK_S = 0.05
PROCESSOR_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    changes: int
    """By all threads."""
    single_changes: int
    """One after the other."""
    versions: int
    lookups: int


FULL = Sizes(rounds=7, changes=4000, single_changes=500, versions=100_000, lookups=200_000)
QUICK = Sizes(rounds=1, changes=100, single_changes=5, versions=100, lookups=100)


# --- changes ------------------------------------------------------------------------------------


class _Load:
    """Changes of one node and writes to its metastore; no two rounds write the same."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._names = define_topics(node, TOPICS)
        self._number = 0

    def change(self, count: int, threads: int) -> float:
        """The seconds of `count` changes of definitions."""
        return self._many(count, threads, self._change)

    def write(self, count: int, threads: int) -> float:
        """The seconds of `count` writes to the metastore."""
        return self._many(count, threads, self._write)

    def _many(self, count: int, threads: int, do: Callable[[int], None]) -> float:
        first, self._number = self._number, self._number + count
        parts = [range(first + each, first + count, threads) for each in range(threads)]

        def work(numbers: range) -> None:
            for number in numbers:
                do(number)

        running = [threading.Thread(target=work, args=(part,)) for part in parts]
        began_s = time.perf_counter()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return time.perf_counter() - began_s

    def _change(self, number: int) -> None:
        name = self._names[number % TOPICS]
        self._node.topics.definitions.change(lambda d: _with_retention(d, name, number))

    def _write(self, number: int) -> None:
        cluster = self._node.cluster
        transaction = Transaction(then=(Put(b"bench/%d" % (number % TOPICS), VALUE),))
        cluster.call(lambda: cluster.metastore.transact(transaction)).result()


def _with_retention(definitions: Definitions, name: TopicName, number: int) -> Definitions:
    topic = definitions.topics[str(name)]
    return definitions.with_topic(name, replace(topic, settings=_settings(number)))


def _settings(number: int) -> dict[str, Any]:
    return {"retention_ms": 1_000_000 + number}


def changes(directory: str, sizes: Sizes) -> Iterator[Case]:
    with lithify.open(f"{directory}/data") as node:
        load = _Load(node)
        for name, threads, count in (
            ("catalog-changes", THREADS, sizes.changes),
            ("catalog-changes (one thread)", 1, sizes.single_changes),
        ):
            who = f"{threads} threads" if threads > 1 else "one thread"
            yield Case(
                name,
                f"one node, changes of {TOPICS} topics by {who}",
                f"writes of 256 B to its metastore by {who}",
                0.5,
                count,
                "changes",
                lambda threads=threads, count=count: load.change(count, threads),  # type: ignore[misc]
                lambda threads=threads, count=count: load.write(count, threads),  # type: ignore[misc]
            )


# --- lookups ------------------------------------------------------------------------------------


def lookup(_: str, sizes: Sizes) -> Iterator[Case]:
    versions = _make_versions(sizes.versions)
    chosen = random.Random(1).choices(range(1, sizes.versions + 1), k=sizes.lookups)
    times = [versions.at_version(each).activation for each in chosen]
    by_time = {
        each.activation: each for each in map(versions.at_version, range(1, sizes.versions + 1))
    }

    def ours() -> float:
        at_time = versions.at_time
        began_s = time.perf_counter()
        for each in times:
            at_time(each)
        return time.perf_counter() - began_s

    def raw() -> float:
        get = by_time.get
        began_s = time.perf_counter()
        for each in times:
            get(each)
        return time.perf_counter() - began_s

    yield Case(
        "catalog-lookup",
        f"the catalog at a time, of {sizes.versions:,} versions",
        "a lookup in a dict",
        1 / 20,
        sizes.lookups,
        "lookups",
        ours,
        raw,
    )


def _make_versions(count: int) -> CatalogVersions:
    """Versions of a catalog with 100 topics, each of which changes one."""
    versions = CatalogVersions()
    catalog = _changed(Catalog(), *initial_commands())
    versions.append(catalog)
    topics = [CreateTopic(NAMESPACE, f"t{number}", owners=("n1",)) for number in range(TOPICS)]
    catalog = _changed(catalog, *topics)
    versions.append(catalog)
    for number in range(count - 2):
        catalog = _changed(catalog, AlterTopic(NAMESPACE, _local(number), _settings(number)))
        versions.append(catalog)
    return versions


def _changed(catalog: Catalog, *commands: Any) -> Catalog:
    plan = plan_batch(catalog, commands)
    assert plan is not None
    return catalog.with_update(plan.update, catalog.activation + 1000)


def _local(number: int) -> str:
    return f"t{number % TOPICS}"


# --- start --------------------------------------------------------------------------------------


def start(directory: str, sizes: Sizes) -> Iterator[Case]:
    data, fresh = f"{directory}/data", f"{directory}/fresh"
    with lithify.open(data) as node:
        define_topics(node, TOPICS)
        cluster = node.cluster
        cluster.call(lambda: _alter_many(node, sizes.versions)).result()
        newest = cluster.catalog.versions.latest.version
        cluster.call(lambda: cluster.catalog.snapshot(newest - LAST_VERSIONS)).result()
        cluster.call(lambda: _shortened(node)).result()
    with lithify.open(fresh) as node:
        define_topics(node, TOPICS)
    what = f"{sizes.versions:,} versions, all but {LAST_VERSIONS} in a snapshot, {TOPICS} topics"
    against = f"a new node with {TOPICS} topics"

    def served(name: str, after: str) -> Case:
        return Case(
            name,
            f"`lithify serve` until ready, after {after}",
            against,
            round(1 / 1.2, 2),
            1,
            "starts",
            lambda: _serve(data),
            lambda: _serve(fresh),
            lambda: _processor_note(data, fresh),
        )

    yield served("catalog-start", what)
    yield Case(
        "catalog-start (open)",
        f"`lithify.open`, code loaded, after {what}",
        against,
        None,
        1,
        "starts",
        lambda: _open(data),
        lambda: _open(fresh),
    )
    with lithify.open(data) as node:
        node.cluster.call(lambda: _compacted(node)).result()
        node.cluster.call(lambda: _shortened(node)).result()
    yield served("catalog-start (compacted)", f"{what}, and the retention of the metastore")


async def _shortened(node: Node) -> None:
    """Return when the node has shortened its log, as it does when it is idle."""
    while has_long_log(node.cluster.metastore):
        await asyncio.sleep(CHECK_S)


async def _compacted(node: Node) -> None:
    """Remove the history of the metastore, as after its retention, and take the snapshot."""
    metastore = node.cluster.metastore
    revision = metastore.state.revision
    await metastore.compact(revision)
    while metastore.state.purged_floor < revision:
        await asyncio.sleep(CHECK_S)
    metastore.group.take_snapshot()
    metastore.node.mark(metastore.group)
    while metastore.group.overview()["snapshot_index"] < revision:
        await asyncio.sleep(CHECK_S)


async def _alter_many(node: Node, count: int) -> None:
    numbers = iter(range(count))

    async def alter() -> None:
        for number in numbers:
            command = AlterTopic(NAMESPACE, _local(number), _settings(number))
            await node.cluster.catalog.execute([command])

    await asyncio.gather(*(alter() for _ in range(IN_PROGRESS)))


def _serve(data: str) -> float:
    began_s = time.perf_counter()
    with serving_until_ready(data):
        return time.perf_counter() - began_s


def _processor_note(data: str, fresh: str) -> str:
    """The processor time of a start, against that of the other side."""
    ours, theirs = (
        min(_processor_s(each) for _ in range(PROCESSOR_ROUNDS)) for each in (data, fresh)
    )
    return f"{ours:.2f} s of processor time, {ours / theirs:.2f} of the other's"


def _processor_s(data: str) -> float:
    with serving_until_ready(data) as pid, open(f"/proc/{pid}/stat") as stat:
        # The name of a program is in parentheses and may hold anything.
        fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _open(data: str) -> float:
    began_s = time.perf_counter()
    with closing(lithify.open(data)):
        return time.perf_counter() - began_s


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "catalog-changes": changes,
    "catalog-lookup": lookup,
    "catalog-start": start,
}
"""Row by row, in the order of the table."""
