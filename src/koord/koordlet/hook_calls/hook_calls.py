"""The calls of hooks by a runtime: decide, write the pod's own cgroup, and keep account of what went wrong.

A failed hook never keeps a container from starting unless the operator's policy is Fail: the container then starts with
what the other hooks decided, its pod gets an Event, and the reconciler tries again.

The account also has the reconciler's last decisions: who they apply to, and which problems are new.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from koord.api.model import ObjectReference
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.agent_status import HookStatus
from koord.koordlet.cgroup_writer.effects import FileWriteResult, WriteCgroup, WriteOutcome
from koord.koordlet.hooks import registry, resctrl_pod
from koord.koordlet.hooks.hook import ContainerContext, HookPlan, HookStage, NodeRules, PodContext
from koord.koordlet.hooks.registry import HookDecision, HookProblem
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies import runtime_hooks
from koord.koordlet.strategies.runtime_hooks import HookedPod, HookLevel
from koord.telemetry.clock import Clock
from koord.values import timestamp

_KEPT = 512  # durations of each hook from which percentiles are taken

HookObserver = Callable[[str, str, bool, float], None]  # hook, stage, success, seconds


class HookAccount(msgspec.Struct):
    """The account of one hook. Times are in seconds since the epoch, durations in seconds."""

    calls: int = 0
    failures: int = 0
    last_applied_s: float | None = None
    last_failure_s: float | None = None
    last_failure: str = ""
    durations_s: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_KEPT))

    def percentile_ms(self, percent: int) -> float | None:
        """Return the duration that this percentage of the last calls did not exceed; None without any."""
        if not self.durations_s:
            return None
        ordered = sorted(self.durations_s)
        return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] * 1000


class HookStatistics:
    """The accounts of all hooks; `observe` is told of every call, for metrics."""

    def __init__(self, observe: HookObserver) -> None:
        self._observe = observe
        self._accounts: dict[str, HookAccount] = {}

    def account(self, hook: str) -> HookAccount:
        return self._accounts.setdefault(hook, HookAccount())

    def record_call(self, hook: str, stage: str, seconds: float, *, success: bool) -> None:
        account = self.account(hook)
        account.calls += 1
        account.durations_s.append(seconds)
        self._observe(hook, stage, success, seconds)

    def record_applied(self, hook: str, now_s: float) -> None:
        self.account(hook).last_applied_s = now_s

    def record_failure(self, hook: str, now_s: float, problem: str) -> None:
        account = self.account(hook)
        account.failures += 1
        account.last_failure_s, account.last_failure = now_s, problem


_LOG = logging.getLogger(__name__)

STARTING_S = 120.0  # how long a pod that no list has counts as starting
EVENT_INTERVAL_S = 600.0  # between two Events about one hook of one pod
EVENT_REASON = "RuntimeHookFailed"
_MAX_EVENTS = 1024  # pods and hooks of which the last Event is remembered
_FAILED_WRITES = (WriteOutcome.REJECTED, WriteOutcome.FAILED, WriteOutcome.INVALID)

EventCallback = Callable[[ObjectReference, str, str], None]  # regarding, reason, message


class HookPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's flags about calls. With `fails` a failed hook is the runtime's failure, too."""

    fails: bool = False
    disabled_stages: frozenset[str] = frozenset()
    safe_mode: bool = False
    runtime: str = "containerd"


class FailedHooks(msgspec.Struct, frozen=True):
    """The hooks that failed under the policy Fail, as the runtime is told."""

    message: str


class HookCalls:
    """HookCalls answers all calls of one agent. `read_rules` returns the rules of the node as they are now; `write`
    brings files to their values; `prepare_pod` makes what the pod's containers need to start, and says what failed.
    """

    def __init__(
        self,
        layout: CgroupLayout,
        clock: Clock,
        policies: HookPolicies,
        statistics: HookStatistics,
        read_rules: Callable[[], NodeRules],
        write: Callable[[Sequence[WriteCgroup]], Sequence[FileWriteResult]],
        on_event: EventCallback,
        prepare_pod: Callable[[HookDecision], str],
    ) -> None:
        self.layout = layout
        self.policies = policies
        self.statistics = statistics
        self._clock = clock
        self._read_rules = read_rules
        self._write = write
        self._on_event = on_event
        self._prepare_pod = prepare_pod
        self._starting: dict[str, tuple[PodMeta, float]] = {}
        self._starting_pods: tuple[PodMeta, ...] = ()
        self._last_events: dict[tuple[str, str], float] = {}

    def start_pod(self, context: PodContext) -> HookDecision | FailedHooks | None:
        """Decide for a new pod and write its cgroup at once; None where hooks are not to be called."""
        stage = HookStage.PRE_RUN_POD_SANDBOX
        if self._is_off(stage):
            return None
        pod = PodMeta(
            uid=context.uid,
            namespace=context.namespace,
            name=context.name,
            group=context.group,
            phase="Pending",
            labels=context.labels,
            annotations=context.annotations,
            kube_qos=context.kube_qos,
            runtime_class=context.runtime_class,
        )
        hooked = runtime_hooks.decide_starting_pod(pod, self._read_rules(), stage, self._timed(stage))
        decision = hooked.groups[0].decision
        if hooked.effects:
            self._starting[pod.uid] = (pod, self._clock.monotonic())
            self._renew_starting()
            self._note_refusals(context, self._write(hooked.effects))
        unprepared = self._prepare_pod(decision)
        if unprepared:
            self.record_problem(context, HookProblem(hook=resctrl_pod.NAME, problem=unprepared))
        return self._conclude(context, decision)

    def decide_container(self, context: ContainerContext, stage: HookStage) -> HookDecision | FailedHooks | None:
        """Decide for a container that is made or updated; None where hooks are not to be called."""
        if self._is_off(stage):
            return None
        decision = registry.decide_container(context, self._read_rules(), stage, call=self._timed(stage))
        return self._conclude(context.pod, decision)

    def forget_pod(self, uid: str) -> None:
        if self._starting.pop(uid, None) is not None:
            self._renew_starting()

    def starting(self, listed: Mapping[str, object]) -> tuple[PodMeta, ...]:
        """Return the pods that started and are in no list of pods yet; it is the same tuple until they change."""
        if self._starting:
            now = self._clock.monotonic()
            gone = [uid for uid, (_, at) in self._starting.items() if uid in listed or now - at > STARTING_S]
            for uid in gone:
                del self._starting[uid]
            if gone:
                self._renew_starting()
        return self._starting_pods

    def record_problem(self, pod: PodContext, problem: HookProblem) -> None:
        """Record a hook's problem: the account, one log line, and an Event on the pod now and then."""
        self.statistics.record_failure(problem.hook, self._clock.time(), f"{pod.full_name}: {problem.problem}")
        key, now = (pod.uid, problem.hook), self._clock.monotonic()
        last = self._last_events.get(key)
        if last is not None and now - last < EVENT_INTERVAL_S:
            return
        if len(self._last_events) >= _MAX_EVENTS:
            self._last_events = {one: at for one, at in self._last_events.items() if now - at < EVENT_INTERVAL_S}
        self._last_events[key] = now
        _LOG.warning("hook %s of pod %s: %s", problem.hook, pod.full_name, problem.problem, exc_info=problem.fault)
        if pod.uid and pod.name:
            regarding = ObjectReference(
                api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid
            )
            self._on_event(regarding, EVENT_REASON, f"{problem.hook}: {problem.problem}")

    def _is_off(self, stage: HookStage) -> bool:
        return self.policies.safe_mode or stage.value in self.policies.disabled_stages

    def _conclude(self, pod: PodContext, decision: HookDecision) -> HookDecision | FailedHooks:
        for hook in decision.applied:
            self.statistics.record_applied(hook, self._clock.time())
        for problem in decision.problems:
            self.record_problem(pod, problem)
        if decision.problems and self.policies.fails:
            return FailedHooks("; ".join(f"{one.hook}: {one.problem}" for one in decision.problems))
        return decision

    def _note_refusals(self, pod: PodContext, results: Sequence[FileWriteResult]) -> None:
        for result in results:
            if result.status in _FAILED_WRITES and isinstance(result.effect, WriteCgroup):
                text = f"{result.effect.file} {result.effect.value}: {result.detail or result.status.value}"
                self.record_problem(pod, HookProblem(hook=result.effect.owner, problem=text))

    def _renew_starting(self) -> None:
        self._starting_pods = tuple(pod for pod, _ in self._starting.values())

    def _timed(self, stage: HookStage) -> registry.HookCaller:
        def call(hook: str, decide: Callable[[], HookPlan]) -> HookPlan:
            began = self._clock.monotonic()
            success = False
            try:
                plan = decide()
                success = not plan.problem
                return plan
            finally:
                seconds = self._clock.monotonic() - began
                self.statistics.record_call(hook, stage.value, seconds, success=success)

        return call


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
