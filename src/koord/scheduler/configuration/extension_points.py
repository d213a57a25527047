"""Define the extension points of a configuration, and the points that each known plugin may be enabled at."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.config.plugin_set import PluginSet
from koord.api.config.scheduler.configuration import SchedulerPlugins
from koord.scheduler.framework.plugin import Plugin, overrides


class ExtensionPoint(msgspec.Struct, frozen=True):
    """Describe an extension point; a plugin with one of `methods` takes part, and the first is what the framework
    calls.
    """

    name: str  # as a field of `SchedulerPlugins`
    path: str  # as in a file
    interface: str  # as in Kubernetes' messages
    methods: tuple[str, ...]

    def set_of(self, plugins: SchedulerPlugins) -> PluginSet:
        found: PluginSet = getattr(plugins, self.name)
        return found

    def is_implemented_by(self, plugin: Plugin) -> bool:
        return any(overrides(plugin, m) for m in self.methods) or self.name in KNOWN_POINTS.get(plugin.name, ())


# In the order in which kube-scheduler looks at them.
EXTENSION_POINTS: tuple[ExtensionPoint, ...] = (
    ExtensionPoint(
        "pre_filter",
        "preFilter",
        "PreFilterPlugin",
        (
            "pre_filter",
            "begin_attempt",
            "before_pre_filter",
            "after_pre_filter",
            "admit",
            "find_one_node",
            "prefer_nodes",
        ),
    ),
    ExtensionPoint("filter", "filter", "FilterPlugin", ("filter", "before_filter")),
    ExtensionPoint("post_filter", "postFilter", "PostFilterPlugin", ("post_filter", "after_post_filter")),
    ExtensionPoint("reserve", "reserve", "ReservePlugin", ("reserve", "unreserve")),
    ExtensionPoint("pre_score", "preScore", "PreScorePlugin", ("pre_score",)),
    ExtensionPoint("score", "score", "ScorePlugin", ("score", "before_score")),
    ExtensionPoint("pre_bind", "preBind", "PreBindPlugin", ("pre_bind", "apply_patch")),
    ExtensionPoint("bind", "bind", "BindPlugin", ("bind",)),
    ExtensionPoint("post_bind", "postBind", "PostBindPlugin", ("post_bind",)),
    ExtensionPoint("permit", "permit", "PermitPlugin", ("permit",)),
    ExtensionPoint("pre_enqueue", "preEnqueue", "PreEnqueuePlugin", ("pre_enqueue",)),
    ExtensionPoint("queue_sort", "queueSort", "QueueSortPlugin", ("sort_key",)),
)


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
