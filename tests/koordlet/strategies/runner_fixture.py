"""A fake machine with a fake kernel, and the strategy runner on it; samples are added by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from koord.api.koordinator.protocol import BE, BEST_EFFORT, BURSTABLE, LS
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import CPUBurstStrategy, NodeSLOSpec, ResourceThresholdStrategy
from koord.host.cgroup import knob
from koord.host.core_sched import TimeSliceSystem
from koord.koordlet.control_loop import HostMachine
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies.runner import StrategyResult, StrategyRunner
from koord.koordlet.strategies.strategy import StrategySettings
from tests.koordlet.cgroup_writer.executor_fixture import ExecutorFixture
from tests.koordlet.strategies.builders import pod

GI = 2**30
CPUS = 4
TOP = "kubepods/besteffort"
BE_POD, BE_BOX = f"{TOP}/podbe", f"{TOP}/podbe/one"
LS_POD, LS_BOX = "kubepods/burstable/podls", "kubepods/burstable/podls/two"
GROUPS = (TOP, BE_POD, BE_BOX, "kubepods/burstable", LS_POD, LS_BOX)
GATES = frozenset({"BECPUSuppress", "CPUBurst"})
NODE = NodeProperties(
    name="n",
    capacity={CPU: CPUS * 1000, MEMORY: 16 * GI},
    allocatable={CPU: CPUS * 1000, MEMORY: 16 * GI},
)
LS_LIMIT_MILLI = 1_000


def be_pod() -> PodMeta:
    box = ContainerMeta(name="c", id="containerd://one", group=BE_BOX, running=True)
    return msgspec.structs.replace(pod("be", BE, containers=(box,)), group=BE_POD)


def ls_pod(limit_milli: int = LS_LIMIT_MILLI) -> PodMeta:
    amounts = {CPU: limit_milli, MEMORY: GI}
    box = ContainerMeta(name="c", id="containerd://two", group=LS_BOX, running=True, requests=amounts, limits=amounts)
    return msgspec.structs.replace(pod("ls", LS, requests=amounts, limits=amounts, containers=(box,)), group=LS_POD)


def suppress_by(policy: str, percent: int = 65, *, enable: bool = True) -> NodeSLOSpec:
    return NodeSLOSpec(
        resource_used_threshold_with_be=ResourceThresholdStrategy(
            enable=enable, cpu_suppress_policy=policy, cpu_suppress_threshold_percent=percent
        )
    )


def burst_by(policy: str) -> NodeSLOSpec:
    return NodeSLOSpec(cpu_burst_strategy=CPUBurstStrategy(policy=policy))


class RunnerFixture:
    def __init__(
        self,
        root: Path,
        version: int = 1,
        *,
        gates: frozenset[str] = GATES,
        only: frozenset[str] = frozenset(),
        vendor: bool = False,
        settings: StrategySettings = StrategySettings(),  # noqa: B008 - a frozen value
    ) -> None:
        self.world = ExecutorFixture(root, version, journal=True, only=only, vendor=vendor)
        self.world.machine.put("sys/devices/system/cpu/online", f"0-{CPUS - 1}\n")
        self.world.machine.pod(BEST_EFFORT, "be", "containerd://one")
        self.world.machine.pod(BURSTABLE, "ls", "containerd://two")
        self._limit_ls()
        self.settings = settings
        self.slices: TimeSliceSystem | None = None
        self.now_s = self.world.clock.time()
        self.start(gates)

    def start(self, gates: frozenset[str] = GATES) -> None:
        """Start a new process on the same machine."""
        self.world.start(self.slices)
        self.store = SeriesStore({}, interval_s=1.0)
        self.machine = HostMachine(self.world.tree, self.world.executor, may_write=False, resctrl=False, disks=False)
        self.round = StrategyRunner(self.machine, self.store, gates, self.settings)

    def measure(
        self,
        node_milli: int,
        pods_milli: Mapping[str, int] | None = None,
        *,
        throttled: float = 0.0,
        memory_bytes: int = 0,
        pods_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """Add the samples of the next second."""
        self.world.clock.advance(1)
        self.now_s = self.world.clock.time()
        self.store.add((metric_kind.NODE_CPU,), self.now_s, node_milli / 1000)
        self.store.add((metric_kind.NODE_MEMORY,), self.now_s, memory_bytes)
        for uid, milli in (pods_milli or {}).items():
            self.store.add((metric_kind.POD_CPU, uid), self.now_s, milli / 1000)
        for uid, used in (pods_bytes or {}).items():
            self.store.add((metric_kind.POD_MEMORY, uid), self.now_s, used)
        self.store.add((metric_kind.CONTAINER_THROTTLED, "containerd://two"), self.now_s, throttled)
        self.store.add(
            (metric_kind.CONTAINER_CPU, "containerd://two"), self.now_s, (pods_milli or {}).get("ls", 0) / 1000
        )

    def node_inputs(self, spec: NodeSLOSpec | None, **changes: object) -> NodeInputs:
        node_inputs = NodeInputs(
            node=NODE,
            slo=None if spec is None else effective_slo(spec),
            pods=(be_pod(), ls_pod()),
        )
        return msgspec.structs.replace(node_inputs, **changes)

    def tick(self, spec: NodeSLOSpec | None, **changes: object) -> tuple[StrategyResult, ...]:
        ran = self.round.tick(self.now_s, self.node_inputs(spec, **changes))
        assert [one.error for one in ran if one.error is not None] == []
        return ran

    def quota(self, group: str) -> int:
        return int(self.world.value(knob.CPU_QUOTA, group))

    def cpus(self, group: str) -> str:
        return self.world.value(knob.CPUSET, group)

    def values(self) -> dict[tuple[str, str], str]:
        """Return what the files hold that these strategies write."""
        knobs = (knob.CPU_QUOTA, knob.CPU_BURST, knob.CPUSET)
        return {(knob, group): self.world.value(knob, group) for knob in knobs for group in GROUPS}

    def _limit_ls(self) -> None:
        name, text = ("cpu.cfs_quota_us", "100000") if self.world.machine.version == 1 else ("cpu.max", "100000 100000")
        for group in (LS_POD, LS_BOX):
            assert self.world.kernel.write(f"{self.world.tree.group_path('cpu', group)}/{name}", text) is None
        self.world.kernel.writes.clear()
