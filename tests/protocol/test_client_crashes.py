"""A crash of the client's own code repeats the case instead of failing it, and is reported."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.protocol.harness import ROOT, is_clients_crash

if TYPE_CHECKING:
    from tests.protocol.harness import Case, Server


def crashes_once(case: Case, marker: str) -> None:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    case.fill(1)


def test_a_case_whose_client_crashed_is_repeated(broker: Server, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="crashed in crashes_once, crash 1 of at most 2"):
        broker.run_case(crashes_once, marker=str(tmp_path / "crashed"))


def crashes_in_our_code(case: Case) -> None:
    path = str(ROOT / "src" / "lithify" / "crash.py")
    code = compile("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", path, "exec")
    exec(code, {"__name__": "crash"})
    case.fill(1)


def test_a_crash_in_the_code_of_this_repository_is_a_failure(broker: Server) -> None:
    failure = r"client ended with -11(.|\n)*Segmentation fault(.|\n)*crash\.py"
    with pytest.raises(pytest.fail.Exception, match=failure):
        broker.run_case(crashes_in_our_code)


def test_the_stack_of_the_crashed_thread_decides() -> None:
    ours = f'  File "{ROOT}/src/lithify/log/log.py", line 1 in append\n'
    theirs = '  File "/site-packages/pulsar/__init__.py", line 1 in close\n'
    fatal = "Fatal Python error: Segmentation fault\n\n"
    other = f"Thread 0x1 (most recent call first):\n{ours}\n"
    current = "Current thread 0x2 (most recent call first):\n"
    assert is_clients_crash(f"{fatal}{other}{current}{theirs}\n")
    assert is_clients_crash(f"{fatal}{current}  <no Python frame>\n\n{other}")
    assert is_clients_crash(f"{fatal}{other}"), "a thread of the client's own"
    assert not is_clients_crash(f"{fatal}{current}{theirs}{ours}\n{other}")
    assert not is_clients_crash("")
