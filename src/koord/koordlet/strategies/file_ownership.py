"""The owner of a cgroup file that several parts of the agent may want; the others leave the file alone.

The quota of a pod and of its containers may be wanted by five parts, their CPUs by two. Here alone it is decided which
of them writes, from the pod, the gates and the pods that are throttled; so no two parts ever write one file in turns.
"""

from __future__ import annotations

from koord.api.koordinator.protocol import BE, BEST_EFFORT, LS, LSE, LSR
from koord.host.cgroup.knob import CPU_IDLE, CPU_QUOTA, CPUSET, GROUP_IDENTITY_ENABLED, SCHED_CORE
from koord.koordlet.hooks import batch_resource, core_sched, cpu_normalization, cpuset
from koord.koordlet.inputs.pod_meta import PodMeta

CPU_BURST = "CPUBurst"
CPU_SUPPRESS = "CPUSuppresss"  # upstream's name of the strategy, spelled so on the wire
BATCH_RESOURCE = batch_resource.NAME
CPU_NORMALIZATION = cpu_normalization.NAME
CPUSET_ALLOCATOR = cpuset.NAME

CORE_SCHED = core_sched.NAME
CORE_SCHED_SWITCH = "CoreSchedSwitch"
INTERFERENCE = "Interference"  # which throttles pods that disturb others
CPU_POLICY = "CPUPolicy"  # of group identity where idle groups stand in for it

SUPPRESS_GATE = "BECPUSuppress"
MANAGER_GATE = cpuset.BE_CPU_MANAGER_GATE

# All owners that a file may have over time. Each may take the file from the others when the pod or a gate changes.
OWNERS = {
    CPU_QUOTA: (BATCH_RESOURCE, CPU_NORMALIZATION, CPUSET_ALLOCATOR, CPU_BURST, INTERFERENCE),
    CPUSET: (CPUSET_ALLOCATOR, CPU_SUPPRESS),
    # The two exclude each other by the NodeSLO's cpuPolicy.
    CPU_IDLE: (CORE_SCHED, CPU_POLICY),
    GROUP_IDENTITY_ENABLED: (CORE_SCHED_SWITCH, CPU_POLICY),
    SCHED_CORE: (CORE_SCHED_SWITCH, CPU_POLICY),
}


def owner_of(
    file: str, pod: PodMeta, gates: frozenset[str], *, unset_cpu_quota: bool = True, throttled: bool = False
) -> str | None:
    """Return the owner of a file of the pod and of its containers; None where only one part ever wants the file.

    `unset_cpu_quota` is whether pods with CPUs of their own run without a quota. `throttled`: the file is of a
    container whose pod is throttled for what it does to others.
    """
    if file == CPU_QUOTA and throttled:
        return INTERFERENCE
    if file == CPU_QUOTA:
        return quota_owner(pod, gates, unset_cpu_quota=unset_cpu_quota)
    return cpuset_owner(pod, gates) if file == CPUSET else None


def quota_owner(pod: PodMeta, gates: frozenset[str], *, unset_cpu_quota: bool = True) -> str:
    """Return who writes the quota. Bursting starts from the normalized quota, so it does the work of normalization."""
    if pod.qos == BE:
        return BATCH_RESOURCE
    if pod.qos in (LSE, LSR):
        return CPUSET_ALLOCATOR
    if not pod.qos and pod.cpuset and unset_cpu_quota and CPUSET_ALLOCATOR in gates:
        return CPUSET_ALLOCATOR
    return CPU_BURST if CPU_BURST in gates else CPU_NORMALIZATION


def cpuset_owner(pod: PodMeta, gates: frozenset[str]) -> str:
    """Return who writes the CPUs: suppression has the whole BE tier, except pods that are given CPUs one by one."""
    if pod.kube_qos != BEST_EFFORT or SUPPRESS_GATE not in gates:
        return CPUSET_ALLOCATOR
    return CPUSET_ALLOCATOR if MANAGER_GATE in gates and pod.is_pinned else CPU_SUPPRESS


def is_normalized(pod: PodMeta) -> bool:
    """Return whether the CPU normalization ratio counts for the pod's limits.

    Whoever has CPUs of his own has the whole of them, however fast they are.
    """
    return pod.qos in (LS, "") and not pod.cpuset


def earlier_owners(file: str, owner: str) -> tuple[str, ...]:
    """Return the owners from which an owner may take the file."""
    return tuple(other for other in OWNERS.get(file, ()) if other != owner)
