"""Are transactions that read lists and append to them serialisable?

Each value is appended to one list once. So the last state of a list says in which order its values
were written, and a read says which of them it has seen and which it has not. From that follows who
must come before whom:

- the writer of a value before that of the next one in the list;
- the writer of a value before a transaction that has read it;
- a transaction before the writer of the first value that it has not read.

The transactions are serialisable if no one comes before itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Txn", "problem_of"]


@dataclass
class Txn:
    """A transaction as its client knows it."""

    reads: dict[int, list[int]] = field(default_factory=dict)
    """What it has read, by list, before its own appends."""
    appends: dict[int, int] = field(default_factory=dict)
    outcome: str = "failed"
    """ok, failed, or unknown."""


def problem_of(txns: Sequence[Txn], last: Mapping[int, Sequence[int]]) -> str:
    """What is wrong with a history that has left these lists; empty if nothing is."""
    writers: dict[tuple[int, int], int] = {}
    for number, txn in enumerate(txns):
        for key, value in txn.appends.items():
            writers[key, value] = number
            count = list(last.get(key, ())).count(value)
            if count > 1 or (txn.outcome == "ok" and not count):
                return f"{value} is {count} times in list {key}: {txn}"
            if txn.outcome == "failed" and count:
                return f"{value} is in list {key}: {txn}"
    for key, values in last.items():
        if unknown := [each for each in values if (key, each) not in writers]:
            return f"{unknown[0]} in list {key} has no writer"
    return _problem_of_order(txns, last, writers)


def _problem_of_order(
    txns: Sequence[Txn], last: Mapping[int, Sequence[int]], writers: Mapping[tuple[int, int], int]
) -> str:
    order: TopologicalSorter[int] = TopologicalSorter()
    for key, values in last.items():
        for one, two in pairwise(values):
            _add(order, writers[key, one], writers[key, two])
    for number, txn in enumerate(txns):
        happened = any(value in last.get(key, ()) for key, value in txn.appends.items())
        for key, seen in txn.reads.items() if happened or txn.outcome == "ok" else ():
            values = list(last.get(key, ()))
            if values[: len(seen)] != seen:
                return f"list {key} never was {seen}: {txn}"
            if seen:
                _add(order, writers[key, seen[-1]], number)
            if len(seen) < len(values):
                _add(order, number, writers[key, values[len(seen)]])
    try:
        order.prepare()
    except CycleError as error:
        return "; then ".join(str(txns[each]) for each in error.args[1])
    return ""


def _add(order: TopologicalSorter[int], first: int, then: int) -> None:
    if first != then:
        order.add(then, first)
