"""A machine in memory: strategies read and write its files as those of a real one, and time passes in steps.

Groups and their initial values are those that a kubelet makes. It knows nothing of batch amounts: these the agent's
hooks apply. Mid amounts, for which there is no hook, count from the start. What a step does is computed in `cfs`,
`cpu_contention` and `memory`.

The result of a step can be recorded as the samples that collectors would have taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.koordinator.protocol import BE, BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.api.koordinator.resource_name import BATCH_CPU, CPU, MEMORY, MID_CPU, MID_MEMORY
from koord.host.cgroup import knob
from koord.host.cgroup.codec import MIN_SHARES, UNLIMITED, cfs_quota_of_milli, shares_of_milli
from koord.host.cgroup.layout import CGROUPFS, CgroupLayout
from koord.host.hardware import BlockDevices, GpuCard, MachineCpu
from koord.koordlet.cgroup_writer.effects import FileEffect, FileWriteResult, WriteCgroup, WriteSystem
from koord.koordlet.hooks.oom_score_adj import kubelet_oom_score_adj
from koord.koordlet.inputs.machine import MachineShape
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.sim.machine.cfs import CfsQuota, throttled_share
from koord.sim.machine.cgroup_files import MAINLINE_FILES, SimulatedCgroupFiles
from koord.sim.machine.cpu_contention import DEFAULT_PARAMETERS, ContentionParameters, CpuContention, CpuSimulation
from koord.sim.machine.memory import MemoryDemand, MemoryGroup, OomKill, settle_memory
from koord.values.cpuset import CPUSet


class ContainerDemand(msgspec.Struct, frozen=True, gc=False):
    """ContainerDemand is what a container would use alone on the machine. `burstiness`: see `throttled_share`.

    `cache_pressure` is how many more busy neighbours each CPU that it uses is like to the caches of others.
    """

    cpu_milli: float
    memory_bytes: int
    cache_bytes: int = 0
    burstiness: float = 1.0
    cache_pressure: float = 0.0


class ContainerOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """ContainerOutcome is what one container got in a step, and what it suffered."""

    pod: str  # uid
    wanted_milli: float
    got_milli: float
    throttled_share: float
    memory_bytes: int
    cache_bytes: int
    memory_stalled: float
    contention: CpuContention


class MachineStepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step; `at_s` is its end, `outcomes` are by container id."""

    at_s: float
    step_s: float
    outcomes: Mapping[str, ContainerOutcome]
    system_milli: float
    system_bytes: int
    be_used_milli: float
    be_limit_milli: float  # what BE groups may use in all
    be_request_milli: int
    kills: tuple[OomKill, ...] = ()

    @property
    def used_milli(self) -> float:
        return self.system_milli + sum(fare.got_milli for fare in self.outcomes.values())

    @property
    def used_bytes(self) -> int:
        """Return the used memory without page cache."""
        return self.system_bytes + sum(fare.memory_bytes for fare in self.outcomes.values())

    def short_milli(self, pods: frozenset[str]) -> float:
        """Return the CPU that the containers of these pods lacked although their own quotas would have allowed it."""
        return sum(fare.contention.short_milli for fare in self.outcomes.values() if fare.pod in pods)


def record_samples(store: SeriesStore, moment: MachineStepResult) -> None:
    """Record the samples that every agent takes all the time."""
    at_s, add = moment.at_s, store.add
    cores: dict[str, float] = {}
    held: dict[str, int] = {}
    cached: dict[str, int] = {}
    throttled: dict[str, float] = {}
    for container, fare in moment.outcomes.items():
        pod = fare.pod
        cores[pod] = cores.get(pod, 0.0) + fare.got_milli / 1000
        held[pod] = held.get(pod, 0) + fare.memory_bytes
        cached[pod] = cached.get(pod, 0) + fare.cache_bytes
        throttled[pod] = max(throttled.get(pod, 0.0), fare.throttled_share)
        add((metric_kind.CONTAINER_CPU, container), at_s, fare.got_milli / 1000)
        add((metric_kind.CONTAINER_MEMORY, container), at_s, fare.memory_bytes)
        add((metric_kind.CONTAINER_THROTTLED, container), at_s, fare.throttled_share)
    for pod, used in cores.items():
        add((metric_kind.POD_CPU, pod), at_s, used)
        add((metric_kind.POD_MEMORY, pod), at_s, held[pod])
        add((metric_kind.POD_MEMORY_WITH_PAGE_CACHE, pod), at_s, held[pod] + cached[pod])
        add((metric_kind.POD_THROTTLED, pod), at_s, throttled[pod])
    node_bytes = moment.system_bytes + sum(held.values())
    add((metric_kind.NODE_CPU,), at_s, moment.system_milli / 1000 + sum(cores.values()))
    add((metric_kind.NODE_MEMORY,), at_s, node_bytes)
    add((metric_kind.NODE_MEMORY_WITH_PAGE_CACHE,), at_s, node_bytes + sum(cached.values()))
    add((metric_kind.SYSTEM_CPU,), at_s, moment.system_milli / 1000)
    add((metric_kind.SYSTEM_MEMORY,), at_s, moment.system_bytes)
    add((metric_kind.NODE_BE, metric_kind.BE_USAGE), at_s, moment.be_used_milli)
    add((metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT), at_s, moment.be_limit_milli)
    add((metric_kind.NODE_BE, metric_kind.BE_REQUEST), at_s, moment.be_request_milli)


def record_performance(
    store: SeriesStore, moment: MachineStepResult, parameters: ContentionParameters = DEFAULT_PARAMETERS
) -> None:
    """Record the optional samples of performance: PSI, cycles and instructions."""
    pods: dict[str, tuple[float, float]] = {}
    for container, fare in moment.outcomes.items():
        cpu, memory = pods.get(fare.pod, (0.0, 0.0))
        pods[fare.pod] = (max(cpu, fare.contention.stalled_share), max(memory, fare.memory_stalled))
        _pressure(
            store, metric_kind.CONTAINER_PSI, container, moment.at_s, fare.contention.stalled_share, fare.memory_stalled
        )
        cycles = fare.got_milli * moment.step_s * parameters.cycles_per_milli_s
        store.add((metric_kind.CONTAINER_CPI, container, "cycle"), moment.at_s, cycles)
        store.add((metric_kind.CONTAINER_CPI, container, "instruction"), moment.at_s, cycles / fare.contention.cpi)
    for pod, (cpu, memory) in pods.items():
        _pressure(store, metric_kind.POD_PSI, pod, moment.at_s, cpu, memory)


def worst_latency_factor(outcomes: Mapping[str, ContainerOutcome], pods: frozenset[str]) -> float:
    """Return the largest latency factor among the containers of these pods; 1 when there are none."""
    return max((fare.contention.latency_factor for fare in outcomes.values() if fare.pod in pods), default=1.0)


def _pressure(store: SeriesStore, series: str, subject: str, at_s: float, cpu: float, memory: float) -> None:
    """Record PSI; `some` equals `full`, as each simulated container is a single program."""
    for name, share in (("cpu", cpu), ("mem", memory)):
        for degree in ("some", "full"):
            store.add((series, subject, name, "10", degree), at_s, 100 * share)


_CPUS = (CPU, MID_CPU)
_MEMORIES = (MEMORY, MID_MEMORY)


def first_amount(amounts: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    """Return the first amount that is set among these resource names, or None."""
    return next((found for name in names if (found := amounts.get(name))), None)


def initial_values(requests: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, str]:
    """Return the values of a pod's or container's files before any strategy writes."""
    cpu, memory = first_amount(limits, _CPUS), first_amount(limits, _MEMORIES)
    return {
        knob.CPU_SHARES: str(shares_of_milli(first_amount(requests, _CPUS) or 0)),
        knob.CPU_QUOTA: str(cfs_quota_of_milli(cpu or 0)),
        knob.CPU_BURST: "0",
        knob.CPUSET: "",
        knob.MEMORY_LIMIT: str(UNLIMITED if memory is None else memory),
    }


def pod_group_limits(pod: PodMeta) -> Mapping[str, int]:
    """Return the limits of the pod's own group; its CPU is bounded only where every container's is."""
    if not all(first_amount(one.limits, _CPUS) for one in pod.containers):
        return {name: amount for name, amount in pod.limits.items() if name not in _CPUS}
    return pod.limits


LAYOUT = CgroupLayout(CGROUPFS)
GROUPS = {kube_qos: LAYOUT.qos_dir(kube_qos) for kube_qos in (GUARANTEED, BURSTABLE, BEST_EFFORT)}
_KIB = 1024


class SimulatedHardware(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware and kernel of a simulated machine."""

    processors: tuple[MachineCpu, ...]
    memory_bytes: int
    disks: BlockDevices = BlockDevices()
    gpus: tuple[GpuCard, ...] = ()
    files: frozenset[str] = MAINLINE_FILES  # that the kernel has
    page_bytes: int = 4096


class SimulatedMachine:
    """Implements `koord.koordlet.inputs.machine.NodeMachine`. Pods change with `set_pods`, time passes with `step`."""

    def __init__(self, hardware: SimulatedHardware, parameters: ContentionParameters = DEFAULT_PARAMETERS) -> None:
        cpus = CPUSet.of(one.cpu for one in hardware.processors)
        self._hardware = hardware
        self._parameters = parameters
        self._shape = MachineShape(
            processors=hardware.processors,
            groups=GROUPS,
            page_bytes=hardware.page_bytes,
            disks=hardware.disks,
            layout=LAYOUT,
        )
        self._files = SimulatedCgroupFiles(hardware.files, cpus, self._touch)
        self._cpu = CpuSimulation(self._files, cpus, parameters)
        self._touched: set[str] = set()
        self._spaces: tuple[MemoryGroup, ...] | None = None
        self._pods: tuple[PodMeta, ...] = ()
        self._pods_by_uid: dict[str, PodMeta] = {}  # by uid
        self._be_request_milli = 0
        self._files.make_group("", {})
        for kube_qos, group in GROUPS.items():
            weight = shares_of_milli(1000 * len(cpus)) if kube_qos == GUARANTEED else MIN_SHARES
            self._files.make_group(group, {knob.CPU_SHARES: str(weight)})

    # What strategies see ----------------------------------------------------------------------------------------

    @property
    def shape(self) -> MachineShape:
        return self._shape

    def read_knob(self, group: str, file: str) -> str | None:
        return self._files.read(group, file)

    def has_knob(self, file: str) -> bool:
        return file in self._files.known

    def has_group(self, group: str) -> bool:
        return group in self._files

    def child_groups(self, group: str) -> tuple[str, ...]:
        return self._files.child_groups(group)

    def thread_ids(self, group: str) -> tuple[int, ...]:
        return ()

    def time_slices(self, group: str) -> Mapping[int, int]:
        return {}

    def resctrl_threads(self, name: str) -> frozenset[int]:
        return frozenset()

    def limited_disks(self, group: str) -> frozenset[str]:
        return self._files.disks(group)

    def execute(
        self,
        effects: Sequence[FileEffect],
        *,
        complete_owners: Sequence[str] = (),
        kept: Sequence[tuple[str, str]] = (),
        verify: bool = False,
    ) -> Sequence[FileWriteResult]:
        """Write the files. Nothing is remembered of them, so `verify` changes nothing."""
        results = [self._files.write(effect) for effect in effects]
        if complete_owners:
            named = [_place(one) for one in effects if isinstance(one, WriteCgroup | WriteSystem)]
            results += self._files.restore(complete_owners, [*named, *kept], "nobody asks for it any more")
        return results

    def release(self, owner: str, why: str) -> Sequence[FileWriteResult]:
        return self._files.restore((owner,), (), why)

    # Pods -------------------------------------------------------------------------------------------------------

    def set_pods(self, pods: tuple[PodMeta, ...]) -> None:
        """Set the pods on the machine: groups are made and removed as a kubelet does."""
        if pods is self._pods:
            return
        self._pods = pods
        here = {pod.uid: pod for pod in pods}
        for uid in [uid for uid in self._pods_by_uid if uid not in here]:
            self._drop(self._pods_by_uid.pop(uid).group)
        for pod in pods:
            known = self._pods_by_uid.get(pod.uid)
            if known is not pod:
                self._admit(pod, known)
                self._pods_by_uid[pod.uid] = pod
        asked = sum(first_amount(pod.requests, ("cpu",)) or 0 for pod in pods if pod.kube_qos == BURSTABLE)
        self._files.make_group(GROUPS[BURSTABLE], {knob.CPU_SHARES: str(shares_of_milli(asked))})
        self._be_request_milli = sum(pod.requests.get(BATCH_CPU, 0) for pod in pods if pod.qos == BE)

    def _admit(self, pod: PodMeta, known: PodMeta | None) -> None:
        if known is None or known.requests != pod.requests or known.limits != pod.limits:
            self._files.make_group(pod.group, initial_values(pod.requests, pod_group_limits(pod)))
        before = {one.group: one for one in known.containers if one.group} if known is not None else {}
        now = {one.group: one for one in pod.containers if one.group}
        for group in before.keys() - now.keys():
            self._drop(group)
        for group, one in now.items():
            old = before.get(group)
            if old is None or old.requests != one.requests or old.limits != one.limits:
                values = initial_values(one.requests, one.limits)
                self._files.make_group(group, values)

    def _drop(self, group: str) -> None:
        self._files.remove_group(group)
        self._cpu.drop(group)
        self._spaces = None

    # Time -------------------------------------------------------------------------------------------------------

    def step(
        self, now_s: float, step_s: float, demands: Mapping[str, ContainerDemand], system: ContainerDemand
    ) -> MachineStepResult:
        """Simulate the `step_s` seconds up to `now_s`. `demands` are by container; a missing one demands nothing."""
        self._cpu.refresh(self._touched)
        self._touched.clear()
        running = [
            (pod, one, demands[one.id])
            for pod in self._pods_by_uid.values()
            for one in pod.containers
            if one.group and one.id in demands
        ]
        done = self._cpu.share(
            step_s,
            {one.group: demand.cpu_milli for _, one, demand in running},
            system.cpu_milli,
            {one.group: demand.cache_pressure for _, one, demand in running if demand.cache_pressure},
        )
        held = settle_memory(
            self._hardware.memory_bytes,
            system.memory_bytes,
            self._memory_spaces(),
            [
                MemoryDemand(
                    group=one.group,
                    allocated=demand.memory_bytes,
                    cache=demand.cache_bytes,
                    score_adj=kubelet_oom_score_adj(
                        pod.kube_qos, pod.priority, one.requests.get(MEMORY, 0), self._hardware.memory_bytes
                    ),
                    priority=self._files.number(one.group, knob.MEMORY_PRIORITY, 0),
                )
                for pod, one, demand in running
            ],
            self._files.number("", knob.MIN_FREE_KBYTES, 0) * _KIB,
            self._parameters,
        )
        outcomes = {
            one.id: ContainerOutcome(
                pod=pod.uid,
                wanted_milli=demand.cpu_milli,
                got_milli=done.got[one.group],
                throttled_share=throttled_share(
                    self._cpu.quotas.get(one.group, _NO_QUOTA), demand.cpu_milli, demand.burstiness
                ),
                memory_bytes=held.allocated.get(one.group, 0),
                cache_bytes=held.cache.get(one.group, 0),
                memory_stalled=held.stalled.get(one.group, 0.0),
                contention=done.contention[one.group],
            )
            for pod, one, demand in running
        }
        best_effort = {one.group for pod, one, _ in running if pod.is_best_effort}
        return MachineStepResult(
            at_s=now_s,
            step_s=step_s,
            outcomes=outcomes,
            system_milli=done.system_milli,
            system_bytes=system.memory_bytes,
            be_used_milli=sum(done.got[group] for group in best_effort),
            be_limit_milli=self._be_limit_milli(),
            be_request_milli=self._be_request_milli,
            kills=held.kills,
        )

    def _be_limit_milli(self) -> float:
        """Return the smallest cpuset of the BE root and two levels below it, or the root's quota if less."""
        root = GROUPS[BEST_EFFORT]
        fewest = self._cpu.usable_cpus(root)
        for pod in self._files.child_groups(root):
            for group in self._files.child_groups(pod):
                fewest = min(fewest, self._cpu.usable_cpus(group))
        quota_us = self._files.number(root, knob.CPU_QUOTA, -1)
        most = fewest * 1000.0
        return min(most, quota_us / 100) if quota_us > 0 else most

    def _touch(self, group: str) -> None:
        self._touched.add(group)
        self._spaces = None

    def _memory_spaces(self) -> tuple[MemoryGroup, ...]:
        if self._spaces is None:
            found: list[MemoryGroup] = []
            waiting: list[tuple[str, str | None]] = [("", None)]
            for group, above in waiting:  # grows while it is walked: parents before children
                found.append(self._space(group, above))
                waiting += [(name, group) for name in self._files.child_groups(group)]
            self._spaces = tuple(found)
        return self._spaces

    def _space(self, group: str, above: str | None) -> MemoryGroup:
        def bound(name: str) -> int | None:
            value = self._files.number(group, name, -1)
            return value if 0 < value < 2**62 else None

        number = self._files.number
        return MemoryGroup(
            name=group,
            parent=above,
            limit=bound(knob.MEMORY_LIMIT),
            high=bound(knob.MEMORY_HIGH),
            low=number(group, knob.MEMORY_LOW, 0),
            least=number(group, knob.MEMORY_MIN, 0),
            kill_together=number(group, knob.MEMORY_OOM_GROUP, 0) == 1,
            oom_by_priority=number(group, knob.MEMORY_USE_PRIORITY_OOM, 0) == 1,
        )


_NO_QUOTA = CfsQuota()


def _place(effect: WriteCgroup | WriteSystem) -> tuple[str, str]:
    return (effect.group if isinstance(effect, WriteCgroup) else ""), effect.file
