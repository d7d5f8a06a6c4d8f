"""Fuzzing for a given time: `python -m tests.fuzz [--seconds N] [--seed N]`.

Conversations of the corpus are changed and played until the time is up, each round from another
seed; rounds of an odd one to a broker that asks for tokens. A finding is made small, printed, and
kept as `found-….bin` in the corpus, one file for each connection: there the normal tests play it
from then on. Memory must not grow from round to round.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.conversations import CORPUS
from tests.fuzz.mutate import conversations
from tests.fuzz.target import CONNECTIONS, Piece, play

ROUND_EXAMPLES = 200
GROWTH_BYTES_MAX = 100 * 2**20


def memory_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def keep(pieces: list[Piece]) -> None:
    for number in range(CONNECTIONS):
        data = b"".join(data for connection, data in pieces if connection == number)
        if data:
            path = CORPUS / f"found-{hashlib.sha256(data).hexdigest()[:12]}.bin"
            path.write_bytes(data)
            print(f"kept {path}", file=sys.stderr)


def one_round(number: int) -> None:
    last: list[Piece] = []
    secured = bool(number % 2)

    @seed(number)
    @settings(
        max_examples=ROUND_EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(pieces=conversations(secured=secured))
    def target(pieces: list[Piece]) -> None:
        last[:] = pieces
        play(pieces, secured=secured)
        play(pieces, secured=secured, deduplication=True)

    try:
        target()
    except BaseException:
        # The last that was played is the smallest that fails.
        keep(last)
        print(f"found with --seed {number}", file=sys.stderr)
        raise


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz")
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--seed", type=int, default=random.randrange(2**32))
    given_ = arguments.parse_args()
    end = time.monotonic() + given_.seconds
    number, before = given_.seed, 0
    print(f"--seed {number}", flush=True)
    while time.monotonic() < end:
        one_round(number)
        number += 1
        before = before or memory_bytes()
        assert memory_bytes() - before < GROWTH_BYTES_MAX, "memory grows"
    rounds = number - given_.seed
    print(f"{rounds * ROUND_EXAMPLES} conversations, nothing found")


if __name__ == "__main__":
    main()
