"""Is a history of one key linearizable? A search in the manner of Wing and Gong, with a memory.

An operation takes effect at one instant between its call and its return. A history is linearizable
if there are such instants that explain every answer. Operations without an answer may have taken
effect at any time after their call, or not at all.

The search takes operations one after the other. Only those can come next that were called before
the first return among those that are left. (operations taken, value) is remembered, so no situation
is checked twice. Fast if few operations overlap, as in histories of a few hundred.

Operations without an answer, each of which may come anywhere or nowhere, would make that endless if
there are dozens. So less is checked, none of which could explain more:

- Values that no answer and no comparison is about are as good as one.
- Of operations without an answer that do the same, the one that was called first is taken first.
- Of situations that differ only in that one has taken more of them, the other is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

__all__ = ["Op", "explain", "is_linearizable"]

UNTOLD = b"a value without an answer"


@dataclass
class Op:
    """One operation on a key; `kind` is put, cas, delete or get."""

    kind: str
    called: float
    value: bytes | None = None
    """What is written."""
    expected: bytes | None = None
    """What a cas compares with; None: that there is nothing."""
    returned: float = inf
    """When the answer came; never, if its outcome is unknown."""
    answer: object = None
    """get: the value that was read. cas, delete: whether it was done."""

    def run(self, value: bytes | None) -> tuple[bool, bytes | None]:
        """(does it fit a key that has this value, what the key has then)."""
        known = self.returned != inf
        if self.kind == "put":
            return True, self.value
        if self.kind == "get":
            return not known or self.answer == value, value
        if self.kind == "delete":
            return not known or self.answer == (value is not None), None
        same = value == self.expected
        return not known or self.answer == same, self.value if same else value


def is_linearizable(ops: list[Op]) -> bool:
    """Can all answers be explained?"""
    told = {op.answer for op in ops if op.kind == "get"} | {op.expected for op in ops}
    ops = [
        op if op.value in told else replace(op, value=UNTOLD)
        for op in sorted(ops, key=_by_call)
        if op.kind != "get" or op.returned != inf
    ]
    answered = sum(1 << place for place, op in enumerate(ops) if op.returned != inf)
    stack: list[tuple[int, bytes | None]] = [(0, None)]
    seen: dict[tuple[int, bytes | None], list[int]] = {(0, None): [0]}
    while stack:
        taken, value = stack.pop()
        if taken & answered == answered:
            return True
        left = [op_place for op_place in enumerate(ops) if not taken >> op_place[0] & 1]
        first_return = min(op.returned for _, op in left)
        tried: set[tuple[str, bytes | None, bytes | None]] = set()
        for place, op in left:
            if op.called > first_return:
                break
            fits, then = op.run(value)
            if op.returned == inf:
                does = op.kind, op.expected, op.value
                fits = then != value and does not in tried
                tried.add(does)
            after = taken | 1 << place
            others = seen.setdefault((after & answered, then), [])
            if fits and not any(other & after == other for other in others):
                others.append(after)
                stack.append((after, then))
    return False


def explain(ops: list[Op]) -> str:
    """The history, one line per operation."""
    lines = []
    for op in sorted(ops, key=_by_call):
        end = "?" if op.returned == inf else f"{op.returned:.0f}"
        lines.append(
            f"{op.called:.0f} to {end} {op.kind} {op.value!r} {op.expected!r} {op.answer!r}"
        )
    return "\n".join(lines)


def _by_call(op: Op) -> float:
    return op.called
