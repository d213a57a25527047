"""This module lists the factory of every built-in plugin by name, and adds those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.balanced_allocation import BalancedAllocation
from koord.scheduler.plugins.coscheduling import Coscheduling, coscheduling
from koord.scheduler.plugins.default_binder import DefaultBinder
from koord.scheduler.plugins.default_pre_bind import DefaultPreBind
from koord.scheduler.plugins.default_preemption import DefaultPreemption
from koord.scheduler.plugins.device_share import DeviceShare
from koord.scheduler.plugins.dynamic_resources import DynamicResources
from koord.scheduler.plugins.elastic_quota import ElasticQuota
from koord.scheduler.plugins.fragmentation_aware import FragmentationAware
from koord.scheduler.plugins.image_locality import ImageLocality
from koord.scheduler.plugins.inter_pod_affinity import InterPodAffinity
from koord.scheduler.plugins.inter_pod_affinity.listed import ListedNamespaces
from koord.scheduler.plugins.load_aware import LoadAwareScheduling, load_aware
from koord.scheduler.plugins.node_affinity import NodeAffinity
from koord.scheduler.plugins.node_name import NodeName
from koord.scheduler.plugins.node_numa_resource import NodeNUMAResource
from koord.scheduler.plugins.node_ports import NodePorts
from koord.scheduler.plugins.node_resources_fit import NodeResourcesFit
from koord.scheduler.plugins.node_resources_fit_plus import NodeResourcesFitPlus
from koord.scheduler.plugins.node_unschedulable import NodeUnschedulable
from koord.scheduler.plugins.pod_topology_spread import PodTopologySpread
from koord.scheduler.plugins.pod_topology_spread.listed import ListedOwners
from koord.scheduler.plugins.priority_sort import PrioritySort
from koord.scheduler.plugins.reservation import ReservationPlugin
from koord.scheduler.plugins.scarce_resource_avoidance import ScarceResourceAvoidance
from koord.scheduler.plugins.scheduling_gates import SchedulingGates
from koord.scheduler.plugins.scheduling_hint import SchedulingHint
from koord.scheduler.plugins.taint_toleration import TaintToleration
from koord.scheduler.plugins.volumes.binding import VolumeBinding
from koord.scheduler.plugins.volumes.limits import NodeVolumeLimits
from koord.scheduler.plugins.volumes.restrictions import VolumeRestrictions
from koord.scheduler.plugins.volumes.zones import VolumeZone

# Makes a plugin from its arguments: typed ones where their shape is known, else plain data, None if there are none.
Factory = Callable[[Any, Handle], Plugin]

# The group of entry points under which installed packages offer plugins.
ENTRY_POINTS = "koord.scheduler.plugins"


class Offer(Protocol):
    """An entry point: its name is the plugin's, and it loads a factory or a class that can be called as one."""

    @property
    def name(self) -> str: ...

    def load(self) -> Factory: ...


REGISTRY: Mapping[str, Factory] = {
    SchedulingGates.name: lambda args, handle: SchedulingGates(),
    PrioritySort.name: lambda args, handle: PrioritySort(),
    NodeUnschedulable.name: lambda args, handle: NodeUnschedulable(),
    NodeName.name: lambda args, handle: NodeName(),
    TaintToleration.name: lambda args, handle: TaintToleration(),
    NodeAffinity.name: lambda args, handle: NodeAffinity(args),
    NodePorts.name: lambda args, handle: NodePorts(),
    NodeResourcesFit.name: lambda args, handle: NodeResourcesFit(args),
    DefaultPreemption.name: DefaultPreemption,
    VolumeRestrictions.name: lambda args, handle: VolumeRestrictions(handle),
    NodeVolumeLimits.name: lambda args, handle: NodeVolumeLimits(handle),
    VolumeBinding.name: VolumeBinding,
    VolumeZone.name: lambda args, handle: VolumeZone(handle),
    PodTopologySpread.name: lambda args, handle: PodTopologySpread(args, handle.state, ListedOwners(handle)),
    InterPodAffinity.name: lambda args, handle: InterPodAffinity(args, handle.state, ListedNamespaces(handle)),
    BalancedAllocation.name: lambda args, handle: BalancedAllocation(args),
    ImageLocality.name: lambda args, handle: ImageLocality(handle.state),
    DynamicResources.name: lambda args, handle: DynamicResources(handle),
    DefaultBinder.name: lambda args, handle: DefaultBinder(),
    DefaultPreBind.name: lambda args, handle: DefaultPreBind(),
    LoadAwareScheduling.name: load_aware,
    Coscheduling.name: coscheduling,
    NodeNUMAResource.name: NodeNUMAResource,
    DeviceShare.name: DeviceShare,
    FragmentationAware.name: lambda args, handle: FragmentationAware(handle),
    ElasticQuota.name: ElasticQuota,
    NodeResourcesFitPlus.name: lambda args, handle: NodeResourcesFitPlus(args),
    ScarceResourceAvoidance.name: lambda args, handle: ScarceResourceAvoidance(args),
    SchedulingHint.name: lambda args, handle: SchedulingHint(args),
    ReservationPlugin.name: ReservationPlugin,
}


def registered(offers: Iterable[Offer]) -> Mapping[str, Factory]:
    """Return the built-in plugins and those of the entry points. Raise ValueError when two have one name."""
    found = dict(REGISTRY)
    for offer in offers:
        if offer.name in found:
            raise ValueError(f"a plugin named {offer.name} already exists")
        found[offer.name] = offer.load()
    return found
