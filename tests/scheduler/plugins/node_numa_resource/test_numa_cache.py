"""After any history of pods, nodes and topologies the cache equals the live annotations, and no CPU is given twice.

What is given keeps to what was requested, and what is freed is what was taken.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from koord.api.annotations.codec import MalformedAnnotation
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocation, NodeAllocationCache, PodAllocation
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology
from koord.scheduler.plugins.node_numa_resource.demand import NumaDemand
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation, parse_allocation
from tests.scheduler.fake_handles import FakeLister
from tests.scheduler.plugins.node_numa_resource.numa_builders import zone
from tests.scheduler.plugins.node_numa_resource.numa_cluster import NumaCluster, TopologyHandle, node, pod, topology
from tests.soak_budget import soak_runs

NAMES = ("a", "b")
SHAPES = ((1, 2, 4, 2), (2, 1, 3, 2), (1, 2, 2, 2))


class NumaHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = NumaCluster(fit=False).add(*(node(name, 64, "640Gi") for name in NAMES))
        self.cluster.describe(*(topology(name, SHAPES[0]) for name in NAMES))
        self.made = 0
        self.waiting: dict[str, tuple[Pod, str]] = {}  # decided, not yet bound: pod and node
        self.live: dict[str, Pod] = {}  # bound, as the server shows them
        self.moved = False  # a topology changed since pods were placed: what was given may not fit it any more

    # Nodes -------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), numa=st.sampled_from(("", "SingleNUMANode", "Restricted", "BestEffort")))
    def node_comes_or_changes(self, name: str, numa: str) -> None:
        self.cluster.add(node(name, 64, "640Gi", labels={"numa-topology-policy": numa} if numa else None))

    @rule(name=st.sampled_from(NAMES))
    def node_goes(self, name: str) -> None:
        self.cluster.state.drop_node(name)

    @rule(name=st.sampled_from(NAMES), shape=st.sampled_from(SHAPES), kept=st.sampled_from(("", "0-1")))
    def topology_comes_or_changes(self, name: str, shape: tuple[int, int, int, int], kept: str) -> None:
        self.moved = self.moved or bool(self.waiting or self.live)
        annotations = {"kubelet.koordinator.sh/cpu-manager-policy": {"policy": "static", "reservedCPUs": kept}}
        zones = [zone(f"node-{n}", cpu=shape[2] * shape[3], memory="64Gi") for n in range(shape[0] * shape[1])]
        self.cluster.describe(topology(name, shape, zones=zones, annotations=annotations if kept else None))

    @rule(name=st.sampled_from(NAMES))
    def topology_goes(self, name: str) -> None:
        if self.cluster.topologies.get("", name) is not None:
            self.moved = self.moved or bool(self.waiting or self.live)
            self.cluster.topologies.drop(name)

    # Pods --------------------------------------------------------------------------------------------------------

    @rule(
        cpu=st.integers(1, 6),
        spec=st.sampled_from(
            (
                None,
                {"requiredCPUBindPolicy": "FullPCPUs"},
                {"requiredCPUBindPolicy": "SpreadByPCPUs"},
                {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"},
                {"preferredCPUExclusivePolicy": "NUMANodeLevel"},
            )
        ),
        qos=st.sampled_from(("LSR", "LSE", "LS")),
    )
    def pod_is_decided(self, cpu: int, spec: Any, qos: str) -> None:
        one = pod(f"p{self.made}", cpu, qos=qos, spec=spec)
        self.made += 1
        before = self.cluster.books.pod_allocations()
        found = self.cluster.decide(one)
        if isinstance(found, str):
            assert self.cluster.books.pod_allocations() == before, "a refusal leaves nothing behind"
            return
        self.waiting[one.metadata.uid] = (one, found[0])
        entry = self.cluster.books.pod_allocations().get(found[0], {}).get(one.metadata.uid)
        self.keeps_to_what_was_asked(one, entry, found[0])

    def keeps_to_what_was_asked(self, one: Pod, entry: PodAllocation | None, name: str) -> None:
        info = self.cluster.state.table.index[name]
        site = self.cluster.plugin.evaluator.profiles.for_node(info)
        demand = self.cluster.plugin.demand_parser.parse(self.cluster.info(one))
        assert isinstance(demand, NumaDemand)
        wish = demand.wish
        if not wish.binds:
            return
        assert entry is not None
        given = entry.allocation.cpus.bits
        assert given.bit_count() == wish.count
        assert not given & ~site.topology.bindable_cpus, "only CPUs that are there and not reserved"
        assert isinstance(site.topology.cpu, CpuTopology)
        cores = site.topology.cpu.core_count(given)
        if wish.required == "FullPCPUs":
            assert 2 * cores == wish.count
        if wish.required == "SpreadByPCPUs":
            assert cores == wish.count

    @precondition(lambda self: self.waiting)
    @rule(pick=st.randoms(use_true_random=False))
    def pod_is_bound(self, pick: random.Random) -> None:
        uid = pick.choice(sorted(self.waiting))
        del self.waiting[uid]
        self.cluster.bind(uid)
        self.live[uid] = self.cluster.pods[uid]

    @precondition(lambda self: self.waiting)
    @rule(pick=st.randoms(use_true_random=False))
    def pod_is_forgotten(self, pick: random.Random) -> None:
        uid = pick.choice(sorted(self.waiting))
        one, name = self.waiting.pop(uid)
        self.cluster.forget(one, name)
        self.cluster.forget(one, name)  # more than once does no harm

    @precondition(lambda self: self.live)
    @rule(pick=st.randoms(use_true_random=False), ends=st.booleans())
    def pod_ends_or_goes(self, pick: random.Random, ends: bool) -> None:
        uid = pick.choice(sorted(self.live))
        one = self.live.pop(uid)
        if ends:
            status = msgspec.structs.replace(one.status, phase="Succeeded")
            self.cluster.state.set_pod(msgspec.structs.replace(one, status=status))
        self.cluster.state.drop_pod(uid)

    @precondition(lambda self: self.waiting)
    @rule(pick=st.randoms(use_true_random=False))
    def pod_goes_before_it_is_bound(self, pick: random.Random) -> None:
        uid = pick.choice(sorted(self.waiting))
        one, name = self.waiting.pop(uid)
        self.cluster.state.drop_pod(uid)
        self.cluster.forget(one, name)

    # What always holds -------------------------------------------------------------------------------------------

    @invariant()
    def books_say_what_annotations_say(self) -> None:
        expected: dict[str, dict[str, NumaAllocation]] = {}
        for uid, one in [*self.live.items(), *((uid, self.cluster.pods[uid]) for uid in self.waiting)]:
            found = parse_allocation(one.metadata.annotations)
            assert not isinstance(found, MalformedAnnotation)
            if found is not None:
                expected.setdefault(one.spec.node_name, {})[uid] = found
        held = {
            n: {uid: e.allocation for uid, e in entries.items()}
            for n, entries in self.cluster.books.pod_allocations().items()
        }
        assert held == expected
        assert set(self.cluster.books.assumed) <= set(self.waiting)

    @invariant()
    def kept_books_are_what_new_ones_are(self) -> None:
        state, topologies = ClusterState(), FakeLister()
        for info in self.cluster.state.nodes():
            assert info.node is not None
            state.set_node(info.node)
        for found in self.cluster.topologies.list():
            topologies.put(found)
        for one in self.live.values():
            state.set_pod(one)
        for uid in self.waiting:
            state.set_pod(self.cluster.pods[uid])
        fresh = NodeAllocationCache.for_handle(TopologyHandle(state, topologies))
        assert fresh.pod_allocations() == self.cluster.books.pod_allocations()
        for info in self.cluster.state.nodes():
            site = self.cluster.plugin.evaluator.profiles.for_node(info)
            kept, anew = self.cluster.books.node_allocation(site, info.name), fresh.node_allocation(site, info.name)
            assert _sums(kept) == _sums(anew)

    @invariant()
    def no_cpu_is_given_twice(self) -> None:
        """Not even when a machine turns out to be another: pods keep the numbers that they were given."""
        for entries in self.cluster.books.pod_allocations().values():
            taken = 0
            for entry in entries.values():
                assert not taken & entry.allocation.cpus.bits
                taken |= entry.allocation.cpus.bits

    @invariant()
    def zones_are_not_overdrawn(self) -> None:
        if self.moved:
            return
        for info in self.cluster.state.nodes():
            site = self.cluster.plugin.evaluator.profiles.for_node(info)
            ledger = self.cluster.books.node_allocation(site, info.name).ledger
            for one in site.topology.zones:
                for name, amount in ledger.zone_amounts.get(one.number, {}).items():
                    assert amount <= one.amounts[name]


def _sums(book: NodeAllocation) -> object:
    ledger = book.ledger
    return (
        ledger.refcounts,
        ledger.pcpu_exclusive,
        ledger.numa_exclusive,
        ledger.zone_amounts,
        ledger.single_zone_pods,
        ledger.multi_zone_pods,
        dict(book.owners),
    )


NumaHistory.TestCase.settings = settings(max_examples=soak_runs(40, 30), stateful_step_count=30, deadline=None)
TestNumaHistory = NumaHistory.TestCase
