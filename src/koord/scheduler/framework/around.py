"""What plugins do around PreFilter, in order: change the pod, have a last word, plan its node, prefer some nodes.

before_pre_filter -> PreFilter -> after_pre_filter -> before_filter -> per pod: admit -> [the class is judged]
                                    per pod: -> find_one_node, else prefer_nodes -> [one node is all there is]
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.verdict import Fault, Reject, Skip
from koord.scheduler.state.pod import PodInfo


class Stopped(msgspec.Struct, frozen=True):
    """Which plugin ended the attempt, and how."""

    plugin: str
    answer: Reject | Fault


class Pick(msgspec.Struct, frozen=True):
    """The one node that is to be looked at, and whose word that is."""

    plugin: str
    node: str


def before(profile: Profile, cycle: Cycle, pod: PodInfo) -> PodInfo | Stopped:
    """The pod as all that follows shall see it."""
    for plugin in profile.at("before_pre_filter"):
        answer = plugin.before_pre_filter(cycle, pod)
        if isinstance(answer, Reject | Fault):
            return Stopped(plugin.name, answer)
        if answer is not None:
            pod = answer
    return pod


def after(profile: Profile, cycle: Cycle, pod: PodInfo) -> Stopped | None:
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
    """Who does not let this very pod in."""
    for plugin in profile.at("admit"):
        answer = plugin.admit(cycle, pod)
        if answer is not None:
            return Stopped(plugin.name, answer)
    return None


def pick(profile: Profile, cycle: Cycle, pod: PodInfo, fits: Callable[[str], bool]) -> Pick | Stopped | None:
    """A planned node, whether or not the pod fits there; else the first preferred one on which it does."""
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
