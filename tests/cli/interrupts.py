"""Commands that interrupt themselves at a chosen moment, as Ctrl-C in a terminal does."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.cli.nodes import COMMAND
from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    from pathlib import Path

HOOK = """
import os, re, signal, sys

moment = os.environ.pop("INTERRUPT_AT", None)  # Not for the children of the command.


EVENTS = ("open", "import", "os.rename", "os.remove", "socket.connect")


def hook(event, args):
    global moment
    if moment is None or event not in EVENTS:
        return
    if re.search(moment, " ".join([event, *map(str, args)])):
        moment = None
        os.killpg(0, signal.SIGINT)


if moment is not None:
    sys.addaudithook(hook)
"""
"""The signal goes to the whole process group, so to Java too."""


def interrupted(directory: Path, moment: str, *command: object) -> tuple[int, str]:
    """(exit code, stderr) of a command that is interrupted at its first operation like `moment`.

    An operation is an audit event of Python with its arguments, such as `os.rename A B`.
    """
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(HOOK)
    with (
        subprocess.Popen(
            [COMMAND, *map(str, command)],
            env=os.environ | {"PYTHONPATH": str(directory), "INTERRUPT_AT": moment},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        # Some commands start Spark.
        at_most(3 * PROCESS_S_MAX, process.kill),
    ):
        _, text = process.communicate()
    return process.returncode, text
