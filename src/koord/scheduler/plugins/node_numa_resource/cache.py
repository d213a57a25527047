"""NodeAllocationCache keeps the CPU and NUMA allocations of all nodes in line with placements and topologies.

    pod placed, with resource-status  -------------------------------------+
    Reserve: assumed for a pod on its way to the node  --> PodAllocation --+--> the node's NodeAllocation
    pod gone, or Unreserve  ---------------------------> no PodAllocation

An assumed allocation ends when its pod is seen bound: from then on its annotation counts. Everything is
derived, and at any time equal to a rebuild. A reservation and the pods in it are both on the node: what
such a pod was given is taken off the reservation's part of the ledger, so that nothing is counted twice,
and returns to it when the pod leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from koord.api.annotations import cpu_codecs, reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import custom_kinds
from koord.api.koordinator.protocol import A_RESERVATION_ALLOCATED, A_RESOURCE_SPEC, A_RESOURCE_STATUS
from koord.api.koordinator.sigs_scheduling import NodeResourceTopology
from koord.api.kubernetes.node import Node
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.handle import Handle, Lister
from koord.scheduler.plugins.node_numa_resource.cpu_binding import CpuBinding
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology, InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import (
    NumaAllocation,
    NumaLedger,
    parse_allocation,
    total_zone_amounts,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions, read_topology_options
from koord.values.cpuset import CPUSet
from koord.values.resources import remaining_keyed_amounts


class PodAllocation(msgspec.Struct, frozen=True):
    """PodAllocation is what a pod was given. `reservation_uid` is the uid of the reservation that it was taken from."""

    allocation: NumaAllocation
    reservation_uid: str = ""


class NodeAllocation(msgspec.Struct, frozen=True):
    """The allocations of one node and their sums: an immutable value, so that a dry run is a copy."""

    pods: Mapping[str, PodAllocation] = {}  # by uid
    ledger: NumaLedger = NumaLedger()
    owners: Mapping[str, tuple[str, ...]] = {}  # by uid of a reservation, the pods that own a part of it

    @staticmethod
    def for_topology(
        topology: CpuTopology | InvalidCpuTopology | None, pods: Mapping[str, PodAllocation] | None = None
    ) -> NodeAllocation:
        node_allocation = NodeAllocation(ledger=NumaLedger.build(topology))
        for uid, pod_allocation in (pods or {}).items():
            node_allocation = node_allocation.with_pod(uid, pod_allocation)
        return node_allocation

    def with_topology(self, topology: CpuTopology | InvalidCpuTopology) -> NodeAllocation:
        """Return the same allocations on the topology that is now known."""
        ledger = self.ledger.with_topology(topology)
        return self if ledger is self.ledger else NodeAllocation(self.pods, ledger, self.owners)

    def with_pod(self, uid: str, pod_allocation: PodAllocation) -> NodeAllocation:
        before = self.pods.get(uid)
        if before == pod_allocation:
            return self
        node_allocation = self if before is None else self.without_pod(uid)
        if pod_allocation.allocation.is_empty():
            return node_allocation
        owners = node_allocation.owners
        if pod_allocation.reservation_uid:
            owners = {**owners, pod_allocation.reservation_uid: (*owners.get(pod_allocation.reservation_uid, ()), uid)}
        pods = {**node_allocation.pods, uid: pod_allocation}
        ledger = node_allocation.ledger.add(uid, _unused_part(uid, pods, owners))
        return NodeAllocation(
            pods, _with_reservation_rest(ledger, pod_allocation.reservation_uid, pods, owners), owners
        )

    def without_pod(self, uid: str) -> NodeAllocation:
        pod_allocation = self.pods.get(uid)
        if pod_allocation is None:
            return self
        pods = {other: kept for other, kept in self.pods.items() if other != uid}
        owners = self.owners
        if pod_allocation.reservation_uid:
            others = tuple(owner for owner in owners[pod_allocation.reservation_uid] if owner != uid)
            owners = {
                reservation_uid: listed
                for reservation_uid, listed in owners.items()
                if reservation_uid != pod_allocation.reservation_uid
            }
            if others:
                owners = {**owners, pod_allocation.reservation_uid: others}
        ledger = self.ledger.remove(uid)
        return NodeAllocation(
            pods, _with_reservation_rest(ledger, pod_allocation.reservation_uid, pods, owners), owners
        )


def _with_reservation_rest(
    ledger: NumaLedger, reservation_uid: str, pods: Mapping[str, PodAllocation], owners: Mapping[str, tuple[str, ...]]
) -> NumaLedger:
    """Return the ledger with the reservation's own part updated for its owners."""
    return (
        ledger.add(reservation_uid, _unused_part(reservation_uid, pods, owners))
        if reservation_uid and reservation_uid in pods
        else ledger
    )


def _unused_part(uid: str, pods: Mapping[str, PodAllocation], owners: Mapping[str, tuple[str, ...]]) -> NumaAllocation:
    """Return what a pod holds itself: a reservation holds what its owners do not use."""
    given = pods[uid].allocation
    inside = owners.get(uid)
    if not inside:
        return given
    cpus, zones = given.cpus.bits, []
    for owner in inside:
        cpus &= ~pods[owner].allocation.cpus.bits
        zones.append(pods[owner].allocation.zones)
    # Never below zero: an owner may have taken more than its reservation has, from what was free.
    left = remaining_keyed_amounts(given.zones, total_zone_amounts(zones))
    return NumaAllocation(CPUSet(cpus), given.exclusive if cpus else "", left)


class NodeTopologyProfile:
    """A node's topology and policies for CPU binding and NUMA placement.

    `concerns_all_pods`: the node has a policy for pods that demand nothing themselves. `has_uniform_cores`: all
    its cores have equally many CPUs.
    """

    __slots__ = (
        "annotations",
        "concerns_all_pods",
        "empty_allocation",
        "has_uniform_cores",
        "labels",
        "node",
        "topology",
        "topology_object",
    )

    def __init__(self, node: Node, found: NodeResourceTopology | None, default_strategy: str) -> None:
        meta = node.metadata
        self.node = node
        self.topology_object = found
        self.labels: Mapping[str, str] = meta.labels
        self.annotations: Mapping[str, str] = meta.annotations
        topology = read_topology_options(found, meta.labels, meta.annotations, default_strategy=default_strategy)
        self.topology: TopologyOptions = topology
        self.empty_allocation = NodeAllocation.for_topology(topology.cpu)  # of the node while nothing is given there
        self.has_uniform_cores = isinstance(topology.cpu, CpuTopology) and topology.cpu.has_uniform_cores
        self.concerns_all_pods = bool(
            topology.numa_policy
            or topology.bind_policy != cpu_codecs.NODE_BIND_NONE
            or topology.ratio_error
            or (topology.node_ratio or 0) > 1
        )

    def is_current(self, node: Node, found: NodeResourceTopology | None) -> bool:
        """Return whether the profile is still valid: most updates of a node are of its status."""
        if found is not self.topology_object:
            return False
        if node is not self.node:
            meta = node.metadata
            if meta.labels != self.labels or meta.annotations != self.annotations:
                return False
            self.node = node
        return True


_EMPTY_ALLOCATION = NodeAllocation()
_SPARE_PROFILES = 64


class AssumedAllocation(msgspec.Struct, frozen=True):
    """The allocation of a pod that is not bound yet. `owners`: running pods whose allocations become part of it."""

    node_name: str
    pod_allocation: PodAllocation
    binding: CpuBinding | None
    owners: tuple[str, ...] = ()


class NodeAllocationCache:
    """The allocations of all nodes, one for all profiles: get it with `NodeAllocationCache.for_handle(handle)`."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._table = state.table
        self._by_node: dict[str, NodeAllocation] = {}  # by node name, where something is allocated
        self._lister: Lister[NodeResourceTopology] | None = None
        self.assumed: dict[str, AssumedAllocation] = {}  # by uid
        self._reservation_of_owner: dict[
            str, str
        ] = {}  # by uid of an owner: the reservation that is assumed to take it over
        self.unreadable: dict[str, MalformedAnnotation] = {}  # by uid: annotations of placed pods that cannot be read
        state.add_placement_listener(self._on_placement, plain_adds=False)
        state.add_update_listener(self._on_pod_update)

    @staticmethod
    def for_handle(handle: Handle) -> NodeAllocationCache:
        cache = handle.state.derived(NodeAllocationCache)
        lister = handle.lister(custom_kinds.NODE_RESOURCE_TOPOLOGIES)
        if cache._lister is None:
            cache._lister = lister
            lister.on_change(cache._on_topology)
        return cache

    def topology(self, name: str) -> NodeResourceTopology | None:
        return None if self._lister is None else self._lister.get("", name)

    def node_allocation(self, profile: NodeTopologyProfile, name: str) -> NodeAllocation:
        node_allocation = self._by_node.get(name)
        if node_allocation is None:
            return profile.empty_allocation
        if node_allocation.ledger.topology is not profile.topology.cpu:
            fresh = node_allocation.with_topology(profile.topology.cpu)
            if fresh is not node_allocation:
                node_allocation = self._by_node[name] = fresh
        return node_allocation

    # What happens ------------------------------------------------------------------------------------------------

    def _on_topology(self, old: NodeResourceTopology | None, new: NodeResourceTopology | None) -> None:
        found = new if new is not None else old
        assert found is not None
        node = self._table.index.get(found.metadata.name)
        if node is not None:
            self._table.mark_changed(node.row)
            self._table.node_changes.append(node.row)  # it describes the node as the node's own object does

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        """Handle a placement; the state has noted the row already."""
        if what == "add":
            # The annotation of an assumed pod is of an earlier attempt, or a hint: what it gets is assumed in Reserve.
            if pod.annotations and A_RESOURCE_STATUS in pod.annotations and not self._state.is_assumed(pod.uid):
                self._read_pod(pod, node.name)
            return
        name = node.name
        if self.assumed:
            self._release_owners(name, self.assumed.pop(pod.uid, None))
        if self.unreadable:
            self.unreadable.pop(pod.uid, None)
        node_allocation = self._by_node.get(name)
        if node_allocation is not None and pod.uid in node_allocation.pods:
            self._set(name, node_allocation.without_pod(pod.uid))

    def _on_pod_update(self, before: PodInfo, after: PodInfo) -> None:
        """Replace an assumed allocation by the pod's annotation once the pod is seen bound."""
        if after.annotations and A_RESOURCE_STATUS in after.annotations and not self._state.is_assumed(after.uid):
            name, node_allocation = after.node_name, self._by_node.get(after.node_name)
            assumed_allocation = self.assumed.pop(after.uid, None)
            if assumed_allocation is not None:
                for owner in assumed_allocation.owners:  # from now on their annotations name their reservation
                    self._reservation_of_owner.pop(owner, None)
            self._read_pod(after, name)
            if self._by_node.get(name) is not node_allocation:
                self._note_row(name)

    def _read_pod(self, pod: PodInfo, name: str) -> None:
        annotations = pod.annotations
        found = _read_status(annotations[A_RESOURCE_STATUS], annotations.get(A_RESOURCE_SPEC))
        if isinstance(found, MalformedAnnotation):
            self.unreadable[pod.uid] = found
        elif found is not None:
            text = annotations.get(A_RESERVATION_ALLOCATED)
            if text is not None:  # it names its reservation itself
                self._reservation_of_owner.pop(pod.uid, None)
            pod_allocation = PodAllocation(
                found, _allocated_reservation(text) if text is not None else self._reservation_of_owner.get(pod.uid, "")
            )
            self._set(name, self._by_node.get(name, _EMPTY_ALLOCATION).with_pod(pod.uid, pod_allocation))

    def assume(self, uid: str, assumed_allocation: AssumedAllocation) -> None:
        name = assumed_allocation.node_name
        self.assumed[uid] = assumed_allocation
        node_allocation = self._by_node.get(name, _EMPTY_ALLOCATION)
        for owner in assumed_allocation.owners:
            self._reservation_of_owner[owner] = uid
            node_allocation = _move_to_reservation(node_allocation, owner, uid)
        self._set(name, node_allocation.with_pod(uid, assumed_allocation.pod_allocation))
        self._note_row(name)

    def forget(self, uid: str) -> None:
        """Release an assumed allocation; a pod that was seen bound meanwhile keeps its own."""
        assumed_allocation = self.assumed.pop(uid, None)
        node_allocation = self._by_node.get(assumed_allocation.node_name) if assumed_allocation is not None else None
        if assumed_allocation is not None and node_allocation is not None:
            self._set(assumed_allocation.node_name, node_allocation.without_pod(uid))
            self._release_owners(assumed_allocation.node_name, assumed_allocation)
            self._note_row(assumed_allocation.node_name)

    def _release_owners(self, name: str, assumed_allocation: AssumedAllocation | None) -> None:
        """Take the owners out of a reservation that does not come into being."""
        for owner in () if assumed_allocation is None else assumed_allocation.owners:
            if self._reservation_of_owner.pop(owner, None) is not None:
                self._set(name, _move_to_reservation(self._by_node.get(name, _EMPTY_ALLOCATION), owner, ""))

    def _set(self, name: str, node_allocation: NodeAllocation) -> None:
        if node_allocation.pods:
            self._by_node[name] = node_allocation
        else:
            self._by_node.pop(name, None)

    def _note_row(self, name: str) -> None:
        node = self._table.index.get(name)
        if node is not None:
            self._table.mark_changed(node.row)

    def pod_allocations(self) -> dict[str, dict[str, PodAllocation]]:
        """Return the allocations by node name and uid, for comparison."""
        return {name: dict(node_allocation.pods) for name, node_allocation in self._by_node.items()}


def _move_to_reservation(node_allocation: NodeAllocation, owner: str, reservation_uid: str) -> NodeAllocation:
    """Return the node's allocation with the pod moved to another reservation, or out of one."""
    pod_allocation = node_allocation.pods.get(owner)
    return (
        node_allocation
        if pod_allocation is None
        else node_allocation.with_pod(owner, PodAllocation(pod_allocation.allocation, reservation_uid))
    )


class NodeTopologyProfiles:
    """The topology profiles of all nodes for one scheduling profile: a node's label first, then the arguments."""

    def __init__(self, cache: NodeAllocationCache, default_strategy: str, state: ClusterState) -> None:
        self._cache = cache
        self._default_strategy = default_strategy
        self._table = state.table
        self._known: dict[str, NodeTopologyProfile] = {}

    def for_node(self, node: NodeInfo) -> NodeTopologyProfile:
        assert node.node is not None
        found = self._cache.topology(node.name)
        known = self._known.get(node.name)
        if known is None or not known.is_current(node.node, found):
            if len(self._known) > 2 * self._table.live + _SPARE_PROFILES:  # mostly of nodes that are gone
                self._known.clear()
            known = self._known[node.name] = NodeTopologyProfile(node.node, found, self._default_strategy)
        return known


@lru_cache(maxsize=1024)
def _read_status(status: str, spec: str | None) -> NumaAllocation | MalformedAnnotation | None:
    written = {A_RESOURCE_STATUS: status}
    return parse_allocation(written if spec is None else {**written, A_RESOURCE_SPEC: spec})


@lru_cache(maxsize=1024)
def _allocated_reservation(text: str) -> str:
    found = reservation_codecs.parse_reservation_allocated({A_RESERVATION_ALLOCATED: text})
    return found.uid if isinstance(found, reservation_codecs.ReservationAllocated) else ""
