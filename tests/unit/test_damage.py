"""The damage found while a process serves."""

from __future__ import annotations

from lithify.damage import Damage
from lithify.errors import DamagedFile, MissingLog


def test_a_damaged_file_is_reported_as_long_as_it_exists() -> None:
    damage = Damage()
    assert damage.record(DamagedFile("data/a", 7, "is bad"))
    assert not damage.record(DamagedFile("data/a", 7, "is bad"))
    assert damage.reasons(lambda _: True) == ["data/a at byte 7: is bad"]
    assert not damage.reasons(lambda _: False)


def test_a_missing_log_is_not_reported_when_it_exists_again() -> None:
    damage = Damage()
    assert not damage.record(MissingLog("data/topics", "t", "the definitions have it"))
    assert not damage.reasons(lambda _: True)
