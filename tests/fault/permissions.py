"""Modes of files apply to a child process of a test, also if root runs the tests.

Root may read and write everything because of two capabilities. A process without them is refused
like any other user.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    from collections.abc import Sequence

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
PR_CAPBSET_DROP = 24
CANNOT_DROP = 99
_LIBC = ctypes.CDLL(None)


def _obey_modes() -> None:
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if os.geteuid() == 0 and _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            os._exit(CANNOT_DROP)


def run_without_privileges(*command: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program; modes apply to it and its children."""
    process = _started(command, environ)
    with at_most(PROCESS_S_MAX, process.kill):
        out, problems = process.communicate()
    if process.returncode == CANNOT_DROP:
        pytest.skip("capabilities cannot be dropped here")
    return subprocess.CompletedProcess((), process.returncode, out, problems)


def _started(command: Sequence[object], environ: dict[str, str]) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_obey_modes,  # noqa: PLW1509  (it takes no lock)
    )
