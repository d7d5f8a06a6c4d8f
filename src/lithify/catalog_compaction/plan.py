"""A plan: which versions a run would trim, as a value; and a dry run. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lithify.compaction.policies.why_declined import Declined, WhyNot
from lithify.hybrid_time import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.catalog_compaction.decision import Decision
    from lithify.catalog_compaction.facts import ClusterFacts, NodeTimes

__all__ = ["POLICY", "CatalogDryRun"]

POLICY = "versions"


@dataclass(frozen=True, slots=True)
class CatalogDryRun:
    """The result of a dry run."""

    decision: Decision
    facts: ClusterFacts
    latest: int
    """The newest version."""
    now_ms: int

    @property
    def declined(self) -> Declined | None:
        """Why a run would trim nothing."""
        if self.decision.trims:
            return None
        blocking = self.decision.horizon.blocking
        held_by = " and ".join(hold.describe(self.now_ms) for hold in blocking)
        detail = f"the history from version {self.decision.earliest} on is held by {held_by}"
        return Declined(WhyNot.NOTHING_TO_GAIN, detail)

    def explain(self) -> str:
        """Text: holds, plan, what was not admissible, the nodes, and why nothing is trimmed."""
        decision = self.decision
        kept = f"{self.latest - decision.version + 1} versions stay"
        dropped = f"{decision.version - decision.earliest} versions are dropped"
        moved = f"the earliest version is {decision.earliest} and becomes {decision.version}"
        lines = [
            decision.horizon.explain(self.now_ms),
            f"policy {POLICY}: {moved}; {dropped}, {kept}",
        ]
        if decision.wanted > decision.version:
            lines.append(f"wanted: version {decision.wanted}")
        lines += [f"not admissible: {abort.describe()}" for abort in decision.aborts]
        lines += [
            f"node {node} was away for too long: its replicas are rebuilt when it is back"
            for node in decision.left
        ]
        lines += [
            f"node {node} has {count} replicas to rebuild"
            for node, count in sorted(self._to_rebuild().items())
        ]
        lines += self._nodes()
        if self.declined is not None:
            lines.append(f"a run would do nothing, {self.declined}")
        return "\n".join(lines)

    def _to_rebuild(self) -> dict[str, int]:
        """By node, the number of replicas that are recorded as to be rebuilt."""
        return Counter(node for nodes in self.facts.to_rebuild.values() for node in nodes)

    def _nodes(self) -> Iterator[str]:
        for node, times in sorted(self.facts.answers.items()):
            minimum = _minimum(times)
            yield (
                f"node {node}: needs {describe(minimum) if minimum else 'an unknown time'}, "
                f"low watermark {describe(times.low_watermark) if times.low_watermark else '-'}, "
                f"transactions from {describe(times.minimum_begin)}, "
                f"{len(times.published)} replicas"
            )

    def row(self) -> dict[str, object]:
        """As JSON values, with every node's minimum and all holds."""
        declined, decision = self.declined, self.decision
        return {
            "text": self.explain(),
            "plan": {
                "policy": POLICY,
                "earliest": decision.earliest,
                "wanted": decision.wanted,
                "version": decision.version,
                "latest": self.latest,
            },
            "holds": [asdict(hold) for hold in decision.horizon.holds],
            "aborts": [asdict(abort) | {"text": abort.describe()} for abort in decision.aborts],
            "left": list(decision.left),
            "to_rebuild": self._to_rebuild(),
            "nodes": [
                {
                    "node": node,
                    "minimum": _minimum(times),
                    "low_watermark": times.low_watermark,
                    "minimum_begin": times.minimum_begin,
                    "replicas": len(times.published),
                    "unpublished": [
                        list(key) for key, time in sorted(times.published.items()) if not time
                    ],
                }
                for node, times in sorted(self.facts.answers.items())
            ],
            "declined": None if declined is None else asdict(declined),
        }


def _minimum(times: NodeTimes) -> int:
    """The smallest time that a node needs; 0 if it is not known."""
    return min((times.low_watermark, *times.published.values()))
