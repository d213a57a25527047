"""Build a small simulated machine with pods of any class."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY
from koord.host.hardware import MachineCpu
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies.runner import StrategyRunner
from koord.sim.machine.cgroup_files import MAINLINE_FILES
from koord.sim.machine.simulated_machine import (
    LAYOUT,
    ContainerDemand,
    MachineStepResult,
    SimulatedHardware,
    SimulatedMachine,
)

GIB = 1 << 30
SYSTEM = ContainerDemand(200, GIB)


def machine(cpus: int = 8, memory: int = 32 * GIB, files: frozenset[str] = MAINLINE_FILES) -> SimulatedMachine:
    processors = tuple(MachineCpu(cpu=cpu, core=cpu // 2) for cpu in range(cpus))
    return SimulatedMachine(SimulatedHardware(processors=processors, memory_bytes=memory, files=files))


def _pod(uid: str, kube_qos: str, requests: Mapping[str, int], limits: Mapping[str, int], **rest: object) -> PodMeta:
    group = LAYOUT.pod_dir(kube_qos, uid)
    container = ContainerMeta(
        name="app",
        id=f"containerd://{uid}",
        group=f"{group}/{uid}",
        running=True,
        requests=requests,
        limits=limits,
    )
    return PodMeta(
        uid=uid,
        name=uid,
        group=group,
        kube_qos=kube_qos,
        requests=requests,
        limits=limits,
        containers=(container,),
        **rest,  # type: ignore[arg-type]
    )


def service(uid: str, cpu_milli: int = 2000, memory: int = GIB, limit_milli: int | None = None) -> PodMeta:
    limits = {CPU: limit_milli or 2 * cpu_milli, MEMORY: 2 * memory}
    labels = {"koordinator.sh/qosClass": "LS"}
    return _pod(uid, BURSTABLE, {CPU: cpu_milli, MEMORY: memory}, limits, labels=labels, priority=9500)


def batch(uid: str, cpu_milli: int = 2000, memory: int = GIB, priority: int = 5500) -> PodMeta:
    amounts = {BATCH_CPU: cpu_milli, BATCH_MEMORY: memory}
    labels = {"koordinator.sh/qosClass": "BE"}
    return _pod(uid, BEST_EFFORT, amounts, amounts, labels=labels, priority=priority)


def start_pods(machine: SimulatedMachine, *pods: PodMeta) -> None:
    """Set the pods on the machine, with what hooks decide for batch amounts."""
    machine.set_pods(pods)
    runner = StrategyRunner(machine, SeriesStore({}, interval_s=1.0), frozenset({"BatchResource"}))
    assert [one.error for one in runner.tick_changes(0.0, NodeInputs(pods=pods))] == [None]


def container(uid: str) -> str:
    return f"containerd://{uid}"


def run(
    machine: SimulatedMachine,
    at_s: float,
    step_s: float = 1.0,
    system: ContainerDemand = SYSTEM,
    **demands: ContainerDemand | float,
) -> MachineStepResult:
    """Run one step with demands by pod; a number is milli-cores beside a little memory."""
    made = {
        container(uid): demand if isinstance(demand, ContainerDemand) else ContainerDemand(demand, GIB // 8)
        for uid, demand in demands.items()
    }
    return machine.step(at_s, step_s, made, system)
