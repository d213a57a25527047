"""Build a small simulated machine with pods of any class."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.qos_class import BEST_EFFORT, BURSTABLE
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY
from koord.koordlet.contention.files import MAINLINE
from koord.koordlet.contention.machine import LAYOUT, Hardware, SimulatedMachine
from koord.koordlet.contention.moment import Moment, Wish
from koord.koordlet.pod import ContainerView, PodView
from koord.koordlet.strategies.processor import Processor

GIB = 1 << 30
SYSTEM = Wish(200, GIB)


def machine(cpus: int = 8, memory: int = 32 * GIB, files: frozenset[str] = MAINLINE) -> SimulatedMachine:
    processors = tuple(Processor(cpu=cpu, core=cpu // 2) for cpu in range(cpus))
    return SimulatedMachine(Hardware(processors=processors, memory_bytes=memory, files=files))


def _pod(uid: str, kube_qos: str, requests: Mapping[str, int], limits: Mapping[str, int], **rest: object) -> PodView:
    group = LAYOUT.pod_dir(kube_qos, uid)
    container = ContainerView(
        name="app",
        id=f"containerd://{uid}",
        group=f"{group}/{uid}",
        running=True,
        requests=requests,
        limits=limits,
    )
    return PodView(
        uid=uid,
        name=uid,
        group=group,
        kube_qos=kube_qos,
        requests=requests,
        limits=limits,
        containers=(container,),
        **rest,  # type: ignore[arg-type]
    )


def service(uid: str, cpu_milli: int = 2000, memory: int = GIB, limit_milli: int | None = None) -> PodView:
    limits = {CPU: limit_milli or 2 * cpu_milli, MEMORY: 2 * memory}
    labels = {"koordinator.sh/qosClass": "LS"}
    return _pod(uid, BURSTABLE, {CPU: cpu_milli, MEMORY: memory}, limits, labels=labels, priority=9500)


def batch(uid: str, cpu_milli: int = 2000, memory: int = GIB, priority: int = 5500) -> PodView:
    amounts = {BATCH_CPU: cpu_milli, BATCH_MEMORY: memory}
    labels = {"koordinator.sh/qosClass": "BE"}
    return _pod(uid, BEST_EFFORT, amounts, amounts, labels=labels, priority=priority)


def container(uid: str) -> str:
    return f"containerd://{uid}"


def run(
    machine: SimulatedMachine, at_s: float, step_s: float = 1.0, system: Wish = SYSTEM, **wishes: Wish | float
) -> Moment:
    """Run one step with demands by pod; a number is milli-cores beside a little memory."""
    made = {container(uid): wish if isinstance(wish, Wish) else Wish(wish, GIB // 8) for uid, wish in wishes.items()}
    return machine.step(at_s, step_s, made, system)
