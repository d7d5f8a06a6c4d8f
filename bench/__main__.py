"""`python -m bench`: measure what the modules in `NAMES` have and print a table.

    --quick       tiny sizes: shows that everything runs, the figures mean nothing
    --only NAME   this row only
    --gib N       how much data the rows of `compaction.py` have; 1 by default
    --dir DIR     where the data goes; by default beside the working directory's files, because a
                  temporary directory is often memory and not a disk
    --json        one JSON list instead of the table, with the seconds of every round

Rows appear on standard error as they are done, with the load of the machine: where it is above the
number of cores the figures say more about the other programs than about this one. A miss is
printed as a miss and the exit code is still 0; anything else means that something broke.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING

from bench import blobs, blobs_http, compaction, foundation, raft, raft_storage, reading, topics
from bench.harness import compare, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.harness import Case, Result

_MODULES = (foundation, topics, reading, blobs, blobs_http, compaction, raft_storage, raft)
NAMES = tuple(name for module in _MODULES for name in module.CASES)


def rows(name: str, directory: str, *, quick: bool, gib: float) -> tuple[int, Iterable[Case]]:
    """How many rounds, and of what."""
    if name in compaction.CASES:
        of_compaction = compaction.QUICK if quick else compaction.FULL.of(gib)
        return of_compaction.rounds, compaction.CASES[name](directory, of_compaction)
    for module in _MODULES:
        if name in module.CASES:
            sizes = module.QUICK if quick else module.FULL
            return sizes.rounds, module.CASES[name](directory, sizes)
    raise KeyError(name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Lithify.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to see it run")
    parser.add_argument("--only", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--gib", type=float, default=1.0, help="of data to compact (default: 1)")
    parser.add_argument("--dir", default=".", help="where the data goes (default: here)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    results: list[Result] = []
    for name in [options.only] if options.only else NAMES:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as directory:
            rounds, cases = rows(name, directory, quick=options.quick, gib=options.gib)
            for case in cases:
                results.append(compare(case, rounds))
                _, _, _, *figures = results[-1].to_row()
                load = f"load {os.getloadavg()[0]:.1f}"
                print(case.name, *figures, load, sep="  ", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
    else:
        print(table(results))


if __name__ == "__main__":
    main()
