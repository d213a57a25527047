"""The reconciler's last decisions in the account of hooks: who they apply to, and which problems are new."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from koord.koordlet.hook_calls.hook_calls import HookStatistics
from koord.koordlet.hook_status import HookStatus
from koord.koordlet.hooks import registry
from koord.koordlet.hooks.registry import HookProblem
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.runtime_hooks import HookedPod, HookLevel
from koord.values import timestamp


class ReconciledHooks:
    """ReconciledHooks follows the reconciler from run to run, so that a problem counts once while it lasts."""

    def __init__(self, statistics: HookStatistics) -> None:
        self._statistics = statistics
        self._reported: set[tuple[str, str, str]] = set()  # uid of the pod, hook, problem

    def note(self, now_s: float, pods: Collection[HookedPod]) -> list[tuple[PodMeta, HookProblem]]:
        """Record the hooks that apply, and return the problems that are new."""
        problems: set[tuple[str, str, str]] = set()
        new: list[tuple[PodMeta, HookProblem]] = []
        for pod in pods:
            for group in pod.groups:
                for hook in group.decision.applied:
                    self._statistics.record_applied(hook, now_s)
                for problem in group.decision.problems:
                    key = (pod.pod.uid, problem.hook, problem.problem)
                    if key not in problems and key not in self._reported:
                        new.append((pod.pod, problem))
                    problems.add(key)
        self._reported = problems
        return new


def hook_statuses(
    gates: frozenset[str],
    pods: Collection[HookedPod],
    statistics: HookStatistics,
    problems: Mapping[str, str] | None = None,
    *,
    plugins: Sequence[registry.HookEntry] = (),
) -> tuple[HookStatus, ...]:
    """Return where each hook stands, in the order in which they run. `problems` keep hooks from acting, by name;
    `plugins` are hooks of other packages.
    """
    applied = [
        (pod.pod.uid, group.level, {*group.decision.applied, *group.creation(pod.rules).applied})
        for pod in pods
        for group in pod.groups
    ]
    return tuple(
        _hook_status(
            one,
            gates,
            [(uid, level) for uid, level, names in applied if one.name in names],
            statistics,
            (problems or {}).get(one.name, ""),
        )
        for one in (*registry.HOOKS, *plugins)
    )


def _hook_status(
    hook: registry.HookEntry,
    gates: frozenset[str],
    groups: Collection[tuple[str, HookLevel]],
    statistics: HookStatistics,
    problem: str,
) -> HookStatus:
    """Return where a hook stands that applies to these groups, each with the uid of its pod."""
    account = statistics.account(hook.name)
    enabled = registry.is_enabled(hook, gates)
    return HookStatus(
        name=hook.name,
        gate=hook.gate,
        enabled=enabled,
        why_off="" if enabled else f"feature gate {hook.gate} is off",
        pods=len({uid for uid, _ in groups}),
        containers=sum(level == "container" for _, level in groups),
        last_applied=time_text(account.last_applied_s),
        calls=account.calls,
        failures=account.failures,
        last_failure=problem or account.last_failure,
        p50_ms=account.percentile_ms(50),
        p99_ms=account.percentile_ms(99),
    )


def time_text(at_s: float | None) -> str:
    """Return a time as it is served; "" for never."""
    return "" if at_s is None else timestamp.text(datetime.fromtimestamp(at_s, UTC))
