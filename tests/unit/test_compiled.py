"""Kernels work without a cache, and the log says so."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numba
import pytest
import structlog

from lithify import compiled

if TYPE_CHECKING:
    from pathlib import Path


def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> compiled._Kernels:
    """Those of a process that finds no directory for a cache by itself."""
    structlog.reset_defaults()
    monkeypatch.setattr(compiled, "_find_place", lambda _: None)
    return compiled._Kernels()


def test_compiling_without_a_safe_cache_directory_is_logged(
    kernels: compiled._Kernels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    kernel = numba.njit(double)
    kernels.add(kernel)
    kernels.offer(str(shared))
    assert kernel(21) == 42
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("compiled code is not cached: it is compiled at each start")
    assert str(shared) in line
    assert list(shared.iterdir()) == []


def test_a_directory_that_is_offered_becomes_the_cache(
    kernels: compiled._Kernels, tmp_path: Path
) -> None:
    kernel = numba.njit(double)
    kernels.add(kernel)
    kernels.offer(f"{tmp_path}/kernels")
    assert kernel(21) == 42
    assert list((tmp_path / "kernels").rglob("*.nbc"))


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    kernels: compiled._Kernels, tmp_path: Path
) -> None:
    kernel = numba.njit(double)
    kernels.add(kernel)
    kernels.offer(f"{tmp_path}/kernels")
    shutil.rmtree(tmp_path / "kernels")
    (tmp_path / "kernels").write_text("in the way")
    assert kernel(21) == 42
