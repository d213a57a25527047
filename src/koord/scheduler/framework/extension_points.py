"""List the extension points: which methods of a plugin are called where a configuration enables it at a point.

This table is the only place that relates points to methods. The methods are named by reference, so that a type checker
and a search find them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.scheduler.framework.plugin import Plugin

PluginMethod = Callable[..., Any]  # a method of `Plugin`, as the class has it


class ExtensionPoint(msgspec.Struct, frozen=True):
    """Describe an extension point; a plugin that overrides one of `methods` takes part in it."""

    name: str  # as a field of `SchedulerPlugins`
    path: str  # as in a file
    interface: str  # as in Kubernetes' messages
    methods: tuple[PluginMethod, ...]


# In the order in which kube-scheduler looks at them.
EXTENSION_POINTS: tuple[ExtensionPoint, ...] = (
    ExtensionPoint(
        "pre_filter",
        "preFilter",
        "PreFilterPlugin",
        (
            Plugin.pre_filter,
            Plugin.begin_attempt,
            Plugin.before_pre_filter,
            Plugin.after_pre_filter,
            Plugin.admit,
            Plugin.find_one_node,
            Plugin.prefer_nodes,
            Plugin.restore_reservations,
        ),
    ),
    ExtensionPoint(
        "filter",
        "filter",
        "FilterPlugin",
        (Plugin.filter, Plugin.before_filter, Plugin.filter_reservation, Plugin.filter_nominated_reservation),
    ),
    ExtensionPoint("post_filter", "postFilter", "PostFilterPlugin", (Plugin.post_filter, Plugin.after_post_filter)),
    ExtensionPoint("reserve", "reserve", "ReservePlugin", (Plugin.reserve, Plugin.unreserve)),
    ExtensionPoint("pre_score", "preScore", "PreScorePlugin", (Plugin.pre_score,)),
    ExtensionPoint("score", "score", "ScorePlugin", (Plugin.score, Plugin.before_score, Plugin.score_reservation)),
    ExtensionPoint(
        "pre_bind", "preBind", "PreBindPlugin", (Plugin.pre_bind, Plugin.apply_patch, Plugin.pre_bind_reservation)
    ),
    ExtensionPoint("bind", "bind", "BindPlugin", (Plugin.bind,)),
    ExtensionPoint("post_bind", "postBind", "PostBindPlugin", (Plugin.post_bind,)),
    ExtensionPoint("permit", "permit", "PermitPlugin", (Plugin.permit,)),
    ExtensionPoint("pre_enqueue", "preEnqueue", "PreEnqueuePlugin", (Plugin.pre_enqueue,)),
    ExtensionPoint("queue_sort", "queueSort", "QueueSortPlugin", (Plugin.sort_key,)),
)
# Called wherever the plugin is enabled.
METHODS_OF_ANY_POINT: tuple[PluginMethod, ...] = (
    Plugin.next_pod,
    Plugin.on_attempt_failed,
    Plugin.nominate_reservation,
)
POINT_METHODS: tuple[PluginMethod, ...] = (
    *(method for point in EXTENSION_POINTS for method in point.methods),
    *METHODS_OF_ANY_POINT,
)
# Called once for a class of equal pods: the plugin must know when what it did no longer holds (`prefilter_epoch`).
CACHED_METHODS: tuple[PluginMethod, ...] = (
    Plugin.pre_filter,
    Plugin.pre_score,
    Plugin.before_pre_filter,
    Plugin.after_pre_filter,
    Plugin.before_filter,
    Plugin.before_score,
    Plugin.restore_reservations,
)
# Their answers become part of the verdict on a node for a class of equal pods.
RESERVATION_METHODS: tuple[PluginMethod, ...] = (
    Plugin.filter_reservation,
    Plugin.filter_nominated_reservation,
    Plugin.score_reservation,
)


def overrides(plugin: Plugin, method: PluginMethod) -> bool:
    """Return whether a plugin overrides a method, which is how it takes part in an extension point."""
    return getattr(type(plugin), method.__name__) is not method
