"""NodeNUMAResource gives pods CPUs and NUMA nodes of their own, and rejects nodes that cannot.

It reads NodeResourceTopology. `cache` holds who has what; `node_evaluator` handles one node,
`batch_evaluator` many.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from koord.api.annotations import cpu_codecs
from koord.api.annotations.codec import dump_json
from koord.api.annotations.cpu_codecs import NUMA_POLICY_NONE
from koord.api.config.scheduler.koordinator_args import NodeNUMAResourceArgs
from koord.api.koordinator.protocol import A_RESOURCE_SPEC, A_RESOURCE_STATUS
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.reservation import NumaHintProvider, numa_affinities, reservations_of
from koord.scheduler.framework.verdict import (
    ROW,
    SKIP,
    BindEffect,
    Fault,
    PodPatch,
    PreFilterResult,
    Reject,
    Skip,
    reject,
    unresolvable,
)
from koord.scheduler.plugins.node_numa_resource.batch_evaluator import NumaBatchEvaluator
from koord.scheduler.plugins.node_numa_resource.cache import AssumedAllocation, NodeAllocationCache, PodAllocation
from koord.scheduler.plugins.node_numa_resource.cpu_binding import complete_resource_spec
from koord.scheduler.plugins.node_numa_resource.cpu_topology import InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.cycle_state import NumaCycleState, to_reject
from koord.scheduler.plugins.node_numa_resource.demand import PLUGIN_NAME, NumaDemandParser, signature
from koord.scheduler.plugins.node_numa_resource.ledger import to_resource_status
from koord.scheduler.plugins.node_numa_resource.node_evaluator import NumaNodeEvaluator, reservations_on
from koord.scheduler.plugins.node_numa_resource.placement import NumaTrial, numa_near_miss, resolve_terms
from koord.scheduler.plugins.node_numa_resource.refusal import INVALID_CPU_TOPOLOGY, NOT_ENOUGH_CPUS, NumaRefusal
from koord.values.bitmask import BitMask


class NumaQueueingHint:
    """The queueing hints: decide whether an event may turn a rejection.

    All caches show the event already. A node that the event is not about stays as it was, so only the one that
    it is about is evaluated.
    """

    def __init__(self, demand_parser: NumaDemandParser, evaluator: NumaNodeEvaluator, state: ClusterState) -> None:
        self._demand_parser = demand_parser
        self._evaluator = evaluator
        self._state = state

    def should_queue(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        kind = object_event.event.kind
        if kind == "Pod":
            return self._pod_helps(pod, object_event.old, object_event.new)
        if kind in ("NodeResourceTopology", "Node"):
            found = object_event.new if object_event.new is not None else object_event.old
            node = self._state.node(found.metadata.name)
            return node is not None and self._could_take(pod, node)
        return True  # a device or a reservation: other plugins decide

    def _could_take(self, pod: PodInfo, node: NodeInfo) -> bool:
        """Return whether the node could ever take the pod; an invalid demand is changed by no event."""
        demand = self._demand_parser.parse(pod)
        return not isinstance(demand, NumaRefusal) and not (
            demand.wish.binds
            and self._evaluator.profiles.for_node(node).topology.bindable_cpus.bit_count() < demand.wish.count
        )

    def _pod_helps(self, pod: PodInfo, before: PodInfo | None, now: PodInfo | None) -> bool:
        if now is not None and now.uid == pod.uid:
            return before is None or signature(before) != signature(now) or before.requests != now.requests
        if before is None or not before.node_name:
            return False
        node = self._state.node(before.node_name)
        if node is None:
            return False
        # It held CPUs or NUMA amounts, or it counted on an amplified node; or it stood for a reservation.
        held = A_RESOURCE_STATUS in before.annotations or before.is_reserve_pod
        return (held or self._evaluator.profiles.for_node(node).concerns_all_pods) and self._could_take(pod, node)


_UNREADABLE = 1  # the one code of a pod whose annotations cannot be read


class NodeNUMAResource(Plugin):
    name = PLUGIN_NAME
    reserves_as_it_filters = True
    idle_without_keys = (Plugin.signature,)
    prefilter_epoch_of_nodes = True
    scope = ROW  # the cache marks the rows whose topology or allocations changed
    wakes_on = (
        ClusterEvent("NodeResourceTopology", ADD),
        ClusterEvent("NodeResourceTopology", UPDATE),
        ClusterEvent("NodeResourceTopology", DELETE),
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Pod", UPDATE, "scale-down"),
        ClusterEvent("Pod", UPDATE, "labels"),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "allocatable"),
        ClusterEvent("Node", UPDATE, "labels"),
        ClusterEvent("Node", UPDATE, "annotations"),
        # Hints of devices are merged with ours, and what a reservation holds may be the pod's.
        ClusterEvent("Device", ADD),
        ClusterEvent("Device", UPDATE),
        ClusterEvent("Device", DELETE),
        ClusterEvent("Reservation", ADD),
        ClusterEvent("Reservation", UPDATE),
        ClusterEvent("Reservation", DELETE),
    )

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("topology.node.k8s.io", ("noderesourcetopologies",), READ_VERBS),
    )

    def __init__(self, args: NodeNUMAResourceArgs, handle: Handle) -> None:
        """Take arguments that are already defaulted."""
        self.demand_parser = NumaDemandParser(args.default_cpu_bind_policy or "")
        self.cache = NodeAllocationCache.for_handle(handle)
        self.evaluator = NumaNodeEvaluator(args, self.cache, handle.state)
        self._batch_evaluator = NumaBatchEvaluator(self.evaluator, handle.state.table)
        self._policy_rows = self._batch_evaluator.policy_rows
        self._queueing_hint = NumaQueueingHint(self.demand_parser, self.evaluator, handle.state)

    def set_profile(self, profile: SchedulerProfile) -> None:
        others = (plugin for plugin in profile.plugins() if plugin is not self)
        self.evaluator.hint_providers = tuple(p for p in others if isinstance(p, NumaHintProvider))

    signature = staticmethod(signature)

    def prefilter_epoch(self, state: ClusterState) -> Hashable:
        """Return whether there is a node at all on which plain pods must be evaluated."""
        return self._policy_rows.any()

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        return self._queueing_hint.should_queue(pod, object_event)

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        if not pod.shape.requests:
            return SKIP
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal):
            return to_reject(cycle_state)
        # Once there is such a node `ground` moves, and this is asked again.
        cycle_state.is_skipped = cycle_state.demand.is_plain and not self._policy_rows.any()
        return SKIP if cycle_state.is_skipped else None

    def _cycle_state(self, cycle: CycleState, pod: PodInfo) -> NumaCycleState | NumaRefusal:
        known = cycle.plugin_data.get(PLUGIN_NAME)
        if known is None:
            demand = self.demand_parser.parse(pod)
            known = demand if isinstance(demand, NumaRefusal) else NumaCycleState(demand, self.evaluator.scorer)
            cycle.write(PLUGIN_NAME, known)
        assert isinstance(known, NumaCycleState | NumaRefusal)
        return known

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal):
            return to_reject(cycle_state)
        against = self.evaluator.verdict(cycle, cycle_state, pod, node)
        return (
            self._check_taken_over(cycle, cycle_state, node)
            if against is None and cycle_state.taken_over_cpus
            else against
        )

    def _check_taken_over(self, cycle: CycleState, cycle_state: NumaCycleState, node: NodeInfo) -> Reject | None:
        """Reject a reservation whose allocation cannot contain what the running pods that it takes over hold."""
        profile = self.evaluator.profiles.for_node(node)
        terms = resolve_terms(cycle_state.demand, profile)
        taken_over_cpus = cycle_state.taken_over_cpus.get(node.name, 0)
        if (
            not taken_over_cpus
            or isinstance(terms, NumaRefusal)
            or terms.binding is None
            or terms.policy != NUMA_POLICY_NONE
        ):
            return None  # with a NUMA policy Reserve decides
        terms = replace(terms, request=replace(terms.request, designated_cpus=taken_over_cpus))
        node_allocation = self.evaluator.node_allocation(cycle_state, profile, node)
        given = NumaTrial.with_reservations(
            cycle_state.demand, terms, profile, node_allocation, reservations_on(cycle, node)
        ).try_allocate(None)
        return reject(NOT_ENOUGH_CPUS) if isinstance(given, NumaRefusal) or taken_over_cpus & ~given.cpus.bits else None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal):
            return np.full(len(table.alive[rows]), _UNREADABLE, np.int32)
        return self._batch_evaluator.codes(cycle, cycle_state, pod, rows)

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        cycle_state = self._cycle_state(cycle, pod)
        return (
            to_reject(cycle_state)
            if isinstance(cycle_state, NumaRefusal)
            else self._batch_evaluator.rejection_of_code(cycle, cycle_state, pod, code)
        )

    def add_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """Add a pod in a dry run with what it holds, or with what it would be given if it is only nominated."""
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal) or node.node is None:
            return
        profile = self.evaluator.profiles.for_node(node)
        node_allocation = self.evaluator.node_allocation(cycle_state, profile, node)
        pod_allocation = self.cache.node_allocation(profile, node.name).pods.get(other.uid)
        if pod_allocation is None:
            demand = self.demand_parser.parse(other)
            given = (
                None
                if isinstance(demand, NumaRefusal)
                else self.evaluator.expected_allocation(demand, profile, node_allocation)
            )
            pod_allocation = None if given is None else PodAllocation(given)
        if pod_allocation is not None:
            cycle_state.node_allocations[node.name] = node_allocation.with_pod(other.uid, pod_allocation)

    def remove_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal) or node.node is None:
            return
        if other.is_reserve_pod and any(one.reserve_pod.uid == other.uid for one in reservations_on(cycle, node)):
            return  # what it holds for this pod is kept apart from what is free for all
        node_allocation = self.evaluator.node_allocation(cycle_state, self.evaluator.profiles.for_node(node), node)
        if pod.is_reserve_pod and cycle.sees_without(other, node.name) and other.uid in node_allocation.pods:
            cycle_state.taken_over_cpus[node.name] = (
                cycle_state.taken_over_cpus.get(node.name, 0) | node_allocation.pods[other.uid].allocation.cpus.bits
            )
        cycle_state.node_allocations[node.name] = node_allocation.without_pod(other.uid)

    def near_miss(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> tuple[float, str] | None:
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal) or cycle_state.is_skipped or node.node is None:
            return None
        profile = self.evaluator.profiles.for_node(node)
        terms = resolve_terms(cycle_state.demand, profile)
        if isinstance(terms, NumaRefusal) or terms.needs_nothing:
            return None
        return numa_near_miss(terms, profile, self.evaluator.node_allocation(cycle_state, profile, node))

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None if pod.shape.requests else SKIP

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal):
            return 0
        if cycle_state.is_skipped:
            return self.evaluator.scorer.score(node.requested, node.allocatable, cycle_state.demand.amounts)
        return self.evaluator.score(cycle, cycle_state, pod, node)

    def row_scorer(self, cycle: CycleState, pod: PodInfo) -> Callable[[NodeInfo], int]:
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaCycleState) and cycle_state.is_skipped:
            return cycle_state.row_scorer()
        return super().row_scorer(cycle, pod)

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal):
            return np.zeros(len(table.alive[rows]), np.int64)
        return self._batch_evaluator.scores(cycle, cycle_state, pod, rows)

    # After the choice --------------------------------------------------------------------------------------------

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        cycle_state = self._cycle_state(cycle, pod)
        if isinstance(cycle_state, NumaRefusal):
            return to_reject(cycle_state)
        demand = cycle_state.demand
        if cycle_state.is_skipped or not demand.amounts:
            return None
        if node.node is None:
            return reject(f"node {node.name} is gone")
        profile = self.evaluator.profiles.for_node(node)
        terms = resolve_terms(demand, profile)
        if isinstance(terms, NumaRefusal):
            return to_reject(terms)
        if terms.needs_nothing and demand.designated is None:
            return None
        if terms.binding is not None and isinstance(profile.topology.cpu, InvalidCpuTopology):
            return unresolvable(INVALID_CPU_TOPOLOGY)
        node_allocation = self.cache.node_allocation(profile, node.name)
        owners, taken_over_cpus = reservations_of(cycle).pre_allocated.get(pod.uid, ()), 0
        for owner in owners:
            if (pod_allocation := node_allocation.pods.get(owner)) is not None:
                taken_over_cpus |= pod_allocation.allocation.cpus.bits
                node_allocation = node_allocation.without_pod(owner)
        if taken_over_cpus:
            terms = replace(terms, request=replace(terms.request, designated_cpus=taken_over_cpus))
        trial = NumaTrial.with_reservations(demand, terms, profile, node_allocation, reservations_on(cycle, node))
        mask: BitMask | None = None
        if terms.policy != NUMA_POLICY_NONE and demand.designated is None:
            affinity = self.evaluator.admit(cycle, pod, node, trial)
            if isinstance(affinity, NumaRefusal):
                return to_reject(affinity)
            mask = affinity.mask
        nominated = reservations_of(cycle).nominated.get(pod.uid)
        given = trial.allocate_nominated(None if nominated is None else nominated.uid, mask)
        if isinstance(given, NumaRefusal):
            return to_reject(given)
        if terms.binding is not None and taken_over_cpus & ~given.cpus.bits:
            return reject(NOT_ENOUGH_CPUS)  # what its owners have must be a part of it
        numa_affinities(cycle)[pod.uid] = mask
        pod_allocation = PodAllocation(given, "" if nominated is None else nominated.reserve_pod.uid)
        self.cache.assume(pod.uid, AssumedAllocation(node.name, pod_allocation, terms.binding, owners))
        return None

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        numa_affinities(cycle).pop(pod.uid, None)
        self.cache.forget(pod.uid)

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> BindEffect | Reject | Fault | None:
        numa_affinities(cycle).pop(pod.uid, None)
        assumed_allocation = self.cache.assumed.get(pod.uid)
        if (
            assumed_allocation is None
            or assumed_allocation.node_name != node_name
            or assumed_allocation.pod_allocation.allocation.is_empty()
        ):
            return None
        given = assumed_allocation.pod_allocation.allocation
        node = cycle.state.node(node_name)
        usable = 0 if node is None else self.evaluator.profiles.for_node(node).topology.bindable_cpus
        if given.cpus.bits & ~usable:  # the topology changed under way
            return reject(f"CPUs {given.cpus} are no longer all there on node {node_name}")
        marks = {A_RESOURCE_STATUS: dump_json(to_resource_status(given))}
        if assumed_allocation.binding is not None:
            stated = cpu_codecs.parse_resource_spec(pod.annotations)
            spec = stated if isinstance(stated, cpu_codecs.ResourceSpec) else None
            full = complete_resource_spec(spec, assumed_allocation.binding)
            if full != spec:
                marks[A_RESOURCE_SPEC] = dump_json(full)
        return PodPatch(annotations=marks)
