"""The machine as strategies see it: its hardware, its block devices, the interface to its cgroup files, and which CPUs
belong to whom: bound by the kubelet, reserved for node or system, shared by LS or BE pods.

The real machine is `koord.koordlet.control_loop`; simulated nodes have their own. No method waits, and none raises for
what a node may do: an absent file reads as None, and every write gets a result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from koord.api.annotations.cpu_codecs import CPUSharedPool, PodCPUAlloc
from koord.api.koordinator.protocol import BE, BEST_EFFORT, GUARANTEED, LS, LSE
from koord.host.cgroup.layout import CgroupLayout
from koord.host.hardware import BlockDevices, MachineCpu, ResctrlLimits
from koord.koordlet.cgroup_writer.effects import FileEffect, FileWriteResult
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.values.cpuset import EMPTY, CPUSet

DEVICE = "device"
VOLUME_GROUP = "volumegroup"
POD_VOLUME = "podvolume"


class L3Cache(msgspec.Struct, frozen=True, kw_only=True):
    """The last-level cache and how the kernel lets it be divided."""

    mask: int = 0  # all ways
    ids: tuple[int, ...] = ()
    vendor: str = ""
    limits: ResctrlLimits = ResctrlLimits()

    @property
    def is_divisible(self) -> bool:
        return self.mask > 0 and bool(self.ids)


class MachineShape(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a machine that seldom change. Amounts that Kubernetes knows are in NodeInputs."""

    processors: tuple[MachineCpu, ...] = ()
    layout: CgroupLayout | None = None  # how groups are named; None where there are none to find
    groups: Mapping[str, str] = {}  # cgroup by Kubernetes' QoS class; that of Guaranteed holds the other two
    cgroup_version: int = 2
    page_bytes: int = 4096
    cache: L3Cache = L3Cache()
    disks: BlockDevices = BlockDevices()
    burst_within_quota: bool = True  # mainline kernels refuse a burst above the quota
    time_slice_ns: int = 0  # of a thread without a setting; 0 where the kernel has none to set

    @property
    def kubepods(self) -> str:
        return self.groups.get(GUARANTEED, "")

    @property
    def besteffort(self) -> str:
        return self.groups.get(BEST_EFFORT, "")


class NodeMachine(Protocol):
    """The interface through which strategies read and write a machine's files.

    Groups are paths below the cgroup root ("" is the root); files are named as in the knob table (cgroup v1's names).
    """

    @property
    def shape(self) -> MachineShape: ...

    def read_knob(self, group: str, file: str) -> str | None:
        """Return the value in cgroup v1's notation, or None; files of the whole machine have the group ""."""

    def has_knob(self, file: str) -> bool:
        """Return whether the kernel has the file for pods (or at all, for files of the whole machine)."""

    def child_groups(self, group: str) -> tuple[str, ...]:
        """Return the paths of the groups directly below a group; none when it is gone."""

    def thread_ids(self, group: str) -> tuple[int, ...]: ...

    def time_slices(self, group: str) -> Mapping[int, int]:
        """Return the time slices, in nanoseconds, of the threads in a group and below it."""
        ...

    def resctrl_threads(self, name: str) -> frozenset[int]: ...

    def limited_disks(self, group: str) -> frozenset[str]:
        """Return the numbers (major:minor) of the disks for which a group has limits or settings now."""

    def execute(
        self,
        effects: Sequence[FileEffect],
        *,
        complete_owners: Sequence[str] = (),
        kept: Sequence[tuple[str, str]] = (),
        verify: bool = False,
    ) -> Sequence[FileWriteResult]:
        """Bring files to their values; the results are in the order of the effects.

        With `verify` every file is read, however recently it was right. The effects are all that the owners in
        `complete_owners` want: whatever else those owners wrote before is restored, except the `kept` files (group and
        knob), and the results of that come after the others.
        """

    def release(self, owner: str, why: str) -> Sequence[FileWriteResult]:
        """Restore everything that an owner ever wrote, also in an earlier process."""


@functools.lru_cache(maxsize=8)
def reserved_cpus(processors: tuple[MachineCpu, ...], milli: int) -> CPUSet:
    """Return the CPUs that a reservation by amount stands for; cached, as it is asked for every second."""
    return pack_cpus(processors, -(-milli // 1000)) if milli > 0 else EMPTY


def pack_cpus(processors: Sequence[MachineCpu], count: int) -> CPUSet:
    """Return `count` CPUs as the kubelet would choose them on an idle machine: close together, whole units first."""
    left, need = {one.cpu: one for one in processors}, min(count, len(processors))
    taken: list[int] = []

    def take(cpus: Sequence[int]) -> None:
        nonlocal need
        taken.extend(cpus)
        need -= len(cpus)
        for cpu in cpus:
            del left[cpu]

    # The larger of socket and NUMA node comes first; which one that is depends on the machine.
    sockets, nodes = {one.socket for one in processors}, {one.node for one in processors}
    levels = ("socket", "node") if len(sockets) <= len(nodes) else ("node", "socket")
    for level in levels:
        for unit in _units(processors, left, (level,)):
            free = [cpu for cpu in unit if cpu in left]
            if len(free) == len(unit) <= need:
                take(free)
    ways = (*levels, "core")
    for unit in _units(processors, left, ways):
        if len(unit) > need:
            break
        if all(cpu in left for cpu in unit):
            take(unit)
    for unit in _units(processors, left, ways):
        take([cpu for cpu in unit if cpu in left][:need])
    return CPUSet.of(taken)


def _units(processors: Sequence[MachineCpu], left: Mapping[int, MachineCpu], ways: tuple[str, ...]) -> list[list[int]]:
    """Return the units of the innermost level, those in the emptiest surroundings first."""
    whole: dict[tuple[int, ...], list[int]] = {}
    free: dict[tuple[int, ...], int] = {}
    for one in sorted(processors, key=lambda one: one.cpu):
        place = tuple(getattr(one, way) for way in ways)
        whole.setdefault(place, []).append(one.cpu)
        for depth in range(1, len(place) + 1):
            free[place[:depth]] = free.get(place[:depth], 0) + (one.cpu in left)

    def rank(place: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        return tuple((free[place[: depth + 1]], number) for depth, number in enumerate(place))

    return [whole[place] for place in sorted(whole, key=rank)]


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
