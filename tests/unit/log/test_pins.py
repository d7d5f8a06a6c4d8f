"""Pins keep files, also from another process, and die with it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from lithify.clock import ManualClock
from lithify.events import Reclaimed
from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.log.log import Log
from lithify.log.pins import FilePin, PinInfo, Pins, read_pin_files
from lithify.settings import LogSettings
from tests.unit.log.helpers import DIRECTORY, contents, fill, open_log

if TYPE_CHECKING:
    from pathlib import Path

HOLD_A_PIN = """
import sys
from lithify.fs import LocalFileSystem
from lithify.log.pins import FilePin, PinInfo
pin = FilePin(LocalFileSystem(), sys.argv[1], "5f3a", PinInfo("a child", int(sys.argv[2]), 7))
print(pin.held, flush=True)
sys.stdin.read()
"""


def test_pins_are_listed_oldest_first() -> None:
    fs, clock = MemoryFileSystem(), ManualClock(1000)
    fs.mkdir(DIRECTORY)
    pins = Pins(fs, DIRECTORY, clock)
    assert pins.oldest_generation() is None
    second = pins.pin(lambda: 9, "late")
    clock.advance(5)
    with pins.pin(lambda: 4, "later"):
        other = FilePin(fs, DIRECTORY, "t", PinInfo("other process", 6, 500))
        assert other.held
        assert pins.list() == [
            PinInfo("other process", 6, 500),
            PinInfo("late", 9, 1000),
            PinInfo("later", 4, 6000),
        ]
        assert pins.oldest_generation() == 4
    assert pins.oldest_generation() == 6
    other.release()
    other.release()
    assert pins.oldest_generation() == 9
    second.release()
    second.release()
    assert pins.list() == []
    assert fs.list(DIRECTORY) == []


def test_retired_files_wait_for_the_readers_of_older_generations() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 21)
    with log.snapshot("old") as old:
        assert [pin.owner for pin in log.pins()] == ["old"]
        log.drop_head(7)
        with log.snapshot("new"):
            log.drop_head(14)
            assert log.reclaim() == Reclaimed(DIRECTORY, 0, 0)
            assert [entry.position for entry in old.read()] == list(range(21))
    with log.snapshot("newer") as newer:
        assert log.reclaim().files == 2
        assert [entry.position for entry in newer.read()] == list(range(14, 21))
    assert log.manifest.retired == ()


def test_a_new_reader_does_not_keep_what_is_already_retired() -> None:
    log = open_log(MemoryFileSystem())
    fill(log, 14)
    log.drop_head(7)
    with log.snapshot():
        assert log.reclaim().files == 1


def test_the_pin_of_a_dead_process_is_removed() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 14)
    assert FilePin(fs, DIRECTORY, "dead", PinInfo("reader", log.manifest.generation, 0)).held
    log.drop_head(7)
    assert log.reclaim().files == 0
    after = fs.kill_clone()
    with open_log(after) as log:
        assert log.reclaim().files == 1
        assert read_pin_files(after, DIRECTORY) == []
    assert not after.exists(f"{DIRECTORY}/dead.pin")


def test_a_process_that_is_just_starting_may_want_anything() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 14)
    log.drop_head(7)
    lock = fs.lock(f"{DIRECTORY}/new.pin", "")
    assert lock is not None
    assert [pin.owner for pin in log.pins()] == ["a process that is just starting"]
    assert log.reclaim().files == 0
    lock.release()
    assert log.reclaim().files == 1


def test_one_token_is_one_pin() -> None:
    fs = MemoryFileSystem()
    fs.mkdir(DIRECTORY)
    first = FilePin(fs, DIRECTORY, "t", PinInfo("first", 1, 0))
    second = FilePin(fs, DIRECTORY, "t", PinInfo("second", 2, 0))
    assert (first.held, second.held) == (True, False)
    second.release()
    assert read_pin_files(fs, DIRECTORY) == [PinInfo("first", 1, 0)]


def test_a_child_process_keeps_files_until_it_is_killed(tmp_path: Path) -> None:
    fs, directory = LocalFileSystem(), str(tmp_path / "log")
    log = Log.open(fs, directory, kind="test", settings=LogSettings(segment_bytes_max=1024))
    fill(log, 21)
    command = [sys.executable, "-c", HOLD_A_PIN, directory, str(log.manifest.generation)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        generation = log.manifest.generation
        log.drop_head(14)
        assert log.pins() == [PinInfo("a child", generation, 7)]
        assert log.reclaim().files == 0
        child.kill()
    assert log.reclaim().files == 2
    assert log.pins() == []
    assert list(contents(log)) == list(range(14, 21))
    log.close()
    assert fs.list(directory) == ["000000000003.seg", "LOCK", "MANIFEST"]
