"""Build pods in few words, and read the effects of plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.koordinator.protocol import A_RESOURCE_STATUS, BE, BEST_EFFORT, L_QOS_CLASS
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.strategy import Effect, StrategyPlan


def pod(
    name: str,
    qos: str = "",
    *,
    kube_qos: str | None = None,
    priority: int | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    requests: Mapping[str, int] | None = None,
    limits: Mapping[str, int] | None = None,
    containers: tuple[ContainerMeta, ...] = (),
    cpuset: str = "",
    phase: str = "Running",
    terminating: bool = False,
    created_s: float = 0.0,
) -> PodMeta:
    status = {A_RESOURCE_STATUS: f'{{"cpuset":"{cpuset}"}}'} if cpuset else {}
    return PodMeta(
        uid=name,
        name=name,
        group=f"kubepods/pod{name}",
        phase=phase,
        labels={**({L_QOS_CLASS: qos} if qos else {}), **(labels or {})},
        annotations={**status, **(annotations or {})},
        priority=priority,
        kube_qos=kube_qos or (BEST_EFFORT if qos == BE else "Burstable"),
        terminating=terminating,
        created_s=created_s,
        requests=requests or {},
        limits=limits or {},
        containers=containers,
    )


def container(
    name: str, *, of: str, requests: Mapping[str, int] | None = None, limits: Mapping[str, int] | None = None
) -> ContainerMeta:
    return ContainerMeta(
        name=name,
        id=f"containerd://{of}-{name}",
        group=f"kubepods/pod{of}/{name}",
        running=True,
        requests=requests or {},
        limits=limits or {},
    )


def writes(plan: StrategyPlan | Iterable[Effect], file: str) -> list[tuple[str, str]]:
    """Return group and value of each write of a file, in order."""
    effects = plan.effects if isinstance(plan, StrategyPlan) else plan
    return [(one.group, one.value) for one in effects if isinstance(one, WriteCgroup) and one.file == file]


def victims(plan: StrategyPlan) -> list[str]:
    return [one.name for one in plan.effects if isinstance(one, EvictionRequest)]
