"""Reservation schedules a Reservation like a pod that holds its room, and gives that room to its owners.

    before PreFilter   which reservations a pod may use, on which nodes          -> matched, restored_nodes
    Filter             on those nodes without the reserve pods: whether it fits, and into which reservation
    Score              the fuller the reservation would be, the better; a stated order goes first
    nominate           the reservation that it takes                              -> nominated
    Reserve            the part is assumed; PreBind annotates the pod; Bind of a Reservation writes its status

What reservations hold and what is left of them is in the cache. Plain pods see nothing but the cluster's sums.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
import numpy as np

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import dump_json
from koord.api.annotations.reservation_codecs import ReservationAllocated
from koord.api.config.scheduler.koordinator_args import ReservationArgs
from koord.api.koordinator import protocol
from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.scheduling import ALIGNED, AVAILABLE, Reservation
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PostFilterRejection, PreemptionPlan
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.reservation import reservations_of, writable_reservations
from koord.scheduler.framework.verdict import (
    ROW,
    SKIP,
    BindEffect,
    FailureOverride,
    Fault,
    ObjectPatch,
    PodPatch,
    PreBindActions,
    PreFilterResult,
    Reject,
    Skip,
    StatusBinding,
    reject,
    unresolvable,
)
from koord.scheduler.plugins.reservation import cycle_state, fit, lifecycle, matching
from koord.scheduler.plugins.reservation.cache import ReservationCache, unconsumed_hold
from koord.scheduler.plugins.reservation.cycle_state import (
    ReservationScoreNormaliser,
    encode_raw_score,
    score_reservation,
)
from koord.scheduler.plugins.reservation.extensions import ReservationExtensions, ReservationQuestion
from koord.scheduler.plugins.reservation.fit import ReservationRefusal as Against
from koord.scheduler.plugins.reservation.pre_allocation import (
    NO_CANDIDATE,
    NONE_FITS,
    PreAllocationCandidates,
    pre_allocation_error,
)
from koord.scheduler.plugins.reservation.preemption import ReservationPreemption
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage, validation_error

_PRE_ALLOCATION = "Reservation over pods"  # the key of the pre-allocation candidates in the cycle state
_NO_MATCH = unresolvable(fit.NO_MATCH)
_WRONG_NODE = unresolvable(fit.WRONG_NODE)
_CONFLICT = unresolvable(fit.POLICY_CONFLICT)
_CODES = (None, _NO_MATCH, _WRONG_NODE, _CONFLICT)


class ReservationPlugin(Plugin):
    name = "Reservation"
    reserves_as_it_filters = True
    scores_as_it_filters = True
    idle_by_labels = (Plugin.signature, Plugin.before_pre_filter, Plugin.pre_filter)
    scope = ROW  # the cache marks the rows where something changed
    wakes_on = (
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Reservation", ADD),
        ClusterEvent("Reservation", UPDATE),
        ClusterEvent("Reservation", DELETE),
    )
    normaliser = ReservationScoreNormaliser()

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.koordinator.sh", ("reservations",), (*READ_VERBS, "patch")),  # patch: its placement
        RbacRule("scheduling.koordinator.sh", ("reservations/status",), ("patch",)),
    )

    def __init__(
        self, args: ReservationArgs, handle: Handle, *, omit_node_labels: bool = False, clean_owners: bool = False
    ) -> None:
        """Take defaulted arguments. `clean_owners`: remove the annotation of a deleted Reservation from its owners."""
        self.args = args
        self.clean_owners = clean_owners
        self.cache = handle.state.derived(ReservationCache)
        self.cache.omit_node_labels |= omit_node_labels
        self.cache.attach(handle)
        self._handle = handle
        self.scheduler_name = ""  # of its profile, once that is finished
        self._allocating_plugins: tuple[Plugin, ...] = ()
        self._extensions: ReservationExtensions | None = None
        self._ignored = fit.IgnoredResources(frozenset(args.ignored_resources), frozenset(args.ignored_resource_groups))
        self._preemption = ReservationPreemption(args, handle) if args.enable_preemption else None

    def set_profile(self, profile: SchedulerProfile) -> None:
        self.scheduler_name = profile.scheduler_name
        self._extensions = ReservationExtensions(profile)
        self._allocating_plugins = tuple(
            plugin for plugin in profile.plugins() if plugin.name in cycle_state.ALLOCATING_PLUGINS
        )

    def _ask_others(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> ReservationQuestion | None:
        return self._extensions.question(cycle, pod, node) if self._extensions is not None else None

    # Which pods are alike, and what wakes them -------------------------------------------------------------------

    def is_idle_for(self, pod: PodInfo) -> bool:
        """Return whether no reservation is for pods with these labels."""
        register = self.cache.register
        return register.is_by_labels_alone and not register.has_label_of(pod.labels)

    def signature(self, pod: PodInfo) -> Hashable:
        if pod.is_reserve_pod or (
            protocol.L_OPERATING_MODE in pod.labels and reservation_codecs.is_in_reservation_mode(pod.labels)
        ):
            return self._reserve_state(pod)
        matches = self.cache.matches_for(pod)
        return None if matches is None else matches.signature

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if object_event.event.kind == "Pod" or pod.is_reserve_pod:
            return True
        matches = self.cache.matches_for(pod)
        if matches is None or object_event.new is None:
            return False
        info = self.cache.register.info(object_event.new.metadata.uid)
        request = matches.request
        return (
            info is not None
            and info.available
            and (request.ignores_reservations or (info.matches_owner(request) and info.has_resources_for(request)))
        )

    def _reserve_state(self, pod: PodInfo) -> cycle_state.ReservePodCycleState:
        if not pod.is_reserve_pod:
            return cycle_state.ReservePodCycleState("", ALIGNED)
        known = self.cache.reservations.get(pod.uid)
        if known is None:
            return cycle_state.ReservePodCycleState("", "", "the reservation is gone")
        pinned = pod.annotations.get(protocol.A_RESERVATION_NODE, "")
        invalid, attempt = validation_error(known) or "", ""
        if known.spec.pre_allocation:
            invalid = invalid or pre_allocation_error(known, self.args.pre_allocation_config)
            attempt = f"{pod.uid} {self.cache.state.table.position}"
        return cycle_state.ReservePodCycleState(pinned, known.spec.allocate_policy, invalid, attempt)

    # Before nodes are looked at ----------------------------------------------------------------------------------

    def before_pre_filter(self, cycle: CycleState, pod: PodInfo) -> PodInfo | Reject | Fault | None:
        if pod.is_reserve_pod or (
            protocol.L_OPERATING_MODE in pod.labels and reservation_codecs.is_in_reservation_mode(pod.labels)
        ):
            reserve_state = self._reserve_state(pod)
            cycle.write(self.name, reserve_state)
            if reserve_state.attempt and not reserve_state.invalid:
                known = self.cache.reservations[pod.uid]
                pre_allocation = PreAllocationCandidates(known, self.cache.state, self.args.pre_allocation_config)
                cycle.write(_PRE_ALLOCATION, pre_allocation)
                cycle.restored_nodes = pre_allocation
            return None
        matches = self.cache.matches_for(pod)
        if matches is None:
            return None
        if matches.fault:
            return Fault(matches.fault)
        if matches.by_node or matches.request.affinity is not None:
            writable_reservations(cycle).matched = matches.reserved
            cycle.restored_nodes = matches
            cycle.write(self.name, cycle_state.OwnerCycleState(matches, pod, self.cache.register, self._ignored))
        return None

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        state = cycle.plugin_data.get(self.name)
        if state is None:
            return SKIP
        if isinstance(state, cycle_state.ReservePodCycleState):
            pre_allocation = cycle.plugin_data.get(_PRE_ALLOCATION)
            if isinstance(pre_allocation, PreAllocationCandidates) and pre_allocation.required:
                return (
                    PreFilterResult(frozenset(pre_allocation.candidates))
                    if pre_allocation.candidates
                    else unresolvable(NO_CANDIDATE)
                )
            return unresolvable(state.invalid) if state.invalid else None
        assert isinstance(state, cycle_state.OwnerCycleState)
        if state.request.affinity is None:
            return None
        if not state.matches.by_node:
            return _NO_MATCH
        # The nodes are those of `cycle.restored`, which stay right while reservations come and go.
        cycle.restricted_by = tuple(sorted({*cycle.restricted_by, self.name}))
        return None

    def sync_node_copy(self, cycle: CycleState, other: PodInfo, node: NodeInfo) -> None:
        """Let a pod that a dry run adds use its reservation, and return there what a removed owner used of one."""
        register = self.cache.register
        if node.name not in register.nodes:
            return
        part = register.owner_pod(other.uid) or cycle_state.dry_run_owners(cycle).get(other.uid)
        if part is None and other.uid in node.pods:
            part = cycle_state.assume_in_dry_run(cycle, self.cache, other, node, self._ignored)
        elif part is not None and other.uid not in node.pods:
            cycle_state.set_dry_run_owner(cycle, other.uid, None)
        usage = register.get(part.reservation) if part is not None else None
        holder = node.pods.get(usage.info.uid) if usage is not None else None
        if usage is not None and holder is not None:
            after = register.with_owners(usage, node.pods, cycle_state.dry_run_owners(cycle).values())
            node.remove(holder.uid)
            node.add(holder.with_held(unconsumed_hold(after, holder)))

    # Filter ------------------------------------------------------------------------------------------------------

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        state = cycle.plugin_data.get(self.name)
        if isinstance(state, cycle_state.ReservePodCycleState):
            room = fit.NodeFreeResources(node=node.name, allocatable={}, usages=self.cache.register.on_node(node.name))
            conflict = _to_reject(fit.filter_reserve_pod(state.node_name, state.policy, room))
            pre_allocation = cycle.plugin_data.get(_PRE_ALLOCATION)
            if (
                conflict is None
                and isinstance(pre_allocation, PreAllocationCandidates)
                and pre_allocation.required
                and not pre_allocation.chosen_pods(node)
            ):
                return reject(NONE_FITS)
            return conflict
        assert isinstance(state, cycle_state.OwnerCycleState)
        matched = state.matched_on(cycle, node)
        if not matched:
            return None if state.request.affinity is None else _NO_MATCH
        # A dry run may have given an allocate-once reservation to another pod.
        usable = [usage for usage in matched if usage.is_matchable] if cycle_state.dry_run_owners(cycle) else matched
        others = self._ask_others(cycle, pod, node)
        against = fit.filter_node(
            state.request,
            usable,
            state.node_room(node, matched),
            ignored=self._ignored,
            objections=others.objections if others is not None else None,
        )
        if against is not None and others is not None and others.fault is not None:
            return others.fault
        return _to_reject(against)

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        """Return the codes of rows without a reservation for the pod; the others are filtered one by one."""
        codes = np.zeros(table.size, np.int32)
        state = cycle.plugin_data.get(self.name)
        if isinstance(state, cycle_state.OwnerCycleState):
            if state.request.affinity is not None:
                codes[:] = 1
            return codes[rows]
        assert isinstance(state, cycle_state.ReservePodCycleState)
        index = table.index
        for name in self.cache.register.nodes:
            node = index.get(name)
            if node is not None and self.filter(cycle, pod, node) is not None:
                codes[node.row] = 3
        if state.node_name:
            there = index.get(state.node_name)
            others = np.ones(table.size, np.bool_)
            if there is not None:
                others[there.row] = False
            codes[others] = 2
        return codes if rows is ALL_ROWS else codes[rows]

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        found = _CODES[code]
        assert found is not None
        return found

    # No node takes it --------------------------------------------------------------------------------------------

    def post_filter(
        self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext
    ) -> PreemptionPlan | PostFilterRejection | Fault | None:
        way = self._preemption.post_filter(cycle, pod, refused) if self._preemption is not None else None
        if isinstance(way, PreemptionPlan | Fault):
            return way
        if pod.is_reserve_pod:  # no other plugin may preempt for it
            return way if way is not None else PostFilterRejection((), final=True, nominate="")
        reasons = tuple(self._reasons(pod, refused))
        if way is None:
            return PostFilterRejection(reasons) if reasons else None
        return msgspec.structs.replace(way, reasons=(*way.reasons, *reasons))

    def _reasons(self, pod: PodInfo, refused: PostFilterContext) -> Sequence[str]:
        matches = self.cache.matches_for(pod)
        if matches is None or matches.fault or matches.request.ignores_reservations:
            return ()
        tallies: dict[str, matching.MismatchCounts] = {}
        node_reasons: dict[str, Sequence[str]] = {}
        for name, usages in self.cache.register.candidates(matches.request).items():
            tallies[name] = matching.MismatchCounts.from_matches(
                matches.match_reservation(usage, name) for usage in usages
            )
            node = refused.table.index.get(name)
            said = refused.rejection_of(node) if node is not None and node.node is not None else None
            node_reasons[name] = said[1].reasons if said is not None and refused.filter_results is not None else ()
        return matching.diagnosis_reasons(tallies, node_reasons, has_affinity=matches.request.affinity is not None)

    def on_attempt_failed(self, pod: PodInfo, message: str, rejectors: frozenset[str]) -> FailureOverride | None:
        if pod.is_reserve_pod:
            self.cache.record_failure(pod, message, None)
            return FailureOverride(silent=True)
        self.cache.waiting_owners.put(pod)
        if protocol.RESERVATION_ERROR_PREFIX in message:
            matches = self.cache.matches_for(pod)
            if matches is not None and matches.request.affinity is not None:
                self.cache.record_failure(pod, message, matching.event_message(message))
        return None

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        state = cycle.plugin_data.get(self.name)
        if isinstance(state, cycle_state.OwnerCycleState):
            return SKIP if state.request.ignores_reservations else None
        return None if _PRE_ALLOCATION in cycle.plugin_data else SKIP

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        state = cycle.plugin_data.get(self.name)
        if not isinstance(state, cycle_state.OwnerCycleState):
            return cycle.read(_PRE_ALLOCATION, PreAllocationCandidates).score(node)
        others = self._ask_others(cycle, pod, node)
        nominated = (
            state.nominate_on(cycle, node)
            if others is None
            else state.nominate_on(cycle, node, others.suits, others.score)
        )
        return 0 if nominated is None else encode_raw_score(nominated, score_reservation(state.request, nominated))

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        pre_allocation = cycle.plugin_data.get(_PRE_ALLOCATION)
        plain = (
            100 if isinstance(pre_allocation, PreAllocationCandidates) and pre_allocation.demand.allows_multiple else 0
        )
        return np.full(len(table.alive[rows]), plain, np.int64)

    # After the choice --------------------------------------------------------------------------------------------

    def nominate_reservation(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        state = cycle.plugin_data.get(self.name)
        pre_allocation = cycle.plugin_data.get(_PRE_ALLOCATION)
        if isinstance(pre_allocation, PreAllocationCandidates):
            owners = pre_allocation.chosen_pods(node) or ()
            writable_reservations(cycle).pre_allocated[pod.uid] = tuple(one.uid for one in owners)
        if not isinstance(state, cycle_state.OwnerCycleState):
            return None
        told = {reserved.uid: reserved for reserved in reservations_of(cycle).matched.get(node.name, ())}

        others = self._ask_others(cycle, pod, node)

        def also(usage: ReservationUsage) -> bool:
            reserved = told.get(usage.info.uid)
            if others is not None and not others.suits(usage):
                return False
            return reserved is not None and cycle_state.can_allocate_from(
                allocating_plugins, cycle, pod, node, reserved
            )

        allocating_plugins = [
            allocating_plugin
            for allocating_plugin in self._allocating_plugins
            if allocating_plugin.name not in cycle.skip_filter
        ]
        nominated = state.nominate_on(
            cycle,
            node,
            also if allocating_plugins or others is not None else None,
            others.score if others is not None else None,
        )
        if nominated is None and others is not None and others.fault is not None:
            return others.fault
        if nominated is None:
            return _NO_MATCH if state.request.affinity is not None and not state.request.ignores_reservations else None
        if nominated.info.uid not in told:
            return Fault(f"nobody holds room for reservation {nominated.info.name}")
        writable_reservations(cycle).nominated[pod.uid] = told[nominated.info.uid]
        return None

    def remove_nominated_reservation(self, cycle: CycleState, pod: PodInfo) -> None:
        reservations = reservations_of(cycle)
        reservations.nominated.pop(pod.uid, None)
        reservations.pre_allocated.pop(pod.uid, None)

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        pre_allocation = cycle.plugin_data.get(_PRE_ALLOCATION)
        if isinstance(pre_allocation, PreAllocationCandidates):
            for other in pre_allocation.holders(node):
                self.cache.assume_owner(other, pod.uid, node.name)
            return None
        reserved = reservations_of(cycle).nominated.get(pod.uid)
        if reserved is None:
            return None
        against = self.cache.register.assume_error(reserved.uid)
        if against is not None:
            return Fault(against)
        self.cache.assume_owner(pod, reserved.uid, node.name)
        return None

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        if not pod.is_reserve_pod:
            self.cache.forget_owner(pod.uid)
            return
        for other in self._unmarked_owners(pod.uid):
            self.cache.forget_owner(other.uid)

    def _unmarked_owners(self, reservation: str) -> list[PodInfo]:
        """Return the running pods that are to become owners of a reservation and are not annotated yet."""
        placed = (self.cache.state.placed_pod(uid) for uid in self.cache.register.owner_pods(reservation))
        return [pod for pod in placed if pod is not None and protocol.A_RESERVATION_ALLOCATED not in pod.annotations]

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> BindEffect | Reject | Fault | None:
        if pod.is_reserve_pod:
            return self._mark_owners(pod)
        part = self.cache.register.owner_pod(pod.uid)
        usage = self.cache.register.get(part.reservation) if part is not None else None
        if usage is None:
            state = cycle.plugin_data.get(self.name)
            insists = (
                isinstance(state, cycle_state.OwnerCycleState)
                and state.request.affinity is not None
                and not state.request.ignores_reservations
            )
            return _NO_MATCH if insists else None
        allocated = ReservationAllocated(name=usage.info.name, uid=usage.info.uid)
        return PodPatch({protocol.A_RESERVATION_ALLOCATED: dump_json(allocated)})

    def _mark_owners(self, pod: PodInfo) -> PreBindActions | None:
        """Annotate the owners. A pod that was replaced is not written to: the server rejects another uid."""
        name = pod.annotations[protocol.A_RESERVATION_NAME]
        note = {protocol.A_RESERVATION_ALLOCATED: dump_json(ReservationAllocated(name=name, uid=pod.uid))}
        writes = tuple(
            ObjectPatch(PODS, other.namespace, other.name, {"metadata": {"uid": other.uid, "annotations": note}})
            for other in self._unmarked_owners(pod.uid)
        )
        return PreBindActions(writes, 0.0, lambda: True) if writes else None

    def bind(
        self, cycle: CycleState, pod: PodInfo, node_name: str
    ) -> BindEffect | StatusBinding | Skip | Reject | Fault | None:
        if not pod.is_reserve_pod:
            return SKIP
        return StatusBinding(
            resource=RESERVATIONS,
            namespace="",
            name=pod.annotations[protocol.A_RESERVATION_NAME],
            uid=pod.uid,
            make_status=lambda there: self._available_patch(there, node_name),
            is_written=lambda there: there.status.phase == AVAILABLE and there.status.node_name == node_name,
        )

    def _available_patch(self, there: Reservation, node_name: str) -> dict[str, Any] | Fault:
        if there.metadata.deletion_timestamp is not None:
            return Fault("the reservation is being deleted")
        now = datetime.fromtimestamp(self._handle.now(), UTC)
        (effect,) = lifecycle.step(there, lifecycle.ReservationPlaced(node_name), now)
        if isinstance(effect, lifecycle.InvalidTransition):
            return Fault(effect.why)
        assert isinstance(effect, lifecycle.WriteReservationStatus)
        return lifecycle.status_patch(there.status, effect.status)


def _to_reject(against: Against | None) -> Reject | None:
    return None if against is None else Reject(against.reasons, against.resolvable)
