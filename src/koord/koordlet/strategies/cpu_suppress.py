"""The CPUSuppress strategy: how much CPU best-effort work may have so that the node stays under its threshold.

It acts by cpuset or by quota; when it is off, both are restored. CPUs are chosen as whole cores first, spread over NUMA
nodes, and the same for the same machine. The idleCpuset policy is a cpuset for idle groups: as services push BE off its
CPUs at once, the set is so large that BE gets its allowance on what services leave of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from koord.api.config.slo.defaults import CFS_QUOTA, IDLE_CPUSET
from koord.api.koordinator.protocol import BE, LSE, LSR
from koord.api.koordinator.resource_name import CPU
from koord.host.cgroup.codec import UNLIMITED
from koord.host.cgroup.knob import CPU_QUOTA, CPUSET
from koord.host.hardware import MachineCpu
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.machine import reserved_cpus
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.strategies import file_ownership, group_identity
from koord.koordlet.strategies.strategy import Effect, StrategyInputs, StrategyPlan
from koord.values.cpuset import EMPTY, CPUSet


def select_cpus(need: int, processors: Iterable[MachineCpu]) -> list[int]:
    """Return `need` CPUs, or all when there are fewer, in the order in which they were taken.

    NUMA nodes take turns, the one with the most CPUs first. Each gives whole cores of two for as long as any has one;
    then each gives single CPUs, from where the turn of cores stopped.
    """
    buckets = _buckets(processors)
    need = min(need, sum(map(len, buckets)))
    taken: list[int] = []
    turn, found = 0, True
    while need - len(taken) > 1:
        if turn == 0 and not found:  # a whole round without one
            break
        pair = _first_pair(buckets[turn], taken)
        taken += pair
        found = bool(pair) or (found and turn > 0)
        turn = (turn + 1) % len(buckets)
    while len(taken) < need:
        taken += next(([one.cpu] for one in buckets[turn] if one.cpu not in taken), [])
        turn = (turn + 1) % len(buckets)
    return taken


def select_be_cpus(need: int, lsr: Sequence[MachineCpu], shared: Sequence[MachineCpu]) -> CPUSet:
    """Select CPUs for BE: of LSR pods' CPUs in proportion to their number, rounded down in their favour."""
    return _selected_be_cpus(need, tuple(lsr), tuple(shared))


@functools.lru_cache(maxsize=128)
def _selected_be_cpus(need: int, lsr: tuple[MachineCpu, ...], shared: tuple[MachineCpu, ...]) -> CPUSet:
    """Select the CPUs; cached, as the same few selections are made every second."""
    total = len(lsr) + len(shared)
    if not total:
        return CPUSet()
    need = min(need, total)
    from_lsr = need * len(lsr) // total
    return CPUSet.of([*select_cpus(from_lsr, lsr), *select_cpus(need - from_lsr, shared)])


def _buckets(processors: Iterable[MachineCpu]) -> list[list[MachineCpu]]:
    grouped: dict[tuple[int, int], list[MachineCpu]] = {}
    for one in processors:
        grouped.setdefault((one.node, one.socket), []).append(one)
    buckets = [sorted(group, key=lambda one: (one.core, one.cpu)) for group in grouped.values()]
    return sorted(buckets, key=lambda bucket: (-len(bucket), bucket[0].cpu))


def _first_pair(bucket: Sequence[MachineCpu], taken: Sequence[int]) -> list[int]:
    for one, other in pairwise(bucket):
        if one.core == other.core and one.cpu not in taken and other.cpu not in taken:
            return [one.cpu, other.cpu]
    return []


OWNER = file_ownership.CPU_SUPPRESS
CAUSE = "AdjustBEByNodeCPUUsage"
MIN_QUOTA_US = 2_000
MIN_CPUS = 2
MIN_IDLE_CPUS = 1  # a second CPU of two would leave services none of their own
BESTEFFORT_BASE = "KubepodsBesteffort"
ROOT, PODS, CONTAINERS = 0, 1, 2  # depths below the BE root


class MeasuredApplication(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str
    used_milli: int
    qos: str = ""
    base: str = ""  # of its cgroup path

    @property
    def is_best_effort(self) -> bool:
        return self.qos == BE and self.base == BESTEFFORT_BASE


class BeGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    path: str
    depth: int
    pod: str = ""  # uid


class CpuSuppressView(msgspec.Struct, frozen=True, kw_only=True):
    """`enabled` is None until a NodeSLO was seen; a deleted or silent NodeSLO is False."""

    enabled: bool | None = None
    cpu_manager: bool = False  # whether BE pods are given CPUs of their own instead
    policy: str = "cpuset"
    be_yields: bool = False  # whether services that wake up run at once where BE runs
    threshold_percent: int = 65
    min_percent: int | None = None
    capacity_milli: int | None = None
    allocatable_milli: int | None = None
    reservation_milli: int = 0  # of the node's annotation
    node_used_milli: int | None = None
    pods: tuple[PodMeta, ...] = ()
    pod_used_milli: Mapping[str, int] = {}  # by uid
    applications: tuple[MeasuredApplication, ...] = ()
    processors: tuple[MachineCpu, ...] = ()
    reserved_cpus: CPUSet = EMPTY
    exclusive_cpus: CPUSet = EMPTY  # of system QoS
    kubelet_static: bool = False
    groups: tuple[BeGroup, ...] = ()  # parents before children, the BE root first
    quota_us: int | None = None  # of the BE root now
    cpuset: CPUSet = EMPTY  # of the BE root now
    unbound_cpus: str | None = None  # what the file of a group holds that nobody bound; None where that is not known
    # cgroup v1 refuses a quota below that of a child; the largest of those, when they are bounded.
    least_quota_us: int = 0


class BeCpuAllowance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    milli: int
    non_be_pods_milli: int
    others_milli: int  # all use of the node but that of BE
    why: str


def be_cpu_allowance(view: CpuSuppressView) -> BeCpuAllowance | None:
    """Compute what BE may use now; None when the node or its usage is not known."""
    if not view.capacity_milli or view.node_used_milli is None:
        return None
    best_effort = {pod.uid for pod in view.pods if pod.is_best_effort}
    used = view.pod_used_milli
    of_pods = sum(milli for uid, milli in used.items() if uid not in best_effort)
    of_applications = sum(one.used_milli for one in view.applications if not one.is_best_effort)
    explained = sum(used.values()) + sum(one.used_milli for one in view.applications)
    unallocatable = 0 if view.allocatable_milli is None else max(0, view.capacity_milli - view.allocatable_milli)
    system = max(view.node_used_milli - explained, unallocatable, view.reservation_milli, 0)
    room = view.capacity_milli * view.threshold_percent // 100 - of_pods - of_applications - system
    why = (
        f"{view.threshold_percent}% of {view.capacity_milli}m less {of_pods}m of other pods,"
        f" {of_applications}m of applications and {system}m of the system leaves {room}m"
    )
    if view.min_percent is not None and room < (least := view.capacity_milli * view.min_percent // 100):
        room, why = least, f"{why}, raised to {view.min_percent}% of the node = {least}m"
    others = max(view.node_used_milli, explained) - (explained - of_pods - of_applications)
    return BeCpuAllowance(milli=room, non_be_pods_milli=of_pods, others_milli=others, why=why)


def decide_cpu_suppress(view: CpuSuppressView) -> StrategyPlan:
    if view.enabled is None:
        return StrategyPlan(why="no NodeSLO was seen yet")
    if not view.enabled or view.cpu_manager:
        why = "CPUs of BE pods are managed one by one" if view.enabled else "suppression is off"
        return StrategyPlan(effects=(*_free_quota(view, why), *_free_cpuset(view, why)), why=why)
    room = be_cpu_allowance(view)
    if room is None or not view.processors or not view.groups:
        return StrategyPlan(why="what the node has or uses is not known")
    figures = {"be_suppress_ls_used_cpu_cores": room.non_be_pods_milli / 1000}
    if view.policy == CFS_QUOTA:
        quota, why = decide_quota(view, room)
        writes: tuple[Effect, ...] = () if quota is None else (_quota(view, quota, why),)
        shown = view.quota_us if quota is None else quota
        if shown is not None and shown != UNLIMITED:
            figures["be_suppress_cpu_cores"] = shown / 100_000
        return StrategyPlan(effects=(*writes, *_free_cpuset(view, "the policy is cfsQuota")), why=why, figures=figures)
    cpus, why = decide_cpuset(view, room)
    figures["be_suppress_cpu_cores"] = len(cpus or view.cpuset)
    freed = _free_quota(view, f"the policy is {view.policy}")
    return StrategyPlan(effects=(*_set_cpus(view, cpus, why), *freed), why=why, figures=figures)


def decide_quota(view: CpuSuppressView, room: BeCpuAllowance) -> tuple[int | None, str]:
    """Decide the quota of the BE root in microseconds; None leaves it, as a change under 1% of the node is jitter."""
    cores = -(-(view.capacity_milli or 0) // 1000)
    target = max(room.milli * 100, MIN_QUOTA_US)
    why = f"{room.why}: {target}us"
    now = view.quota_us
    if target < view.least_quota_us:
        target, why = view.least_quota_us, f"{why}, but a group below has {view.least_quota_us}us"
    if now is None or now == UNLIMITED:  # a sentinel, not a size: comparing it would hide that nothing is held
        return target, why
    if target == now or (abs(target - now) < cores * 1000 and target != MIN_QUOTA_US):
        return None, f"{why}, now {now}us"
    if target - now > cores * 10_000:
        target, why = now + cores * 10_000, f"{why}, reached by 10% of the node a tick from {now}us"
    return target, why


def decide_cpuset(view: CpuSuppressView, room: BeCpuAllowance) -> tuple[CPUSet, str]:
    """Decide the CPUs of BE; none when the node has none to give, and then nothing must be written."""
    growth = len(view.cpuset) + -(-len(view.processors) // 10)
    lse, lsr = (_cpus_of(view, qos) for qos in (LSE, LSR))
    barred = view.reserved_cpus | view.exclusive_cpus | lse
    free = [one for one in view.processors if one.cpu not in barred] if barred else view.processors
    want, why = _cpuset_size(view, room, len(free))
    theirs = [one for one in free if one.cpu in lsr] if lsr else ()
    chosen = select_be_cpus(min(want, growth), theirs, [one for one in free if one.cpu not in lsr] if lsr else free)
    limit = f", at most {growth} this tick" if want > growth else ""
    return chosen, f"{why}: {want} CPUs of {len(free)}{limit}"


def _cpuset_size(view: CpuSuppressView, room: BeCpuAllowance, free: int) -> tuple[int, str]:
    if view.policy != IDLE_CPUSET:
        return max(-(-room.milli // 1000), MIN_CPUS), room.why
    if not view.be_yields:
        return max(-(-room.milli // 1000), MIN_CPUS), f"{room.why}, sized as cpuset because BE groups are not idle here"
    lse = {pod.uid for pod in view.pods if pod.qos == LSE}  # they use CPUs that BE cannot have
    others = max(0, room.others_milli - sum(milli for uid, milli in view.pod_used_milli.items() if uid in lse))
    left = free * 1000 - others
    if room.milli <= 0 or left <= 0:
        return MIN_IDLE_CPUS, room.why
    # Services use each CPU alike, so BE gets left / free of every one in its set.
    size = room.milli * free // left
    return max(size, MIN_IDLE_CPUS), f"{room.why}, on CPUs of which others use {others * 100 // (free * 1000)}%"


def unsuppressed_cpus(view: CpuSuppressView) -> CPUSet:
    """Return the CPUs that BE may use without suppression."""
    every = CPUSet.of(one.cpu for one in view.processors)
    return every - view.exclusive_cpus - view.reserved_cpus - _cpus_of(view, LSE)


def _cpus_of(view: CpuSuppressView, qos: str) -> CPUSet:
    return CPUSet.of(cpu for pod in view.pods if pod.qos == qos for cpu in pod.cpuset)


def _set_cpus(view: CpuSuppressView, cpus: CPUSet, why: str) -> list[Effect]:
    if not cpus:
        return []
    if not view.kubelet_static:
        return _resize(view, view.groups, cpus, why)
    # The kubelet's own CPU manager writes the upper levels, so only containers are narrowed.
    upper = [group for group in view.groups if group.depth < CONTAINERS]
    lower = [group for group in view.groups if group.depth == CONTAINERS]
    widened = _resize(view, upper, unsuppressed_cpus(view), "the kubelet's CPU manager is static")
    narrow = str(cpus)
    return [*widened, *(_cpuset(view, group, narrow, why) for group in lower)]


def _free_cpuset(view: CpuSuppressView, why: str) -> list[Effect]:
    return _resize(view, view.groups, unsuppressed_cpus(view), why)


def _free_quota(view: CpuSuppressView, why: str) -> list[Effect]:
    return [_quota(view, UNLIMITED, why)] if view.groups and view.quota_us not in (None, UNLIMITED) else []


def _resize(view: CpuSuppressView, groups: list[BeGroup] | tuple[BeGroup, ...], cpus: CPUSet, why: str) -> list[Effect]:
    """Return writes in a safe order: parents hold the old and the new CPUs until all below have changed, so that no
    child ever has a CPU that its parent lacks.
    """
    if not cpus:
        return []
    both = view.cpuset | cpus
    wide, narrow = str(both), str(cpus)
    widened = [] if both == cpus else [_cpuset(view, group, wide, why) for group in groups]
    order = groups if both == cpus else reversed(groups)
    return [*widened, *(_cpuset(view, group, narrow, why) for group in order)]


def _cpuset(view: CpuSuppressView, group: BeGroup, cpus: str, why: str) -> WriteCgroup:
    """Return the write of a group's CPUs. What it held before may be another agent's, as Koordinator's."""
    return WriteCgroup(
        group=group.path,
        file=CPUSET,
        value=cpus,
        owner=OWNER,
        cause=CAUSE,
        why=why,
        original=view.unbound_cpus,
        takes_over=_EARLIER_OWNERS,
    )


def _quota(view: CpuSuppressView, quota_us: int, why: str) -> WriteCgroup:
    """Return the write of the BE root's quota. The kubelet gives none to a QoS class."""
    return WriteCgroup(
        group=view.groups[0].path,
        file=CPU_QUOTA,
        value=str(quota_us),
        owner=OWNER,
        cause=CAUSE,
        why=why,
        original=str(UNLIMITED),
    )


_EARLIER_OWNERS = file_ownership.earlier_owners(CPUSET, OWNER)


def observe_cpu_suppress(inputs: StrategyInputs) -> CpuSuppressView:
    """Observe the node's usage, its CPUs and the BE groups."""
    node_inputs, shape, config = inputs.node_inputs, inputs.machine.shape, inputs.threshold
    node = node_inputs.node
    groups = be_groups(inputs)
    percent = config.cpu_suppress_threshold_percent
    held = inputs.cpus(shape.besteffort, CPUSET)
    return CpuSuppressView(
        # A threshold that cannot be used switches suppression off, and nothing else.
        enabled=inputs.threshold_enabled and (inputs.slo is None or percent is not None),
        cpu_manager=file_ownership.MANAGER_GATE in inputs.gates,
        policy=config.cpu_suppress_policy,
        be_yields=config.cpu_suppress_policy == IDLE_CPUSET and group_identity.be_yields(inputs),
        threshold_percent=percent or 0,
        min_percent=config.cpu_suppress_min_percent,
        capacity_milli=inputs.capacity(CPU),
        allocatable_milli=inputs.allocatable(CPU),
        reservation_milli=0 if node is None else node.reservation_milli,
        node_used_milli=inputs.latest_milli(metric_kind.NODE_CPU),
        pods=node_inputs.pods,
        pod_used_milli=inputs.pod_used_milli(),
        applications=measured_applications(inputs),
        processors=shape.processors,
        reserved_cpus=EMPTY
        if node is None
        else node.reserved_cpus or reserved_cpus(shape.processors, node.reservation_milli),
        exclusive_cpus=CPUSet() if node is None else node.exclusive_cpus,
        kubelet_static=node_inputs.kubelet.is_static,
        groups=groups,
        quota_us=inputs.number(shape.besteffort, CPU_QUOTA),
        # A version 2 group that says nothing has what its parent has: all of them, until somebody narrows it.
        cpuset=held or CPUSet.of(one.cpu for one in shape.processors),
        unbound_cpus=inputs.unbound_cpus,
        least_quota_us=_least_quota_us(inputs, groups),
    )


def be_groups(inputs: StrategyInputs) -> tuple[BeGroup, ...]:
    """Return the groups of the BE root, its pods and their containers, also of unknown pods.

    Containers whose CPUs a hook sets one by one are left out.
    """
    machine, root = inputs.machine, inputs.machine.shape.besteffort
    if not root or (machine.read_knob(root, CPU_QUOTA) is None and machine.read_knob(root, CPUSET) is None):
        return ()
    uids = {pod.group: pod.uid for pod in inputs.pods if pod.group}
    foreign = {
        pod.group
        for pod in inputs.pods
        if pod.is_best_effort and file_ownership.cpuset_owner(pod, inputs.gates) != OWNER
    }
    pods = machine.child_groups(root)
    found = [BeGroup(path=root, depth=ROOT)]
    found += [BeGroup(path=pod, depth=PODS, pod=uids.get(pod, "")) for pod in pods]
    found += [
        BeGroup(path=one, depth=CONTAINERS, pod=uids.get(pod, ""))
        for pod in pods
        if pod not in foreign
        for one in machine.child_groups(pod)
    ]
    return tuple(found)


def measured_applications(inputs: StrategyInputs) -> tuple[MeasuredApplication, ...]:
    slo = inputs.slo
    found: list[MeasuredApplication] = []
    for one in () if slo is None else slo.host_applications:
        used = inputs.latest_milli(metric_kind.APPLICATION_CPU, one.name)
        if used is not None:
            base = "" if one.cgroup_path is None else one.cgroup_path.base
            found.append(MeasuredApplication(name=one.name, used_milli=used, qos=one.qos, base=base))
    return tuple(found)


def _least_quota_us(inputs: StrategyInputs, groups: tuple[BeGroup, ...]) -> int:
    """Return the lowest quota that the kernel accepts: cgroup v1 refuses a parent's below a child's."""
    if inputs.machine.shape.cgroup_version != 1:
        return 0
    pods = (inputs.number(group.path, CPU_QUOTA) for group in groups if group.depth == PODS)
    return max((quota for quota in pods if quota is not None and quota != UNLIMITED), default=0)
