"""What hooks decide besides cgroup values, brought about on the node: OOM scores, resctrl groups, core scheduling,
network limits.

Each part works and fails alone. Cgroup values are written by the strategy; this follows after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence

from koord.host import core_sched as host_core_sched
from koord.host import resctrl, tc
from koord.host.cgroup import usage
from koord.host.cgroup.knob import GROUP_IDENTITY_ENABLED, SCHED_CORE
from koord.host.core_sched import PrctlCookies
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.host.tc import TrafficControl, TrafficOutcome
from koord.host.traffic_class import TrafficPlan
from koord.koordlet.cgroup_writer.effects import AddTasks, FileEffect, WriteSchemata, WriteSystem
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.core_sched_manager import CoreSchedManager, CoreSchedOutcome, CoreSchedRequest
from koord.koordlet.hooks import core_sched, oom_score_adj, resctrl_pod, terway_qos
from koord.koordlet.hooks import tc as tc_hook
from koord.koordlet.hooks.contexts import pod_context_of_meta
from koord.koordlet.hooks.hook import PodContext
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.strategies.file_ownership import CORE_SCHED_SWITCH, earlier_owners
from koord.koordlet.strategies.runtime_hooks import HookedGroup, HookedPod, RuntimeHooksState
from koord.koordlet.terway_files import FileOutcome, TerwayFiles

_LOG = logging.getLogger(__name__)

TC_RECORD = "tc.json"
_ENDED = 2  # ENOENT: the process ended meanwhile


class NodeActions:
    """NodeActions carries out one state of the hooks at a time."""

    def __init__(self, host: Host, control_loop: ControlLoop, gates: frozenset[str], state_dir: str) -> None:
        self._host = host
        self._control_loop = control_loop
        self._gates = gates
        self._cores = CoreSchedManager(control_loop.tree, PrctlCookies(host))
        self._terway = TerwayFiles(host, f"{host.paths.var_run}/terway-qos")
        self._tc_record = f"{state_dir}/{TC_RECORD}"
        self._traffic = TrafficControl(host, self._tc_record)
        self._scores: dict[str, str] = {}  # the OOM score that a group's processes had before, by group
        self._problems = {
            name: ProblemLog(_LOG, f"hook {name} cannot act", f"hook {name} acts again")
            for name in (core_sched.NAME, terway_qos.NAME, tc_hook.NAME, oom_score_adj.NAME, resctrl_pod.NAME)
        }

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what keeps each part from acting, by hook; empty texts for those that act."""
        return {name: log.problem for name, log in self._problems.items()}

    async def apply(self, state: RuntimeHooksState) -> None:
        """Carry out what hooks decided. tc is a program that is waited for, in a thread."""
        groups = [(pod, group) for pod in state.pods.values() for group in pod.groups]
        if oom_score_adj.NAME in self._gates:
            self._apply_scores(groups)
        if "Resctrl" in self._gates:
            self._apply_resctrl(state)
        if "CoreSched" in self._gates:
            self._apply_core_sched(state, groups)
        contexts = [pod_context_of_meta(pod.pod) for pod in state.pods.values()]
        if "TerwayQoS" in self._gates:
            self._apply_terway(state, contexts)
        if "TCNetworkQoS" in self._gates:
            await self._apply_traffic(state, contexts)
        elif self._host.exists(self._tc_record):
            await asyncio.to_thread(self._traffic.apply, TrafficPlan(enabled=False))

    # OOM scores ----------------------------------------------------------------------------------------------------

    def _apply_scores(self, groups: Sequence[tuple[HookedPod, HookedGroup]]) -> None:
        """Set the scores of all processes; a container that loses its annotation gets the score back that it had."""
        failed: list[IoError] = []
        wanted = {
            group.group: str(group.decision.oom_score_adj)
            for _, group in groups
            if group.decision.oom_score_adj is not None
        }
        kept = {
            group.group
            for _, group in groups
            if any(problem.hook == oom_score_adj.NAME for problem in group.decision.problems)
        }
        alive = {group.group for _, group in groups}
        for name, original in list(self._scores.items()):
            if name not in wanted and name not in kept:
                del self._scores[name]
                if name in alive:
                    failed += self._write_scores(name, original)
        for name, score in wanted.items():
            failed += self._write_scores(name, score, remember=True)
        self._tell(oom_score_adj.NAME, str(failed[0]) if failed else "")

    def _write_scores(self, group: str, score: str, *, remember: bool = False) -> list[IoError]:
        failed: list[IoError] = []
        for process in self._processes(group):
            path = f"{self._host.paths.proc}/{process}/oom_score_adj"
            before = self._host.read(path)
            if isinstance(before, IoError):
                continue  # it ended meanwhile
            if remember:
                self._scores.setdefault(group, before.strip())
            if before.strip() != score and (refused := self._host.write(path, score)) is not None:
                failed += [refused] if refused.errno != _ENDED else []
        return failed

    def _processes(self, group: str) -> Iterator[int]:
        found = usage.threads(self._control_loop.tree, group)
        yield from () if isinstance(found, IoError) else found

    # resctrl -------------------------------------------------------------------------------------------------------

    def _apply_resctrl(self, state: RuntimeHooksState) -> None:
        """Keep a group for every pod that asks for one, with its threads in it, and remove those of other pods."""
        machine = self._control_loop.machine
        effects: list[FileEffect] = []
        wanted: set[str] = set()
        for pod in state.pods.values():
            decision = pod.groups[0].decision
            name = decision.resctrl_group
            if name is None:
                continue
            wanted.add(name)
            for line in decision.schemata:
                effects.append(
                    WriteSchemata(
                        group=name,
                        resource=line.resource,
                        by_cache=line.by_cache,
                        owner=resctrl_pod.NAME,
                        cause=resctrl_pod.NAME,
                        why=line.why,
                    )
                )
            inside = machine.resctrl_threads(name)
            threads = tuple(
                thread
                for group in pod.groups
                if group.level == "container"
                for thread in machine.thread_ids(group.group)
                if thread not in inside
            )
            if threads:
                effects.append(
                    AddTasks(
                        group=name, tasks=threads, owner=resctrl_pod.NAME, cause=resctrl_pod.NAME, why=pod.pod.full_name
                    )
                )
        refused = [one.detail for one in machine.execute(effects) if not one.is_settled]
        found = resctrl.groups(self._host)
        for name in [] if isinstance(found, IoError) else found:
            if name.startswith(resctrl_pod.GROUP_PREFIX) and name not in wanted:
                removed = resctrl.remove_group(self._host, name)
                refused += [] if removed is None else [str(removed)]
        self._tell(resctrl_pod.NAME, refused[0] if refused else "")

    # Core scheduling -----------------------------------------------------------------------------------------------

    def _apply_core_sched(self, state: RuntimeHooksState, groups: Sequence[tuple[HookedPod, HookedGroup]]) -> None:
        machine = self._control_loop.machine
        kernel = core_sched.CoreSchedKernel(
            identity_switch=machine.read_knob("", GROUP_IDENTITY_ENABLED) is not None,
            core_switch=machine.read_knob("", SCHED_CORE) is not None,
            core_feature=host_core_sched.has_feature(self._host),
        )
        plan = core_sched.decide_node(state.rules, kernel)
        switches = [
            WriteSystem(
                file=one.knob,
                value=one.value,
                owner=CORE_SCHED_SWITCH,
                cause=core_sched.NAME,
                why=one.why,
                takes_over=earlier_owners(one.knob, CORE_SCHED_SWITCH),
            )
            for one in plan.switches
        ]
        results_of_switches = machine.execute(switches, complete_owners=(CORE_SCHED_SWITCH,))
        refused = [one.detail for one in results_of_switches if not one.is_settled]
        requests = [
            CoreSchedRequest(container=group.context, group=group.decision.core_sched_group)
            for _, group in groups
            if group.context is not None
        ]
        results = () if refused else self._cores.apply(requests)
        bad = (CoreSchedOutcome.FAILED, CoreSchedOutcome.UNSUPPORTED)
        problems = [*refused, *(one.why for one in results if one.outcome in bad and (one.group or plan.enabled))]
        self._tell(core_sched.NAME, problems[0] if problems else "")

    # Network -------------------------------------------------------------------------------------------------------

    def _apply_terway(self, state: RuntimeHooksState, pods: Sequence[PodContext]) -> None:
        plan = terway_qos.decide_node(state.rules, pods)
        failed = [one.why for one in self._terway.apply(plan) if one.outcome is FileOutcome.FAILED]
        self._tell(terway_qos.NAME, failed[0] if failed else "")

    async def _apply_traffic(self, state: RuntimeHooksState, pods: Sequence[PodContext]) -> None:
        plan = tc_hook.decide_node(state.rules, pods)
        if plan is not None and plan.enabled and (unsupported := tc.check_supported()) is not None:
            self._tell(tc_hook.NAME, str(unsupported))
            return
        result = await asyncio.to_thread(self._traffic.apply, plan)
        failed = result.outcome in (TrafficOutcome.FAILED, TrafficOutcome.UNSUPPORTED)
        self._tell(tc_hook.NAME, "; ".join(result.problems) or result.outcome.value if failed else "")

    def _tell(self, name: str, problem: str) -> None:
        log = self._problems[name]
        if problem:
            log.fails(problem)
        else:
            log.works()


def undo_node_actions(host: Host, state_dir: str) -> list[str]:
    """Undo what an agent left on the node besides cgroup values; return what could not be undone."""
    failed: list[str] = []
    record = f"{state_dir}/{TC_RECORD}"
    if host.exists(record):
        result = TrafficControl(host, record).apply(TrafficPlan(enabled=False))
        if result.outcome not in (TrafficOutcome.RESTORED, TrafficOutcome.LEFT):
            failed += result.problems or (result.outcome.value,)
    found = resctrl.groups(host) if resctrl.is_mounted(host) else []
    for name in [] if isinstance(found, IoError) else found:
        if name.startswith(resctrl_pod.GROUP_PREFIX):
            removed = resctrl.remove_group(host, name)
            failed += [] if removed is None else [str(removed)]
    return failed
