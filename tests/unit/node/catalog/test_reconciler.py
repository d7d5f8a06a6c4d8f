"""What is open on a node is what the catalog says, whichever node has changed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pytest

from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.catalog.commands.blob_stores import AlterBlobStore, CreateBlobStore, DropBlobStore
from lithify.catalog.commands.topics import CreateTopic, DropTopic
from lithify.clock import ManualClock
from lithify.errors import LogClosed, MissingFile
from lithify.events import ignore_events
from lithify.fs import FileSystem, MemoryFileSystem, write_atomic
from lithify.log.directory_marks import begin_creation
from lithify.log.object_file import read_object
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.node.catalog.reconciler import CatalogReconciler
from lithify.ownership import NotOwner
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.schemas.schemas import Schema, SchemaType
from lithify.topics.topics import TopicNotFound, Topics, TopicSettings
from tests.definitions_cluster import MemoryCluster
from tests.patience import wait_until
from tests.unit.log.helpers import Gate, Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.topics.topic import Topic

SPACE = "public/default"
ORDERS = TopicName.parse("orders")
AT = "data/topics/public/default/orders"
SHAPE: dict[str, Any] = {"capacity_bytes": 2**20, "segment_bytes": 2**18}
CREATE = CreateTopic(SPACE, "orders", owners=("n1",), created_ms=7)
CREATE_PHOTOS = CreateBlobStore(SPACE, "photos", **SHAPE, owner="n1")


class Watched:
    """A node with topics and stores."""

    def __init__(self, cluster: MemoryCluster, fs: FileSystem, name: str = "n1") -> None:
        fs.mkdir("data")
        clock = ManualClock(5)
        self.member = cluster.member(name)
        self.definitions = CatalogDefinitions(self.member, fs, "data", ignore_events)
        self.topics = Topics(
            fs,
            "data",
            settings=TopicSettings(log=LogSettings()),
            clock=clock,
            events=ignore_events,
            owner="pid 1",
            definitions=self.definitions,
        )
        self.stores = BlobStores(
            fs,
            "data",
            self.definitions,
            settings=BlobSettings(),
            clock=clock,
            events=ignore_events,
        )
        self.reconciler = CatalogReconciler(self.definitions, self.topics, self.stores)

    def __enter__(self) -> Self:
        self.reconciler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.reconciler.close()
        self.stores.close()
        self.topics.close()

    def hold(self) -> None:
        """Apply no version."""
        self._in_thread(self.member.metastore.hold)

    def follow(self) -> None:
        """Apply all versions, from here on at once."""
        self._in_thread(self.member.metastore.follow)

    def _in_thread(self, function: Callable[[], None]) -> None:
        async def run() -> None:
            function()

        self.member.call(run).result()

    def wait_settled(self) -> None:
        """Until nothing is left of what was deleted."""
        wait_until(lambda: not self.definitions.removals())


class Other:
    """The node n2, which only changes definitions."""

    def __init__(self, cluster: MemoryCluster) -> None:
        fs = MemoryFileSystem()
        fs.mkdir("data")
        self.definitions = CatalogDefinitions(cluster.member("n2"), fs, "data", ignore_events)

    def execute(self, *commands: CatalogCommand) -> None:
        self.definitions.execute(commands)


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as made:
        yield made


def values(topic: Topic) -> list[bytes | None]:
    return [message.value for message in topic.read()]


# --- topics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [True, False])
def test_a_topic_that_another_node_drops_is_closed_and_its_directory_deleted(
    cluster: MemoryCluster, *, is_open: bool
) -> None:
    fs = MemoryFileSystem()
    other = Other(cluster)
    with Watched(cluster, fs) as node:
        topic = node.topics.create("orders")
        topic.append(value=b"old")
        if not is_open:
            node.topics.unloading([ORDERS])()
        owners = {"orders": node.definitions.current.owner(ORDERS)}
        assert owners == {"orders": "n1"}
        other.execute(DropTopic(SPACE, "orders"))
        node.wait_settled()
        assert not fs.exists(AT)
        assert node.topics.opened() == {}
        with pytest.raises(LogClosed):
            topic.append(value=b"too late")
        with pytest.raises(TopicNotFound):
            node.topics.get("orders")
        assert other.definitions.catalog.removals() == []
        assert not node.topics.missing()
        assert not node.topics.unclaimed()


def test_a_topic_that_is_created_again_at_once_has_a_new_id_and_an_empty_log(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    other = Other(cluster)
    with Watched(cluster, fs) as node:
        old = node.topics.create("orders")
        old.append(value=b"old")
        for number in range(5):
            other.execute(DropTopic(SPACE, "orders"))
            other.execute(CREATE)
            wanted = other.definitions.current.identity(ORDERS)
            assert wanted is not None
            wait_until(
                lambda: node.definitions.catalog.version >= other.definitions.catalog.version
            )
            new = node.topics.get("orders")
            assert new.object_id == wanted.id != old.object_id
            assert values(new) == []
            with pytest.raises(LogClosed):
                old.append(value=b"too late")
            new.append(value=str(number).encode())
            assert read_object(fs, AT) == wanted
            old = new
        node.wait_settled()
        assert values(node.topics.get("orders")) == [b"4"]


def test_both_in_one_version_give_a_new_topic_too(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    with Watched(cluster, fs) as node:
        old = node.topics.create("orders")
        old.append(value=b"old")
        node.definitions.execute([DropTopic(SPACE, "orders"), CREATE])
        # At once: the version is ready when the change returns.
        new = node.topics.get("orders")
        assert new is not old
        assert values(new) == []
        node.wait_settled()
        new.append(value=b"new")


def test_the_schemas_of_a_partitioned_topic_go_with_it(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    with Watched(cluster, fs) as node:
        node.topics.create_partitioned("orders", 2)
        node.topics.get("orders-partition-1").append(value=b"old")
        node.topics.schemas("orders").register(Schema(SchemaType.STRING))
        node.definitions.execute([DropTopic(SPACE, "orders")])
        node.wait_settled()
        assert not fs.exists(AT)
        assert not fs.exists(f"{AT}-partition-1")
        node.topics.create_partitioned("orders", 2)
        assert node.topics.schemas("orders").all() == []


def test_the_clients_of_a_dropped_topic_are_disconnected_before_its_files_are_closed(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    with Watched(cluster, fs) as node:
        topic = node.topics.create("orders")
        seen: list[tuple[Collection[Topic], bool, bool]] = []

        def disconnect(topics: Collection[Topic]) -> None:
            with pytest.raises(LogClosed):
                topic.append(value=b"not acknowledged")
            seen.append((topics, topic.log.closed, fs.exists(AT)))

        node.reconciler.connect(disconnect)
        node.definitions.execute([DropTopic(SPACE, "orders")])
        node.wait_settled()
        assert seen == [((topic,), False, True)]
        assert topic.log.closed


def test_nothing_is_accepted_after_a_deletion_has_returned_also_if_the_thread_is_busy(
    cluster: MemoryCluster,
) -> None:
    gate = Gate()
    with Watched(cluster, MemoryFileSystem()) as node:
        node.topics.create("first")
        orders = node.topics.create("orders")
        photos = node.stores.create("photos", **SHAPE)
        node.reconciler.connect(lambda _: gate.stop())
        node.definitions.execute([DropTopic(SPACE, "first")])
        gate.wait_until_reached()
        node.definitions.execute([DropTopic(SPACE, "orders"), CREATE, DropBlobStore("photos")])
        with pytest.raises(LogClosed):
            orders.append(value=b"too late")
        assert node.topics.opened_topic(ORDERS) is None
        assert node.stores.opened_store("photos") is None
        gate.open()
        node.wait_settled()
        assert values(node.topics.get("orders")) == []
        assert photos.closed


def test_the_deletion_of_a_directory_that_fails_is_repeated(cluster: MemoryCluster) -> None:
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk)
    other = Other(cluster)
    with Watched(cluster, fs) as node:
        node.topics.create("orders")
        fs.add(Fault("rmdir", "*orders*", nth=1, kind="EIO"))
        other.execute(DropTopic(SPACE, "orders"))
        node.wait_settled()
        assert not disk.exists(AT)


def test_versions_are_applied_while_a_directory_is_deleted(cluster: MemoryCluster) -> None:
    gate = Gate()
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk, [], Hook(gate.stop))
    other = Other(cluster)
    with Watched(cluster, fs) as node:
        node.topics.create("orders")
        fs.add(Fault("rmdir", "*/default/orders", kind="SLOW"))
        other.execute(DropTopic(SPACE, "orders"))
        gate.wait_until_reached()
        # Versions are applied, listeners called, and other topics served.
        node.topics.create("others").append(value=b"x")
        assert node.definitions.removals()
        gate.open()
        node.wait_settled()


def test_a_topic_that_was_dropped_while_the_node_was_down_is_deleted_when_it_starts(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    other = Other(cluster)
    with Watched(cluster, fs) as node:
        node.topics.create("orders").append(value=b"old")
    other.execute(DropTopic(SPACE, "orders"), CREATE)
    with Watched(cluster, fs) as node:
        node.wait_settled()
        assert values(node.topics.get("orders")) == []


def test_two_nodes_never_own_the_same_topic_whatever_versions_they_have_applied(
    cluster: MemoryCluster,
) -> None:
    """The version that deletes the first id is before the one that gives the name to n2."""
    with (
        Watched(cluster, MemoryFileSystem(), "n1") as one,
        Watched(cluster, MemoryFileSystem(), "n2") as two,
    ):
        first = one.topics.create("orders")
        one.hold()
        two.definitions.execute([DropTopic(SPACE, "orders")])
        two.definitions.execute([CreateTopic(SPACE, "orders", owners=("n2",))])
        second = two.topics.get("orders")
        # The first node is two versions behind. What it serves is another topic.
        assert one.topics.get("orders") is first
        assert first.object_id < second.object_id
        versions = {
            number: two.member.catalog.versions.at_version(number).topic(SPACE, "orders")
            for number in range(1, two.definitions.catalog.version + 1)
        }
        owners = {(each.id, each.owners) for each in versions.values() if each is not None}
        assert owners == {(first.object_id, ("n1",)), (second.object_id, ("n2",))}
        one.follow()
        wait_until(lambda: not two.definitions.catalog.removals())
        with pytest.raises(LogClosed):
            first.append(value=b"too late")
        with pytest.raises(NotOwner):
            one.topics.get("orders")
        second.append(value=b"served")


# --- stores -----------------------------------------------------------------------------------


def test_a_store_that_another_node_defines_is_created_by_its_owner(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    other = Other(cluster)
    with Watched(cluster, fs) as node:
        other.execute(CREATE_PHOTOS)
        wait_until(lambda: bool(other.definitions.stores()["photos"]["created_ms"]))
        wait_until(lambda: node.stores.opened_store("photos") is not None)
        blob = node.stores.get("photos").put(b"cheese", service="s").blob_id
        assert read_object(fs, "data/blobs/photos") == node.definitions.store_identity("photos")
    with Watched(cluster, fs) as node, node.stores.get("photos").get(blob) as found:
        assert found.read() == b"cheese"


def test_a_store_whose_files_are_lost_is_not_created_again(cluster: MemoryCluster) -> None:
    other = Other(cluster)
    with Watched(cluster, MemoryFileSystem()) as node:
        other.execute(CREATE_PHOTOS)
        wait_until(lambda: bool(other.definitions.stores()["photos"]["created_ms"]))
        wait_until(lambda: node.stores.opened_store("photos") is not None)
    with Watched(cluster, MemoryFileSystem()) as node, pytest.raises(MissingFile):
        node.stores.get("photos")


def test_a_store_whose_creation_was_interrupted_is_created_by_its_first_use(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    Other(cluster).execute(CREATE_PHOTOS)
    begin_creation(fs, "data/blobs/photos")
    write_atomic(fs, "data/blobs/photos/index", b"not finished")
    with Watched(cluster, fs) as node:
        store = node.stores.get("photos")
        store.put(b"x", service="s")
        assert node.stores.missing() == []


def test_a_store_that_another_node_drops_is_closed_and_its_directory_deleted(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    other = Other(cluster)
    with Watched(cluster, fs) as node:
        store = node.stores.create("photos", **SHAPE)
        other.execute(DropBlobStore("photos"))
        node.wait_settled()
        with pytest.raises(LogClosed):
            store.put(b"x", service="s")
        assert not fs.exists("data/blobs/photos")
        other.execute(CREATE_PHOTOS)
        wait_until(lambda: node.stores.opened_store("photos") is not None)
        assert list(node.stores.get("photos").list()) == []


def test_a_dropped_and_defined_store_is_another_one(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    with Watched(cluster, fs) as node:
        old = node.stores.create("photos", **SHAPE)
        old.put(b"x", service="s")
        node.definitions.execute([DropBlobStore("photos"), CREATE_PHOTOS])
        new = node.stores.get("photos")
        assert new is not old
        assert list(new.list()) == []
        node.wait_settled()
        new.put(b"y", service="s")


def test_settings_that_another_node_changes_apply_to_the_open_store(
    cluster: MemoryCluster,
) -> None:
    other = Other(cluster)
    with Watched(cluster, MemoryFileSystem()) as node:
        store = node.stores.create("photos", **SHAPE)
        other.execute(AlterBlobStore("photos", {"policy": "stats"}))
        wait_until(lambda: store.settings.policy == "stats")
