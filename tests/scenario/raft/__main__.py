"""Tell the stories again: `python -m tests.scenario.raft --rewrite [NAME…]`; without it, only look.

Read the difference (`git diff`) before you keep it: it is the behaviour that has changed.
"""

from __future__ import annotations

import argparse
import difflib

from lithify.testing.raft_scenarios import play
from tests.scenario.raft.test_stories import STORIES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rewrite", action="store_true")
    arguments = parser.parse_args()
    for path in STORIES:
        if arguments.names and path.stem not in arguments.names:
            continue
        told = path.read_text(encoding="utf-8")
        now = play(told)
        if arguments.rewrite:
            path.write_text(now, encoding="utf-8")
        lines = told.splitlines(keepends=True), now.splitlines(keepends=True)
        print("".join(difflib.unified_diff(*lines, path.name, "now")), end="")


if __name__ == "__main__":
    main()
