from __future__ import annotations

import pytest

from lithify.errors import InvalidInput, InvalidSetting
from lithify.fs import LocalFileSystem, MemoryFileSystem, write_atomic
from lithify.metastore.compaction.settings import HistorySettings
from lithify.node.settings import NodeSettings, SettingsWithOrigins, read_settings
from lithify.pulsar.connection_limits import ConnectionLimits
from lithify.settings import Durability
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.policies import Policies
from lithify.topics.topics import TopicSettings


def test_defaults_of_blob_stores_are_settings_of_the_node() -> None:
    texts = ("policy=stats", "budget.write_bytes_per_s=1000000", 'triggers=["admin"]')
    settings = NodeSettings(blob_defaults=texts).blobs
    assert (settings.policy, settings.triggers) == ("stats", ("admin",))
    assert settings.budget.write_bytes_per_s == 1_000_000
    for wrong in ("policy", "policy=some", "some=1", "every_ms=never", "budget.some=1"):
        with pytest.raises(InvalidSetting, match="blob_defaults"):
            NodeSettings(blob_defaults=(wrong,))


def read(
    toml: str | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, str | int | None] | None = None,
) -> SettingsWithOrigins:
    fs = MemoryFileSystem()
    if toml is not None:
        write_atomic(fs, "node.toml", toml.encode())
    config = None if toml is None else "node.toml"
    return read_settings(fs, config=config, environ=environ or {}, flags=flags or {})


def test_without_any_configuration_everything_is_a_default() -> None:
    found = read(
        environ={"HOME": "/root", "LITHIFY_URL": "http://elsewhere:8080", "LITHIFY_TOKEN": "x"}
    )
    assert found.settings == NodeSettings()
    assert set(found.origins.values()) == {"default"}
    assert found.settings.pulsar_host == "127.0.0.1", "no other machine reaches an open node"


def test_later_sources_of_settings_win_and_are_shown_as_the_origin() -> None:
    toml = 'data = "a"\npulsar_port = 1\nhttp_port = 1\ndurability = "interval"\n'
    environ = {"LITHIFY_PULSAR_PORT": "2", "LITHIFY_HTTP_PORT": "2", "LITHIFY_AUTO_CREATE": "false"}
    found = read(toml, environ, {"http_port": 3, "pulsar_port": None})
    rows = {name: (value, origin) for name, value, origin in found.rows()}
    assert rows["data"] == ("a", "node.toml")
    assert rows["durability"] == (Durability.INTERVAL, "node.toml")
    assert rows["pulsar_port"] == (2, "LITHIFY_PULSAR_PORT")
    assert rows["auto_create"] == (False, "LITHIFY_AUTO_CREATE")
    assert rows["http_port"] == (3, "--http-port")
    assert rows["log_level"] == ("info", "default")
    topics = found.settings.topics
    assert (topics.log.durability, topics.auto_create) == (Durability.INTERVAL, False)


def test_an_optional_number_can_be_switched_off_again() -> None:
    toml = "segment_age_ms_max = 5000"
    assert read(toml).settings.segment_age_ms_max == 5000
    assert read('segment_age_ms_max = "off"').settings.segment_age_ms_max is None
    off = {"LITHIFY_SEGMENT_AGE_MS_MAX": "off"}
    assert read(toml, off).settings.segment_age_ms_max is None


def test_retention_settings_reach_the_topics_and_are_unlimited_by_default() -> None:
    assert read().settings.topics == TopicSettings()
    toml = "deduplication = true\nretention_ms = 0\nretention_bytes = 4096\nmessage_ttl_ms = 1000"
    found = read(toml, {"LITHIFY_BACKLOG_BYTES_MAX": "8192"}).settings
    assert found.topics.deduplication
    assert found.topics.policies == Policies(0, 4096, 1000, 8192)
    off = {"LITHIFY_RETENTION_MS": "off", "LITHIFY_MESSAGE_TTL_MS": "off"}
    assert read(toml, off).settings.topics.policies == Policies(retention_bytes=4096)


def test_compaction_settings_reach_the_topics() -> None:
    toml = 'compaction_order = "event"\nlive_ratio_min = 0.5\ncompaction_threshold_bytes = 4096'
    environ = {"LITHIFY_LIVE_RATIO_MIN": "0.25", "LITHIFY_KEEP_KEYLESS": "false"}
    found = read(toml, environ).settings
    assert found.topics.compaction == TopicCompactionSettings(
        compaction_threshold_bytes=4096,
        compaction_order="event",
        keep_keyless=False,
        live_ratio_min=0.25,
    )
    with pytest.raises(InvalidSetting, match=r"live_ratio_min \(node.toml\) is 2, must be 0 to 1"):
        read("live_ratio_min = 2")
    with pytest.raises(InvalidSetting, match="must be a number"):
        read('live_ratio_min = "much"')


def test_the_history_of_the_metastore_has_settings() -> None:
    toml = "metastore_retention_ms = 60_000\nmetastore_compaction_every_ms = 0\n"
    assert read(toml).settings.metastore_history == HistorySettings(60_000, 0)
    assert NodeSettings().metastore_history == HistorySettings()
    for name in ("metastore_retention_ms", "metastore_compaction_every_ms"):
        with pytest.raises(InvalidSetting, match=name):
            read(f"{name} = -1")


def test_the_limits_of_a_connection_are_passed_to_the_broker() -> None:
    found = read("connection_producers_max = 5", {"LITHIFY_CONNECTION_CONSUMERS_MAX": "6"}).settings
    assert found.limits == ConnectionLimits(5, 6, 1000)
    with pytest.raises(InvalidSetting, match="connection_topics_created_max"):
        read("connection_topics_created_max = -1")


def test_a_list_has_commas_in_the_environment() -> None:
    environ = {"LITHIFY_SUPERUSERS": "ann, bob", "LITHIFY_TOKEN_SECRET_FILE": "secret"}
    found = read('superusers = ["eve"]', environ).settings
    assert found.security.superusers == ("ann", "bob")
    assert found.security.requires_token
    assert read('token_secret_file = "s"\nsuperusers = ["eve"]').settings.superusers == ("eve",)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read(environ={"LITHIFY_PULSAR_PORT": ""}).settings.pulsar_port == 6650


@pytest.mark.parametrize(
    ("toml", "environ", "text"),
    [
        (
            "pulsar_prot = 6651",
            {},
            "(node.toml) is 6651, must be a setting that exists: did you mean pulsar_port?",
        ),
        ("[pulsar]\nport = 1", {}, "did you mean pulsar_port?"),
        ("zzz = 1", {}, "must be a setting that exists: one of data, pulsar_host, "),
        ("", {"LITHIFY_HTTP_PROT": "1"}, "did you mean LITHIFY_HTTP_PORT?"),
        ("", {"LITHIFY_ULR": "1"}, "did you mean LITHIFY_URL?"),
        ('pulsar_port = "6650"', {}, "pulsar_port (node.toml) is '6650', must be a whole number"),
        ("pulsar_port = 6650.5", {}, "must be a whole number"),
        ("pulsar_port = true", {}, "must be a whole number"),
        ("", {"LITHIFY_PULSAR_PORT": "many"}, "(LITHIFY_PULSAR_PORT) is 'many'"),
        ("auto_create = 1", {}, "must be true or false"),
        ("", {"LITHIFY_AUTO_CREATE": "yes"}, "is 'yes', must be true or false"),
        ("data = 5", {}, "must be text"),
        ("pulsar_port = 65536", {}, "pulsar_port (node.toml) is 65536, must be from 0 to 65535"),
        ('durability = "sometimes"', {}, "must be one of always, interval, none"),
        ("segment_bytes_max = 3", {}, "segment_bytes_max (node.toml) is 3, must be from 1024"),
        ('segment_age_ms_max = "never"', {}, 'must be a whole number or "off"'),
        ("retention_ms = -1", {}, "retention_ms (node.toml) is -1, must be from 0"),
        ("message_ttl_ms = 0", {}, "message_ttl_ms (node.toml) is 0, must be from 1"),
        ("", {"LITHIFY_BACKLOG_BYTES_MAX": "-5"}, "(LITHIFY_BACKLOG_BYTES_MAX) is -5"),
        ("deduplication = 1", {}, "must be true or false"),
        ('log_level = "loud"', {}, "must be one of debug, info, warning, error"),
        ('pulsar_host = "0.0.0.0"', {}, "must be an address of this machine only"),
        ('http_host = "10.0.0.1"', {}, "http_host (node.toml) is '10.0.0.1', must be an address"),
        (
            'pulsar_host = "0.0.0.0"\nallow_open = true',
            {},
            "advertised_host is '', must be the node's name or address",
        ),
        ('superusers = "ann"', {}, "must be a list of texts"),
        ('superusers = ["ann"]', {}, "superusers (node.toml) is 'ann', must be empty"),
        ('tls_key_file = "key.pem"', {}, "must be the certificate of tls_key_file"),
    ],
)
def test_a_wrong_setting_is_named_with_its_origin_and_limits(
    toml: str, environ: dict[str, str], text: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        read(toml, environ)
    assert text in str(caught.value)


def test_a_wildcard_host_requires_an_advertised_host() -> None:
    found = read('pulsar_host = "::"\nadvertised_host = "node1"\nallow_open = true')
    assert found.settings.advertised_host == "node1"


@pytest.mark.parametrize("data", [b"data = ", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(data: bytes) -> None:
    fs = MemoryFileSystem()
    write_atomic(fs, "node.toml", data)
    with pytest.raises(InvalidInput, match=r"^node\.toml is not TOML: "):
        read_settings(fs, config="node.toml", environ={}, flags={})


def test_a_missing_file_is_not_read_as_an_empty_one() -> None:
    with pytest.raises(FileNotFoundError):
        read_settings(LocalFileSystem(), config="/nowhere/node.toml", environ={}, flags={})


def test_a_spark_that_cannot_be_is_refused_when_the_settings_are_read() -> None:
    environ = {"LITHIFY_COMPACTION_MASTER": "nonsense"}
    limit = r"compaction_master \(LITHIFY_COMPACTION_MASTER\) is 'nonsense', must be local, "
    with pytest.raises(InvalidSetting, match=limit):
        read_settings(MemoryFileSystem(), config=None, environ=environ, flags={})
    given = {
        "LITHIFY_COMPACTION_MASTER": "spark://h:7077",
        "LITHIFY_COMPACTION_CONF": "spark.executor.memory=4g, spark.executor.cores=2",
        "LITHIFY_COMPACTION_ARCHIVES": "env.tar.gz#env",
    }
    found = read_settings(MemoryFileSystem(), config=None, environ=given, flags={}).settings.spark
    assert found.settings()["spark.executor.cores"] == "2"
    assert found.python() == "./env/bin/python"
