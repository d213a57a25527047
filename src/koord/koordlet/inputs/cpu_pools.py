"""Decide which CPUs belong to whom: bound by the kubelet, reserved for node or system, shared by LS or BE pods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koord.api.annotations.cpu_codecs import CPUSharedPool, PodCPUAlloc
from koord.api.koordinator.protocol import BE, LS, LSE
from koord.host.hardware import MachineCpu
from koord.koordlet.inputs.machine import pack_cpus
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.values.cpuset import EMPTY, CPUSet


class CpuManagerState(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's cpu_manager_state: the CPUs that it assigned, by pod uid, then by container, as CPU lists."""

    policy: str = msgspec.field(default="", name="policyName")
    entries: Mapping[str, Mapping[str, str]] = {}


class CpuPools(msgspec.Struct, frozen=True, kw_only=True):
    """The shared pools of LS and BE pods, and the CPUs that the kubelet assigned or reserved."""

    ls_pools: tuple[CPUSharedPool, ...]
    be_pools: tuple[CPUSharedPool, ...]
    allocs: tuple[PodCPUAlloc, ...]
    kubelet_reserved: CPUSet


def decide_cpu_pools(
    *,
    processors: Sequence[MachineCpu],
    pods: Sequence[PodMeta],
    state: CpuManagerState,
    static: bool,
    kubelet_cpus: CPUSet,
    kubelet_milli: int,
    node_cpus: CPUSet,
    system_cpus: CPUSet,
) -> CpuPools:
    """Decide the pools. What the kubelet reserves stays shared; what the node reserves does not."""
    everything = CPUSet.of(one.cpu for one in processors)
    alive = [pod for pod in pods if pod.is_alive]
    allocs: tuple[PodCPUAlloc, ...] = ()
    reserved = EMPTY
    if static:
        reserved = kubelet_cpus or pack_cpus(processors, math.ceil(max(kubelet_milli, 0) / 1000))
        allocs = _allocs(alive, state)
    shared = everything - _union(CPUSet.parse(one.cpuset) for one in allocs)
    kept = node_cpus | system_cpus
    # BE pods are not bound to the CPUs in their annotation, so those stay shared.
    ls = shared - _union(pod.cpuset for pod in alive if pod.qos != BE) - kept
    be = shared - _union(pod.cpuset for pod in alive if pod.qos == LSE) - kept
    return CpuPools(
        ls_pools=_pools(processors, ls), be_pools=_pools(processors, be), allocs=allocs, kubelet_reserved=reserved
    )


def _allocs(pods: Iterable[PodMeta], state: CpuManagerState) -> tuple[PodCPUAlloc, ...]:
    """Return what the kubelet assigned, without pods of the scheduler: their CPUs are in their annotation."""
    found: list[PodCPUAlloc] = []
    for pod in pods:
        entry = state.entries.get(pod.uid)
        if not entry or pod.qos in (LS, BE) or pod.cpuset:
            continue
        cpus = _union(CPUSet.parse_or_empty(text) for text in entry.values())
        if cpus:
            found.append(
                PodCPUAlloc(
                    namespace=pod.namespace, name=pod.name, uid=pod.uid, cpuset=str(cpus), managed_by_kubelet=True
                )
            )
    return tuple(sorted(found, key=lambda one: one.uid))


def _pools(processors: Sequence[MachineCpu], cpus: CPUSet) -> tuple[CPUSharedPool, ...]:
    by_node: dict[int, list[MachineCpu]] = {}
    for one in sorted(processors, key=lambda one: one.cpu):
        if one.cpu in cpus:
            by_node.setdefault(one.node, []).append(one)
    found = [
        CPUSharedPool(socket=members[0].socket, node=node, cpuset=str(CPUSet.of(one.cpu for one in members)))
        for node, members in by_node.items()
    ]
    return tuple(sorted(found, key=lambda pool: (pool.socket, pool.node)))


def _union(sets: Iterable[CPUSet]) -> CPUSet:
    found = EMPTY
    for one in sets:
        found |= one
    return found
