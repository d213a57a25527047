"""The plugins of this program by name, with their factories. Whoever starts the program adds external plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from koord.api.config.entry_point import PluginEntryPoint, load_entry_points
from koord.descheduler.framework.plugin import DeschedulerPlugin
from koord.descheduler.migration.plugin import MigrationControllerPlugin
from koord.descheduler.plugins.custom_priority import CustomPriority
from koord.descheduler.plugins.fragmentation_aware import FragmentationAwareBalance
from koord.descheduler.plugins.kube import node_utilization, pod_constraints, pod_state
from koord.descheduler.plugins.kube.default_evictor import DefaultEvictor, build_default_evictor
from koord.descheduler.plugins.kube.topology_spread import (
    RemovePodsViolatingTopologySpreadConstraint,
    build_violated_topology_spread,
)
from koord.descheduler.plugins.low_node_load.plugin import LowNodeLoad
from koord.descheduler.plugins.scale_down_bin_pack import ScaleDownBinPack

# From arguments: typed and defaulted ones where their shape is known, else plain data, None if there are none. A list
# is what is wrong with them, in words that name the field.
PluginFactory = Callable[[Any], DeschedulerPlugin | list[str]]

# The group of entry points under which installed packages offer plugins.
ENTRY_POINT_GROUP = "koord.descheduler.plugins"


class DeschedulerRegistry(msgspec.Struct, frozen=True):
    """The factories by the name of their plugin, and a sentence about each offer that cannot be used."""

    factories: Mapping[str, PluginFactory]
    warnings: tuple[str, ...] = ()


REGISTRY: Mapping[str, PluginFactory] = {
    MigrationControllerPlugin.name: MigrationControllerPlugin,
    LowNodeLoad.name: LowNodeLoad,
    CustomPriority.name: CustomPriority,
    FragmentationAwareBalance.name: FragmentationAwareBalance,
    ScaleDownBinPack.name: ScaleDownBinPack,
    DefaultEvictor.name: build_default_evictor,
    node_utilization.HighNodeUtilization.name: node_utilization.build_high_node_utilization,
    node_utilization.LowNodeUtilization.name: node_utilization.build_low_node_utilization,
    pod_state.PodLifeTime.name: pod_state.build_pod_life_time,
    pod_state.RemoveFailedPods.name: pod_state.build_remove_failed_pods,
    pod_constraints.RemoveDuplicates.name: pod_constraints.build_remove_duplicates,
    pod_state.RemovePodsHavingTooManyRestarts.name: pod_state.build_too_many_restarts,
    pod_constraints.RemovePodsViolatingInterPodAntiAffinity.name: pod_constraints.build_inter_pod_anti_affinity,
    pod_constraints.RemovePodsViolatingNodeAffinity.name: pod_constraints.build_violated_node_affinity,
    pod_constraints.RemovePodsViolatingNodeTaints.name: pod_constraints.build_violated_node_taints,
    RemovePodsViolatingTopologySpreadConstraint.name: build_violated_topology_spread,
}


def load_registry(offers: Iterable[PluginEntryPoint]) -> DeschedulerRegistry:
    """Return this program's plugins and the external ones.

    One that cannot be loaded is refused where a profile enables it, and hurts nobody else. Nobody can replace a
    built-in plugin.
    """
    found = load_entry_points(offers, REGISTRY)
    refused = {name: partial(_refuse, why) for name, why in found.broken.items()}
    return DeschedulerRegistry({**REGISTRY, **found.loaded, **refused}, found.warnings)


def _refuse(why: str, args: Any) -> list[str]:
    return [why]
