"""Effects of hooks on the node besides cgroup values: OOM scores, resctrl groups, core scheduling, network limits.

Each part works and fails alone. Cgroup values are written by the strategy; this follows after it.

OOM scores are set as hooks decide, and put back when nobody asks for them any more. The kernel keeps a score for each
process, and children inherit it. What a container had before is kept in a file that is written first, so that an agent
that was killed in between can still put it back. Values are decided by `koord.koordlet.hooks.oom_score_adj`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.api.koordinator.resource_name import MEMORY
from koord.host import resctrl, tc
from koord.host.cgroup import usage
from koord.host.cgroup.tree import CgroupTree
from koord.host.core_sched import CookieSystem, KernelTimeSlices, PrctlCookies, TimeSliceSystem
from koord.host.filesystem import Host
from koord.host.io_error import IoError, malformed
from koord.host.tc import IprouteProgram, TrafficControl, TrafficOutcome, run_iproute
from koord.host.traffic_class import TrafficPlan
from koord.koordlet.cgroup_writer.effects import WriteSystem
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.core_sched_manager import CoreSchedManager, CoreSchedOutcome, CoreSchedRequest, CoreSchedResult
from koord.koordlet.hooks import core_sched, oom_score_adj, resctrl_pod, terway_qos
from koord.koordlet.hooks import tc as tc_hook
from koord.koordlet.hooks.contexts import pod_context_of_meta
from koord.koordlet.hooks.hook import PodContext
from koord.koordlet.hooks.oom_score_adj import kubelet_oom_score_adj
from koord.koordlet.hooks.registry import HookDecision
from koord.koordlet.hooks.terway_qos import TerwayPlan
from koord.koordlet.inputs.node_inputs import NodeProperties
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.pod_resctrl import PodResctrlGroups, PodResctrlTarget
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.state_file import StateFile
from koord.koordlet.strategies import time_slice
from koord.koordlet.strategies.file_ownership import CORE_SCHED_SWITCH, earlier_owners
from koord.koordlet.strategies.runtime_hooks import HookedGroup, RuntimeHooksState
from koord.telemetry.clock import Clock
from koord.values.go_format import parse_decimal_int


class OomScoreTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The score that all processes of a container shall have.

    `original` is the kubelet's; it counts for a container that started with the score, whose files never told another.
    """

    container_id: str
    group: str
    value: int
    original: int


class OomScoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a container's processes that got another score, and the first thing that could not be done.

    A problem without a container is one of the agent's own file, without which nothing is changed.
    """

    container_id: str = ""
    changed: int = 0
    problem: str = ""


class _Adjusted(msgspec.Struct, frozen=True, kw_only=True):
    """A container whose processes have a score from the agent."""

    group: str
    original: int
    written: int


class OomScores:
    """The scores that the agent gave. `processes` lists the processes of a cgroup, none when it is gone."""

    def __init__(self, host: Host, processes: Callable[[str], Sequence[int]], state_path: str) -> None:
        self._host = host
        self._processes = processes
        self._adjusted = StateFile[dict[str, _Adjusted]](host, state_path, dict[str, _Adjusted], {})  # by container

    def apply(self, targets: Sequence[OomScoreTarget]) -> list[OomScoreResult]:
        """Set the scores of these containers, and put back those of all others that the agent ever set."""
        before = self._adjusted.load()
        if isinstance(before, IoError):
            return [OomScoreResult(problem=str(before))]
        running = [(one, pids) for one in targets if (pids := self._processes(one.group))]
        wanted = {one.container_id: self._entry(one, pids, before.get(one.container_id)) for one, pids in running}
        entries = before | wanted
        error = self._adjusted.save(entries)
        if error is not None:
            return [OomScoreResult(problem=str(error))]
        results = [self._set(one.container_id, pids, one.value, None) for one, pids in running]
        kept = {one.container_id for one in targets}
        released = [
            self._set(name, self._processes(one.group), one.original, one.written)
            for name, one in before.items()
            if name not in kept
        ]
        failed = {one.container_id for one in released if one.problem}
        left = {name: one for name, one in entries.items() if name in kept | failed and self._processes(one.group)}
        error = self._adjusted.save(left)
        if error is not None:
            results.append(OomScoreResult(problem=str(error)))
        return [one for one in (*results, *released) if one.changed or one.problem]

    def _entry(self, target: OomScoreTarget, pids: Sequence[int], before: _Adjusted | None) -> _Adjusted:
        if before is not None:
            return _Adjusted(group=target.group, original=before.original, written=target.value)
        found = read_oom_score_adj(self._host, pids[0])
        original = target.original if isinstance(found, IoError) or found == target.value else found
        return _Adjusted(group=target.group, original=original, written=target.value)

    def _set(self, container_id: str, pids: Sequence[int], value: int, only_if: int | None) -> OomScoreResult:
        """Set the score of processes that have another; with `only_if`, of those alone that have this one."""
        changed, problem = 0, ""
        for pid in pids:
            found = read_oom_score_adj(self._host, pid)
            if isinstance(found, int) and (found == value or (only_if is not None and found != only_if)):
                continue
            error = found if isinstance(found, IoError) else write_oom_score_adj(self._host, pid, value)
            if error is None:
                changed += 1
            elif not error.vanished:  # a process that ended needs no score
                problem = problem or str(error)
        return OomScoreResult(container_id=container_id, changed=changed, problem=problem)


def read_oom_score_adj(host: Host, pid: int) -> int | IoError:
    path = _path(host, pid)
    text = host.read(path)
    if isinstance(text, IoError):
        return text
    found = parse_decimal_int(text.strip())
    return malformed(path, f"{text.strip()!r} is no number") if found is None else found


def write_oom_score_adj(host: Host, pid: int, value: int) -> IoError | None:
    return host.write(_path(host, pid), f"{value}\n")


def _path(host: Host, pid: int) -> str:
    return f"{host.paths.proc}/{pid}/oom_score_adj"


_LOG = logging.getLogger(__name__)

TC_RECORD = "tc.json"
OOM_RECORD = "oom-scores.json"
CORE_SCHED_RECORD = "core-sched.json"
TERWAY_RECORD = "terway-files"
CORE_SCHED_GATE, TERWAY_GATE, TC_GATE = "CoreSched", "TerwayQoS", "TCNetworkQoS"

CoreSchedObserver = Callable[[Sequence[CoreSchedResult], float], None]

GLOBAL_CONFIG, PODS = "global_bps_config", "pod.json"


class FileOutcome(enum.Enum):
    KEPT = "kept"  # its content is the wanted one, or it is absent as wanted
    WRITTEN = "written"
    DELETED = "deleted"
    FAILED = "failed"


class TerwayFileResult(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    outcome: FileOutcome
    why: str = ""


class TerwayFiles:
    """The two files that Terway's agent reads, written, and deleted when it is to limit nothing.

    Others may write the same files. That this agent did is kept in a file of its own, which is made first: with the
    gate off, nothing else tells whether they are to go. What stands in the files is read each time.
    """

    def __init__(self, host: Host, record_path: str) -> None:
        self._host = host
        self._record_path = record_path

    @property
    def has_written(self) -> bool:
        """Return whether this agent or an earlier one wrote the files."""
        return self._host.exists(self._record_path)

    def apply(self, plan: TerwayPlan | None) -> tuple[TerwayFileResult, ...]:
        """Make the files what the plan says. Without a plan they stay: no NodeSLO was seen yet."""
        if plan is None:
            return ()
        folder = self._host.paths.terway
        if plan.enabled and not self.has_written:
            refused = self._host.replace_file(self._record_path, f"{folder}\n")
            if refused is not None:
                return (TerwayFileResult(path=self._record_path, outcome=FileOutcome.FAILED, why=str(refused)),)
        wanted = ((GLOBAL_CONFIG, plan.global_config), (PODS, plan.pods))
        results = tuple(self._apply_one(f"{folder}/{name}", text if plan.enabled else None) for name, text in wanted)
        if plan.enabled or any(one.outcome is FileOutcome.FAILED for one in results):
            return results
        refused = self._host.remove_file(self._record_path)
        if refused is None:
            return results
        return (*results, TerwayFileResult(path=self._record_path, outcome=FileOutcome.FAILED, why=str(refused)))

    def release(self) -> list[str]:
        """Delete the files if the agent wrote them; return what could not be done."""
        results = self.apply(TerwayPlan(enabled=False)) if self.has_written else ()
        return [one.why for one in results if one.outcome is FileOutcome.FAILED]

    def _apply_one(self, path: str, wanted: str | None) -> TerwayFileResult:
        present = self._host.read(path)
        if isinstance(present, IoError) and not present.vanished:
            return TerwayFileResult(path=path, outcome=FileOutcome.FAILED, why=str(present))
        if (None if isinstance(present, IoError) else present) == wanted:
            return TerwayFileResult(path=path, outcome=FileOutcome.KEPT)
        if wanted is None:
            refused, done = self._host.remove_file(path), FileOutcome.DELETED
        else:
            refused, done = self._host.replace_file(path, wanted), FileOutcome.WRITTEN
        if refused is not None:
            return TerwayFileResult(path=path, outcome=FileOutcome.FAILED, why=str(refused))
        return TerwayFileResult(path=path, outcome=done)


class NodeActions:
    """NodeActions carries out one state of the hooks at a time. `read_node` returns the Node as it was last seen."""

    def __init__(
        self,
        host: Host,
        clock: Clock,
        control_loop: ControlLoop,
        gates: frozenset[str],
        state_dir: str,
        read_node: Callable[[], NodeProperties | None],
        on_core_sched: CoreSchedObserver,
        *,
        cookies: CookieSystem | None = None,
        iproute: IprouteProgram = run_iproute,
    ) -> None:
        """`cookies` is core scheduling of another kernel than this machine's, `iproute` runs its programs tc and ip."""
        self._host = host
        self._clock = clock
        self._control_loop = control_loop
        self._gates = gates
        self._read_node = read_node
        self._on_core_sched = on_core_sched
        self._oom_record = f"{state_dir}/{OOM_RECORD}"
        self._scores = OomScores(host, partial(_processes, control_loop.tree), self._oom_record)
        self._resctrl = PodResctrlGroups(host, clock, lambda: control_loop.machine.shape.cache)
        system = PrctlCookies(host) if cookies is None else cookies
        self._cores = CoreSchedManager(control_loop.tree, system, f"{state_dir}/{CORE_SCHED_RECORD}")
        self._terway = TerwayFiles(host, f"{state_dir}/{TERWAY_RECORD}")
        self._tc_record = f"{state_dir}/{TC_RECORD}"
        self._iproute = iproute
        self._traffic = TrafficControl(host, self._tc_record, iproute)
        # Whether an earlier process acted by a NodeSLO, which may be gone since.
        self.has_earlier_actions = self._cores.has_given or self._terway.has_written or host.exists(self._tc_record)
        self._problems = {
            name: ProblemLog(_LOG, f"hook {name} cannot act", f"hook {name} acts again")
            for name in (core_sched.NAME, terway_qos.NAME, tc_hook.NAME, oom_score_adj.NAME, resctrl_pod.NAME)
        }

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what keeps each part from acting, by hook; empty texts for those that act."""
        return {name: log.problem for name, log in self._problems.items()}

    def prepare_pod(self, decision: HookDecision) -> str:
        """Make the resctrl group that the containers of a new pod start in; return what kept that from working."""
        group = decision.resctrl_group
        if group is None:
            return ""
        return self._resctrl.make(PodResctrlTarget(group=group, schemata=decision.schemata)).problem

    def remove_pod(self, uid: str) -> None:
        """Remove what a pod that is gone had for itself."""
        if resctrl_pod.NAME in self._gates and uid:
            problem = self._resctrl.remove(resctrl_pod.group_name(uid)).problem
            self._tell(resctrl_pod.NAME, [problem] if problem else [])

    async def undo_disabled(self) -> None:
        """Undo what an earlier process did by gates that are off now."""
        if CORE_SCHED_GATE not in self._gates and self._cores.has_given:
            self._tell(core_sched.NAME, self._cores.release())
        if TERWAY_GATE not in self._gates and self._terway.has_written:
            self._tell(terway_qos.NAME, self._terway.release())
        if TC_GATE not in self._gates and self._host.exists(self._tc_record):
            await asyncio.to_thread(self._traffic.apply, TrafficPlan(enabled=False))

    async def apply(self, state: RuntimeHooksState) -> None:
        """Carry out what hooks decided, part by part: calls of the runtime are answered in between. tc is a program
        that is waited for, in a thread. What an earlier process left whose gates were on is undone.
        """
        await self.undo_disabled()
        groups = [(pod.pod, group) for pod in state.pods.values() for group in pod.groups]
        if oom_score_adj.NAME in self._gates:
            self._apply_scores(groups)
            await asyncio.sleep(0)
        elif self._host.exists(self._oom_record):
            self._tell(oom_score_adj.NAME, [one.problem for one in self._scores.apply([]) if one.problem])
        if resctrl_pod.NAME in self._gates:
            self._apply_resctrl(state)
            await asyncio.sleep(0)
        elif resctrl.is_mounted(self._host):
            self._tell(resctrl_pod.NAME, [one.problem for one in self._resctrl.apply([]) if one.problem])
        if CORE_SCHED_GATE in self._gates:
            self._apply_core_sched(state, groups)
            await asyncio.sleep(0)
        if TERWAY_GATE in self._gates:
            plan = terway_qos.decide_node(state.rules, _contexts(state))
            failed = [one.why for one in self._terway.apply(plan) if one.outcome is FileOutcome.FAILED]
            self._tell(terway_qos.NAME, failed)
        if TC_GATE in self._gates:
            await self._apply_traffic(state)

    def _apply_scores(self, groups: Sequence[tuple[PodMeta, HookedGroup]]) -> None:
        node = self._read_node()
        capacity = 0 if node is None else node.capacity.get(MEMORY, 0)
        targets = [
            OomScoreTarget(
                container_id=group.context.id,
                group=group.group,
                value=group.decision.oom_score_adj,
                original=kubelet_oom_score_adj(
                    pod.kube_qos, pod.priority, _memory_request(pod, group.container), capacity
                ),
            )
            for pod, group in groups
            if group.context is not None and group.decision.oom_score_adj is not None
        ]
        self._tell(oom_score_adj.NAME, [one.problem for one in self._scores.apply(targets) if one.problem])

    def _apply_resctrl(self, state: RuntimeHooksState) -> None:
        machine = self._control_loop.machine
        targets = [
            PodResctrlTarget(
                group=name,
                schemata=pod.groups[0].decision.schemata,
                threads=tuple(
                    thread
                    for group in pod.groups
                    if group.level == "container"
                    for thread in machine.thread_ids(group.group)
                ),
            )
            for pod in state.pods.values()
            if (name := pod.groups[0].decision.resctrl_group) is not None
        ]
        self._tell(resctrl_pod.NAME, [one.problem for one in self._resctrl.apply(targets) if one.problem])

    def _apply_core_sched(self, state: RuntimeHooksState, groups: Sequence[tuple[PodMeta, HookedGroup]]) -> None:
        plan = core_sched.decide_node(state.rules, self._cores.kernel())
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
        written = self._control_loop.machine.execute(switches, complete_owners=(CORE_SCHED_SWITCH,))
        refused = [one.detail or str(one.io_error or one.status.value) for one in written if not one.is_settled]
        if refused:  # without the switches no cookie counts
            self._tell(core_sched.NAME, refused)
            return
        results = self._cores.apply(
            [
                CoreSchedRequest(container=group.context, group=group.decision.core_sched_group)
                for _, group in groups
                if group.context is not None
            ]
        )
        self._on_core_sched(results, self._clock.time())
        bad = (CoreSchedOutcome.FAILED, CoreSchedOutcome.UNSUPPORTED)
        self._tell(core_sched.NAME, [one.why for one in results if one.outcome in bad and plan.enabled])

    async def _apply_traffic(self, state: RuntimeHooksState) -> None:
        plan = tc_hook.decide_node(state.rules, _contexts(state))
        if plan is not None and plan.enabled:
            unsupported = await asyncio.to_thread(tc.check_supported, self._iproute)
            if unsupported is not None:
                self._tell(tc_hook.NAME, [str(unsupported)])
                return
        result = await asyncio.to_thread(self._traffic.apply, plan)
        failed = result.outcome in (TrafficOutcome.FAILED, TrafficOutcome.UNSUPPORTED)
        self._tell(tc_hook.NAME, [*result.problems, result.outcome.value] if failed else [])

    def _tell(self, name: str, problems: Sequence[str]) -> None:
        log = self._problems[name]
        if problems:
            log.fails(problems[0])
        else:
            log.works()


def _contexts(state: RuntimeHooksState) -> Iterable[PodContext]:
    return [pod_context_of_meta(pod.pod) for pod in state.pods.values()]


def _memory_request(pod: PodMeta, container: str) -> int:
    return next((one.requests.get(MEMORY, 0) for one in pod.containers if one.name == container), 0)


def _processes(tree: CgroupTree, group: str) -> Sequence[int]:
    """Return the processes of a group and below it; none when it is gone."""
    found = usage.processes_below(tree, group)
    return () if isinstance(found, IoError) else found


def undo_time_slices(tree: CgroupTree, slices: TimeSliceSystem) -> list[str]:
    """Give BE threads that have an agent's slice the scheduler's own; return what kept that from working."""
    threads = usage.threads_below(tree, tree.layout.qos_dir(BEST_EFFORT))
    tried = [slices.set_slice(one, time_slice.DEFAULT) for one in threads if slices.slice_ns(one) == time_slice.LONG_NS]
    return [str(one) for one in tried if one is not None and not one.vanished]


def undo_node_actions(tree: CgroupTree, state_dir: str) -> list[str]:
    """Undo what an agent left on the node besides cgroup values; return what could not be undone."""
    host = tree.host
    scores = OomScores(host, partial(_processes, tree), f"{state_dir}/{OOM_RECORD}").apply([])
    failed = [one.problem for one in scores if one.problem]
    failed += CoreSchedManager(tree, PrctlCookies(host), f"{state_dir}/{CORE_SCHED_RECORD}").release()
    failed += TerwayFiles(host, f"{state_dir}/{TERWAY_RECORD}").release()
    failed += undo_time_slices(tree, KernelTimeSlices(host))
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
