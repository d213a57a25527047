"""A machine in memory: strategies read and write its files as those of a real one, and time passes in steps.

Groups and their initial values are those that a kubelet makes; batch amounts count as the agent's hooks have the
runtime apply them. What a step does is computed in `cfs`, `cpu_contention` and `memory`.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.qos_class import BEST_EFFORT, GUARANTEED
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, MID_CPU, MID_MEMORY
from koord.host.cgroup import knob
from koord.koordlet.plan import UNLIMITED
from koord.koordlet.pod import PodView
from koord.koordlet.strategies import file

LEAST_SHARES = 2
_SHARES_OF_CPU = 1024
_LEAST_QUOTA_US = 1000
_QUOTA_OF_MILLI = 100  # microseconds of a period of 100 ms

_CPUS = (CPU, BATCH_CPU, MID_CPU)
_MEMORIES = (MEMORY, BATCH_MEMORY, MID_MEMORY)


def shares(milli: int) -> int:
    """Return the cpu.shares of a request."""
    return max(LEAST_SHARES, milli * _SHARES_OF_CPU // 1000)


def quota_us(milli: int | None) -> int:
    """Return the CFS quota of a limit; -1 without one."""
    return UNLIMITED if milli is None else max(_LEAST_QUOTA_US, milli * _QUOTA_OF_MILLI)


def asked(amounts: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    """Return the first amount that is set among these resource names, or None."""
    return next((found for name in names if (found := amounts.get(name))), None)


def beginning(requests: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, str]:
    """Return the values of a pod's or container's files before any strategy writes."""
    cpu, memory = asked(limits, _CPUS), asked(limits, _MEMORIES)
    return {
        file.CPU_SHARES: str(shares(asked(requests, _CPUS) or 0)),
        file.CPU_QUOTA: str(quota_us(cpu)),
        file.CPU_BURST: "0",
        file.CPUSET: "",
        knob.MEMORY_LIMIT: str(UNLIMITED if memory is None else memory),
    }


def pod_limits(pod: PodView) -> Mapping[str, int]:
    """Return the limits of the pod's own group; its CPU is bounded only where every container's is."""
    if not all(asked(one.limits, _CPUS) for one in pod.containers):
        return {name: amount for name, amount in pod.limits.items() if name not in _CPUS}
    return pod.limits


def score_adj(pod: PodView, request_bytes: int, capacity_bytes: int) -> int:
    """Return the oom_score_adj that kubelets set: the more memory was requested, the later the pod dies."""
    if pod.kube_qos == GUARANTEED:
        return -997
    if pod.kube_qos == BEST_EFFORT:
        return 1000
    return min(max(2, 1000 - 1000 * request_bytes // max(capacity_bytes, 1)), 999)
