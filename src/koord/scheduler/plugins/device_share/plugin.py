"""DeviceShare gives pods the devices that they request, from Device objects and annotations of placed pods.

PreFilter   parse the request; pods that request no device are skipped
Filter      counting cards decides most nodes; where it matters which cards, a trial allocation runs
Reserve     choose the cards for good and assume them in the cache
PreBind     annotate the pod with its cards
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import reduce
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from koord.api.config.scheduler.koordinator_args import DeviceShareArgs
from koord.api.koordinator.custom_kinds import DEVICES
from koord.api.koordinator.protocol import A_RESERVATION_ALLOCATED
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, ScoreNormaliser, Scores
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.reservation import NumaTopologyHints, numa_affinities, reservations_of
from koord.scheduler.framework.verdict import ROW, SKIP, BindEffect, Fault, PodPatch, Reject, Skip
from koord.scheduler.plugins.device_share import request_cache
from koord.scheduler.plugins.device_share.allocator import DeviceAllocateOptions, designated_hints, device_hints
from koord.scheduler.plugins.device_share.annotations import (
    VendorAdapter,
    allocation_annotation,
    device_allocated_patch,
    resize_annotations,
)
from koord.scheduler.plugins.device_share.cache import AssumedDevices, NodeDeviceCache
from koord.scheduler.plugins.device_share.device_amounts import NO_DEVICE_AMOUNTS, DeviceAmounts, add, build_scorer
from koord.scheduler.plugins.device_share.device_columns import DeviceColumns
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.device_share.node_evaluator import (
    RESTRICTED,
    DeviceTrial,
    NodeDeviceFilter,
    NodeDeviceScorer,
)
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal
from koord.scheduler.plugins.device_share.request import GpuTemplates
from koord.values.bitmask import BitMask


@runtime_checkable
class CardSelector(Protocol):
    """Another plugin of the profile that prefers the card from which a GPU share is taken."""

    def best_card(self, pod: PodInfo, node_devices: NodeDevices, node: NodeInfo) -> int | None:
        """Return the minor of a GPU; None leaves the choice to the scores of cards."""


class DeviceCycleState:
    """The state of one class of pods in a cycle; `nodes` are the devices of nodes as changed by a dry run."""

    __slots__ = ("device_request", "nodes", "taken_over")

    def __init__(
        self, device_request: request_cache.PodDeviceRequest, sites: dict[str, NodeDevices] | None = None
    ) -> None:
        self.device_request = device_request
        self.nodes: dict[str, NodeDevices] = {} if sites is None else sites
        self.taken_over: dict[
            str, DeviceAmounts
        ] = {}  # by node: of running pods that a reservation would take over there

    def copy(self) -> DeviceCycleState:
        other = DeviceCycleState(self.device_request, dict(self.nodes))
        other.taken_over = dict(self.taken_over)
        return other


class DeviceShare(Plugin):
    name = request_cache.PLUGIN_NAME
    scope = ROW  # the cache marks the rows whose devices changed
    normaliser = ScoreNormaliser()
    scores_as_it_filters = True
    reserves_as_it_filters = True
    idle_without_keys = (Plugin.signature,)
    wakes_on = (
        ClusterEvent("Device", ADD),
        ClusterEvent("Device", UPDATE),
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "labels"),
    )

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("scheduling.koordinator.sh", ("devices",), READ_VERBS),)

    def __init__(self, args: DeviceShareArgs, handle: Handle, *, adapts: bool = False, resizes: bool = False) -> None:
        """Take defaulted arguments. `adapts`: also write what third-party device plugins read. `resizes`: reservations
        hold what their devices come to, whatever they requested.
        """
        if args.scoring_strategy is None or args.gpu_shared_resource_templates_config is None:
            raise ValueError("scoring strategy or template config not specified")
        self._state = handle.state
        scorer = build_scorer(args.scoring_strategy)
        self._aligns = not args.disable_device_numa_topology_alignment
        unsupported = frozenset((one.vendor, one.model) for one in args.gpu_share_unsupported_models)
        self._request_cache = request_cache.PodDeviceRequestCache()
        self._template_watcher = request_cache.GpuTemplateWatcher(
            args.gpu_shared_resource_templates_config, handle, self._set_templates
        )
        self._resizes = resizes
        self._vendor_adapter = VendorAdapter(handle) if adapts else None
        self.cache = handle.state.derived(NodeDeviceCache)
        handle.lister(DEVICES).on_change(self.cache.device_changed)
        columns = DeviceColumns(handle.state.table, self.cache, scorer)
        self._node_filter = NodeDeviceFilter(handle.state.table, columns, unsupported)
        self._node_scorer = NodeDeviceScorer(columns, scorer)
        self._card_selector: CardSelector | None = None
        self._final_options = DeviceAllocateOptions(scorer=scorer, final=True)

    def set_profile(self, profile: SchedulerProfile) -> None:
        self._card_selector = next((plugin for plugin in profile.plugins() if isinstance(plugin, CardSelector)), None)

    def _set_templates(self, templates: GpuTemplates, error: str) -> None:
        self._request_cache.set_templates(templates, error)
        self._state.invalidate_prefilter()  # of pods without annotations the shape alone says what they ask for

    def signature(self, pod: PodInfo) -> Hashable:
        if pod.shape.memo.get(request_cache.PLUGIN_NAME) == ():  # it is known to ask for none
            return None
        device_request = self._request_cache.for_pod(pod)
        return device_request.id if isinstance(device_request, request_cache.PodDeviceRequest) else device_request

    # Waking ------------------------------------------------------------------------------------------------------

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        """Return whether the devices of the node that the event is about would fit the pod now."""
        device_request = self._request_cache.for_pod(pod)
        if not isinstance(device_request, request_cache.PodDeviceRequest):
            return False
        kind, old, new = object_event.event.kind, object_event.old, object_event.new
        if kind == "Pod":
            if self._request_cache.for_pod(old) is None:
                return False
            if A_RESERVATION_ALLOCATED in old.annotations:  # a reservation that it may use has more left
                return True
            name = old.node_name or old.nominated_node
        else:
            name = new.metadata.name
        node = self._state.node(name) if name else None
        if node is None:
            return False
        node_devices, gpu_labels = self.cache.for_node(node), self._node_filter.gpu_labels(node)
        if self._node_filter.check_eligibility(device_request, gpu_labels) is not None:
            return False
        return (
            node_devices is None
            or bool(node_devices.reservation_of_owner)
            or self._node_filter.verdict(device_request, node_devices, gpu_labels) is None
        )

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | None:
        device_request = self._request_cache.for_pod(pod)
        if device_request is None:
            return SKIP
        if isinstance(device_request, Reject):
            return device_request
        cycle.write(self.name, DeviceCycleState(device_request))
        return None

    def _cycle_state(self, cycle: CycleState, pod: PodInfo) -> DeviceCycleState | Reject | None:
        """Return the cycle state, and make it where PreFilter is not enabled."""
        known = cycle.plugin_data.get(self.name)
        if isinstance(known, DeviceCycleState):
            return known
        device_request = self._request_cache.for_pod(pod)
        if not isinstance(device_request, request_cache.PodDeviceRequest):
            return device_request
        device_state = DeviceCycleState(device_request)
        cycle.write(self.name, device_state)
        return device_state

    def add_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """Add a pod in a dry run with the devices that it holds, or would be given if it is only nominated."""
        device_state = self._cycle_state(cycle, pod)
        node_devices = self._node_devices(device_state, node) if isinstance(device_state, DeviceCycleState) else None
        if node_devices is None or not isinstance(device_state, DeviceCycleState):
            return
        live = self.cache.for_node(node)
        held = live.allocated_to(other.uid) if live is not None else None
        inside = live.reservation_of_owner.get(other.uid, "") if live is not None else ""
        if held is None:
            device_request = self._request_cache.for_pod(other)
            if not isinstance(device_request, request_cache.PodDeviceRequest):
                return
            found = DeviceTrial(
                node_devices=node_devices, device_request=device_request, gpu_labels=self._node_filter.gpu_labels(node)
            ).try_allocation()
            if isinstance(found, DeviceRefusal):
                return
            held = found.device_amounts
        device_state.nodes[node.name] = node_devices.with_allocation(other.uid, held, inside)

    def remove_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        device_state = self._cycle_state(cycle, pod)
        node_devices = self._node_devices(device_state, node) if isinstance(device_state, DeviceCycleState) else None
        held = node_devices.allocated_to(other.uid) if node_devices is not None else None
        if isinstance(device_state, DeviceCycleState) and node_devices is not None and held is not None:
            if pod.is_reserve_pod and cycle.sees_without(other, node.name):
                device_state.taken_over[node.name] = add(
                    device_state.taken_over.get(node.name, NO_DEVICE_AMOUNTS), held
                )
            device_state.nodes[node.name] = node_devices.without_allocation(other.uid)

    def _node_devices(self, device_state: DeviceCycleState, node: NodeInfo) -> NodeDevices | None:
        return device_state.nodes.get(node.name) or self.cache.for_node(node)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        device_state = self._cycle_state(cycle, pod)
        if not isinstance(device_state, DeviceCycleState):
            return device_state
        device_request, gpu_labels = device_state.device_request, self._node_filter.gpu_labels(node)
        unfit = self._node_filter.check_eligibility(device_request, gpu_labels)
        if unfit is not None:
            return unfit
        node_devices = self._node_devices(device_state, node)
        if node_devices is None:  # no Device object: the node's own device plugin allocates
            return None
        taken_over, live = device_state.taken_over.get(node.name), self.cache.for_node(node)
        if taken_over and live is not None:
            covered = DeviceTrial(
                node_devices=live, device_request=device_request, gpu_labels=gpu_labels, taken_over=taken_over
            ).try_placement()
            return request_cache.to_reject(covered) if isinstance(covered, DeviceRefusal) else None
        reserved = reservations_of(cycle).matched.get(node.name, ())
        if not reserved:
            return self._node_filter.verdict(device_request, node_devices, gpu_labels)
        found = DeviceTrial(
            node_devices=node_devices,
            device_request=device_request,
            gpu_labels=gpu_labels,
            reserved=reserved,
            needs_reservation=device_request.needs_reservation,
        ).try_placement()
        return request_cache.to_reject(found) if isinstance(found, DeviceRefusal) else None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        device_state = self._cycle_state(cycle, pod)
        size = len(table.alive[rows])
        if not isinstance(device_state, DeviceCycleState):
            return np.full(size, 0 if device_state is None else 1, np.int32)
        numbers = np.arange(table.size)[rows]
        codes = self._node_filter.codes(device_state.device_request, rows, numbers)
        for place, node in self._nodes_unlike_columns(cycle, device_state, table, numbers):
            codes[place] = device_state.device_request.code(self.filter(cycle, pod, node))
        return codes

    def _nodes_unlike_columns(
        self, cycle: CycleState, device_state: DeviceCycleState, table: NodeTable, rows: RowList
    ) -> Iterator[tuple[int, NodeInfo]]:
        """Yield the nodes that columns do not describe, with their positions among the rows.

        These have reservations for such pods, or are changed by a dry run.
        """
        matched = reservations_of(cycle).matched
        if not matched and not device_state.nodes:
            return
        places = {int(row): place for place, row in enumerate(rows)}
        for name in {*matched, *device_state.nodes}:
            node = table.index.get(name)
            if node is not None and node.node is not None and node.row in places:
                yield places[node.row], node

    def near_miss(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> tuple[float, str] | None:
        trial = self._trial(cycle, pod, node)
        if not isinstance(trial, DeviceTrial) or trial.reserved:
            return None
        nearest = trial.node_devices.memoized(("near miss", trial.device_request.id, trial.gpu_labels), trial.near_miss)
        return None if nearest is None else (nearest.missing, nearest.sentence)

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        device_state = self._cycle_state(cycle, pod)
        assert device_state is not None
        return device_state if isinstance(device_state, Reject) else device_state.device_request.rejection_of_code(code)

    # Score -------------------------------------------------------------------------------------------------------

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        device_state = self._cycle_state(cycle, pod)
        if not isinstance(device_state, DeviceCycleState):
            return 0
        node_devices = self._node_devices(device_state, node)
        if node_devices is None:
            return 0
        if node.name not in reservations_of(cycle).matched:
            return self._node_scorer.score(device_state.device_request, node_devices)
        trial = self._trial(cycle, pod, node)
        assert isinstance(trial, DeviceTrial)
        return self._node_scorer.score_with_reusable(device_state.device_request, node_devices, trial.reusable())

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        device_state = self._cycle_state(cycle, pod)
        size = len(table.alive[rows])
        if not isinstance(device_state, DeviceCycleState):
            return np.zeros(size, np.int64)
        numbers = np.arange(table.size)[rows]
        scores = self._node_scorer.score_column(
            device_state.device_request, rows, numbers, self._node_filter.gpu_labels_column()
        )
        for place, node in self._nodes_unlike_columns(cycle, device_state, table, numbers):
            scores[place] = self.score(cycle, pod, node)
        return scores

    # After the choice --------------------------------------------------------------------------------------------

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        device_request = self._request_cache.for_pod(pod)
        node_devices = self.cache.for_node(node) if device_request is not None else None
        if node_devices is None or device_request is None:
            return None
        if isinstance(device_request, Reject):
            return device_request
        nominated = reservations_of(cycle).nominated.get(pod.uid)
        owners = reservations_of(cycle).pre_allocated.get(pod.uid, ())
        trial = DeviceTrial(
            node_devices=node_devices,
            device_request=device_request,
            gpu_labels=self._node_filter.gpu_labels(node),
            reserved=() if nominated is None else (nominated,),
            needs_reservation=nominated is not None
            and (device_request.needs_reservation or nominated.policy == RESTRICTED),
            taken_over=reduce(
                add, (node_devices.allocated_to(owner) or NO_DEVICE_AMOUNTS for owner in owners), NO_DEVICE_AMOUNTS
            ),
            options=self._final_options,
        )
        zones = numa_affinities(cycle).get(pod.uid) if self._aligns else None
        free = self._card_selector is not None and nominated is None and device_request.designated is None
        card = (
            self._card_selector.best_card(pod, node_devices, node) if self._card_selector is not None and free else None
        )
        found = trial.try_allocation(zones, card)
        if isinstance(found, DeviceRefusal) and card is not None:
            found = trial.try_allocation(zones)
        if isinstance(found, DeviceRefusal):
            return request_cache.to_reject(found)
        self.cache.assume(pod.uid, AssumedDevices(node.name, found, "" if nominated is None else nominated.uid, owners))
        return None

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        self.cache.forget(pod.uid)

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> BindEffect | Reject | Fault | None:
        assumed_devices = self.cache.assumed.get(pod.uid)
        if assumed_devices is None:
            if self._request_cache.for_pod(pod) is not None and node_name not in self.cache.nodes:
                self.cache.note_bound_without_device(pod, node_name)
            return None
        node_devices, node = self.cache.nodes.get(node_name), self._state.node(node_name)
        allocations = allocation_annotation(
            assumed_devices.allocation, None if node_devices is None else node_devices.inventory, node_name
        )
        if isinstance(allocations, Fault):
            return allocations
        if pod.is_reserve_pod and self._resizes:
            return PodPatch(
                {**device_allocated_patch(allocations).annotations, **resize_annotations(assumed_devices.allocation)}
            )
        if self._vendor_adapter is None or node_devices is None or node is None:
            return device_allocated_patch(allocations)
        return self._vendor_adapter.pre_bind_effect(allocations, node_devices.inventory, pod, node)

    # Among plugins -----------------------------------------------------------------------------------------------

    def numa_hints(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> NumaTopologyHints | Reject | None:
        trial = self._trial(cycle, pod, node) if self._aligns else None
        if not isinstance(trial, DeviceTrial):
            return trial
        if trial.reserved:
            return _numa_hints(trial)
        return trial.device_request.numa_answer(
            ("hints", trial.node_devices.situation, trial.gpu_labels), lambda: _numa_hints(trial)
        )

    def numa_fits(self, cycle: CycleState, pod: PodInfo, node: NodeInfo, zones: BitMask | None) -> Reject | None:
        trial = self._trial(cycle, pod, node) if self._aligns else None
        if not isinstance(trial, DeviceTrial):
            return trial
        if trial.reserved:
            return _check_numa_fit(trial, zones)
        return trial.device_request.numa_answer(
            (zones, trial.node_devices.situation, trial.gpu_labels), lambda: _check_numa_fit(trial, zones)
        )

    def _trial(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> DeviceTrial | Reject | None:
        device_state = self._cycle_state(cycle, pod)
        if not isinstance(device_state, DeviceCycleState):
            return device_state
        node_devices = self._node_devices(device_state, node)
        if node_devices is None:
            return None
        device_request = device_state.device_request
        return DeviceTrial(
            node_devices=node_devices,
            device_request=device_request,
            gpu_labels=self._node_filter.gpu_labels(node),
            reserved=reservations_of(cycle).matched.get(node.name, ()),
            needs_reservation=device_request.needs_reservation,
        )


def _check_numa_fit(trial: DeviceTrial, zones: BitMask | None) -> Reject | None:
    found = trial.try_placement(zones)
    return request_cache.to_reject(found) if isinstance(found, DeviceRefusal) else None


def _numa_hints(trial: DeviceTrial) -> NumaTopologyHints | Reject | None:
    inventory, promised = trial.node_devices.inventory, trial.device_request.designated
    if promised is not None:
        found = designated_hints(inventory, promised)
    else:
        found = device_hints(trial.device_request.demand, inventory, trial.try_allocation)
    if isinstance(found, DeviceRefusal):
        return request_cache.to_reject(found)
    return found or None
