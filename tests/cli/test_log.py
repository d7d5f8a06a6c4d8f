from __future__ import annotations

import base64
import importlib.metadata
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import lithify
from lithify.cli.main import app
from lithify.cli.output import human_age, human_time, preview, progress_bar
from lithify.clock import ManualClock
from lithify.fs import LocalFileSystem
from lithify.log.file_names import segment_name
from lithify.log.read_only_log import open_readonly
from tests.small_log import ACTIVE, build, open_log

if TYPE_CHECKING:
    from typer.testing import Result

COMMAND = Path(sys.executable).parent / "lithify"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("cli") / "small")
    build(LocalFileSystem(), path)
    return path


@pytest.fixture
def small(tmp_path: Path) -> str:
    """For tests that damage it."""
    path = str(tmp_path / "small")
    build(LocalFileSystem(), path)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def succeed(*arguments: str) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def flip(path: str, offset: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[offset] ^= 0x10
    Path(path).write_bytes(data)


def files(directory: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


# --- stat ---------------------------------------------------------------------------------------


def test_stat_prints_the_parts_of_the_log(built: str) -> None:
    before = files(built)
    lines = succeed("log", "stat", built).splitlines()
    assert lines[:8] == [
        f"{built}: log of kind topic, generation 6",
        "  entries    12 (11 live, 1 dead)",
        "  positions  3 … 14",
        "  times      1970-01-01T00:00:01Z … 1970-01-01T00:00:01Z",
        "  disk       1.6 KiB, of it 39 B dead and 285 B retired",
        "  judged     up to position 10",
        "  next run   horizon 10, held by active segment and journal (owner run run3) for "
        + lines[6].rpartition(" for ")[2],
        "  run        run3 unfinished in COPY, 1 of 2 groups copied, started "
        + lines[7].rpartition(" started ")[2],
    ]
    assert lines[9:13] == [
        "Segments",
        "  file              state   first  last  entries  live   size  newest",
        "  000000000002.seg  sealed      3     6        4   75%  317 B  1970-01-01T00:00Z",
        "  000000000003.seg  sealed      7    10        4  100%  325 B  1970-01-01T00:00Z",
    ]
    text = "\n".join(lines)
    assert "Compacted view\n" in text
    assert "000000000002-a1.seg" in text
    assert "Retired\n" in text
    assert "1970-01-01T00:00:00Z  nothing to do in 0.0 s (admin, all)" in text
    assert files(built) == before


def test_stat_has_raw_numbers_as_json(built: str) -> None:
    value: dict[str, Any] = json.loads(succeed("log", "stat", built, "--json"))
    assert (value["kind"], value["generation"], value["horizon"]) == ("topic", 6, 10)
    assert (value["entries"], value["live_entries"], value["last_position"]) == (12, 11, 14)
    assert [segment["name"] for segment in value["segments"]] == [
        segment_name(2),
        segment_name(3),
        ACTIVE,
    ]
    assert value["segments"][-1]["entries"] == 4, "counted, the manifest does not know"
    assert value["view"][0]["dead"]["entries"] == 1
    assert (value["run"]["phase"], value["run"]["groups_copied"]) == ("COPY", 1)
    assert [report["run_id"] for report in value["reports"]] == ["run2", "run1"]
    assert [hold["name"] for hold in value["holds"]] == ["active segment", "journal"]
    on_disk = sum(len(data) for name, data in files(built).items() if name[0] == "0")
    assert value["file_bytes"] == on_disk


def test_stat_prints_the_pins_of_other_processes(built: str) -> None:
    fs, clock = LocalFileSystem(), ManualClock()
    with open_readonly(fs, built, owner="nightly report", clock=clock, token="t0"):
        text = succeed("log", "stat", built)
    assert "Pins\n" in text
    assert "nightly report           6" in text
    assert "lithify log stat" not in text
    assert "Pins\n" not in succeed("log", "stat", built)


def test_stat_still_works_where_journal_and_history_are_damaged(small: str) -> None:
    flip(f"{small}/JOURNAL", 3)
    flip(f"{small}/HISTORY", 3)
    text = succeed("log", "stat", small)
    assert f"  damaged    {small}/JOURNAL at byte 0: CRC-32C is" in text
    assert f"  damaged    {small}/HISTORY at byte 0: CRC-32C is" in text
    assert "000000000003.seg" in text


def test_stat_of_a_log_that_was_just_created(tmp_path: Path) -> None:
    open_log(LocalFileSystem(), str(tmp_path)).close()
    text = succeed("log", "stat", str(tmp_path))
    assert "entries    0 (all live)" in text
    assert "judged     nothing yet" in text


# --- dump ---------------------------------------------------------------------------------------


def test_dump_prints_an_entry_a_line(built: str) -> None:
    lines = succeed("log", "dump", built).splitlines()
    assert lines[:3] == [
        " 3  1970-01-01T00:00:01.001Z  -              3         7  entry 3",
        " 5  1970-01-01T00:00:01.000Z  tombstone      5         0",
        " 6  1970-01-01T00:00:01.002Z  -              6         7  entry 6",
    ]
    assert [int(line.split()[0]) for line in lines] == [3, *range(5, 15)]


def test_dump_starts_and_stops_at_the_given_positions(built: str) -> None:
    lines = succeed("log", "dump", built, "--from", "8", "--limit", "3").splitlines()
    assert [int(line.split()[0]) for line in lines] == [8, 9, 10]
    assert succeed("log", "dump", built, "--from", "99") == ""


def test_dump_of_the_compacted_view_continues_in_the_log(built: str) -> None:
    lines = succeed("log", "dump", built, "--compacted").splitlines()
    assert [int(line.split()[0]) for line in lines] == [3, 5, 7, 9, 10, 11, 12, 13, 14]


def test_dump_as_json_has_the_whole_body(built: str) -> None:
    entries = [json.loads(line) for line in succeed("log", "dump", built, "--json").splitlines()]
    assert entries[0] == {
        "position": 3,
        "time_ms": 1001,
        "flags": 0,
        "tag": 3,
        "length": 7,
        "body": base64.b64encode(b"entry 3").decode(),
    }


def test_dump_prints_what_is_good_and_then_the_place_of_the_damage(small: str) -> None:
    flip(f"{small}/{segment_name(3)}", 64 + 39 + 35)
    result = run("log", "dump", small)
    assert result.exit_code == 1
    assert [int(line.split()[0]) for line in result.stdout.splitlines()] == [3, 5, 6, 7]
    where = f"{small}/{segment_name(3)} at byte 103: CRC-32C does not match (after position 7)"
    assert result.stderr == f"lithify: error: {where}\n"


# --- verify -------------------------------------------------------------------------------------


def test_verify_finds_nothing_wrong_with_a_whole_log(built: str) -> None:
    before = files(built)
    assert succeed("log", "verify", built).splitlines() == [
        f"{built}: generation 6, 4 segments, 18 entries (2 dead), 2.0 KiB checked",
        "  retired  000000000001.seg",
        "  warning  run run3 is unfinished in COPY; the next run resumes or undoes it",
        "no damage",
    ]
    assert json.loads(succeed("log", "verify", built, "--json"))["ok"] is True
    assert files(built) == before


def test_verify_names_file_offset_and_position_of_the_first_damage(small: str) -> None:
    flip(f"{small}/{segment_name(3)}", 64 + 39 + 35)
    result = run("log", "verify", small)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-5:] == [
        "DAMAGED; the check stopped here:",
        f"  file     {small}/{segment_name(3)}",
        "  offset   103",
        "  after    7",
        "  what     CRC-32C does not match (after position 7)",
    ]
    result = run("log", "verify", small, "--json")
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    assert (value["ok"], value["damage"]["offset"], value["damage"]["after"]) == (False, 103, 7)


@pytest.mark.parametrize("name", ["MANIFEST", "JOURNAL", "HISTORY"])
def test_verify_checks_the_small_files_too(small: str, name: str) -> None:
    flip(f"{small}/{name}", 20)
    result = run("log", "verify", small, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["damage"]["file"] == f"{small}/{name}"


def test_verify_does_not_call_a_newer_format_damage(small: str) -> None:
    manifest = Path(f"{small}/MANIFEST")
    manifest.write_bytes(manifest.read_bytes().replace(b"manifest 1 ", b"manifest 9 ", 1))
    result = run("log", "verify", small)
    assert (result.exit_code, result.stdout) == (1, "")
    newer = f"{manifest} has format version 9, this build reads up to 1"
    assert result.stderr == f"lithify: error: {newer}\n"


# --- errors and usage ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["stat", "dump", "verify"])
def test_a_directory_that_holds_no_log_is_one_line_on_stderr(command: str, tmp_path: Path) -> None:
    result = run("log", command, str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"lithify: error: {tmp_path} holds no log: it has no MANIFEST\n"
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_operating_system_is_one_line_too(small: str) -> None:
    name = "x" * 300
    result = run("log", "stat", name)
    assert result.exit_code == 1
    assert result.stderr == f"lithify: error: {name}/MANIFEST: File name too long\n"

    os.remove(f"{small}/MANIFEST")
    os.mkdir(f"{small}/MANIFEST")
    result = run("log", "stat", small)
    assert result.exit_code == 1
    assert result.stderr == "lithify: error: [Errno 21] Is a directory\n"


@pytest.mark.parametrize(
    "arguments",
    [("log", "stat"), ("log", "dump", "x", "--from", "-1"), ("log", "melt"), ("--nonsense",)],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_the_version_is_that_of_the_distribution() -> None:
    assert succeed("--version") == f"lithify {importlib.metadata.version('lithify')}\n"
    assert lithify.__version__ == importlib.metadata.version("lithify")


# --- real processes -----------------------------------------------------------------------------


def test_the_installed_command_reads_a_log_that_this_process_is_writing(tmp_path: Path) -> None:
    directory = str(tmp_path / "orders")
    with open_log(LocalFileSystem(), directory) as log:
        log.append_many([b"entry %d" % number for number in range(1000)]).result()
        outputs = [
            subprocess.run([COMMAND, "log", *arguments], capture_output=True, check=True).stdout
            for arguments in (
                ("dump", directory, "--from", "998"),
                ("verify", directory),
                ("stat", directory, "--json"),
            )
        ]
        log.append(b"and on it goes").result()
    assert outputs[0].decode().split()[5::7] == ["entry", "entry"]
    assert outputs[1].endswith(b"no damage\n")
    assert json.loads(outputs[2])["entries"] == 1000
    assert not list(Path(directory).glob("*.pin"))


def test_python_dash_m_is_the_command_and_a_closed_pipe_ends_it_quietly(tmp_path: Path) -> None:
    with open_log(LocalFileSystem(), str(tmp_path)) as log:
        log.append_many([b"x" * 50] * 20_000).result()
    command = [sys.executable, "-m", "lithify", "log", "dump", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().split()[0] == b"0"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert not list(tmp_path.glob("*.pin"))


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from lithify.__main__ import main\n"
        "sys.argv = ['lithify', 'log', 'dump', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('numba', 'numpy', 'pyspark') if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.decode().splitlines()[-1] == "[]"


# --- what people see ----------------------------------------------------------------------------


def test_a_terminal_gets_drawn_tables(built: str) -> None:
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    ran = subprocess.run([COMMAND, "log", "stat", built], stdout=child, env=environment, check=True)
    os.close(child)
    text = os.read(parent, 1 << 16).decode()
    os.close(parent)
    assert ran.returncode == 0
    assert "────" in text
    assert "000000000003.seg" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_to_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    clock, screen = ManualClock(), Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_bar("verifying", 100, clock) as progress:
        progress(10)
        clock.advance(0.5)
        progress(10)
        assert screen.getvalue() == ""
        clock.advance(0.5)
        progress(10)
        assert "verifying" in screen.getvalue()


def test_progress_is_not_shown_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, file = ManualClock(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with progress_bar("verifying", 100, clock) as progress:
        clock.advance(60)
        progress(10)
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (-5, "0 s"),
        (999, "0 s"),
        (5_000, "5 s"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (7_200_000, "2 h"),
        (371_000_000, "4 d 7 h"),
    ],
)
def test_ages_have_their_two_largest_units(age_ms: int, text: str) -> None:
    assert human_age(age_ms) == text


def test_times_are_iso_8601_until_the_year_9999() -> None:
    assert human_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert human_time(2**48 - 1) == "281474976710655 ms"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"plain", "plain"),
        ("Zoë".encode(), "Zoë"),
        (b"two\nl\x1b[7m", "two\\nl\\x1b[7m"),
        (b"a\\nb", "a\\\\nb"),
        (b"\xff\x00", "\\xff\\x00"),
        (b"123456789012", "1234567890…"),
        ("123456789ë".encode(), "123456789…"),
    ],
)
def test_a_preview_is_one_line_that_cannot_harm_a_terminal(body: bytes, text: str) -> None:
    assert preview(body, 10) == text
