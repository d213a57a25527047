"""Run the hooks around PreFilter that Koordinator's framework extender adds, and pick a planned or preferred node.

before_pre_filter -> PreFilter -> after_pre_filter -> before_filter -> per pod: admit -> [the class is filtered]
                                    per pod: -> find_one_node, else prefer_nodes -> [only that node is evaluated]
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import Fault, Reject, Skip


class PluginRejection(msgspec.Struct, frozen=True):
    """Name the plugin that ended the attempt, and its verdict."""

    plugin: str
    answer: Reject | Fault


class PickedNode(msgspec.Struct, frozen=True):
    """Name the only node that is to be evaluated, and the plugin that picked it."""

    plugin: str
    node: str


def run_before_pre_filter(profile: SchedulerProfile, cycle: CycleState, pod: PodInfo) -> PodInfo | PluginRejection:
    """Run BeforePreFilter of all plugins; return the pod as all that follows shall see it."""
    for plugin in profile.plugins_at("before_pre_filter"):
        answer = plugin.before_pre_filter(cycle, pod)
        if isinstance(answer, Reject | Fault):
            return PluginRejection(plugin.name, answer)
        if answer is not None:
            pod = answer
    return pod


def run_after_pre_filter(profile: SchedulerProfile, cycle: CycleState, pod: PodInfo) -> PluginRejection | None:
    """Run AfterPreFilter and BeforeFilter of all plugins."""
    for plugin in profile.plugins_at("after_pre_filter"):
        answer = plugin.after_pre_filter(cycle, pod)
        if answer is not None:
            return PluginRejection(plugin.name, answer)
    for plugin in profile.plugins_at("before_filter"):
        fault = plugin.before_filter(cycle, pod)
        if fault is not None:
            return PluginRejection(plugin.name, fault)
    return None


def run_admit(profile: SchedulerProfile, cycle: CycleState, pod: PodInfo) -> PluginRejection | None:
    """Run the admit hooks of all plugins; return the first rejection of this very pod."""
    for plugin in profile.plugins_at("admit"):
        answer = plugin.admit(cycle, pod)
        if answer is not None:
            return PluginRejection(plugin.name, answer)
    return None


def run_pick_node(
    profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, fits: Callable[[str], bool]
) -> PickedNode | PluginRejection | None:
    """Return the node that a plugin planned, whether or not the pod fits there; else the first preferred node that
    fits.
    """
    for plugin in profile.plugins_at("find_one_node"):
        answer = plugin.find_one_node(cycle, pod)
        if isinstance(answer, Reject | Fault):
            return PluginRejection(plugin.name, answer)
        if isinstance(answer, Skip):
            continue
        if not answer:
            words = f'FindOneNodePlugin "{plugin.name}" succeeded but produced no node for pod {pod.key}'
            return PluginRejection(plugin.name, Fault(words))
        return PickedNode(plugin.name, answer)
    for plugin in profile.plugins_at("prefer_nodes"):
        names = plugin.prefer_nodes(cycle, pod)
        if not isinstance(names, Skip):
            found = next(filter(fits, names), None)
            if found is not None:
                return PickedNode(plugin.name, found)
    return None
