"""The settings of a node, and the sources of their values.

A setting has one name everywhere: `pulsar_port` is a field of `NodeSettings`, a key of the TOML
file, `LITHIFY_PULSAR_PORT` in the environment and the flag `--pulsar-port`. In ascending
precedence:

1. the default
2. the TOML file, if one is given; its keys are at the top level
3. the environment; an empty variable counts as not set
4. the flags of the command

An unknown name, in the file or after `LITHIFY_`, is an error that suggests the nearest one. The
word "off" switches an optional number off; lists are separated by commas in the environment.

`read_settings` reads one file and nothing else; all other functions are pure.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from lithify.blobs.definition import named_settings, parse_value, with_settings
from lithify.blobs.settings import BlobSettings
from lithify.errors import InvalidInput, InvalidSetting
from lithify.fs import read_file
from lithify.metastore.compaction.settings import HistorySettings
from lithify.node.cluster_settings import ClusterSettings, check_cluster
from lithify.node.security import SecuritySettings, check_host, is_wildcard
from lithify.pipeline.spark_target import LOCAL_MASTER, SparkTarget
from lithify.pulsar.connection_limits import ConnectionLimits
from lithify.settings import Durability, LogSettings, check_range
from lithify.tables.settings import TableSettings
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.policies import Policies
from lithify.topics.topics import TopicSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lithify.fs import FileSystem

__all__ = ["LOG_LEVELS", "NodeSettings", "SettingsWithOrigins", "read_settings"]

LOG_LEVELS = ("debug", "info", "warning", "error")

_PREFIX = "LITHIFY_"
_OF_CLIENTS = ("LITHIFY_URL", "LITHIFY_TOKEN", "LITHIFY_RAFT_NODES", "LITHIFY_RAFT_TLS")
"""Used by commands that connect to a node; not settings of a node."""
_DEFAULT = "default"
_OFF = "off"
_LOG = LogSettings()
_LIMITS = ConnectionLimits()
_CLUSTER = ClusterSettings()
_TABLES = TableSettings()
_HISTORY = HistorySettings()
_COMPACTION = TopicCompactionSettings()
_POLICIES_MIN = {
    "retention_ms": 0,
    "retention_bytes": 0,
    "message_ttl_ms": 1,
    "backlog_bytes_max": 0,
}
_POLICIES_MAX = 2**62


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of a node; every value is checked when the object is created."""

    data: str = "data"
    """The data directory; a relative path starts at the working directory of the process."""
    pulsar_host: str = "127.0.0.1"
    pulsar_port: int = 6650
    """0 selects a free port; likewise for HTTP."""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    advertised_host: str = ""
    """The host that clients connect to; if empty, the host that the node listens on."""
    durability: Durability = Durability.ALWAYS
    sync_interval_ms: int = _LOG.sync_interval_ms
    segment_bytes_max: int = _LOG.segment_bytes_max
    segment_age_ms_max: int | None = None
    message_bytes_max: int = 5 * 2**20
    """The value that clients expect of every broker; some of them fail below it."""
    auto_create: bool = True
    """Whether using a topic creates it."""
    deduplication: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    message_ttl_ms: int | None = None
    backlog_bytes_max: int | None = None
    """These four are the defaults of topics and namespaces; see `Policies`. None is unlimited."""
    compaction_enabled: bool = _COMPACTION.compaction_enabled
    compaction_threshold_bytes: int = _COMPACTION.compaction_threshold_bytes
    compaction_threshold_messages: int = _COMPACTION.compaction_threshold_messages
    compaction_lag_min_ms: int = _COMPACTION.compaction_lag_min_ms
    compaction_lag_max_ms: int = _COMPACTION.compaction_lag_max_ms
    compaction_every_ms: int = _COMPACTION.compaction_every_ms
    tombstone_retention_ms: int = _COMPACTION.tombstone_retention_ms
    key_ttl_ms: int = _COMPACTION.key_ttl_ms
    compaction_order: str = _COMPACTION.compaction_order
    keep_keyless: bool = _COMPACTION.keep_keyless
    live_ratio_min: float = _COMPACTION.live_ratio_min
    rewrite_bytes_max: int = _COMPACTION.rewrite_bytes_max
    compaction_read_bytes_per_s: int = _COMPACTION.compaction_read_bytes_per_s
    compaction_write_bytes_per_s: int = _COMPACTION.compaction_write_bytes_per_s
    compaction_memory_bytes: int = _COMPACTION.compaction_memory_bytes
    compaction_scratch_bytes: int = _COMPACTION.compaction_scratch_bytes
    compaction_pace_bytes_per_s_min: int = _COMPACTION.compaction_pace_bytes_per_s_min
    compaction_pace_bytes_per_s_max: int = _COMPACTION.compaction_pace_bytes_per_s_max
    compaction_pace_p95_ms_max: float = _COMPACTION.compaction_pace_p95_ms_max
    compaction_pace_p95_rise_max: float = _COMPACTION.compaction_pace_p95_rise_max
    """The settings up to here are defaults of topics and namespaces.

    See `TopicCompactionSettings`.
    """
    compaction_service: str = ""
    """The service that compacts topics, as "module:factory".

    See `topics/compaction/compaction_service.py`.
    """
    compaction_master: str = LOCAL_MASTER
    """The Spark master for the runs of a node that serves."""
    compaction_conf: tuple[str, ...] = ()
    """Settings of that Spark, as "KEY=VALUE" each."""
    compaction_archives: str = ""
    """An environment to ship to its executors; see `SparkTarget` for these three."""
    compaction_idle_ms: int = 300_000
    """Idle time after which the Spark worker is stopped."""
    topic_idle_ms: int = 600_000
    """Idle time after which a topic is closed; the next use opens it again."""
    open_topics_max: int | None = None
    """Topics that may be open at once; None: a tenth of the files that the process may open."""
    connection_producers_max: int = _LIMITS.connection_producers_max
    connection_consumers_max: int = _LIMITS.connection_consumers_max
    connection_topics_created_max: int = _LIMITS.connection_topics_created_max
    connections_max: int = _LIMITS.connections_max
    connections_per_address_max: int = _LIMITS.connections_per_address_max
    connect_timeout_ms: int = _LIMITS.connect_timeout_ms
    frame_timeout_ms: int = _LIMITS.frame_timeout_ms
    receive_bytes_max: int = _LIMITS.receive_bytes_max
    """See `ConnectionLimits` for these eight."""
    token_secret_file: str = ""
    token_public_key_file: str = ""
    superusers: tuple[str, ...] = ()
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    allow_open: bool = False
    """See `SecuritySettings` for these six."""
    blob_defaults: tuple[str, ...] = ()
    """Defaults of the settings of blob stores, each as NAME=VALUE; see `BlobSettings`."""
    blob_peers: tuple[str, ...] = ()
    """The other nodes that blob stores may replicate with, each as NAME=URL."""
    blob_peer_token_files: tuple[str, ...] = ()
    """Files with the tokens for these nodes, each as NAME=PATH."""
    metrics_open: bool = False
    """Whether /metrics needs no token, if other requests do."""
    replication_token_file: str = ""
    """The token for peers without their own file."""
    node: str = _CLUSTER.node
    cluster: str = _CLUSTER.cluster
    cluster_host: str = _CLUSTER.cluster_host
    cluster_port: int | None = _CLUSTER.cluster_port
    peers: tuple[str, ...] = _CLUSTER.peers
    join: bool = _CLUSTER.join
    cluster_secret_file: str = _CLUSTER.cluster_secret_file
    cluster_authority_file: str = _CLUSTER.cluster_authority_file
    tick_ms: int = _CLUSTER.tick_ms
    catalog_versions_min: int = _CLUSTER.catalog_versions_min
    catalog_age_ms: int = _CLUSTER.catalog_age_ms
    catalog_away_ms: int | None = _CLUSTER.catalog_away_ms
    """See `ClusterSettings` for these twelve."""
    metastore_retention_ms: int = _HISTORY.retention_ms
    metastore_compaction_every_ms: int = _HISTORY.every_ms
    """See `HistorySettings` for these two."""
    table_availability_ms: int = _TABLES.table_availability_ms
    table_read_life_ms: int = _TABLES.table_read_life_ms
    table_transaction_life_ms: int = _TABLES.table_transaction_life_ms
    """See `TableSettings` for these three."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name in ("data", "pulsar_host", "http_host"):
            if not getattr(self, name):
                raise InvalidSetting(name, "", "named")
        check_range("pulsar_port", self.pulsar_port, 0, 65_535)
        check_range("http_port", self.http_port, 0, 65_535)
        check_range("message_bytes_max", self.message_bytes_max, 2**20, 32 * 2**20)
        check_range("topic_idle_ms", self.topic_idle_ms, 1, _POLICIES_MAX)
        if self.open_topics_max is not None:
            check_range("open_topics_max", self.open_topics_max, 1, 1_000_000)
        check_range("compaction_idle_ms", self.compaction_idle_ms, 0, _POLICIES_MAX)
        for name, lowest in _POLICIES_MIN.items():
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, lowest, _POLICIES_MAX)
        if self.log_level not in LOG_LEVELS:
            raise InvalidSetting("log_level", self.log_level, f"one of {', '.join(LOG_LEVELS)}")
        check_host("pulsar_host", self.pulsar_host, self.security)
        check_host("http_host", self.http_host, self.security)
        check_cluster(self.clustering, self.security)
        for host in (self.pulsar_host, self.cluster_host):
            if not self.advertised_host and is_wildcard(host):
                limit = f"the node's name or address, because it listens on {host}"
                raise InvalidSetting("advertised_host", "", limit)
        # Their constructors check them.
        _ = self.topics, self.blobs, self.limits, self.spark, self.metastore_history, self.tables

    @property
    def topics(self) -> TopicSettings:
        """The settings of topics."""
        log = LogSettings(
            durability=self.durability,
            sync_interval_ms=self.sync_interval_ms,
            segment_bytes_max=self.segment_bytes_max,
            segment_age_ms_max=self.segment_age_ms_max,
        )
        limits = {name: getattr(self, name) for name in _POLICIES_MIN}
        given = {name: value for name, value in limits.items() if value is not None}
        return TopicSettings(
            log=log,
            policies=Policies(**given),
            auto_create=self.auto_create,
            deduplication=self.deduplication,
            compaction=TopicCompactionSettings(
                **{
                    field.name: getattr(self, field.name)
                    for field in fields(TopicCompactionSettings)
                }
            ),
            compaction_service=self.compaction_service,
        )

    @property
    def blobs(self) -> BlobSettings:
        """The defaults of blob stores."""
        given = []
        for text in self.blob_defaults:
            name, equals, value = text.partition("=")
            if not equals:
                raise InvalidSetting("blob_defaults", text, "NAME=VALUE")
            given.append((name, parse_value(value)))
        try:
            return with_settings(BlobSettings(durability=self.durability), named_settings(given))
        except InvalidSetting as error:
            shown = f"{error.name}={error.value}"
            raise InvalidSetting("blob_defaults", shown, error.limit) from error

    @property
    def limits(self) -> ConnectionLimits:
        """The limits of one connection, and of all of them together."""
        return ConnectionLimits(
            **{field.name: getattr(self, field.name) for field in fields(ConnectionLimits)}
        )

    @property
    def clustering(self) -> ClusterSettings:
        """The settings of the node as a member of a cluster."""
        return ClusterSettings(
            **{field.name: getattr(self, field.name) for field in fields(ClusterSettings)}
        )

    @property
    def tables(self) -> TableSettings:
        """The settings of tables."""
        return TableSettings(
            **{field.name: getattr(self, field.name) for field in fields(TableSettings)}
        )

    @property
    def metastore_history(self) -> HistorySettings:
        """How long the history of the metastore is kept, and how often it is compacted."""
        return HistorySettings(self.metastore_retention_ms, self.metastore_compaction_every_ms)

    @property
    def spark(self) -> SparkTarget:
        """The Spark for runs."""
        return SparkTarget(
            self.compaction_master,
            self.compaction_conf,
            self.compaction_archives,
            prefix="compaction_",
        )

    @property
    def security(self) -> SecuritySettings:
        """The settings of tokens and TLS."""
        return SecuritySettings(
            token_secret_file=self.token_secret_file,
            token_public_key_file=self.token_public_key_file,
            superusers=self.superusers,
            tls_certificate_file=self.tls_certificate_file,
            tls_key_file=self.tls_key_file,
            allow_open=self.allow_open,
        )


@dataclass(frozen=True, slots=True)
class SettingsWithOrigins:
    """Settings, and for each name "default", the path of the file, the variable or the flag."""

    settings: NodeSettings
    origins: Mapping[str, str]

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """(name, value, origin) of each setting."""
        for name, origin in self.origins.items():
            yield name, getattr(self.settings, name), origin


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(NodeSettings)}


def read_settings(
    fs: FileSystem,
    *,
    config: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, str | int | tuple[str, ...] | None],
) -> SettingsWithOrigins:
    """The settings from all sources; a flag that is None was not given."""
    values: dict[str, Any] = {}
    origins = dict.fromkeys(_DEFAULTS, _DEFAULT)
    for origin, name, value in (
        *_from_file(fs, config),
        *_from_environment(environ),
        *((_flag(name), name, value) for name, value in flags.items() if value is not None),
    ):
        values[name] = value
        origins[name] = origin
    try:
        return SettingsWithOrigins(NodeSettings(**values), origins)
    except InvalidSetting as error:
        origin = origins.get(error.name, _DEFAULT)
        if origin == _DEFAULT:
            raise
        raise InvalidSetting(f"{error.name} ({origin})", error.value, error.limit) from error


def _from_file(fs: FileSystem, path: str | None) -> Iterator[tuple[str, str, Any]]:
    if path is None:
        return
    try:
        table = tomllib.loads(read_file(fs, path).decode())
    except ValueError as error:
        # Raised for invalid UTF-8 and for invalid TOML.
        raise InvalidInput(f"{path} is not TOML: {error}") from error
    for name, value in table.items():
        if name not in _DEFAULTS:
            raise _unknown(name, value, path, _DEFAULTS)
        yield path, name, _typed(name, value, path)


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    names = {_PREFIX + name.upper(): name for name in _DEFAULTS}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(_PREFIX) or variable in _OF_CLIENTS or not text:
            continue
        if variable not in names:
            raise _unknown(variable, text, "the environment", [*names, *_OF_CLIENTS])
        name = names[variable]
        yield variable, name, _typed(name, _parsed(name, text), variable)


def _unknown(
    name: str, value: object, where: str, known: Mapping[str, Any] | list[str]
) -> InvalidSetting:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
    return InvalidSetting(f"{name} ({where})", value, f"a setting that exists: {hint}")


def _parsed(name: str, text: str) -> str | float | bool | list[str]:
    """Parse the text of a variable; text that cannot be parsed is returned unchanged."""
    default = _DEFAULTS[name]
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(default, str):
        return text
    if isinstance(default, tuple):
        return [part.strip() for part in text.split(",")]
    try:
        return float(text) if isinstance(default, float) else int(text)
    except ValueError:
        return text


def _typed(name: str, value: object, origin: str) -> object:
    """The value, if it has the setting's type."""
    default = _DEFAULTS[name]
    named = f"{name} ({origin})"
    if default is None and value == _OFF:
        return None
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidSetting(named, value, "true or false")
    elif isinstance(default, str):
        if not isinstance(value, str):
            raise InvalidSetting(named, value, "text")
        if isinstance(default, Durability) and value in tuple(Durability):
            return Durability(value)
    elif isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise InvalidSetting(named, value, "a list of texts")
        return tuple(value)
    elif isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidSetting(named, value, "a number")
    elif isinstance(value, bool) or not isinstance(value, int):
        off = f' or "{_OFF}"' if default is None else ""
        raise InvalidSetting(named, value, f"a whole number{off}")
    return value


def _flag(name: str) -> str:
    # Each use of the flag names one peer.
    return "--peer" if name == "peers" else "--" + name.replace("_", "-")
