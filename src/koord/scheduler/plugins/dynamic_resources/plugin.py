"""DynamicResources places pods where devices can be allocated to their ResourceClaims, or are allocated already.

    PreEnqueue, PreFilter   the pod's claims exist, are its own, and can be used
    Filter, Score           devices are tried on each node; alternatives that come first are better
    Reserve, PreBind        devices are chosen for the pod's node, and written into the claims with the pod as a user
    Unreserve               what is not written is undone; the pod is taken off claims that are
    PostFilter              a claim that nobody uses and that is allocated elsewhere is deallocated

Pods made from one template have claims with equal specs: they share verdicts, and only nodes whose devices changed are
tried again. Nodes whose devices are alike are searched once (`device_patterns`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from koord.api.config.scheduler.in_tree_args import DynamicResourcesArgs
from koord.api.kubernetes.builtin_kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koord.api.kubernetes.dynamic_resources import ResourceClaim
from koord.api.kubernetes.pod import PodResourceClaim
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.policy.node_match import NodeTerms
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework import verdict
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PostFilterRejection
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, ScoreNormaliser, Scores
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import SKIP, Fault, Reject, Skip, unresolvable
from koord.scheduler.plugins.dynamic_resources import claim_cache
from koord.scheduler.plugins.dynamic_resources.allocator import (
    AllocationRefusal,
    AllocatorFeatures,
    ClaimAllocation,
    allocate,
    allocation_result,
    devices_by_id,
    preference_score,
)
from koord.scheduler.plugins.dynamic_resources.claim_cache import ClaimCache, ClaimedCards, PendingAllocation
from koord.scheduler.plugins.dynamic_resources.claim_demand import MAX_ALTERNATIVES, ClaimDemand, ClaimDemands
from koord.scheduler.plugins.dynamic_resources.device_patterns import (
    DemandVerdicts,
    DevicePatterns,
    PatternNames,
    names_of_demands,
)
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import ResourceSliceCache
from koord.scheduler.plugins.node_affinity import node_terms_mask
from koord.values.duration import parse_seconds

NOTHING_TO_FREE = "no new claims to deallocate"
STILL_NOT_SCHEDULABLE = "still not schedulable"
DEALLOCATED = "deallocation of ResourceClaim completed"
CLAIM_NOT_AVAILABLE = "resourceclaim not available on the node"
CLAIM_IN_USE = "resourceclaim in use"
CLAIMS_NOT_WATCHED = "resource claims are not watched: feature gate DisableDynamicResourceAllocationInformer is on"
# The search for devices has no clock: a second of the filter timeout is this many tries of a device.
STEPS_PER_SECOND = 50_000
_PATTERNS_KEPT = 16
_VERDICTS_KEPT = 256
# Codes of `filter_columns`: a refusal of the devices has a number of its own, from the last on.
_NOT_AVAILABLE_CODE, _FIRST_REFUSAL_CODE = 1, 2


class _ClaimState(msgspec.Struct, frozen=True):
    """_ClaimState is read by Filter: demands of the claims to be allocated, node selectors of those that are."""

    claims: int = 0
    verdicts: DemandVerdicts | None = None
    terms: tuple[NodeTerms, ...] = ()

    @property
    def has_alternatives(self) -> bool:
        return self.verdicts is not None and any(demand.has_alternatives for demand in self.verdicts.demands)


_NO_CLAIMS = _ClaimState()
_NOT_AVAILABLE = unresolvable(CLAIM_NOT_AVAILABLE)
_CLAIM_CHANGED = ClusterEvent("ResourceClaim", UPDATE)


class DynamicResources(Plugin):
    name = "DynamicResources"
    scope = verdict.CLUSTER
    reads_pods = "nothing"
    scores_as_it_filters = True
    reserves_as_it_filters = True
    normaliser = ScoreNormaliser()
    wakes_on = (
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "labels"),
        ClusterEvent("Node", UPDATE, "allocatable"),
        ClusterEvent("ResourceClaim", ADD),
        ClusterEvent("ResourceClaim", UPDATE),
        ClusterEvent("Pod", UPDATE, "claims"),
        ClusterEvent("DeviceClass", ADD),
        ClusterEvent("DeviceClass", UPDATE),
        ClusterEvent("ResourceSlice", ADD),
        ClusterEvent("ResourceSlice", UPDATE),
    )

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("resource.k8s.io", ("deviceclasses", "resourceslices"), READ_VERBS),
        RbacRule("resource.k8s.io", ("resourceclaims",), (*READ_VERBS, "patch")),
        RbacRule("resource.k8s.io", ("resourceclaims/status",), ("patch",)),
    )

    def __init__(
        self,
        args: DynamicResourcesArgs | None,
        handle: Handle,
        *,
        no_claims: bool = False,
        admin_access: bool = True,
        prioritized_list: bool = True,
        bounded: bool = True,
        taints: bool = False,
        partitionable: bool = False,
    ) -> None:
        """Read claims, classes and slices from the handle's listers.

        `no_claims` is for API servers that have no ResourceClaims; the other keywords are feature gates of Kubernetes.
        """
        self._handle = handle
        self._claims = None if no_claims else handle.lister(RESOURCE_CLAIMS)
        if self._claims is None:
            return
        timeout_s = parse_seconds(args.filter_timeout) if args is not None and args.filter_timeout and bounded else 0.0
        self._features = AllocatorFeatures(taints, partitionable, int(timeout_s * STEPS_PER_SECOND), admin_access)
        classes = handle.lister(DEVICE_CLASSES)
        self._classes = classes
        self._demands = ClaimDemands(
            lambda name: classes.get("", name), lambda: classes.version, lists=prioritized_list
        )
        self._slices = handle.state.derived(ResourceSliceCache)
        self._cache = handle.state.derived(ClaimCache)
        self._cards = handle.state.derived(ClaimedCards)
        self._patterns: OrderedDict[PatternNames, DevicePatterns] = OrderedDict()
        self._verdicts: OrderedDict[tuple[ClaimDemand, ...], DemandVerdicts] = OrderedDict()
        handle.lister(RESOURCE_SLICES).on_change(self._slices.slice_changed)
        self._claims.on_change(self._cache.claim_changed)

    # Equal pods --------------------------------------------------------------------------------------------------

    def signature(self, pod: PodInfo) -> Hashable:
        if not pod.resource_claims or self._claims is None:
            return None
        found = self._claims_of_pod(pod)
        if isinstance(found, Reject):
            return pod.uid, self._claims.version
        return self._classes.version, tuple(self._claim_signature(pod, claim) for claim in found)

    def _claim_signature(self, pod: PodInfo, claim: ResourceClaim) -> Hashable:
        meta = claim.metadata
        if claim.status.allocation is not None:
            is_released = (meta.uid, pod.uid) in self._cache.releasing
            return meta.uid, meta.resource_version, claim_cache.is_reserved_for(claim, pod.uid), is_released
        if self._cache.pending(meta.uid) is not None:
            return meta.uid, "pending"
        demand = self._demands.demand_of(claim)
        return demand if isinstance(demand, ClaimDemand) else (meta.uid, meta.resource_version)

    def epoch(self, cycle: CycleState) -> Hashable:
        """Return the version of devices that are not of one node; a change on one node marks its row."""
        return self._slices.wide_version if self._claims is not None else 0

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        kind, old, new = object_event.event.kind, object_event.old, object_event.new
        if kind == "Pod":
            return bool(new.uid == pod.uid) and not isinstance(self._claims_of_pod(new), Reject)
        if kind != "ResourceClaim":
            return True
        if old is not None and old.status.allocation is not None and new.status.allocation is None:
            return True  # devices are free
        found = self._claims_of_pod(pod)
        if isinstance(found, Reject):
            return False
        # Pods with equal claims are represented by one of them: the claim of one is as good as that of another.
        mine = {claim.metadata.uid for claim in found}
        specs = [claim.spec for claim in found if claim.status.allocation is None]
        if new.metadata.uid not in mine and new.spec not in specs:
            return False
        return old is None or old.status != new.status

    # Before nodes are evaluated ------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        if not pod.resource_claims or self._claims is None:
            return None
        found = self._claims_of_pod(pod)
        return found if isinstance(found, Reject) else None

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | Fault | None:
        cycle.write(self.name, _NO_CLAIMS)
        if not pod.resource_claims:
            return SKIP
        if self._claims is None:
            return unresolvable(CLAIMS_NOT_WATCHED)
        found = self._claims_of_pod(pod)
        if isinstance(found, Reject):
            return found
        if not found:
            return SKIP
        demands: list[ClaimDemand] = []
        terms: list[NodeTerms] = []
        for claim in found:
            demand = self._unmet_demand(pod, claim)
            if isinstance(demand, ClaimDemand):
                demands.append(demand)
            elif demand is not None:
                return demand
            elif claim.status.allocation is not None and claim.status.allocation.node_selector is not None:
                terms.append(NodeTerms(claim.status.allocation.node_selector))
                if terms[-1].error:
                    return Fault(terms[-1].error)
        verdicts = self._verdicts_of(tuple(demands)) if demands else None
        cycle.write(self.name, _ClaimState(len(found), verdicts, tuple(terms)))
        return None

    def _verdicts_of(self, demands: tuple[ClaimDemand, ...]) -> DemandVerdicts:
        known = self._verdicts.get(demands)
        if known is None:
            names = names_of_demands(demands)
            table = self._handle.state.table
            patterns = self._patterns.get(names)
            if patterns is None:
                patterns = self._patterns[names] = DevicePatterns(names, table, self._slices, self._cards)
            self._patterns.move_to_end(names)
            known = DemandVerdicts(demands, patterns, table, self._allocate, lambda: self._slices.wide_version)
            self._verdicts[demands] = known
            if len(self._patterns) > _PATTERNS_KEPT:
                self._patterns.popitem(last=False)
            if len(self._verdicts) > _VERDICTS_KEPT:
                self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(demands)
        return known

    def _unmet_demand(self, pod: PodInfo, claim: ResourceClaim) -> ClaimDemand | Reject | Fault | None:
        """Return the devices that an existing claim still needs, None where it has them, or why it cannot be used."""
        refusal = self._check_claim(pod, claim)
        if refusal is not None or claim.status.allocation is not None:
            return refusal
        return self._demands.demand_of(claim)

    def _check_claim(self, pod: PodInfo, claim: ResourceClaim) -> Reject | None:
        """Return why an existing claim cannot be used by the pod now."""
        if claim.status.allocation is None:
            if self._cache.pending(claim.metadata.uid) is not None:
                return unresolvable(f"resource claim {claim_cache.key(claim)} is in the process of being allocated")
            return None
        if (claim.metadata.uid, pod.uid) in self._cache.releasing:
            return unresolvable(f"resource claim {claim_cache.key(claim)} is in the process of being released")
        usable = claim_cache.has_room(claim) or claim_cache.is_reserved_for(claim, pod.uid)
        return None if usable else unresolvable(CLAIM_IN_USE)

    # Nodes -------------------------------------------------------------------------------------------------------

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        assert node.node is not None
        state = cycle.read(self.name, _ClaimState)
        if state.verdicts is not None:
            refusal: object
            if self._is_of_table(node):
                refusal = state.verdicts.refusal(node)
            else:
                refusal = self._allocate(state.verdicts.demands, node)
            if isinstance(refusal, AllocationRefusal):
                return self._refusal(pod, refusal)
        return None if all(terms.matches(node.node) for terms in state.terms) else _NOT_AVAILABLE

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        state = cycle.read(self.name, _ClaimState)
        codes = np.zeros(len(table.alive[rows]), np.int32)
        if state.verdicts is not None:
            answers = state.verdicts.answers(rows)
            codes[answers > 0] = answers[answers > 0] + (_FIRST_REFUSAL_CODE - 1)
        for terms in state.terms:
            codes[~node_terms_mask(terms, table, rows) & (codes == 0)] = _NOT_AVAILABLE_CODE
        return codes

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        if code == _NOT_AVAILABLE_CODE:
            return _NOT_AVAILABLE
        verdicts = cycle.read(self.name, _ClaimState).verdicts
        assert verdicts is not None
        told = self._refusal(pod, verdicts.refusals[code - _FIRST_REFUSAL_CODE])
        return unresolvable(told.message) if isinstance(told, Fault) else told

    def fault_codes(self, cycle: CycleState) -> Sequence[int]:
        verdicts = cycle.read(self.name, _ClaimState).verdicts
        return [] if verdicts is None else [each + _FIRST_REFUSAL_CODE - 1 for each in verdicts.error_answers()]

    def _is_of_table(self, node: NodeInfo) -> bool:
        """Return whether the node is as everybody sees it, and no copy of a dry run, whose cards may differ."""
        return self._handle.state.table.nodes[node.row] is node

    def _allocate(
        self, demands: Sequence[ClaimDemand], node: NodeInfo
    ) -> tuple[ClaimAllocation, ...] | AllocationRefusal:
        return allocate(self._slices.pools_of(node), demands, self._cards.in_use(node), self._features)

    def _refusal(self, pod: PodInfo, refusal: AllocationRefusal) -> Reject | Fault:
        words = refusal.reason
        if refusal.claim >= 0:
            found = self._claims_of_pod(pod)
            unallocated = [] if isinstance(found, Reject) else [c for c in found if c.status.allocation is None]
            about = claim_cache.key(unallocated[refusal.claim]) if refusal.claim < len(unallocated) else ""
            words = f"claim {about}{words}"
        return Fault(words) if refusal.is_error else unresolvable(words)

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        state = cycle.read(self.name, _ClaimState)
        if state.verdicts is None or not state.has_alternatives:
            return 0
        if self._is_of_table(node):
            return state.verdicts.score(node)
        found = self._allocate(state.verdicts.demands, node)
        return 0 if isinstance(found, AllocationRefusal) else preference_score(found, MAX_ALTERNATIVES)

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        state = cycle.read(self.name, _ClaimState)
        if state.verdicts is None or not state.has_alternatives:
            return np.zeros(len(table.alive[rows]), np.int64)
        return state.verdicts.scores(rows)

    def post_filter(self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext) -> PostFilterRejection | Fault:
        """Deallocate a claim that keeps the pod from every node, if nobody else uses it.

        Where PreFilter ended before this plugin ran, kube-scheduler reports an error and tries nothing else; so
        does this.
        """
        kept = cycle.plugin_data.get(self.name)
        if not isinstance(kept, _ClaimState):
            return Fault("not found")
        if not kept.claims:
            return PostFilterRejection((NOTHING_TO_FREE,))
        claim = self._claim_to_deallocate(pod, refused) if kept.terms else None
        if claim is None:
            return PostFilterRejection((STILL_NOT_SCHEDULABLE,))
        self._handle.actions.write_status(claim_cache.deallocation(claim, pod.uid))
        return PostFilterRejection((DEALLOCATED,))

    def _claim_to_deallocate(self, pod: PodInfo, refused: PostFilterContext) -> ResourceClaim | None:
        found = self._claims_of_pod(pod)
        if isinstance(found, Reject) or refused.filter_results is None:
            return None
        names = refused.filter_results.rejections().get((self.name, _NOT_AVAILABLE), [])
        nodes = [node.node for name in names if (node := self._handle.state.node(name)) is not None]
        for claim in found:
            selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
            if selector is None or not claim_cache.is_used_by_nobody_but(claim, pod.uid):
                continue
            terms = NodeTerms(selector)
            if any(node is not None and not terms.matches(node) for node in nodes):
                return claim
        return None

    # After the choice --------------------------------------------------------------------------------------------

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        """Decide again for this pod alone: its class may have been evaluated before other pods took devices."""
        if not pod.resource_claims or self._claims is None:
            return None
        found = self._claims_of_pod(pod)
        if isinstance(found, Reject):
            return found
        waiting: list[tuple[ResourceClaim, ClaimDemand]] = []
        for claim in found:
            demand = self._unmet_demand(pod, claim)
            if isinstance(demand, ClaimDemand):
                waiting.append((claim, demand))
            elif demand is not None:
                return demand
        if not waiting:
            return None
        allocations = self._allocate([demand for _, demand in waiting], node)
        if isinstance(allocations, AllocationRefusal):
            return self._refusal(pod, allocations)
        for (claim, _), allocation in zip(waiting, allocations, strict=True):
            devices = tuple(devices_by_id((allocation,)))
            result = allocation_result(allocation, node.name)
            self._cache.begin(PendingAllocation(pod.uid, claim, result, devices))
        return None

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> verdict.PreBindActions | Reject | None:
        if not pod.resource_claims or self._claims is None:
            return None
        found = self._claims_of_pod(pod)
        if isinstance(found, Reject):
            return found
        writes: list[verdict.StatusWrite] = []
        for claim in found:
            if claim_cache.is_reserved_for(claim, pod.uid):
                continue
            pending = self._cache.pending(claim.metadata.uid)
            result = pending.result if pending is not None and pending.pod_uid == pod.uid else None
            writes.append(claim_cache.reservation(claim, pod, result, self._note_written))
        return verdict.PreBindActions(status_writes=tuple(writes)) if writes else None

    def _note_written(self, written: ResourceClaim) -> None:
        assert self._claims is not None
        meta = written.metadata
        shown = self._claims.get(meta.namespace, meta.name)
        self._cache.note_written(shown if shown is not None and shown.metadata.uid == meta.uid else None, written)

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        if not pod.resource_claims or self._claims is None:
            return
        for name in self._claim_names(pod):
            shown = self._claims.get(pod.namespace, name)
            if shown is None:
                continue
            undone = self._cache.undo(shown.metadata.uid, pod.uid)
            if undone is not None:
                before = claim_cache.as_allocated(undone.claim)
                self._handle.actions.publish_event(ObjectEvent(_CLAIM_CHANGED, before, undone.claim))
            claim = self._cache.latest(shown)
            if claim_cache.is_reserved_for(claim, pod.uid):
                self._release(pod, claim)

    def _release(self, pod: PodInfo, claim: ResourceClaim) -> None:
        """Take the pod off a claim. Until that is done the pod is not tried: it would count on its reservation."""
        pair = (claim.metadata.uid, pod.uid)
        if pair in self._cache.releasing or self._handle.actions.backend is None:
            return
        self._cache.releasing.add(pair)

        def on_written(written: ResourceClaim) -> None:
            self._cache.releasing.discard(pair)
            self._note_written(written)
            self._handle.actions.publish_event(ObjectEvent(_CLAIM_CHANGED, claim, written))

        def on_failed(fault: Fault) -> None:
            self._cache.releasing.discard(pair)
            self._handle.actions.publish_event(ObjectEvent(_CLAIM_CHANGED, None, claim))

        self._handle.actions.write_status(claim_cache.release(claim, pod.uid, on_written, on_failed))

    # Claims ------------------------------------------------------------------------------------------------------

    def _claim_names(self, pod: PodInfo) -> Iterator[str]:
        for wanted in pod.resource_claims:
            name = _claim_name(pod, wanted)
            if isinstance(name, str):
                yield name

    def _claims_of_pod(self, pod: PodInfo) -> list[ResourceClaim] | Reject:
        """Return the claims of the pod, or the rejection for the first that is missing or not the pod's own."""
        found: dict[str, ResourceClaim] = {}
        for wanted in pod.resource_claims:
            name = _claim_name(pod, wanted)
            if isinstance(name, Reject):
                return name
            if name is None:  # the claim controller found that this claim is not needed
                continue
            claim = self._claims.get(pod.namespace, name) if self._claims is not None else None
            if claim is None:
                return unresolvable(f'could not find ResourceClaim "{pod.namespace}/{name}"')
            if claim.metadata.deletion_timestamp is not None:
                return unresolvable(f'resourceclaim "{name}" is being deleted')
            if wanted.resource_claim_name is None and not _is_owner(pod, claim):
                whose = f"ResourceClaim {pod.namespace}/{name} was not created for pod {pod.key}"
                return unresolvable(f"{whose} (pod is not owner)")
            found[claim.metadata.uid] = self._cache.latest(claim)
        return list(found.values())


def _claim_name(pod: PodInfo, wanted: PodResourceClaim) -> str | Reject | None:
    if wanted.resource_claim_name is not None:
        return wanted.resource_claim_name
    if wanted.resource_claim_template_name is None:
        whose = f'pod "{pod.key}", spec.resourceClaim "{wanted.name}"'
        return unresolvable(f"{whose}: none of the supported fields are set")
    for made in pod.claims:
        if made.name == wanted.name:
            return made.resource_claim_name
    return unresolvable(f'pod "{pod.key}": ResourceClaim not created yet')


def _is_owner(pod: PodInfo, claim: ResourceClaim) -> bool:
    return any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references)
