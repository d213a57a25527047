"""Run the hooks around PreFilter that Koordinator's framework extender adds, and pick a planned or preferred node.

before_pre_filter -> PreFilter -> after_pre_filter -> before_filter -> per pod: admit -> [the class is filtered]
                                    per pod: -> find_one_node, else prefer_nodes -> [only that node is evaluated]
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.verdict import Fault, Reject, Skip
from koord.scheduler.state.pod import PodInfo


class Stopped(msgspec.Struct, frozen=True):
    """Name the plugin that ended the attempt, and its verdict."""

    plugin: str
    answer: Reject | Fault


class Pick(msgspec.Struct, frozen=True):
    """Name the only node that is to be evaluated, and the plugin that picked it."""

    plugin: str
    node: str


def before(profile: Profile, cycle: Cycle, pod: PodInfo) -> PodInfo | Stopped:
    """Run BeforePreFilter of all plugins; return the pod as all that follows shall see it."""
    for plugin in profile.at("before_pre_filter"):
        answer = plugin.before_pre_filter(cycle, pod)
        if isinstance(answer, Reject | Fault):
            return Stopped(plugin.name, answer)
        if answer is not None:
            pod = answer
    return pod


def after(profile: Profile, cycle: Cycle, pod: PodInfo) -> Stopped | None:
    """Run AfterPreFilter and BeforeFilter of all plugins."""
    for plugin in profile.at("after_pre_filter"):
        answer = plugin.after_pre_filter(cycle, pod)
        if answer is not None:
            return Stopped(plugin.name, answer)
    for plugin in profile.at("before_filter"):
        fault = plugin.before_filter(cycle, pod)
        if fault is not None:
            return Stopped(plugin.name, fault)
    return None


def bar(profile: Profile, cycle: Cycle, pod: PodInfo) -> Stopped | None:
    """Run the admit hooks of all plugins; return the first rejection of this very pod."""
    for plugin in profile.at("admit"):
        answer = plugin.admit(cycle, pod)
        if answer is not None:
            return Stopped(plugin.name, answer)
    return None


def pick(profile: Profile, cycle: Cycle, pod: PodInfo, fits: Callable[[str], bool]) -> Pick | Stopped | None:
    """Return the node that a plugin planned, whether or not the pod fits there; else the first preferred node that
    fits.
    """
    for plugin in profile.at("find_one_node"):
        answer = plugin.find_one_node(cycle, pod)
        if isinstance(answer, Reject | Fault):
            return Stopped(plugin.name, answer)
        if isinstance(answer, Skip):
            continue
        if not answer:
            words = f'FindOneNodePlugin "{plugin.name}" succeeded but produced no node for pod {pod.key}'
            return Stopped(plugin.name, Fault(words))
        return Pick(plugin.name, answer)
    for plugin in profile.at("prefer_nodes"):
        names = plugin.prefer_nodes(cycle, pod)
        if not isinstance(names, Skip):
            found = next(filter(fits, names), None)
            if found is not None:
                return Pick(plugin.name, found)
    return None
