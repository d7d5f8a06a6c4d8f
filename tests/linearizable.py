"""Is a history of one key linearizable? A search in the manner of Wing and Gong, with a memory.

An operation takes effect at one instant between its call and its return. A history is linearizable
if there are such instants that explain every answer. Operations without an answer may have taken
effect at any time after their call, or not at all.

The search takes operations one after the other. Only those can come next that were called before
the first return among those that are left. (operations taken, value) is remembered, so no situation
is looked at twice. Fast if few operations overlap, as in histories of a few hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

__all__ = ["Op", "explain", "is_linearizable"]


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
    """When the answer came; never, if nobody knows what became of it."""
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
    ops = sorted((op for op in ops if op.kind != "get" or op.returned != inf), key=_by_call)
    answered = sum(1 << place for place, op in enumerate(ops) if op.returned != inf)
    stack: list[tuple[int, bytes | None]] = [(0, None)]
    seen = set(stack)
    while stack:
        taken, value = stack.pop()
        if taken & answered == answered:
            return True
        left = [place for place in range(len(ops)) if not taken >> place & 1]
        first_return = min(ops[place].returned for place in left)
        for place in left:
            op = ops[place]
            if op.called > first_return:
                break
            fits, then = op.run(value)
            situation = (taken | 1 << place, then)
            if fits and situation not in seen:
                seen.add(situation)
                stack.append(situation)
    return False


def explain(ops: list[Op]) -> str:
    """The history, one line an operation."""
    lines = []
    for op in sorted(ops, key=_by_call):
        end = "?" if op.returned == inf else f"{op.returned:.0f}"
        lines.append(
            f"{op.called:.0f} to {end} {op.kind} {op.value!r} {op.expected!r} {op.answer!r}"
        )
    return "\n".join(lines)


def _by_call(op: Op) -> float:
    return op.called
