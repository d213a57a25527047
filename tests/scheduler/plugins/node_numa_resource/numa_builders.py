"""Builders of machines, nodes and pods for the tests of CPU binding and NUMA placement."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.cpu_codecs import CPUInfo, ResourceSpec
from koord.api.koordinator.sigs_scheduling import NodeResourceTopology
from koord.api.model import convert
from koord.scheduler.plugins.node_numa_resource.allocator import allocate_numa
from koord.scheduler.plugins.node_numa_resource.cpu_binding import (
    CpuBinding,
    NumaRequest,
    check_binding,
    decide_bind_request,
    decide_binding,
)
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology, InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.cycle_state import NumaScorer
from koord.scheduler.plugins.node_numa_resource.ledger import (
    NO_REFERENCES,
    CpuRefCounts,
    NumaAllocation,
    NumaLedger,
    parse_allocation,
)
from koord.scheduler.plugins.node_numa_resource.placement import provide_numa_hints
from koord.scheduler.plugins.node_numa_resource.refusal import MISSING_NUMA, NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_manager import (
    admit_pod,
    numa_zones_of,
    resolve_exclusive_policy,
    resolve_numa_policy,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import NumaZone, TopologyOptions, read_topology_options
from koord.values.cpuset import CPUSet

GI = 1 << 30
LEAST = NumaScorer(packs=False, weights=(("cpu", 1), ("memory", 1)))
MOST = NumaScorer(packs=True, weights=(("cpu", 1), ("memory", 1)))


def rows(sockets: int, zones: int, cores: int, threads: int) -> list[dict[str, int]]:
    """Return CPU rows: zones per socket, cores per zone, threads per core; siblings have neighbouring numbers."""
    per_socket, per_zone = zones * cores * threads, cores * threads
    return [
        {"id": cpu, "core": cpu // threads, "socket": cpu // per_socket, "node": cpu // per_zone}
        for cpu in range(sockets * per_socket)
    ]


def machine(sockets: int, zones: int, cores: int, threads: int) -> CpuTopology:
    return valid(CpuTopology.from_details([CPUInfo(**row) for row in rows(sockets, zones, cores, threads)]))


def valid(topology: CpuTopology | InvalidCpuTopology) -> CpuTopology:
    assert isinstance(topology, CpuTopology), topology
    return topology


def bits(text: str) -> int:
    return CPUSet.parse(text).bits


def text(found: object) -> str:
    """Return CPUs as a list, a refusal as its text."""
    return str(CPUSet(found)) if isinstance(found, int) else str(found)


def node_of(cpu: CpuTopology, **fields: Any) -> TopologyOptions:
    """With zones of as many cpus as they have and 128Gi each."""
    zones = tuple(NumaZone(z.number, {"cpu": 1000 * z.cpus.bit_count(), "memory": 128 * GI}) for z in cpu.zones)
    return TopologyOptions(cpu=cpu, **{"zones": zones, **fields})


def holding(topology: CpuTopology, cpus: str = "", **fields: Any) -> NumaLedger:
    return NumaLedger.build(topology, {"before": NumaAllocation(cpus=CPUSet.parse(cpus), **fields)})


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


class PlacementBench:
    """One node and pods placed on it one after another, as a scheduler does."""

    def __init__(
        self,
        found: NodeResourceTopology | None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.node = read_topology_options(found, labels or {}, annotations or {})
        self.ledger = NumaLedger.build(self.node.cpu)

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
        scorer: NumaScorer = LEAST,
    ) -> NumaAllocation | NumaRefusal:
        wish = decide_bind_request(spec, 1000 * cpu, eligible=lsr, default_policy="FullPCPUs")
        policy = resolve_numa_policy(self.node.numa_policy, numa)
        if isinstance(policy, NumaRefusal) or isinstance(wish, NumaRefusal):
            return (
                policy
                if isinstance(policy, NumaRefusal)
                else wish
                if isinstance(wish, NumaRefusal)
                else NumaRefusal(())
            )
        binding = decide_binding(wish, self.node)
        if isinstance(binding, NumaRefusal):
            return binding
        if isinstance(binding, CpuBinding):
            refused = check_binding(wish, binding, self.node)
            if refused is not None:
                return refused
        request = NumaRequest(amounts={"cpu": 1000 * cpu, "memory": memory}, binding=binding)
        mask = None
        if policy:
            if not self.node.zones:
                return NumaRefusal.unresolvable(MISSING_NUMA)
            zones = numa_zones_of(self.node, self.ledger, resolve_exclusive_policy(numa, exclusive))
            affinity = admit_pod(
                policy,
                zones,
                [lambda width: provide_numa_hints(self.node, self.ledger, request, policy, scorer, widest=width)],
            )
            if isinstance(affinity, NumaRefusal):
                return affinity
            mask = affinity.mask
        given = allocate_numa(self.node, self.ledger, request, mask)
        if isinstance(given, NumaAllocation):
            self.ledger = self.ledger.add(uid, given)
        return given


def ledger_from_pods(
    topology: CpuTopology | InvalidCpuTopology | None, pods: Iterable[tuple[str, Mapping[str, str]]]
) -> tuple[NumaLedger, dict[str, MalformedAnnotation]]:
    """Build the ledger from (UID, annotations) of a node's live pods; return those that cannot be read, by UID."""
    ledger, unread = NumaLedger.build(topology), {}
    for uid, written in pods:
        found = parse_allocation(written)
        if isinstance(found, MalformedAnnotation):
            unread[uid] = found
        elif found is not None:
            ledger = ledger.add(uid, found)
    return ledger, unread


def refcounts_of(holdings: Iterable[int]) -> CpuRefCounts:
    tally = NO_REFERENCES
    for cpus in holdings:
        tally = tally.add(cpus)
    return tally
