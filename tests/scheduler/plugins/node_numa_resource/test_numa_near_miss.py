"""What `koord explain pod` says of the node that came nearest: CPUs by kind, and each NUMA node for itself."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.framework.decision import Unschedulable
from tests.scheduler.plugins.node_numa_resource.numa_cluster import NumaCluster, node, pod, topology

SINGLE = {"numa-topology-policy": "SingleNUMANode"}
FULL = {"requiredCPUBindPolicy": "FullPCPUs"}


def told(cluster: NumaCluster, one: Any) -> tuple[str, ...]:
    decision = cluster.engine.decide(cluster.info(one)).decision
    assert isinstance(decision, Unschedulable)
    assert decision.nearest is not None
    return (decision.nearest.node, *decision.nearest.details)


def filled(*holders: tuple[str, str], labels: Any = None) -> NumaCluster:
    """Nodes with room by Kubernetes' count, and CPUs held."""
    cluster = NumaCluster()
    for name, cpus in holders:
        cluster.add(node(name, 64, labels=labels)).describe(topology(name))
        status = {"scheduling.koordinator.sh/resource-status": {"cpuset": cpus}}
        cluster.state.set_pod(pod(f"on-{name}", 1, node_name=name, annotations=status))
    return cluster


@pytest.mark.parametrize(
    ("one", "words"),
    [
        pytest.param(pod("p", 8), "8 CPUs asked for, 4 free", id="any-cpus"),
        pytest.param(pod("p", 4, spec=FULL), "4 CPUs asked for, 2 free on whole cores", id="whole-cores"),
    ],
)
def test_free_cpus_by_kind(one: Any, words: str) -> None:
    """CPUs 9, 11, 14 and 15 are free on node a; node b has fewer."""
    assert told(filled(("b", "0-14"), ("a", "0-8,10,12-13")), one) == ("a", words)


def test_each_numa_node_tells_what_it_lacks() -> None:
    cluster = filled(("a", "0-3,10-15"), labels=SINGLE)
    where, words = told(cluster, pod("p", 6, memory="20Gi"))
    assert where == "a"
    assert words == (
        "NUMA node 0 (used by pods that span NUMA nodes) lacks 4Gi memory, 2 CPUs; "
        "NUMA node 1 (used by pods that span NUMA nodes) lacks 4Gi memory, 4 CPUs"
    )
