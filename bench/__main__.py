"""`python -m bench`: measure the rows of `areas.py`, and keep each in its result file.

    --only ROW    this row only; may be repeated
    --from ROW    this row and all after it, to continue with a run that was interrupted
    --results DIR where the result files are (default: bench/results)
    --quick       tiny sizes: shows that everything runs; the figures mean nothing and are not kept
    --gib N       how much data each row of `compaction.py` has, instead of what the row says
    --dir DIR     where the data goes; by default beside the working directory's files, because a
                  temporary directory is often memory and not a disk
    --json        one JSON list instead of the table, with the seconds of every round

Progress appears on standard error: which row of how many, how long it and the rest will take by the
durations in the result files, then its lines with the load of the machine. Where the load is above
the number of cores the figures say more about other programs than about this one.

Each row is saved as soon as it is complete. A row that raises is reported and the next row starts;
the exit code is 1 then. A miss is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bench.areas import ROWS, cases
from bench.harness import compare, table
from bench.results import RESULTS, describe_machine, load_results, save

if TYPE_CHECKING:
    from bench.harness import Result

ROW_SECONDS_GUESS = 60.0
"""For a row that was never timed."""


def measure(row: str, options: argparse.Namespace) -> list[Result]:
    """All lines of one row."""
    results = []
    with ExitStack() as stack:
        # Rows put temporary files into their own directory, which is gone after the row.
        stack.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir)
        )
        rounds, found = cases(row, directory, quick=options.quick, gib=options.gib)
        for case in found:
            results.append(compare(case, rounds, warm_up=not options.quick))
            _, _, _, *figures = results[-1].to_row()
            print(" ", case.name, *figures, f"load {_load():.1f}", sep="  ", file=sys.stderr)
    return results


def measure_and_save(row: str, options: argparse.Namespace, machine: str) -> list[Result]:
    """The same, kept in the row's file."""
    load_before, began_s = _load(), time.monotonic()
    results = measure(row, options)
    if results and not options.quick:
        save(
            options.results,
            row,
            results,
            command=_command(row, options),
            machine=machine,
            load=(load_before, _load()),
            seconds=time.monotonic() - began_s,
        )
    return results


def announce(row: str, left: list[str], of: int, seconds: dict[str, float]) -> None:
    """Say where we are, and when all is likely to be done."""
    rest_s = sum(seconds.get(each, ROW_SECONDS_GUESS) for each in left)
    unknown = sum(each not in seconds for each in left)
    end = (datetime.now().astimezone() + timedelta(seconds=rest_s)).strftime("%H:%M")
    row_s = seconds.get(row, ROW_SECONDS_GUESS)
    about = f"about {row_s:.0f} s; all about {rest_s / 60:.0f} min, until {end}"
    untimed = f" ({unknown} rows never timed)" if unknown else ""
    print(f"[{of - len(left) + 1}/{of}] {row}: {about}{untimed}", file=sys.stderr, flush=True)


def run(rows: list[str], options: argparse.Namespace) -> tuple[list[Result], list[str]]:
    """(all lines, the rows that raised)."""
    known = {} if options.quick else load_results(options.results)
    seconds = {row: m.seconds for row, m in known.items() if m.seconds is not None}
    results: list[Result] = []
    failed: list[str] = []
    machine = describe_machine(options.dir)
    for number, row in enumerate(rows):
        announce(row, rows[number:], len(rows), seconds)
        began_s = time.monotonic()
        try:
            results += measure_and_save(row, options, machine)
        except Exception:  # noqa: BLE001 - one row must not cost the others
            failed.append(row)
            traceback.print_exc()
        except KeyboardInterrupt:
            print(f"interrupted; continue with: python -m bench --from {row}", file=sys.stderr)
            raise
        seconds[row] = time.monotonic() - began_s
    return results, failed


def main() -> None:
    options = _parse()
    start = ROWS.index(options.start) if options.start else 0
    results, failed = run(list(options.only or ROWS[start:]), options)
    if options.json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
    else:
        print(table(results))
    if failed:
        again = " ".join(f"--only {row}" for row in failed)
        sys.exit(f"failed: {', '.join(failed)}; again with: python -m bench {again}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Lithify.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", choices=ROWS, action="append", metavar="ROW", help=", ".join(ROWS))
    which.add_argument("--from", dest="start", choices=ROWS, metavar="ROW", help="begin here")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where result files are")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to see it run")
    parser.add_argument("--gib", type=float, help="of data to compact (default: as each row says)")
    parser.add_argument("--dir", default=".", help="where the data goes (default: here)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def _command(row: str, options: argparse.Namespace) -> str:
    """What measures this row again, alone."""
    words = ["python", "-m", "bench", "--only", row]
    if options.gib is not None:
        words += ["--gib", f"{options.gib:g}"]
    if options.dir != ".":
        words += ["--dir", options.dir]
    return shlex.join(words)


def _load() -> float:
    return os.getloadavg()[0]


if __name__ == "__main__":
    main()
