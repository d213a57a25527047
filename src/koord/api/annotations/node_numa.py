"""The node labels that steer CPU binding and NUMA placement."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.protocol import L_CPU_BIND_POLICY, L_NUMA_ALLOCATE_STRATEGY, L_NUMA_TOPOLOGY_POLICY

BIND_NONE = "None"
FULL_PCPUS_ONLY = "FullPCPUsOnly"
SPREAD_BY_PCPUS = "SpreadByPCPUs"

MOST_ALLOCATED = "MostAllocated"
LEAST_ALLOCATED = "LeastAllocated"
DISTRIBUTE_EVENLY = "DistributeEvenly"  # a known name; the accumulator treats it as LeastAllocated


def bind_policy(labels: Mapping[str, str]) -> str:
    """Return a known CPU bind policy of the node, else None. The caller adds what the kubelet's full-pcpus-only
    implies.
    """
    stated = labels.get(L_CPU_BIND_POLICY)
    return stated if stated in (FULL_PCPUS_ONLY, SPREAD_BY_PCPUS) else BIND_NONE


def allocate_strategy(labels: Mapping[str, str]) -> str | None:
    """Return the node's NUMA allocate strategy; None leaves it to the plugin's arguments."""
    return labels.get(L_NUMA_ALLOCATE_STRATEGY) or None


def topology_policy(labels: Mapping[str, str]) -> str:
    """Return the node's NUMA topology policy as stated; the values are those of the numa-topology-spec annotation."""
    return labels.get(L_NUMA_TOPOLOGY_POLICY, "")
