"""One descheduling round: run every profile's plugins and collect what they propose within the limits.

ready nodes -> all Deschedule plugins -> all Balance plugins -> effects
                    |  filters, limits, evictor accepts  |
                    +-- later plugins see each proposal as if it were already under way
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import (
    AnnotateEffect,
    CordonEffect,
    DeschedulerPlugin,
    DeschedulingProfile,
    EvictionFigures,
    EvictionProposal,
    RoundEffect,
)
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.values.selector import Selector


class RoundLimits(msgspec.Struct, frozen=True, kw_only=True):
    """RoundLimits bounds the evictions of one round: per node, per namespace and in total, over all profiles. None
    is no limit.
    """

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


class EvictionCounter:
    """Counts the evictions of one round and compares them with its limits."""

    def __init__(self, limits: RoundLimits) -> None:
        self._limits = limits
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._total = 0

    def rejection_reason(self, node: str, namespace: str) -> str | None:
        limits = self._limits
        if node and limits.per_node is not None and self._nodes[node] >= limits.per_node:
            return f"the limit of {limits.per_node} evictions per node is reached on {node}"
        if limits.per_namespace is not None and self._namespaces[namespace] >= limits.per_namespace:
            return f"the limit of {limits.per_namespace} evictions per namespace is reached in {namespace}"
        if limits.total is not None and self._total >= limits.total:
            return f"the limit of {limits.total} evictions per round is reached"
        return None

    def count(self, node: str, namespace: str) -> None:
        if node:
            self._nodes[node] += 1
        self._namespaces[namespace] += 1
        self._total += 1

    def is_node_limit_reached(self, node: str) -> bool:
        return self._limits.per_node is not None and self._nodes[node] >= self._limits.per_node


MAX_PASSED_OVER = 500  # pods that filters refused in one round: for explanations, and those are read by people
CLUSTER_TOO_SMALL = "the cluster size is 0 or 1 meaning eviction causes service disruption or degradation"


class RoundState:
    """The state that filters and evictors read: the snapshot, and what this round has proposed on top of it."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.proposed: list[EvictionProposal] = []  # those that evictors took on, in order


class DeclinedProposal(msgspec.Struct, frozen=True):
    """A proposal or candidate that was declined, by whom and why; kept for explanations."""

    pod: Pod
    plugin: str
    by: str
    why: str


class RoundOutcome(msgspec.Struct, frozen=True):
    """The result of one round. `passed_over` are the first pods that filters or plugins kept from being proposed."""

    effects: tuple[RoundEffect, ...] = ()
    declined: tuple[DeclinedProposal, ...] = ()
    error: str = ""
    passed_over: tuple[DeclinedProposal, ...] = ()
    plugin_errors: tuple[Exception, ...] = ()  # what plugins raised: mistakes in them, for the log


class EvictorHandle:
    """The handle through which one plugin of one profile filters pods and proposes effects in a round."""

    def __init__(
        self, descheduling_round: DeschedulingRound, profile: DeschedulingProfile, plugin: DeschedulerPlugin
    ) -> None:
        self._round = descheduling_round
        self._profile = profile
        self._plugin = plugin
        self.snapshot = descheduling_round.state.snapshot

    def filter(self, pod: Pod) -> str | None:
        """Run the Filter point of the profile; return the first reason against evicting the pod, or None."""
        return self._run_filters(pod, "filter")

    def pre_eviction_filter(self, pod: Pod) -> str | None:
        return self._run_filters(pod, "pre_eviction_filter")

    def _run_filters(self, pod: Pod, method: str) -> str | None:
        for plugin in self._profile.filter:
            why: str | None = getattr(plugin, method)(pod, self._round.state)
            if why is not None:
                self._round.record_passed_over(pod, self._plugin.name, plugin.name, why)
                return why
        return None

    def record_passed_over(self, pod: Pod, why: str) -> None:
        """Record why the plugin itself does not propose the pod; for explanations."""
        self._round.record_passed_over(pod, self._plugin.name, self._plugin.name, why)

    def evict(
        self,
        pod: Pod,
        reason: str,
        *,
        target: str = "",
        dry_run: bool = False,
        figures: EvictionFigures = EvictionFigures(),  # noqa: B008 - it is immutable
    ) -> str | None:
        """Propose to evict the pod. Return None when the proposal is accepted and counted, else the reason
        against it.
        """
        return self._round.evict(
            self._profile, self._plugin, pod, reason, target=target, dry_run=dry_run, figures=figures
        )

    def cordon(self, node: str, *, unschedulable: bool, reason: str, dry_run: bool = False) -> None:
        self._round.effects.append(
            CordonEffect(
                node=node,
                unschedulable=unschedulable,
                profile=self._profile.name,
                plugin=self._plugin.name,
                reason=reason,
                dry_run=dry_run or self._round.dry_run,
            )
        )

    def annotate(self, pod: Pod, annotations: dict[str, str], *, reason: str, dry_run: bool = False) -> None:
        self._round.effects.append(
            AnnotateEffect(
                pod=pod,
                annotations=annotations,
                profile=self._profile.name,
                plugin=self._plugin.name,
                reason=reason,
                dry_run=dry_run or self._round.dry_run,
            )
        )

    def is_node_limit_reached(self, node: str) -> bool:
        """Return whether no further pod may be evicted from the node in this round."""
        return self._round.eviction_counter.is_node_limit_reached(node)


class DeschedulingRound:
    def __init__(self, snapshot: ClusterSnapshot, limits: RoundLimits, *, dry_run: bool = False) -> None:
        self.state = RoundState(snapshot)
        self.eviction_counter = EvictionCounter(limits)
        self.dry_run = dry_run
        self.effects: list[RoundEffect] = []
        self.declined: list[DeclinedProposal] = []
        self.plugin_errors: list[Exception] = []
        self._passed_over: dict[tuple[str, str], DeclinedProposal] = {}  # by plugin and uid of the pod

    def record_passed_over(self, pod: Pod, plugin: str, by: str, why: str) -> None:
        key = (plugin, pod.metadata.uid)
        if key not in self._passed_over and len(self._passed_over) < MAX_PASSED_OVER:
            self._passed_over[key] = DeclinedProposal(pod, plugin, by, why)

    def evict(
        self,
        profile: DeschedulingProfile,
        plugin: DeschedulerPlugin,
        pod: Pod,
        reason: str,
        *,
        target: str,
        dry_run: bool,
        figures: EvictionFigures,
    ) -> str | None:
        node, namespace = pod.spec.node_name, pod.metadata.namespace
        proposal = EvictionProposal(
            pod=pod,
            node=node,
            profile=profile.name,
            plugin=plugin.name,
            reason=reason,
            evictor=profile.evict.name,
            target=target,
            dry_run=dry_run or self.dry_run,
            figures=figures,
        )
        by, why = "limits", self.eviction_counter.rejection_reason(node, namespace)
        if why is None:
            # The evictor is asked even in a dry run, so that a dry run chooses the pods that a real run would.
            by, why = profile.evict.name, profile.evict.evict(proposal, self.state)
        if why is not None:
            self.declined.append(DeclinedProposal(pod, plugin.name, by, why))
            return why
        self.eviction_counter.count(node, namespace)
        self.state.proposed.append(proposal)
        self.effects.append(proposal)
        return None

    def outcome(self, error: str = "") -> RoundOutcome:
        gone = {one.pod.metadata.uid for one in self.state.proposed}  # refused at a second look, after being proposed
        kept = tuple(one for one in self._passed_over.values() if one.pod.metadata.uid not in gone)
        return RoundOutcome(tuple(self.effects), tuple(self.declined), error, kept, tuple(self.plugin_errors))


def ready_nodes(snapshot: ClusterSnapshot, chosen: Selector | None) -> list[Node]:
    """Return the nodes that are ready or report no readiness, cordoned ones included, sorted by name for
    determinism.
    """
    return [
        node
        for _, node in sorted(snapshot.nodes.items())
        if _is_selected(node, chosen) and all(c.status == "True" for c in node.status.conditions if c.type == "Ready")
    ]


def run_round(
    profiles: Sequence[DeschedulingProfile],
    snapshot: ClusterSnapshot,
    limits: RoundLimits,
    *,
    nodes: Selector | None = None,
    dry_run: bool = False,
) -> RoundOutcome:
    """Run the whole round. A plugin's error ends it; what was proposed before stays proposed."""
    ready = ready_nodes(snapshot, nodes)
    descheduling_round = DeschedulingRound(snapshot, limits, dry_run=dry_run)
    if len(ready) <= 1:
        return descheduling_round.outcome(CLUSTER_TOO_SMALL)
    for point in ("deschedule", "balance"):
        for profile in profiles:
            errors = _run_plugins(
                profile, point, [node for node in ready if _is_selected(node, profile.nodes)], descheduling_round
            )
            if errors:
                return descheduling_round.outcome("; ".join(errors))
    return descheduling_round.outcome()


def _run_plugins(
    profile: DeschedulingProfile, point: str, nodes: Sequence[Node], descheduling_round: DeschedulingRound
) -> list[str]:
    errors = []
    for plugin in getattr(profile, point):
        run: Callable[[Sequence[Node], EvictorHandle], str | None] = getattr(plugin, point)
        try:
            error = run(nodes, EvictorHandle(descheduling_round, profile, plugin))
        except Exception as broken:  # noqa: BLE001  one bad plugin, or one bad object, must not end the program: it is told
            descheduling_round.plugin_errors.append(broken)
            error = f"{type(broken).__name__}: {broken}"
        if error is not None:
            errors.append(f"{plugin.name}: {error}")
    return errors


def _is_selected(node: Node, chosen: Selector | None) -> bool:
    return chosen is None or chosen.matches(node.metadata.labels)
