"""`lithify` as a program whose runs of compaction stop at a phase, until the process is killed.

    python held_node.py HOLD serve …

A run that has written a phase to its journal while the file `HOLD-PHASE` exists creates
`HOLD-PHASE-reached` and continues no more. So a test can kill the process in a phase that takes
milliseconds. Everything else in the process continues.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from lithify.__main__ import main
from lithify.compaction.run.journal import Journal, Phase

HOLD = sys.argv.pop(1)
enter = Journal.enter


def held_enter(journal: Journal, phase: Phase) -> None:
    enter(journal, phase)
    if Path(f"{HOLD}-{phase}").exists():
        Path(f"{HOLD}-{phase}-reached").touch()
        threading.Event().wait()


if __name__ == "__main__":
    Journal.enter = held_enter  # type: ignore[method-assign, assignment]
    main()
