"""Run the extension points of a profile: every call of a plugin's method that belongs to a point is made here.

The live loop, preemption, gang planning, what-ifs and tests use these functions, so that a point runs alike everywhere.
Filter and Score of all nodes are kept for a class of pods in `filtering` and `scoring`; here they run for one node.

    run_pre_enqueue -> run_begin_attempt -> run_pre_filter -> run_admit -> run_find_one_node, else run_prefer_nodes
    -> Filter -> run_pre_score -> Score -> run_nominate_reservation -> run_reserve -> run_permit
    -> run_pre_bind -> run_bind -> run_post_bind (these three are in `binding_runtime`)
    no node: run_post_filter       undo: run_unreserve       any failure: run_attempt_failed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PRE_FILTER, PreemptionPlan, Unschedulable, VictimSearch
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin
from koord.scheduler.framework.plugin_timing import AttemptTimer
from koord.scheduler.framework.reservation import MatchedReservation, reservations_of
from koord.scheduler.framework.verdict import (
    ROW,
    FailureOverride,
    Fault,
    PreFilterResult,
    Reject,
    Skip,
    Wait,
    unresolvable,
)

if TYPE_CHECKING:
    from koord.scheduler.framework.attempt import SchedulingAttempt
    from koord.scheduler.framework.post_filter import PostFilterContext
    from koord.scheduler.framework.profile import SchedulerProfile


class PluginRejection(msgspec.Struct, frozen=True):
    """Name the plugin that ended the attempt, and its verdict."""

    plugin: str
    answer: Reject | Fault
    point: str = ""  # the extension point as messages name it, for a fault that says so


class PickedNode(msgspec.Struct, frozen=True):
    """Name the only node that is to be evaluated, and the plugin that picked it."""

    plugin: str
    node: str


# Queue -----------------------------------------------------------------------------------------------------------


def run_pre_enqueue(profile: SchedulerProfile, pod: PodInfo, first: str = "") -> tuple[str, Reject] | None:
    """Run PreEnqueue, beginning with the plugin `first`; return the first plugin that gates the pod and its verdict."""
    plugins: Sequence[Plugin] = profile.plugins_at(Plugin.pre_enqueue)
    if first:
        plugins = sorted(plugins, key=lambda plugin: plugin.name != first)
    for plugin in plugins:
        verdict = plugin.pre_enqueue(pod)
        if verdict is not None:
            return plugin.name, verdict
    return None


# Before nodes are evaluated --------------------------------------------------------------------------------------


def run_begin_attempt(plugins: Iterable[Plugin], pod: PodInfo) -> PluginRejection | None:
    """Start an attempt at this very pod with the profile's hooks for it; return the first rejection."""
    for plugin in plugins:
        answer = plugin.begin_attempt(pod)
        if answer is not None:
            return PluginRejection(plugin.name, answer)
    return None


def run_pre_filter(
    profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, timer: AttemptTimer | None = None
) -> PodInfo | PluginRejection:
    """Run BeforePreFilter to BeforeFilter of all plugins; return the pod as the rest shall see it, or the rejection."""
    for plugin in profile.hooks_for(pod).before_pre_filter:
        replaced = plugin.before_pre_filter(cycle, pod)
        if isinstance(replaced, Reject | Fault):
            return PluginRejection(plugin.name, replaced)
        if replaced is not None:
            pod = replaced
    if timer is not None:
        timer.point_ended("BeforePreFilter")
    rejection = _run_restore_reservations(profile, cycle, pod)
    if rejection is not None:
        return rejection
    rejection = _run_pre_filter_plugins(profile, cycle, pod, timer)
    if timer is not None:
        timer.point_ended("PreFilter")
    if rejection is not None:
        return rejection
    for plugin in profile.plugins_at(Plugin.after_pre_filter):
        answer = plugin.after_pre_filter(cycle, pod)
        if answer is not None:
            return PluginRejection(plugin.name, answer)
    if timer is not None:
        timer.point_ended("AfterPreFilter")
    for plugin in profile.plugins_at(Plugin.before_filter):
        fault = plugin.before_filter(cycle, pod)
        if fault is not None:
            return PluginRejection(plugin.name, fault)
    return pod


def _run_restore_reservations(profile: SchedulerProfile, cycle: CycleState, pod: PodInfo) -> PluginRejection | None:
    matched = reservations_of(cycle).matched
    for plugin in profile.plugins_at(Plugin.restore_reservations) if matched else ():
        fault = plugin.restore_reservations(cycle, pod, matched)
        if fault is not None:
            return PluginRejection(plugin.name, fault, "RestoreReservation")
    return None


def _run_pre_filter_plugins(
    profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, timer: AttemptTimer | None
) -> PluginRejection | None:
    """Run PreFilter of all plugins, even after a rejection that preemption could resolve: it needs what they wrote."""
    hooks = profile.hooks_for(pod)
    skipped = set(hooks.skipped)
    rejection: PluginRejection | None = None
    if timer is not None:
        timer.lap()
    for plugin in hooks.pre_filter:
        answer = plugin.pre_filter(cycle, pod)
        if timer is not None:
            timer.plugin_ended(plugin.name, "PreFilter", answer)
        if isinstance(answer, Skip):
            skipped.add(plugin.name)
        elif isinstance(answer, Reject):
            rejection = PluginRejection(plugin.name, answer)
            if not answer.resolvable:
                break
        elif isinstance(answer, Fault):
            return PluginRejection(plugin.name, answer, "PreFilter")
        elif isinstance(answer, PreFilterResult):
            cycle.restrict_nodes(answer.node_names, plugin.name)
            if not cycle.allowed_nodes:
                rejection = no_nodes_left(cycle)
                break
    cycle.skip_filter = frozenset(skipped)
    return rejection


def no_nodes_left(cycle: CycleState) -> PluginRejection:
    """Return the rejection of a pod for which PreFilter plugins together left no node."""
    plugins = cycle.restricted_by
    named = f"plugin {plugins[0]}" if len(plugins) == 1 else f"plugin(s) [{' '.join(plugins)}] simultaneously"
    return PluginRejection(PRE_FILTER, unresolvable(f"node(s) didn't satisfy {named}"))


def run_admit(plugins: Iterable[Plugin], cycle: CycleState, pod: PodInfo) -> PluginRejection | None:
    """Run admit with the profile's hooks for the pod; return the first rejection of this very pod."""
    for plugin in plugins:
        answer = plugin.admit(cycle, pod)
        if answer is not None:
            return PluginRejection(plugin.name, answer)
    return None


def run_find_one_node(
    profile: SchedulerProfile, cycle: CycleState, pod: PodInfo
) -> PickedNode | PluginRejection | None:
    """Return the node that a plugin planned for this very pod, whether or not the pod fits there."""
    for plugin in profile.hooks_for(pod).find_one_node:
        answer = plugin.find_one_node(cycle, pod)
        if isinstance(answer, Reject | Fault):
            return PluginRejection(plugin.name, answer)
        if isinstance(answer, Skip):
            continue
        if not answer:
            words = f'FindOneNodePlugin "{plugin.name}" succeeded but produced no node for pod {pod.key}'
            return PluginRejection(plugin.name, Fault(words))
        return PickedNode(plugin.name, answer)
    return None


def run_prefer_nodes(
    profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, fits: Callable[[str], bool]
) -> PickedNode | None:
    """Return the first preferred node that fits."""
    for plugin in profile.hooks_for(pod).prefer_nodes:
        names = plugin.prefer_nodes(cycle, pod)
        if not isinstance(names, Skip):
            found = next(filter(fits, names), None)
            if found is not None:
                return PickedNode(plugin.name, found)
    return None


# One node, and dry runs on it ------------------------------------------------------------------------------------


def run_filter(plugins: Iterable[Plugin], cycle: CycleState, pod: PodInfo, node: NodeInfo) -> tuple[str, Reject] | None:
    """Return the first plugin that rejects the node, and its verdict; None when the pod fits."""
    for plugin in plugins:
        verdict = plugin.filter(cycle, pod, node)
        if verdict is not None:
            return plugin.name, unresolvable(verdict.message) if isinstance(verdict, Fault) else verdict
    return None


# Scores ----------------------------------------------------------------------------------------------------------


def run_pre_score(
    profile: SchedulerProfile,
    cycle: CycleState,
    pod: PodInfo,
    nodes: Sequence[NodeInfo],
    timer: AttemptTimer | None = None,
) -> PluginRejection | None:
    """Run BeforeScore and PreScore with the feasible nodes; return the last fault.

    `cycle.skip_score` names the plugins that are not to score: those that skip, those that are not prepared after a
    fault, and those that score as they filter and skipped the pod in PreFilter.
    """
    silent = cycle.skip_filter
    skipped = {s.name for s in profile.scorers if s.name in silent and s.plugin.scores_as_it_filters}
    failed: PluginRejection | None = None
    for plugin in profile.before_score_plugins:
        fault = plugin.before_score(cycle, pod, nodes)
        if fault is not None:
            failed = PluginRejection(plugin.name, fault, "PreScore")
    if timer is not None:
        timer.lap()
    for plugin in profile.pre_score_plugins:
        if plugin.name in skipped:
            continue
        answer = plugin.pre_score(cycle, pod, nodes)
        if timer is not None:
            timer.plugin_ended(plugin.name, "PreScore", answer)
        if isinstance(answer, Fault):
            failed = PluginRejection(plugin.name, answer, "PreScore")
        if answer is not None:
            skipped.add(plugin.name)
    cycle.skip_score = frozenset(skipped)
    return failed


def pre_score_differs(profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> bool:
    """Run PreScore again for plugins that look across nodes; return whether one skips now and did not, or reverse."""
    for plugin in profile.before_score_plugins:
        if plugin.scope is not ROW and plugin.before_score(cycle, pod, nodes) is not None:
            return True
    for plugin in profile.pre_score_plugins:
        if plugin.scope is ROW:
            continue
        answer = plugin.pre_score(cycle, pod, nodes)
        if isinstance(answer, Fault) or (answer is not None) != (plugin.name in cycle.skip_score):
            return True
    return False


# No node fits ----------------------------------------------------------------------------------------------------


def run_post_filter(
    profile: SchedulerProfile, context: PostFilterContext, timer: AttemptTimer | None = None
) -> Unschedulable:
    """Run PostFilter and AfterPostFilter for an unschedulable pod.

    The first plugin that finds a way, or knows that there is none, decides; otherwise all their reasons are reported. A
    plugin that fails is reported in the same place. There is no outcome yet where a plugin leaves `context.proposals`.
    """
    plugins = profile.plugins_at(Plugin.post_filter)
    outcome = (
        _run_post_filter_plugins(plugins, context, timer)
        if plugins
        else msgspec.structs.replace(context.decision, nominate="")
    )
    if context.proposals:
        return context.decision
    for plugin in profile.plugins_at(Plugin.after_post_filter):
        plugin.after_post_filter(context.cycle, context.pod, context)
    return outcome


def _run_post_filter_plugins(
    plugins: Sequence[Plugin], context: PostFilterContext, timer: AttemptTimer | None
) -> Unschedulable:
    if timer is not None:
        timer.lap()
    reasons: list[str] = []
    searches: list[VictimSearch] = []
    nominate: str | None = None
    for plugin in plugins:
        answer = plugin.post_filter(context.cycle, context.pod, context)
        if timer is not None:
            timer.plugin_ended(plugin.name, "PostFilter", answer)
        if context.proposals:
            break
        if isinstance(answer, Fault):
            reasons, nominate = [answer.message], None
            break
        if answer is None:
            continue
        if answer.search is not None:
            searches.append(answer.search)
        if isinstance(answer, PreemptionPlan):
            return msgspec.structs.replace(
                context.decision, post_filter="", preempt=answer, nominate=answer.node, searches=tuple(searches)
            )
        if answer.final:
            reasons, nominate = list(answer.reasons), answer.nominate
            break
        reasons += answer.reasons
        nominate = answer.nominate if answer.nominate is not None else nominate
    return msgspec.structs.replace(
        context.decision, post_filter=", ".join(reasons), nominate=nominate, searches=tuple(searches)
    )


# Reservations ----------------------------------------------------------------------------------------------------


def run_filter_reservation(
    profile: SchedulerProfile,
    cycle: CycleState,
    pod: PodInfo,
    reservation: MatchedReservation,
    node: NodeInfo,
    *,
    nominating: bool = False,
) -> PluginRejection | None:
    """Run FilterReservation for a reservation that the pod matches, and FilterNominateReservation if `nominating`."""
    for plugin in profile.plugins_at(Plugin.filter_reservation):
        answer = plugin.filter_reservation(cycle, pod, reservation, node)
        if answer is not None:
            return PluginRejection(plugin.name, answer, "FilterReservation")
    for plugin in profile.plugins_at(Plugin.filter_nominated_reservation) if nominating else ():
        answer = plugin.filter_nominated_reservation(cycle, pod, reservation, node)
        if answer is not None:
            return PluginRejection(plugin.name, answer, "FilterNominateReservation")
    return None


def run_score_reservation(
    profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, reservation: MatchedReservation, node: NodeInfo
) -> int:
    """Return the sum of all plugins' scores of a reservation. Raise ValueError for a score outside 0 to 100."""
    total = 0
    for plugin in profile.plugins_at(Plugin.score_reservation):
        score = plugin.score_reservation(cycle, pod, reservation, node)
        if not 0 <= score <= MAX_SCORE:
            whose = f'plugin "{plugin.name}" returns an invalid score {score} for reservation {reservation.name}'
            raise ValueError(f"{whose}, it should be in the range of [0, {MAX_SCORE}]")
        total += score
    return total


# After the choice ------------------------------------------------------------------------------------------------


def run_nominate_reservation(attempt: SchedulingAttempt) -> PluginRejection | None:
    """Settle which reservation the pod takes on its chosen node before it is counted there; return the rejection."""
    cycle, pod = attempt.cycle, attempt.pod
    if cycle.restored_nodes is None:  # there is nothing for it to take but free resources
        return None
    node = attempt.node
    filter_results = attempt.filter_results
    if filter_results is not None and filter_results.node_views is not None:
        node = filter_results.node_views.node(node.row) or node
    for plugin in attempt.profile.plugins_at(Plugin.nominate_reservation):
        answer = plugin.nominate_reservation(cycle, pod, node)
        if answer is not None:
            return PluginRejection(plugin.name, answer, "Reserve")
    return None


def run_reserve(attempt: SchedulingAttempt, timer: AttemptTimer | None = None) -> PluginRejection | None:
    """Run Reserve of all plugins that did not skip the pod; after a rejection the caller runs Unreserve."""
    cycle, pod, node = attempt.cycle, attempt.pod, attempt.node
    if timer is not None:
        timer.lap()
    try:
        for plugin in attempt.profile.reserve_plugins(cycle.skip_filter):
            answer = plugin.reserve(cycle, pod, node)
            if timer is not None:
                timer.plugin_ended(plugin.name, "Reserve", answer)
            if answer is not None:
                return PluginRejection(plugin.name, answer, "Reserve")
    finally:
        if cycle.restored_nodes is not None:  # from here on what was nominated is taken, or it is not
            for plugin in attempt.profile.plugins_at(Plugin.nominate_reservation):
                plugin.remove_nominated_reservation(cycle, pod)
    return None


def can_reserve(plugins: Sequence[Plugin], cycle: CycleState, pod: PodInfo, node: NodeInfo) -> bool:
    """Return whether Reserve of these plugins succeeds; it is undone at once. `cycle` is a fork made for this."""
    asked: list[Plugin] = []
    try:
        for plugin in plugins:
            asked.append(plugin)
            if plugin.reserve(cycle, pod, node) is not None:
                return False
        return True
    finally:
        for plugin in reversed(asked):
            plugin.unreserve(cycle, pod, node.name)


def run_unreserve(attempt: SchedulingAttempt) -> None:
    """Run Unreserve of all plugins in reverse order; it must work for plugins whose Reserve was never run."""
    cycle, pod, node_name = attempt.cycle, attempt.pod, attempt.node_name
    for plugin in reversed(attempt.profile.plugins_at(Plugin.unreserve)):
        plugin.unreserve(cycle, pod, node_name)


def run_permit(attempt: SchedulingAttempt, timer: AttemptTimer | None = None) -> dict[str, float] | PluginRejection:
    """Run Permit; return how long each plugin makes the pod wait at most, in seconds, or the first rejection."""
    waits: dict[str, float] = {}
    plugins = attempt.profile.hooks_for(attempt.pod).permit
    if not plugins:
        return waits
    cycle, pod, node = attempt.cycle, attempt.pod, attempt.node
    if timer is not None:
        timer.lap()
    for plugin in plugins:
        answer = plugin.permit(cycle, pod, node)
        if timer is not None:
            timer.plugin_ended(plugin.name, "Permit", answer)
        if isinstance(answer, Wait):
            waits[plugin.name] = answer.timeout_s
        elif answer is not None:
            return PluginRejection(plugin.name, answer, "Permit")
    return waits


# Failures ----------------------------------------------------------------------------------------------------------


def run_attempt_failed(
    profile: SchedulerProfile, pod: PodInfo, message: str, rejectors: frozenset[str], on_error: Callable[[str], None]
) -> FailureOverride | None:
    """Tell all plugins of a failed attempt until one overrides what becomes of it.

    `on_error` receives the name of a plugin that raises while its exception is handled.
    """
    for plugin in profile.plugins_at(Plugin.on_attempt_failed):
        try:
            override = plugin.on_attempt_failed(pod, message, rejectors)
        except Exception:  # noqa: BLE001 - the pod is back in the queue; a plugin's error must not change that
            on_error(plugin.name)
            continue
        if override is not None:
            return override
    return None
