"""A crash of the client's own code repeats the case instead of failing it, and is reported."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.protocol.harness import Case, Server


def crashes_once(case: Case, marker: str) -> None:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    case.fill(1)


def test_a_case_whose_client_crashed_is_repeated(broker: Server, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the pulsar client crashed in crashes_once"):
        broker.run_case(crashes_once, marker=str(tmp_path / "crashed"))
