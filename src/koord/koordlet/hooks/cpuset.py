"""The CPUSetAllocator hook: the CPUs of containers, and no quota for pods that have CPUs of their own.

The scheduler writes the CPUs or NUMA nodes of a pod into its resource-status annotation; all other pods run on the
shared pools. The CPUs of everything in the besteffort cgroup belong to CPU suppression, so pods there have none from
this hook unless the scheduler named them, and BE pods only with the gate BECPUManager, which makes suppression let go.
Lists are in the kernel's own shortest notation, so a list equals what the kernel shows for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.cpu_codecs import CPUSharedPool, NUMANodeResource, PodResourceStatus
from koord.api.koordinator.protocol import A_RESOURCE_STATUS, BE, BEST_EFFORT, LS, LSE, LSR, NONE, SYSTEM
from koord.api.koordinator.resource_name import BATCH_CPU, CPU
from koord.api.koordinator.slo import HostApplicationSpec
from koord.host.cgroup.codec import UNLIMITED
from koord.host.cgroup.knob import CPU_QUOTA, CPUSET
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, HookPlan, HookValue, NodeRules, PodContext
from koord.values.cpuset import EMPTY, CPUSet, CPUSetError
from koord.values.quantity import Quantity

NAME = "CPUSetAllocator"
FILES = (CPUSET, CPU_QUOTA)
BE_CPU_MANAGER_GATE = "BECPUManager"
_UNBOUND = (LSE, LSR, NONE)  # classes whose pods lose their quota when they have CPUs of their own


class _Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs of a pod's containers; none leaves their files alone. `own` CPUs were named for this pod alone."""

    cpus: CPUSet = EMPTY
    own: bool = False
    why: str = ""


def decide_pod(pod: PodContext, rules: NodeRules) -> HookPlan:
    """Decide the quota of the pod's cgroup. Its CPUs stay those of all pods: only containers are bound."""
    found = _assignment(pod, rules)
    return _malformed(found) if isinstance(found, MalformedAnnotation) else HookPlan(values=_quota(pod, found, rules))


def decide_container(container: ContainerContext, rules: NodeRules) -> HookPlan:
    """Decide the CPUs and the quota of a container, that of the sandbox included."""
    found = _assignment(container.pod, rules)
    if isinstance(found, MalformedAnnotation):
        return _malformed(found)
    return HookPlan(values=(*_cpus(found), *_quota(container.pod, found, rules)))


def shared_cpus(pools: Iterable[CPUSharedPool] | None) -> CPUSet:
    """Return the CPUs of all pools; none where the pools are not known."""
    cpus = EMPTY
    for pool in pools or ():
        cpus |= CPUSet.parse_or_empty(pool.cpuset)
    return cpus


def _assignment(pod: PodContext, rules: NodeRules) -> _Assignment | MalformedAnnotation:
    status = pod.resource_status
    if isinstance(status, MalformedAnnotation):
        return status
    if pod.qos == BE and BE_CPU_MANAGER_GATE not in rules.gates:
        return _Assignment()
    if status.cpuset.strip():
        return _own(status)
    nodes = _numa_nodes(status.numa_node_resources)
    if pod.qos == BE:
        return _of_nodes(nodes, rules.be_pools, "BE pool") if nodes else _Assignment()
    if pod.kube_qos == BEST_EFFORT:
        return _Assignment()
    if nodes:
        return _of_nodes(nodes, rules.ls_pools, "LS pool")
    if pod.qos == SYSTEM and rules.system_cpus:
        return _Assignment(cpus=CPUSet.parse_or_empty(rules.system_cpus), why="CPUs of SYSTEM pods on this node")
    if pod.qos != LS and rules.kubelet_static:
        return _Assignment()
    return _Assignment(cpus=shared_cpus(rules.ls_pools), why="LS pools of all NUMA nodes")


def _own(status: PodResourceStatus) -> _Assignment | MalformedAnnotation:
    try:
        cpus = CPUSet.parse(status.cpuset)
    except CPUSetError as error:
        return MalformedAnnotation(A_RESOURCE_STATUS, f"cpuset: {error}")
    return _Assignment(cpus=cpus, own=True, why=f"{A_RESOURCE_STATUS} cpuset {cpus}")


def _of_nodes(nodes: tuple[int, ...], pools: tuple[CPUSharedPool, ...] | None, which: str) -> _Assignment:
    cpus = shared_cpus(pool for pool in pools or () if pool.node in nodes)
    return _Assignment(cpus=cpus, why=f"{which} of NUMA {', '.join(map(str, nodes))} by {A_RESOURCE_STATUS}")


def _numa_nodes(resources: Iterable[NUMANodeResource]) -> tuple[int, ...]:
    """Return the NUMA nodes on which the scheduler gave the pod any CPU."""
    return tuple(one.node for one in resources if any(_positive(one, name) for name in (CPU, BATCH_CPU)))


def _positive(one: NUMANodeResource, resource: str) -> bool:
    # The codec has checked that every amount is a quantity.
    return resource in one.resources and Quantity.parse(one.resources[resource]).sign() > 0


def _cpus(found: _Assignment) -> tuple[HookValue, ...]:
    return (HookValue(knob=CPUSET, value=str(found.cpus), why=found.why),) if found.cpus else ()


def _quota(pod: PodContext, found: _Assignment, rules: NodeRules) -> tuple[HookValue, ...]:
    if not found.own or not rules.settings.unset_cpu_quota or pod.qos not in _UNBOUND:
        return ()
    return (HookValue(knob=CPU_QUOTA, value=str(UNLIMITED), why=f"{found.why}: a quota would throttle its own CPUs"),)


def _malformed(found: MalformedAnnotation) -> HookPlan:
    return msgspec.structs.replace(NOTHING, problem=str(found))


def decide_host_application(application: HostApplicationSpec, rules: NodeRules) -> HookPlan:
    """Decide the CPUs of one application, a process outside of Kubernetes that the NodeSLO names with a QoS class.

    Only LS applications have CPUs from here, those of the LS pools; all others keep what their administrator gave them.
    `CgroupLayout.host_application_dir` names the application's cgroup.
    """
    cpus = shared_cpus(rules.ls_pools)
    if application.qos != LS or not cpus:
        return NOTHING
    return HookPlan(values=(HookValue(knob=CPUSET, value=str(cpus), why="LS pools of all NUMA nodes"),))
