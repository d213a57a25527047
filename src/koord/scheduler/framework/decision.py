"""What came of one attempt to place a pod, with everything needed to explain it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.scheduler.framework.verdict import Reject

# The longest list of node names kept per reason: enough to look at, bounded for any cluster.
NAMES_KEPT = 10
# Stands in a refusal where PreFilter plugins together left nodes out; `Unschedulable.narrowed_by` names them.
PRE_FILTER = "PreFilter"


class Refusal(msgspec.Struct, frozen=True):
    """One plugin's one reason: how many nodes it was said of, and some of them."""

    plugin: str
    verdict: Reject
    count: int
    nodes: tuple[str, ...]


class Chosen(msgspec.Struct, frozen=True):
    node: str
    feasible: int
    total: int
    scores: Mapping[str, int]  # by plugin, weighted
    runners_up: tuple[tuple[str, int], ...] = ()


class Unschedulable(msgspec.Struct, frozen=True):
    """No node fits. `pre_filter` is set when a plugin refused before any node was looked at."""

    node_count: int
    refusals: tuple[Refusal, ...]
    pre_filter: tuple[str, Reject] | None = None
    post_filter: str = ""
    narrowed_by: tuple[str, ...] = ()

    def plugins(self) -> frozenset[str]:
        """Who must change its mind before this pod can fit."""
        if self.pre_filter is not None:
            return frozenset((self.pre_filter[0], *self.narrowed_by)) - {PRE_FILTER}
        return frozenset((*(refusal.plugin for refusal in self.refusals), *self.narrowed_by)) - {PRE_FILTER}

    def message(self) -> str:
        """Kubernetes' text: `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.`"""
        if not self.node_count:
            return "no nodes available to schedule pods"
        text = f"0/{self.node_count} nodes are available:"
        if self.pre_filter is not None:
            text += f" {self.pre_filter[1].text}."
        else:
            counts: dict[str, int] = {}
            for refusal in self.refusals:
                for reason in refusal.verdict.reasons:
                    counts[reason] = counts.get(reason, 0) + refusal.count
            if counts:
                listed = sorted(f"{count} {reason}" for reason, count in counts.items())
                text += f" {', '.join(listed)}."
        return f"{text} {self.post_filter}" if self.post_filter else text


class Failed(msgspec.Struct, frozen=True):
    """Something broke: whose it was and what it said."""

    plugin: str
    message: str


Decision = Chosen | Unschedulable | Failed
