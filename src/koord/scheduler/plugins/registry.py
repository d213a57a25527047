"""This module lists the factory of every built-in plugin by name, and adds those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from koord.api.config.entry_point import PluginEntryPoint, load_entry_points
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins import queueing_and_binding
from koord.scheduler.plugins.coscheduling.network_plugin import new_coscheduling
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from koord.scheduler.plugins.default_preemption import DefaultPreemption
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.fragmentation_aware.plugin import FragmentationAware
from koord.scheduler.plugins.image_locality import ImageLocality
from koord.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from koord.scheduler.plugins.inter_pod_affinity.terms import NamespaceLister
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling, new_load_aware
from koord.scheduler.plugins.node_affinity import NodeAffinityPlugin
from koord.scheduler.plugins.node_filters import NodeName, NodePorts, NodeUnschedulable, TaintToleration
from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koord.scheduler.plugins.node_resources.balanced_allocation import BalancedAllocation
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from koord.scheduler.plugins.node_resources.fit_plus import NodeResourcesFitPlus
from koord.scheduler.plugins.node_resources.scarce_resource_avoidance import ScarceResourceAvoidance
from koord.scheduler.plugins.pod_topology_spread.constraint import OwnerLister
from koord.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin
from koord.scheduler.plugins.volumes.node_volume_limits import NodeVolumeLimits
from koord.scheduler.plugins.volumes.volume_binding import VolumeBinding
from koord.scheduler.plugins.volumes.volume_restrictions import VolumeRestrictions
from koord.scheduler.plugins.volumes.volume_zone import VolumeZone

# Makes a plugin from its arguments: typed ones where their shape is known, else plain data, None if there are none.
PluginFactory = Callable[[Any, Handle], Plugin]

# The group of entry points under which installed packages offer plugins.
ENTRY_POINT_GROUP = "koord.scheduler.plugins"


REGISTRY: Mapping[str, PluginFactory] = {
    queueing_and_binding.SchedulingGates.name: lambda args, handle: queueing_and_binding.SchedulingGates(),
    queueing_and_binding.PrioritySort.name: lambda args, handle: queueing_and_binding.PrioritySort(),
    NodeUnschedulable.name: lambda args, handle: NodeUnschedulable(),
    NodeName.name: lambda args, handle: NodeName(),
    TaintToleration.name: lambda args, handle: TaintToleration(),
    NodeAffinityPlugin.name: lambda args, handle: NodeAffinityPlugin(args),
    NodePorts.name: lambda args, handle: NodePorts(),
    NodeResourcesFit.name: lambda args, handle: NodeResourcesFit(args),
    DefaultPreemption.name: DefaultPreemption,
    VolumeRestrictions.name: lambda args, handle: VolumeRestrictions(handle),
    NodeVolumeLimits.name: lambda args, handle: NodeVolumeLimits(handle),
    VolumeBinding.name: VolumeBinding,
    VolumeZone.name: lambda args, handle: VolumeZone(handle),
    PodTopologySpread.name: lambda args, handle: PodTopologySpread(args, handle.state, OwnerLister(handle)),
    InterPodAffinity.name: lambda args, handle: InterPodAffinity(args, handle.state, NamespaceLister(handle)),
    BalancedAllocation.name: lambda args, handle: BalancedAllocation(args),
    ImageLocality.name: lambda args, handle: ImageLocality(handle.state),
    DynamicResources.name: DynamicResources,
    queueing_and_binding.DefaultBinder.name: lambda args, handle: queueing_and_binding.DefaultBinder(),
    queueing_and_binding.DefaultPreBind.name: lambda args, handle: queueing_and_binding.DefaultPreBind(),
    LoadAwareScheduling.name: new_load_aware,
    Coscheduling.name: new_coscheduling,
    NodeNUMAResource.name: NodeNUMAResource,
    DeviceShare.name: DeviceShare,
    FragmentationAware.name: lambda args, handle: FragmentationAware(handle),
    ElasticQuotaPlugin.name: ElasticQuotaPlugin,
    NodeResourcesFitPlus.name: lambda args, handle: NodeResourcesFitPlus(args),
    ScarceResourceAvoidance.name: lambda args, handle: ScarceResourceAvoidance(args),
    queueing_and_binding.SchedulingHintPlugin.name: lambda args, handle: queueing_and_binding.SchedulingHintPlugin(
        args
    ),
    ReservationPlugin.name: ReservationPlugin,
}


class LoadedPlugins(msgspec.Struct, frozen=True):
    """Hold the factories by the name of their plugin, and a sentence about each offer that cannot be used."""

    factories: Mapping[str, PluginFactory]
    warnings: tuple[str, ...] = ()


def load_plugins(entry_points: Iterable[PluginEntryPoint]) -> LoadedPlugins:
    """Return the built-in plugins and those of the entry points.

    One that cannot be loaded is refused where a profile enables it, and hurts nobody else. Nobody can replace a
    built-in plugin.
    """
    found = load_entry_points(entry_points, REGISTRY)
    refused = {name: partial(_refuse, why) for name, why in found.broken.items()}
    return LoadedPlugins({**REGISTRY, **found.loaded, **refused}, found.warnings)


def _refuse(why: str, args: Any, handle: Handle) -> Plugin:
    raise ValueError(why)
