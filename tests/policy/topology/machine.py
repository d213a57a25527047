"""Builders of machines, nodes and pods for the tests of CPU binding and NUMA placement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from koord.api.annotations.cpu_topology import CPUInfo
from koord.api.annotations.resource_spec import ResourceSpec
from koord.api.model import convert
from koord.api.topology import NodeResourceTopology
from koord.policy.topology.admission import admit, resolve_exclusive, resolve_policy, zones_for
from koord.policy.topology.allocation import allocate
from koord.policy.topology.binding import Binding, check_binding, decide_binding, decide_wish
from koord.policy.topology.cpu_topology import CpuTopology, Invalid
from koord.policy.topology.hint_source import numa_hints
from koord.policy.topology.ledger import Allocation, Ledger
from koord.policy.topology.node import NodeTopology, NumaZone, node_topology
from koord.policy.topology.refusal import MISSING_NUMA, Short
from koord.policy.topology.request import Request
from koord.policy.topology.score import Scorer
from koord.values.cpuset import CPUSet

GI = 1 << 30
LEAST = Scorer(fills_up=False, weights=(("cpu", 1), ("memory", 1)))
MOST = Scorer(fills_up=True, weights=(("cpu", 1), ("memory", 1)))


def rows(sockets: int, zones: int, cores: int, threads: int) -> list[dict[str, int]]:
    """Return CPU rows: zones per socket, cores per zone, threads per core; siblings have neighbouring numbers."""
    per_socket, per_zone = zones * cores * threads, cores * threads
    return [
        {"id": cpu, "core": cpu // threads, "socket": cpu // per_socket, "node": cpu // per_zone}
        for cpu in range(sockets * per_socket)
    ]


def machine(sockets: int, zones: int, cores: int, threads: int) -> CpuTopology:
    return valid(CpuTopology.of([CPUInfo(**row) for row in rows(sockets, zones, cores, threads)]))


def valid(topology: CpuTopology | Invalid) -> CpuTopology:
    assert isinstance(topology, CpuTopology), topology
    return topology


def bits(text: str) -> int:
    return CPUSet.parse(text).bits


def text(found: object) -> str:
    """Return CPUs as a list, a refusal as its text."""
    return str(CPUSet(found)) if isinstance(found, int) else str(found)


def node_of(cpu: CpuTopology, **fields: Any) -> NodeTopology:
    """With zones of as many cpus as they have and 128Gi each."""
    zones = tuple(NumaZone(z.number, {"cpu": 1000 * z.cpus.bit_count(), "memory": 128 * GI}) for z in cpu.zones)
    return NodeTopology(cpu=cpu, **{"zones": zones, **fields})


def holding(topology: CpuTopology, cpus: str = "", **fields: Any) -> Ledger:
    return Ledger.over(topology, {"before": Allocation(cpus=CPUSet.parse(cpus), **fields)})


def resource_topology(
    *,
    shape: tuple[int, int, int, int] = (1, 2, 4, 2),
    annotations: Mapping[str, Any] | None = None,
    zones: list[dict[str, Any]] | None = None,
    policies: tuple[str, ...] = ("None",),
) -> NodeResourceTopology:
    detail = rows(*shape)
    written = {"node.koordinator.sh/cpu-topology": {"detail": detail}, **(annotations or {})}
    per_zone = shape[2] * shape[3]
    zones = zones if zones is not None else [zone(f"node-{n}", cpu=per_zone) for n in range(shape[0] * shape[1])]
    return convert(
        {
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": "a",
                "annotations": {k: v if isinstance(v, str) else json.dumps(v) for k, v in written.items()},
            },
            "topologyPolicies": list(policies),
            "zones": zones,
        },
        NodeResourceTopology,
    )


def zone(
    name: str, *, cpu: object = 8, memory: str = "16Gi", kind: str = "Node", more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    amounts = {"cpu": str(cpu), "memory": memory, **(more or {})}
    listed = [{"name": n, "capacity": v, "allocatable": v, "available": v} for n, v in amounts.items()]
    return {"name": name, "type": kind, "resources": listed}


class Bench:
    """One node and pods placed on it one after another, as a scheduler does."""

    def __init__(
        self,
        found: NodeResourceTopology | None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.node = node_topology(found, labels or {}, annotations or {})
        self.ledger = Ledger.over(self.node.cpu)

    def place(
        self,
        uid: str,
        cpu: int,
        *,
        memory: int = GI,
        lsr: bool = False,
        spec: ResourceSpec | None = None,
        numa: str = "",
        exclusive: str = "",
        scorer: Scorer = LEAST,
    ) -> Allocation | Short:
        wish = decide_wish(spec, 1000 * cpu, eligible=lsr, default_policy="FullPCPUs")
        policy = resolve_policy(self.node.numa_policy, numa)
        if isinstance(policy, Short) or isinstance(wish, Short):
            return policy if isinstance(policy, Short) else wish if isinstance(wish, Short) else Short(())
        binding = decide_binding(wish, self.node)
        if isinstance(binding, Short):
            return binding
        if isinstance(binding, Binding):
            refused = check_binding(wish, binding, self.node)
            if refused is not None:
                return refused
        request = Request(amounts={"cpu": 1000 * cpu, "memory": memory}, binding=binding)
        mask = None
        if policy:
            if not self.node.zones:
                return Short.finally_(MISSING_NUMA)
            zones = zones_for(self.node, self.ledger, resolve_exclusive(numa, exclusive))
            affinity = admit(
                policy,
                zones,
                [lambda width: numa_hints(self.node, self.ledger, request, policy, scorer, widest=width)],
            )
            if isinstance(affinity, Short):
                return affinity
            mask = affinity.mask
        given = allocate(self.node, self.ledger, request, mask)
        if isinstance(given, Allocation):
            self.ledger = self.ledger.add(uid, given)
        return given
