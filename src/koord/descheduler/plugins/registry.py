"""The plugins of this program by name, with their factories. External plugins are added by whoever starts the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.plugins.custom_priority import CustomPriority
from koord.descheduler.plugins.fragmentation_aware import FragmentationAware
from koord.descheduler.plugins.kube.anti_affinity import ViolatedAntiAffinity, violated_anti_affinity
from koord.descheduler.plugins.kube.default_evictor import DefaultEvictor, default_evictor
from koord.descheduler.plugins.kube.duplicates import Duplicates, duplicates
from koord.descheduler.plugins.kube.failed_pods import FailedPods, failed_pods
from koord.descheduler.plugins.kube.life_time import PodLifeTime, pod_life_time
from koord.descheduler.plugins.kube.node_affinity import ViolatedNodeAffinity, violated_node_affinity
from koord.descheduler.plugins.kube.node_taints import ViolatedNodeTaints, violated_node_taints
from koord.descheduler.plugins.kube.too_many_restarts import TooManyRestarts, too_many_restarts
from koord.descheduler.plugins.kube.topology_spread import ViolatedTopologySpread, violated_topology_spread
from koord.descheduler.plugins.kube.utilization import (
    HighNodeUtilization,
    LowNodeUtilization,
    high_node_utilization,
    low_node_utilization,
)
from koord.descheduler.plugins.low_node_load import LowNodeLoad
from koord.descheduler.plugins.migration_controller import MigrationController
from koord.descheduler.plugins.scale_down_bin_pack import ScaleDownBinPack

# From arguments: typed and defaulted ones where their shape is known, else plain data, None if there are none. A list
# is what is wrong with them, in words that name the field.
Factory = Callable[[Any], Plugin | list[str]]

# The group of entry points under which installed packages offer plugins.
ENTRY_POINTS = "koord.descheduler.plugins"

REGISTRY: Mapping[str, Factory] = {
    MigrationController.name: MigrationController,
    LowNodeLoad.name: LowNodeLoad,
    CustomPriority.name: CustomPriority,
    FragmentationAware.name: FragmentationAware,
    ScaleDownBinPack.name: ScaleDownBinPack,
    DefaultEvictor.name: default_evictor,
    HighNodeUtilization.name: high_node_utilization,
    LowNodeUtilization.name: low_node_utilization,
    PodLifeTime.name: pod_life_time,
    FailedPods.name: failed_pods,
    Duplicates.name: duplicates,
    TooManyRestarts.name: too_many_restarts,
    ViolatedAntiAffinity.name: violated_anti_affinity,
    ViolatedNodeAffinity.name: violated_node_affinity,
    ViolatedNodeTaints.name: violated_node_taints,
    ViolatedTopologySpread.name: violated_topology_spread,
}


class Offer(Protocol):
    """An entry point of an external plugin: its name is the plugin's, what it loads is a factory."""

    @property
    def name(self) -> str: ...

    def load(self) -> Factory: ...


def registered(offers: Iterable[Offer]) -> Mapping[str, Factory]:
    """Return this program's plugins and the external ones. Raise ValueError when two have one name."""
    found = dict(REGISTRY)
    for offer in offers:
        if offer.name in found:
            raise ValueError(f"a plugin named {offer.name} already exists")
        found[offer.name] = offer.load()
    return found
