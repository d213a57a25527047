"""Define the outcomes of one scheduling attempt, with everything needed to explain them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.verdict import Reject

# The longest list of node names kept per reason: enough to look at, bounded for any cluster.
MAX_NODE_NAMES = 10
# The plugin that rejections of extenders are counted under, as in Kubernetes; any event wakes a pod that it rejected.
EXTENDER = "Extender"
# Stands in a refusal where PreFilter plugins together left nodes out; `Unschedulable.narrowed_by` names them.
PRE_FILTER = "PreFilter"


class NodeRejections(msgspec.Struct, frozen=True):
    """Count the nodes that one plugin rejected for one reason, with some of their names."""

    plugin: str
    verdict: Reject
    count: int
    nodes: tuple[str, ...]


class ScoredNode(msgspec.Struct, frozen=True):
    node: str
    total: int
    scores: Mapping[str, int]  # by plugin, weighted


class ChosenNode(msgspec.Struct, frozen=True):
    node: str
    feasible: int
    total: int
    scores: Mapping[str, int]  # by plugin, weighted
    runners_up: tuple[ScoredNode, ...] = ()
    fallback_reason: str = ""  # why a plugin took back its objection, where that left no other node


class NearestNode(msgspec.Struct, frozen=True):
    """Describe the node that came nearest to taking the pod: every reason against it, and how much it lacks."""

    node: str
    reasons: tuple[str, ...]
    lacking: Mapping[str, int]  # by resource
    details: tuple[str, ...] = ()  # what plugins have to say besides
    ruled_out_by: tuple[str, ...] = ()  # of the reasons, those that hold whatever pods are there: all nodes have some


class VictimSearch(msgspec.Struct, frozen=True):
    """Describe a search for victims: how many nodes were tried, how many had victims, and why the others had none."""

    plugin: str
    nodes: int  # that were worth a look
    candidates: int  # with victims that would do
    without: Mapping[str, int]  # reason -> nodes, of those looked at
    nearest: NearestNode | None = None


class PreemptionPlan(msgspec.Struct, frozen=True):
    """Name the pods to evict from a node; the preemptor is nominated there and waits until they are gone.

    Victims that are being deleted already need nothing done; an assumed one is rejected where it waits instead of being
    deleted. `clear_nominations` are the UIDs of nominated pods of lower priority that lose their nomination.
    """

    plugin: str
    node: str
    victims: tuple[PodInfo, ...]  # the most important first
    clear_nominations: tuple[str, ...] = ()
    violations: int = 0  # victims whose disruption budget does not allow it
    why: str = ""
    search: VictimSearch | None = None


class PostFilterRejection(msgspec.Struct, frozen=True):
    """Say that PostFilter can do nothing for the pod, in the words that users read."""

    reasons: tuple[str, ...] = ()
    final: bool = False  # no later plugin is to be asked
    nominate: str | None = None  # "" takes the pod's nomination back, None leaves it as it is
    search: VictimSearch | None = None


class Unschedulable(msgspec.Struct, frozen=True):
    """Say that no node fits; `pre_filter` is set when a plugin rejected the pod before any node was evaluated.

    The result of PostFilter is `post_filter` in words, and `preempt` and `nominate` for whoever acts on it: the pod's
    nominated node becomes a node, "" for none, or None for whatever it was.
    """

    node_count: int
    rejections: tuple[NodeRejections, ...]
    pre_filter: tuple[str, Reject] | None = None
    post_filter: str = ""
    restricted_by: tuple[str, ...] = ()
    preempt: PreemptionPlan | None = None
    nominate: str | None = None
    searches: tuple[VictimSearch, ...] = ()
    nearest: NearestNode | None = None

    def rejecting_plugins(self) -> frozenset[str]:
        """Return the plugins whose verdict must change before this pod can fit."""
        if self.pre_filter is not None:
            return frozenset((self.pre_filter[0], *self.restricted_by)) - {PRE_FILTER}
        return frozenset((*(refusal.plugin for refusal in self.rejections), *self.restricted_by)) - {PRE_FILTER}

    def message(self) -> str:
        """Return Kubernetes' text: `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.`"""
        if not self.node_count:
            return "no nodes available to schedule pods"
        text = f"0/{self.node_count} nodes are available:"
        if self.pre_filter is not None:
            text += f" {self.pre_filter[1].text}."
        else:
            counts: dict[str, int] = {}
            for refusal in self.rejections:
                for reason in refusal.verdict.reasons:
                    counts[reason] = counts.get(reason, 0) + refusal.count
            if counts:
                listed = sorted(f"{count} {reason}" for reason, count in counts.items())
                text += f" {', '.join(listed)}."
        return f"{text} {self.post_filter}" if self.post_filter else text


class AttemptError(msgspec.Struct, frozen=True):
    """Say that a plugin failed, with its message, and the extension point if the plugin returned it there.

    An extender that failed is reported with its message alone, as Kubernetes does: `plugin` is EXTENDER.
    """

    plugin: str
    message: str
    point: str = ""


class ExtenderResults(msgspec.Struct, frozen=True):
    """Hold what extenders said about the nodes that own plugins found feasible: whom they reject, and their scores."""

    asked: frozenset[str]
    rejections: Mapping[str, Reject]
    scores: Mapping[str, int]  # weighted, on the scale of plugins' scores


Decision = ChosenNode | Unschedulable | AttemptError
