"""Run the extension points of the binding cycle: PreBind, Bind and PostBind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.attempt import SchedulingAttempt
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.plugin_timing import AttemptTimer
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import PluginRejection
from koord.scheduler.framework.verdict import BindEffect, Fault, PodPatch, PreBindActions, Reject, Skip, StatusBinding

PreBindMethod = Callable[[CycleState, PodInfo, str], BindEffect | Reject | Fault | None]


async def run_pre_bind(
    attempt: SchedulingAttempt,
    execute: Callable[[PreBindActions], Awaitable[Fault | None]],
    timer: AttemptTimer | None = None,
) -> PodPatch | PluginRejection | None:
    """Run PreBind, with `execute` for the actions that plugins return, and ApplyPatch; return what is left to write."""
    profile, cycle, pod, node_name = attempt.profile, attempt.cycle, attempt.pod, attempt.node_name
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    with_others = False
    for plugin, pre_bind in _pre_bind_methods(profile, pod):
        if timer is not None:
            timer.lap()
        effect = pre_bind(cycle, pod, node_name)
        if isinstance(effect, PreBindActions):
            fault = await execute(effect)
            effect = fault if fault is not None else effect.pod_patch
        if timer is not None:
            timer.plugin_ended(plugin.name, "PreBind", effect)
        if isinstance(effect, Reject | Fault):
            return PluginRejection(plugin.name, effect, "PreBind")
        if effect is not None:
            annotations.update(effect.annotations)
            labels.update(effect.labels)
            with_others |= effect.bound_with_others
    if not annotations and not labels:
        return None
    pod_patch = PodPatch(annotations, labels, with_others)
    for plugin in profile.plugins_at(Plugin.apply_patch):  # the first plugin that does not skip decides
        answer = plugin.apply_patch(cycle, pod, node_name, pod_patch)
        if isinstance(answer, Fault):
            return PluginRejection(plugin.name, answer, "PreBind")
        if isinstance(answer, PodPatch):
            return msgspec.structs.replace(answer, bound_with_others=with_others)
    return pod_patch


def _pre_bind_methods(profile: SchedulerProfile, pod: PodInfo) -> list[tuple[Plugin, PreBindMethod]]:
    """Return what runs at PreBind: for a reserve pod PreBindReservation of those that have it, in the same order."""
    plugins = profile.plugins_at(Plugin.pre_bind)
    if not pod.is_reserve_pod:
        return [(plugin, plugin.pre_bind) for plugin in plugins]
    own = profile.plugins_at(Plugin.pre_bind_reservation)
    methods: list[tuple[Plugin, PreBindMethod]] = [
        (plugin, plugin.pre_bind_reservation if plugin in own else plugin.pre_bind) for plugin in plugins
    ]
    return methods + [(plugin, plugin.pre_bind_reservation) for plugin in own if plugin not in plugins]


def run_bind(attempt: SchedulingAttempt) -> tuple[str, PreBindActions | StatusBinding] | PluginRejection | None:
    """Return the first plugin that does not skip, with its effect in place of a binding; None for the usual binding."""
    for plugin in attempt.profile.plugins_at(Plugin.bind):
        effect = plugin.bind(attempt.cycle, attempt.pod, attempt.node_name)
        if isinstance(effect, Skip):
            continue
        if isinstance(effect, Reject | Fault):
            return PluginRejection(plugin.name, effect, "Bind")
        return (plugin.name, effect) if isinstance(effect, PreBindActions | StatusBinding) else None
    return None


def run_post_bind(
    attempt: SchedulingAttempt, on_error: Callable[[str], None], timer: AttemptTimer | None = None
) -> None:
    """Run PostBind of all plugins. The pod is bound: a plugin that raises does not undo that.

    `on_error` receives the plugin's name while its exception is handled.
    """
    if timer is not None:
        timer.lap()
    for plugin in attempt.profile.plugins_at(Plugin.post_bind):
        try:
            plugin.post_bind(attempt.cycle, attempt.pod, attempt.node_name)
        except Exception:  # noqa: BLE001 - see above
            on_error(plugin.name)
        if timer is not None:
            timer.plugin_ended(plugin.name, "PostBind", None)
