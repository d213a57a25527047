"""The koordlet of one simulated node: the same strategies and reports as the real one, on a machine in memory.

Synchronous: `advance` moves the machine on by one step and runs what is due. The API server is left to
`cluster_agents`. The node's runtime asks for hooks in the same process, so no call takes time. What the agent gave to
the cgroup files of its machine is kept: by whom, why and when.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import NodeMetricSpec, NodeMetricStatus
from koord.host.cgroup.knob import PER_DISK_FILES
from koord.koordlet.agent_status import HookConnection, HooksStatus, InterferenceStatus
from koord.koordlet.cgroup_writer.effects import FileWriteResult, WriteCgroup, WriteOutcome
from koord.koordlet.collect.collector import CollectorStatuses, PluginCollectors
from koord.koordlet.container_values import AppliedValue, KernelValue
from koord.koordlet.hook_calls.hook_calls import HookStatistics, ReconciledHooks, hook_statuses, time_text
from koord.koordlet.hooks.hook import HookSettings
from koord.koordlet.hooks.registry import HookDecision, HookEntry
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.metrics import KoordletMetrics
from koord.koordlet.plugin import KoordletPlugins
from koord.koordlet.reporters.builders import node_metric, reclaimable, usage_models
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies import interference_report, interference_view, runtime_hooks
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.interference_report import InterferenceNews
from koord.koordlet.strategies.interference_view import InterferenceState
from koord.koordlet.strategies.runner import StrategyResult, StrategyRunner
from koord.koordlet.strategies.runtime_hooks import HookedPod, RuntimeHooksState
from koord.koordlet.strategies.strategy import StrategySettings
from koord.sim.machine.cgroup_files import RESTORE
from koord.sim.machine.simulated_machine import (
    ContainerDemand,
    MachineStepResult,
    SimulatedHardware,
    SimulatedMachine,
    record_performance,
    record_samples,
)

TRAIN_INTERVAL_S = 60.0
EXPIRE_INTERVAL_S = 300.0

_LOG = logging.getLogger(__name__)
_RUNTIME = "simulated"


class SimulatedAppliedFiles:
    """Implements `koord.koordlet.container_values.AppliedFiles` from the results of strategies."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._values: dict[str, dict[str, AppliedValue]] = {}  # by group and knob
        self._refusals: dict[str, dict[str, str]] = {}
        self._pods: tuple[PodMeta, ...] = ()

    def record(self, now_s: float, results: Iterable[FileWriteResult]) -> None:
        for result in results:
            effect = result.effect
            if isinstance(effect, WriteCgroup) and effect.file not in PER_DISK_FILES:
                self._record(now_s, effect, result)

    def forget_removed(self, pods: tuple[PodMeta, ...]) -> None:
        """Forget groups that are gone with their pods, so that memory is bounded by the pods that exist."""
        if pods is self._pods:
            return
        self._pods = pods
        for known in (self._values, self._refusals):
            for group in [group for group in known if not self._machine.has_group(group)]:
                del known[group]

    def applied(self, group: str) -> Mapping[str, AppliedValue]:
        return self._values.get(group, {})

    def refusal(self, group: str, knob: str) -> str:
        return self._refusals.get(group, {}).get(knob, "")

    def read(self, group: str, knob: str, wanted: str) -> KernelValue:
        found = self._machine.read_knob(group, knob)
        return KernelValue(value=found, differs=found is not None and found != wanted)

    def _record(self, now_s: float, effect: WriteCgroup, result: FileWriteResult) -> None:
        group, file = effect.group, effect.file
        if effect.cause == RESTORE or not result.is_applied:
            self._values.get(group, {}).pop(file, None)
            if not result.is_applied and result.status is not WriteOutcome.VANISHED:
                self._refusals.setdefault(group, {})[file] = result.detail or result.status.value
            return
        self._refusals.get(group, {}).pop(file, None)
        values = self._values.setdefault(group, {})
        known = values.get(file)
        written_s = now_s if result.status is WriteOutcome.WRITTEN else None
        if written_s is None and known is not None and known.value == effect.value:
            if known.owner == effect.owner and known.why == effect.why:
                return
            written_s = known.written_s
        values[file] = AppliedValue(value=effect.value, owner=effect.owner, why=effect.why, written_s=written_s)


class SimulatedHookAccount:
    def __init__(self, gates: frozenset[str], plugins: Sequence[HookEntry]) -> None:
        """`plugins` are the hooks of other packages."""
        self._gates = gates
        self._plugins = plugins
        self._statistics = HookStatistics(lambda hook, stage, success, seconds: None)
        self._reconciled = ReconciledHooks(self._statistics)
        self._since_s: float | None = None
        self.pods: Mapping[str, HookedPod] = {}  # what hooks last decided, by uid

    def note(self, now_s: float, state: RuntimeHooksState | None) -> None:
        """Take account of a run of the hooks; None is a run that failed before it decided anything."""
        if self._since_s is None:
            self._since_s = now_s
        if state is None:
            return
        self._note_made(now_s, state.pods)
        self.pods = state.pods
        for _, problem in self._reconciled.note(now_s, state.pods.values()):
            self._statistics.record_failure(problem.hook, now_s, problem.problem)

    def _note_made(self, now_s: float, pods: Mapping[str, HookedPod]) -> None:
        """Take account of the hooks of containers that were made since the last run."""
        known = {group.group for pod in self.pods.values() for group in pod.groups}
        for pod in pods.values():
            for group in pod.groups if pod is not self.pods.get(pod.pod.uid) else ():
                made = group.creation(pod.rules) if group.group not in known else HookDecision()
                for hook in made.applied:
                    self._statistics.record_applied(hook, now_s)
                for problem in made.problems:
                    self._statistics.record_failure(problem.hook, now_s, problem.problem)

    def status(self) -> HooksStatus:
        connected = self._since_s is not None
        connection = HookConnection(
            name=_RUNTIME,
            connected=connected,
            state="connected" if connected else "no hook has run yet",
            since=time_text(self._since_s),
            details={"runtime": _RUNTIME},
        )
        hooks = hook_statuses(self._gates, self.pods.values(), self._statistics, plugins=self._plugins)
        return HooksStatus(connections=(connection,), hooks=hooks)


class SimulatedAgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of simulated agents. `step_s` is how far time moves at once, as a second does for a real agent."""

    gates: frozenset[str]
    plugins: KoordletPlugins = KoordletPlugins()  # of other packages
    step_s: float = 10.0
    cold_start_s: float = 24 * 3600.0  # nothing is reclaimed of the requests of pods younger than that


class KilledContainer(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    container: str  # its name
    why: str


class AgentStep(msgspec.Struct, frozen=True, kw_only=True):
    moment: MachineStepResult
    ran: tuple[StrategyResult, ...]
    killed: tuple[KilledContainer, ...]

    @property
    def evictions(self) -> tuple[EvictionRequest, ...]:
        return tuple(one for ran in self.ran for one in ran.evictions)


class SimulatedAgent:
    def __init__(
        self, name: str, hardware: SimulatedHardware, system: ContainerDemand, settings: SimulatedAgentSettings
    ) -> None:
        self.name = name
        self.machine = SimulatedMachine(hardware)
        self._settings = settings
        self._system = system
        self.policy = node_metric.ReportPolicy()
        step_s = settings.step_s
        keep = metric_kind.retention_s(aggregate_s=self.policy.aggregate_s, longest_s=int(self.policy.longest_s))
        self.store = SeriesStore(keep, default_keep_s=max(60, int(4 * step_s)), interval_s=step_s)
        plugins, unused = settings.plugins.for_another_agent()
        for warning in unused:
            _LOG.warning("node %s: %s", name, warning)
        self.strategy_runner = StrategyRunner(
            self.machine,
            self.store,
            settings.gates,
            StrategySettings(collect_interval_s=step_s, hooks=plugins.with_hooks(HookSettings())),
            plugins.all_strategies(),
        )
        self.collectors = CollectorStatuses(tuple(one.name for one in plugins.collectors))
        self._plugin_collectors = PluginCollectors(plugins.collectors, self.store, self.collectors)
        self._measures_performance = not settings.gates.isdisjoint(
            ("CPICollector", "PSICollector", interference_view.GATE)
        )
        self._told_interference: InterferenceState | None = None
        self._models = usage_models.UsageModels()
        self._trained_s = self._expired_s = float("-inf")
        self._stepped_s: float | None = None
        self.applied_files = SimulatedAppliedFiles(self.machine)
        self.hooks = SimulatedHookAccount(settings.gates, plugins.hooks)
        self.gpus = hardware.gpus
        self.last_step: AgentStep | None = None
        self.last_runs: dict[str, tuple[float, StrategyResult]] = {}  # by strategy: when it last ran, and what it did

    @cached_property
    def metrics(self) -> KoordletMetrics:
        """The agent's metrics; see `koord.sim.agents.http`."""
        return KoordletMetrics(self.name)

    def advance(self, now_s: float, facts: NodeInputs, wishes: Mapping[str, ContainerDemand]) -> AgentStep:
        """Advance to `now_s` and run what is due. `wishes` is the resource demand by container id."""
        since = self._stepped_s
        step_s = self._settings.step_s if since is None else max(now_s - since, 0.001)
        self._stepped_s = now_s
        self.machine.set_pods(facts.pods)
        hooked = self.strategy_runner.tick_changes(now_s, facts)  # as a runtime asks for them before it starts pods
        moment = self.machine.step(now_s, step_s, wishes, self._system)
        record_samples(self.store, moment)
        if self._measures_performance:
            record_performance(self.store, moment)
        self._plugin_collectors.sample(now_s, now_s, facts.pods)
        ran = (*hooked, *self.strategy_runner.tick(now_s, facts))
        self.last_runs.update({one.strategy: (now_s, one) for one in ran})
        for one in ran:
            self.applied_files.record(now_s, one.results)
        self.applied_files.forget_removed(facts.pods)
        if any(one.strategy == runtime_hooks.NAME for one in ran):
            self.hooks.note(now_s, self.strategy_runner.state_of(runtime_hooks.NAME))
        if now_s - self._trained_s >= TRAIN_INTERVAL_S:
            self._trained_s = now_s
            self._models.train(now_s, usage_models.training_samples(self.store, now_s, facts.pods))
        if now_s - self._expired_s >= EXPIRE_INTERVAL_S:
            self._expired_s = now_s
            self.store.expire(now_s)
            self._models.expire(now_s)
        self.last_step = AgentStep(moment=moment, ran=ran, killed=_killed_containers(facts.pods, moment))
        return self.last_step

    def interference_news(self) -> list[InterferenceNews]:
        """Return what is to be told of interference since the last call."""
        state = self.strategy_runner.state_of(interference_view.OWNER)
        if not isinstance(state, InterferenceState) or state is self._told_interference:
            return []
        news, self._told_interference = interference_report.interference_news(self._told_interference, state), state
        return news

    def interference_status(self, pods: tuple[PodMeta, ...], namespace: str, name: str) -> InterferenceStatus:
        if interference_view.OWNER not in self.strategy_runner.enabled:
            return interference_report.SWITCHED_OFF
        state = self.strategy_runner.state_of(interference_view.OWNER)
        return interference_report.interference_status(state, pods, namespace=namespace, name=name)

    def set_collect_policy(self, spec: NodeMetricSpec) -> node_metric.ReportPolicy:
        self.policy = node_metric.report_policy(spec)
        return self.policy

    def report(self, now_s: float, facts: NodeInputs) -> NodeMetricStatus | node_metric.ReportWithheld:
        return node_metric.build_node_metric(
            node_metric.NodeMetricView(
                series=self.store,
                now_s=now_s,
                policy=self.policy,
                pods=facts.pods,
                prediction=self.prediction(now_s, facts),
                max_sample_age_s=3 * self._settings.step_s,
            )
        )

    def prediction(self, now_s: float, facts: NodeInputs) -> reclaimable.PeakPrediction | None:
        node = facts.node
        allocatable = None if node is None else node.allocatable
        seen = usage_models.reclaimable_view(
            self._models,
            now_s,
            facts.pods,
            None
            if not allocatable
            else reclaimable.ResourceAmount(allocatable.get(CPU, 0), allocatable.get(MEMORY, 0)),
            usage_models.PredictionLimits(cold_start_s=self._settings.cold_start_s),
        )
        found = reclaimable.decide_reclaimable(seen)
        return found.result if isinstance(found, reclaimable.Reclaimable) else None


def _killed_containers(pods: tuple[PodMeta, ...], moment: MachineStepResult) -> tuple[KilledContainer, ...]:
    if not moment.kills:
        return ()
    found = {one.group: (pod.uid, one.name) for pod in pods for one in pod.containers}
    return tuple(
        KilledContainer(uid=found[kill.group][0], container=found[kill.group][1], why=kill.why)
        for kill in moment.kills
        if kill.group in found
    )
