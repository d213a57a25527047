"""Score nodes by the storage that is left for a pod's volumes (feature gate StorageCapacityScoring).

utilization of a class = what the pod's claims request / what there is:
    the volumes that would be bound, if there are any on this node; else the capacity that the driver reports
score of a node = mean over the classes of the shape's value at that utilization
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.config.scheduler.in_tree_args import UtilizationShapePoint, VolumeBindingArgs
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework import verdict
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin
from koord.scheduler.plugins.node_resources.fit import interpolate_shape
from koord.scheduler.plugins.volumes.pod_volumes import storage_class_of
from koord.scheduler.plugins.volumes.provisioning import ProvisioningCheck
from koord.scheduler.plugins.volumes.pv_matcher import storage_quantity
from koord.scheduler.plugins.volumes.volume_binder import PodClaims, VolumePlan
from koord.scheduler.plugins.volumes.volume_binding import VolumeBinding

# Kubernetes' default with the gate: the more is left, the better.
DEFAULT_SHAPE = (UtilizationShapePoint(utilization=0, score=10), UtilizationShapePoint(utilization=100, score=0))


class StorageUse(msgspec.Struct, frozen=True):
    """Hold the bytes that a pod's claims of one storage class request on a node, and the bytes that are there."""

    requested: int
    capacity: int


def storage_score(uses: Mapping[str, StorageUse], curve: Sequence[int]) -> int:
    """Return the mean score of the storage classes, each by its utilization; 0 where none says anything."""
    if not uses:
        return 0
    total = sum(curve[_percent(use)] for use in uses.values())
    return (2 * total + len(uses)) // (2 * len(uses))  # to the nearest, halves up


def _percent(use: StorageUse) -> int:
    if use.capacity == 0 or use.requested > use.capacity:
        return MAX_SCORE
    return use.requested * MAX_SCORE // use.capacity


def storage_uses(plan: VolumePlan, provisioning: ProvisioningCheck, labels: Mapping[str, str]) -> dict[str, StorageUse]:
    """Return the use of storage by class: of the volumes to bind, or without any of those to provision.

    A class whose driver reports no capacity is left out.
    """
    uses: dict[str, StorageUse] = {}
    for volume, claim in plan.bind:
        name = volume.spec.storage_class_name
        before = uses.get(name, StorageUse(0, 0))
        uses[name] = StorageUse(
            before.requested + storage_quantity(claim.spec.resources.requests).value(),
            before.capacity + storage_quantity(volume.spec.capacity).value(),
        )
    for claim in () if plan.bind else plan.provision:
        capacity = provisioning.reported_capacity(claim, labels)
        if capacity is None:
            continue
        name = storage_class_of(claim)
        requested = uses[name].requested if name in uses else 0
        uses[name] = StorageUse(requested + storage_quantity(claim.spec.resources.requests).value(), capacity)
    return uses


class CapacityScoringVolumeBinding(VolumeBinding):
    """VolumeBinding that scores as well."""

    def __init__(self, args: VolumeBindingArgs | None, handle: Handle) -> None:
        super().__init__(args, handle)
        shape = (args.shape if args is not None else ()) or DEFAULT_SHAPE
        self._curve = [interpolate_shape(shape, percent) for percent in range(MAX_SCORE + 1)]

    def pre_score(
        self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> verdict.Skip | verdict.Fault | None:
        kept = cycle.plugin_data.get(self.name)
        return None if isinstance(kept, PodClaims) and kept.unbound else verdict.SKIP

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        plan = self._binder.find_pod_volumes(cycle.read(self.name, PodClaims), node)
        if isinstance(plan, verdict.Reject):
            return 0
        return storage_score(storage_uses(plan, self._binder.provisioning, node.labels), self._curve)


def new_volume_binding(args: VolumeBindingArgs | None, handle: Handle, *, scores_capacity: bool = False) -> Plugin:
    """Make the plugin as its gate has it."""
    return CapacityScoringVolumeBinding(args, handle) if scores_capacity else VolumeBinding(args, handle)
