"""Run all collectors of a node: one call per tick takes every sample that is due.

Timestamps are wall time, so that series and reports agree; rates and periods use the monotonic clock.
"""

from __future__ import annotations

from koord.koordlet.collect.application import ApplicationsUse
from koord.koordlet.collect.node import NodeUse
from koord.koordlet.collect.pod import PodsUse
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store


def sample_system(store: Store, now_s: float, node: NodeUse, pods: PodsUse, applications: ApplicationsUse) -> None:
    """Sample the system's own usage: the node's less that of pods and host applications, all of the same tick.

    What the node did not report leaves no sample.
    """
    system: float | None = None
    if node.cores is not None:
        system = max(0.0, node.cores - pods.cores - applications.cores)
        store.add((kind.SYSTEM_CPU,), now_s, system)
    if node.memory_bytes is not None:
        left = max(0, node.memory_bytes - pods.memory_bytes - applications.memory_bytes)
        store.add((kind.SYSTEM_MEMORY,), now_s, left)
    if system is not None and node.numa_cores is not None:
        # Where on the machine the system runs is not counted: it is taken to be where everything runs.
        whole = sum(node.numa_cores.values())
        for number, cores in node.numa_cores.items():
            share = system * cores / whole if whole > 0 else 0.0
            store.add((kind.NUMA_SYSTEM_CPU, str(number)), now_s, share)
    if node.numa_bytes is not None and pods.numa_bytes is not None:
        for number, held in node.numa_bytes.items():
            left = max(0, held - pods.numa_bytes.get(number, 0))
            store.add((kind.NUMA_SYSTEM_MEMORY, str(number)), now_s, left)
