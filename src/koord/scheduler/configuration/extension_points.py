"""List the points that files may enable each known plugin at, and find the plugins that a file enables at a point."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.plugin_set import PluginSet
from koord.api.config.scheduler.configuration import SchedulerPlugins
from koord.scheduler.framework.extension_points import ExtensionPoint, overrides
from koord.scheduler.framework.plugin import Plugin

# Where files may enable these plugins, because Kubernetes 1.35 and Koordinator have them there. Ours may need no
# method at such a point (there is nothing to prepare, say): then enabling it there is right and calls nothing.
KUBERNETES_POINTS: Mapping[str, tuple[str, ...]] = {
    "SchedulingGates": ("pre_enqueue",),
    "PrioritySort": ("queue_sort",),
    "NodeUnschedulable": ("filter",),
    "NodeName": ("filter",),
    "TaintToleration": ("filter", "pre_score", "score"),
    "NodeAffinity": ("pre_filter", "filter", "pre_score", "score"),
    "NodePorts": ("pre_filter", "filter"),
    "NodeResourcesFit": ("pre_filter", "filter", "pre_score", "score"),
    "VolumeRestrictions": ("pre_filter", "filter"),
    "NodeVolumeLimits": ("pre_filter", "filter"),
    "VolumeBinding": ("pre_filter", "filter", "reserve", "pre_bind", "pre_score", "score"),
    "VolumeZone": ("pre_filter", "filter"),
    "PodTopologySpread": ("pre_filter", "filter", "pre_score", "score"),
    "InterPodAffinity": ("pre_filter", "filter", "pre_score", "score"),
    "DynamicResources": ("pre_enqueue", "pre_filter", "filter", "post_filter", "reserve", "pre_bind", "score"),
    "DefaultPreemption": ("post_filter", "pre_enqueue"),
    "NodeResourcesBalancedAllocation": ("pre_score", "score"),
    "ImageLocality": ("score",),
    "DefaultBinder": ("bind",),
}
KOORDINATOR_POINTS: Mapping[str, tuple[str, ...]] = {
    "LoadAwareScheduling": ("pre_filter", "filter", "score", "reserve"),
    "NodeNUMAResource": ("pre_filter", "filter", "pre_score", "score", "reserve", "pre_bind"),
    "DeviceShare": ("pre_filter", "filter", "pre_score", "score", "reserve", "pre_bind"),
    "Reservation": ("pre_filter", "filter", "post_filter", "pre_score", "score", "reserve", "pre_bind", "bind"),
    "Coscheduling": (
        "pre_enqueue",
        "pre_filter",
        "post_filter",
        "pre_score",
        "score",
        "reserve",
        "permit",
        "pre_bind",
        "post_bind",
    ),
    "ElasticQuota": ("pre_filter", "post_filter", "reserve"),
    "DefaultPreBind": ("pre_bind",),
    "NodeResourcesFitPlus": ("pre_score", "score"),
    "ScarceResourceAvoidance": ("pre_score", "score"),
    "SchedulingHint": ("pre_filter",),
}
KNOWN_POINTS: Mapping[str, tuple[str, ...]] = {**KUBERNETES_POINTS, **KOORDINATOR_POINTS}


def plugin_set_at(point: ExtensionPoint, plugins: SchedulerPlugins) -> PluginSet:
    found: PluginSet = getattr(plugins, point.name)
    return found


def may_enable_at(point: ExtensionPoint, plugin: Plugin) -> bool:
    """Return whether files may enable the plugin at the point: it takes part there, or is known to."""
    return any(overrides(plugin, m) for m in point.methods) or point.name in KNOWN_POINTS.get(plugin.name, ())
