"""The plugin interface of the descheduler: the effects that plugins propose, the handle through which they propose, the
state of the round that they share, the plugin base class and profiles.

Executing, counting and recording effects are the program's job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.policy.eviction import KOORD_DESCHEDULER, EvictionRecord
from koord.values.selector import Selector

MAX_PASSED_OVER = 500  # pods that filters refused in one round: for explanations, and those are read by people


class EvictionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers behind a proposal, for the record of the eviction."""

    measured: str = ""
    threshold: str = ""
    rank: str = ""
    why_this_pod: str = ""


class EvictionProposal(msgspec.Struct, frozen=True, kw_only=True):
    """An eviction that a plugin proposes. `target` is the node that the plugin counted on; the scheduler decides."""

    pod: Pod
    node: str
    profile: str
    plugin: str
    reason: str
    evictor: str  # the evict plugin of the profile, which carries it out
    target: str = ""
    dry_run: bool = False  # of the plugin or of the whole program: told of, not done
    figures: EvictionFigures = EvictionFigures()

    def record(self) -> EvictionRecord:
        """Begin the record of this eviction."""
        meta, figures = self.pod.metadata, self.figures
        return EvictionRecord(
            actor=KOORD_DESCHEDULER,
            plugin=self.plugin,
            rule=self.plugin,
            reason=self.reason,
            measured=figures.measured,
            threshold=figures.threshold,
            rank=figures.rank,
            why_this_pod=figures.why_this_pod,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            node=self.node,
        )


class CordonEffect(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    uid: str = ""  # of the node
    unschedulable: bool
    profile: str
    plugin: str
    reason: str
    dry_run: bool = False


class AnnotateEffect(msgspec.Struct, frozen=True, kw_only=True):
    pod: Pod
    annotations: dict[str, str]
    profile: str
    plugin: str
    reason: str
    dry_run: bool = False


RoundEffect: TypeAlias = EvictionProposal | CordonEffect | AnnotateEffect


class RoundLimits(msgspec.Struct, frozen=True, kw_only=True):
    """RoundLimits bounds a round's evictions by node, by namespace and in all, over all profiles; None: no limit."""

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


class DeclinedProposal(msgspec.Struct, frozen=True):
    """A proposal or candidate that was declined, by whom and why; kept for explanations."""

    pod: Pod
    plugin: str
    by: str
    why: str


NO_LIMITS = RoundLimits()


class RoundState:
    """The state of one round: the snapshot, and what plugins have proposed on top of it."""

    def __init__(self, snapshot: ClusterSnapshot, limits: RoundLimits = NO_LIMITS, *, dry_run: bool = False) -> None:
        self.snapshot = snapshot
        self.dry_run = dry_run
        self.eviction_counter = EvictionCounter(limits)
        self.proposed: list[EvictionProposal] = []  # those that evictors took on, in order
        self.effects: list[RoundEffect] = []
        self.declined: list[DeclinedProposal] = []
        self._passed_over: dict[tuple[str, str], DeclinedProposal] = {}  # by plugin and uid of the pod

    def record_passed_over(self, pod: Pod, plugin: str, by: str, why: str) -> None:
        key = (plugin, pod.metadata.uid)
        if key not in self._passed_over and len(self._passed_over) < MAX_PASSED_OVER:
            self._passed_over[key] = DeclinedProposal(pod, plugin, by, why)

    def passed_over(self) -> tuple[DeclinedProposal, ...]:
        """Return the pods that were passed over for good: not those that were proposed before a second look."""
        gone = {one.pod.metadata.uid for one in self.proposed}
        return tuple(one for one in self._passed_over.values() if one.pod.metadata.uid not in gone)


class EvictorHandle:
    """The handle through which one plugin of one profile filters pods and proposes effects in a round."""

    def __init__(self, round_state: RoundState, profile: DeschedulingProfile, plugin: DeschedulerPlugin) -> None:
        self._state = round_state
        self._profile = profile
        self._plugin = plugin
        self.snapshot = round_state.snapshot

    def filter(self, pod: Pod) -> str | None:
        """Run the Filter point of the profile; return the first reason against evicting the pod, or None."""
        return self._run_filters(pod, "filter")

    def pre_eviction_filter(self, pod: Pod) -> str | None:
        return self._run_filters(pod, "pre_eviction_filter")

    def _run_filters(self, pod: Pod, method: str) -> str | None:
        for plugin in self._profile.filter:
            why: str | None = getattr(plugin, method)(pod, self._state)
            if why is not None:
                self._state.record_passed_over(pod, self._plugin.name, plugin.name, why)
                return why
        return None

    def record_passed_over(self, pod: Pod, why: str) -> None:
        """Record why the plugin itself does not propose the pod; for explanations."""
        self._state.record_passed_over(pod, self._plugin.name, self._plugin.name, why)

    def evict(
        self,
        pod: Pod,
        reason: str,
        *,
        target: str = "",
        dry_run: bool = False,
        figures: EvictionFigures = EvictionFigures(),  # noqa: B008 - it is immutable
    ) -> str | None:
        """Propose to evict the pod. Return None when the proposal is accepted and counted, else the reason."""
        state, evictor, node = self._state, self._profile.evict, pod.spec.node_name
        proposal = EvictionProposal(
            pod=pod,
            node=node,
            profile=self._profile.name,
            plugin=self._plugin.name,
            reason=reason,
            evictor=evictor.name,
            target=target,
            dry_run=dry_run or state.dry_run,
            figures=figures,
        )
        by, why = "limits", state.eviction_counter.rejection_reason(node, pod.metadata.namespace)
        if why is None:
            # The evictor is asked even in a dry run, so that a dry run chooses the pods that a real run would.
            by, why = evictor.name, evictor.evict(proposal, state)
        if why is not None:
            state.declined.append(DeclinedProposal(pod, self._plugin.name, by, why))
            return why
        state.eviction_counter.count(node, pod.metadata.namespace)
        state.proposed.append(proposal)
        state.effects.append(proposal)
        return None

    def cordon(self, node: str, *, unschedulable: bool, reason: str, dry_run: bool = False) -> None:
        self._state.effects.append(
            CordonEffect(
                node=node,
                uid=self.snapshot.nodes[node].metadata.uid,
                unschedulable=unschedulable,
                profile=self._profile.name,
                plugin=self._plugin.name,
                reason=reason,
                dry_run=dry_run or self._state.dry_run,
            )
        )

    def annotate(self, pod: Pod, annotations: dict[str, str], *, reason: str, dry_run: bool = False) -> None:
        self._state.effects.append(
            AnnotateEffect(
                pod=pod,
                annotations=annotations,
                profile=self._profile.name,
                plugin=self._plugin.name,
                reason=reason,
                dry_run=dry_run or self._state.dry_run,
            )
        )


class DeschedulerPlugin:
    """The base class of plugins: a name and some of these extension points; only overridden points are called.

    Plugins are pure: they read a snapshot and propose through the handle that they are given. State between rounds
    (such as marks of anomalies) belongs to the plugin, and time arrives in the snapshot.
    """

    name: ClassVar[str]
    # Kinds beyond nodes, pods, NodeMetrics and PodMigrationJobs that it reads in `snapshot.others`.
    extra_resources: ClassVar[tuple[Resource[Any], ...]] = ()
    # Kinds whose changes `is_due_after` is asked about, so that the plugin need not wait for the next interval.
    reacts_to: ClassVar[tuple[Resource[Any], ...]] = ()

    def __init__(self, args: Any = None) -> None:
        """Take typed arguments where their model is known, else plain data; None without arguments."""

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        """Propose evictions from the nodes of the profile. An error message that is returned ends the round."""
        return None

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        """Propose evictions after the `deschedule` points of all profiles have run. An error message ends the round."""
        return None

    def is_due_after(self, old: Any | None, new: Any | None) -> bool:
        """Return whether the plugin shall run soon, in a round of its own, after an object of `reacts_to` changed.

        `old` is None for an object that is new, and `new` for one that is gone.
        """
        return False

    def filter(self, pod: Pod, round_state: RoundState) -> str | None:
        """Filter: return why the pod must not be evicted; None lets it pass."""
        return None

    def pre_eviction_filter(self, pod: Pod, round_state: RoundState) -> str | None:
        """PreEvictionFilter: run a closer check right before a proposal, for plugins that ask; None passes."""
        return None

    def evict(self, proposal: EvictionProposal, round_state: RoundState) -> str | None:
        """Evict: return why this evictor declines the proposal; None accepts it. Only the round's state changes."""
        return None


def overrides_method(plugin: DeschedulerPlugin, method: str) -> bool:
    """Return whether a plugin overrides a method, which is how it takes part in an extension point."""
    return getattr(type(plugin), method) is not getattr(DeschedulerPlugin, method)


class DeschedulingProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One profile: its nodes, and its plugins in order by extension point. A plugin at several points is one object."""

    name: str
    evict: DeschedulerPlugin
    filter: Sequence[DeschedulerPlugin] = ()
    deschedule: Sequence[DeschedulerPlugin] = ()
    balance: Sequence[DeschedulerPlugin] = ()
    nodes: Selector | None = None  # None: all of them
