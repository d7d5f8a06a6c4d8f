from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import lithify
from lithify.cli.main import app
from tests.cli.nodes import COMMAND, served
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from pathlib import Path


CLIENT = """
import pulsar, sys
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer("orders")
for number in range(3):
    producer.send(b"%d" % number, partition_key="k")
consumer = client.subscribe("orders", "s", initial_position=pulsar.InitialPosition.Earliest)
for _ in range(2):
    consumer.acknowledge(consumer.receive(60_000))
client.close()
"""


def test_without_configuration_it_serves_the_real_client_and_stops_cleanly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data) as node:
        assert node.pulsar.startswith("pulsar://127.0.0.1:")
        subprocess.run(
            [sys.executable, "-c", CLIENT, node.pulsar], check=True, timeout=PROCESS_S_MAX
        )
        with urllib.request.urlopen(f"{node.http}/admin/v2/brokers/health") as answer:
            assert answer.read() == b"ok"
        code, out, err = node.end(signal.SIGTERM)
    assert (code, out) == (0, "")
    assert all(line.startswith("timestamp=") for line in err.splitlines()), err
    with lithify.open(str(data)) as library:
        topic = library.topics.get("orders")
        assert [message.value for message in topic.read()] == [b"0", b"1", b"2"]
        assert topic.cursors.get("s").mark_delete == topic.last_position - 1


def test_an_interrupt_also_ends_it_well(tmp_path: Path) -> None:
    with served(tmp_path / "data") as node:
        code, _, err = node.end(signal.SIGINT)
    assert (code, err) == (0, "")


def test_a_data_directory_in_use_is_refused_with_the_owners_process_id(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data) as node:
        second = subprocess.run(
            [COMMAND, "serve", "--data", data], capture_output=True, text=True, check=False
        )
        assert second.returncode == 4
        assert second.stderr == (
            f"lithify: error: {data} is open for writing by lithify serve, pid {node.process.pid}\n"
        )


def test_a_port_in_use_is_refused_by_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [COMMAND, "serve", "--data", tmp_path / "data", "--pulsar-port", str(port)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"lithify: error: cannot listen at 127.0.0.1:{port} (pulsar_port): Address already in use\n"
    )


# --- config show --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("LITHIFY_"):
            monkeypatch.delenv(name)


def test_config_show_prints_the_origin_of_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('pulsar_port = 7000\ndurability = "interval"\n')
    monkeypatch.setenv("LITHIFY_HTTP_PORT", "7001")
    shown = CliRunner().invoke(app, ["config", "show", "--origin", "--config", str(file)])
    assert shown.exit_code == 0
    lines = [line.split("  # ") for line in shown.stdout.splitlines()]
    origins = {line.split(" = ")[0]: where for line, where in lines}
    assert origins["pulsar_port"] == str(file)
    assert origins["http_port"] == "LITHIFY_HTTP_PORT"
    assert origins["data"] == "default"
    asked = ["config", "show", "--origin", "--json", "--config", str(file)]
    value = json.loads(CliRunner().invoke(app, asked).stdout)
    assert value["http_port"] == {"value": 7001, "origin": "LITHIFY_HTTP_PORT"}


def test_config_show_prints_a_settings_file(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["config", "show"]).stdout
    assert tomllib.loads(shown)["segment_age_ms_max"] == "off"
    file = tmp_path / "node.toml"
    file.write_text(shown)
    assert CliRunner().invoke(app, ["config", "show", "--config", str(file)]).stdout == shown


def test_a_wrong_setting_is_one_line_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITHIFY_PULSAR_PROT", "6651")
    shown = CliRunner().invoke(app, ["config", "show"])
    assert shown.exit_code == 2
    assert shown.stderr == (
        "lithify: error: setting LITHIFY_PULSAR_PROT (the environment) is '6651', must be a "
        "setting that exists: did you mean LITHIFY_PULSAR_PORT?\n"
    )
