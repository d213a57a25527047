"""Properties that hold for any machine, any pods and any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.annotations.codec import dump_json
from koord.api.annotations.cpu_codecs import CPUInfo
from koord.scheduler.plugins.node_numa_resource.allocator import allocate_numa
from koord.scheduler.plugins.node_numa_resource.cpu_accumulator import CpuRequest, lowest_cpus, take_cpus
from koord.scheduler.plugins.node_numa_resource.cpu_binding import CpuBinding, NumaRequest
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import (
    CpuPool,
    CpuRefCounts,
    NumaAllocation,
    NumaLedger,
    to_resource_status,
)
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import ledger_from_pods, node_of, refcounts_of, valid

POLICIES = st.sampled_from(["FullPCPUs", "SpreadByPCPUs", "Default", "ConstrainedBurst"])
EXCLUSIVES = st.sampled_from(["", "None", "PCPULevel", "NUMANodeLevel"])
STRATEGIES = st.sampled_from(["MostAllocated", "LeastAllocated"])


@st.composite
def machines(draw: st.DrawFn) -> CpuTopology:
    """Also with threads numbered after all cores, and with a few CPUs switched off."""
    sockets, zones = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    cores, threads = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    total = sockets * zones * cores
    apart = draw(st.booleans())
    rows = [
        CPUInfo(
            id=core + thread * total if apart else core * threads + thread,
            core=core,
            socket=core // (zones * cores),
            node=core // cores,
        )
        for core in range(total)
        for thread in range(threads)
    ]
    off = draw(st.sets(st.integers(0, len(rows) - 1), max_size=2)) if len(rows) > 2 else set()
    return valid(CpuTopology.from_details([row for row in rows if row.id not in off]))


@st.composite
def nodes(draw: st.DrawFn) -> TopologyOptions:
    topology = draw(machines())
    reserved = draw(st.integers(0, 3)) and topology.cpus & draw(st.integers(0, topology.cpus))
    return node_of(topology, reserved=reserved, strategy=draw(STRATEGIES))


@st.composite
def requests(draw: st.DrawFn) -> NumaRequest:
    count = draw(st.integers(1, 10))
    binding = CpuBinding(count=count, policy=draw(POLICIES), required=draw(st.booleans()), exclusive=draw(EXCLUSIVES))
    return NumaRequest(amounts={"cpu": 1000 * count, "memory": 1}, binding=binding)


steps = st.lists(st.tuples(st.integers(0, 5), requests(), st.integers(0, 15), st.booleans()), max_size=12)


@settings(max_examples=80, deadline=None)
@given(nodes(), steps)
def test_no_cpu_is_given_twice_and_all_come_back(
    node: TopologyOptions, life: list[tuple[int, NumaRequest, int, bool]]
) -> None:
    ledger = NumaLedger.build(node.cpu)
    for who, request, zones, leaves in life:
        uid = f"pod-{who}"
        if leaves or uid in ledger.pods:
            ledger = ledger.remove(uid)
            continue
        mask = BitMask(zones & node.all_zones.value) if zones & node.all_zones.value else None
        given_ = allocate_numa(node, ledger, request, mask)
        assert given_ == allocate_numa(node, ledger, request, mask), "the same question has the same answer"
        if isinstance(given_, NumaRefusal):
            assert given_.reasons
            continue
        assert request.binding is not None
        assert len(given_.cpus) == request.binding.count
        assert given_.cpus.bits & ~node.bindable_cpus == 0, "only CPUs that exist and are not reserved"
        assert given_.cpus.bits & ledger.refcounts.referenced == 0, "never a CPU that somebody holds"
        if mask is not None:
            assert sum(amounts.get("cpu", 0) for amounts in given_.zones.values()) == request.amounts["cpu"]
            assert set(given_.zones) <= set(mask)
        after = ledger.add(uid, given_)
        assert after.remove(uid) == ledger, "what is freed is what was taken"
        ledger = after
        assert len(ledger.refcounts.levels) <= 1
    written = [
        (uid, {"scheduling.koordinator.sh/resource-status": dump_json(to_resource_status(a))})
        for uid, a in sorted(ledger.pods.items(), reverse=True)
    ]
    again, unread = ledger_from_pods(node.cpu, written)
    assert not unread
    assert (again.refcounts, again.zone_amounts, again.single_zone_pods, again.multi_zone_pods) == (
        ledger.refcounts,
        ledger.zone_amounts,
        ledger.single_zone_pods,
        ledger.multi_zone_pods,
    )
    for uid in list(ledger.pods):
        ledger = ledger.remove(uid)
    assert ledger == NumaLedger.build(node.cpu)


@settings(max_examples=100, deadline=None)
@given(machines(), st.integers(0), st.integers(1, 12), POLICIES, STRATEGIES)
def test_choice_has_the_right_size_and_shape(
    topology: CpuTopology, held: int, count: int, policy: str, strategy: str
) -> None:
    held &= topology.cpus
    free = topology.cpus & ~held
    found = take_cpus(
        topology,
        CpuPool(available=free, refcounts=refcounts_of([held])),
        CpuRequest(count, policy, "", strategy),
    )
    if free.bit_count() < count:
        assert isinstance(found, NumaRefusal)
        return
    assert isinstance(found, int)
    assert found & ~free == 0
    assert found.bit_count() == count
    whole = topology.full_core_cpus(free)
    even = all(core.bit_count() == topology.per_core for core in topology.cores)
    if policy == "FullPCPUs" and even and count % topology.per_core == 0 and count <= whole.bit_count():
        assert topology.full_core_cpus(found) == found, "whole cores when there are enough"


@settings(max_examples=100, deadline=None)
@given(machines(), st.integers(0), st.integers(1, 6), st.sampled_from(["FullPCPUs", "SpreadByPCPUs"]), STRATEGIES)
def test_pods_that_want_to_be_alone_are_when_there_is_room(
    topology: CpuTopology, marked: int, count: int, policy: str, strategy: str
) -> None:
    marked &= topology.cpus
    pool = CpuPool(
        available=topology.cpus & ~marked,
        refcounts=refcounts_of([marked]),
        numa_exclusive=marked,
        pcpu_exclusive=marked,
    )
    alone = topology.cpus & ~topology.cpus_sharing_zones(marked)
    found = take_cpus(topology, pool, CpuRequest(count, policy, "NUMANodeLevel", strategy))
    if isinstance(found, int) and any(
        topology.full_core_cpus(zone.cpus & alone).bit_count() >= count
        and topology.one_per_core(zone.cpus & alone).bit_count() >= count
        and count <= topology.per_zone
        for zone in topology.zones
    ):
        assert found & topology.cpus_sharing_zones(marked) == 0
    spread = take_cpus(topology, pool, CpuRequest(count, "SpreadByPCPUs", "PCPULevel", strategy))
    others = topology.cpus & ~topology.cpus_sharing_cores(marked)
    if (
        isinstance(spread, int)
        and topology.per_core > 1
        and count <= topology.per_zone
        and any(topology.one_per_core(zone.cpus & others).bit_count() >= count for zone in topology.zones)
    ):
        assert spread & topology.cpus_sharing_cores(marked) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=12))
def test_tally_counts(changes: list[tuple[int, bool]]) -> None:
    counts = [0] * 8
    tally = CpuRefCounts()
    for cpus, comes in changes:
        tally = tally.add(cpus) if comes else tally.remove(cpus)
        for cpu in range(8):
            if cpus >> cpu & 1:
                counts[cpu] = counts[cpu] + 1 if comes else max(counts[cpu] - 1, 0)
    assert [tally.total_references(1 << cpu) for cpu in range(8)] == counts
    assert all(tally.levels)


@given(st.integers(0, 1 << 70), st.integers(0, 80))
def test_lowest(cpus: int, count: int) -> None:
    assert list(CPUSet(lowest_cpus(cpus, count))) == list(CPUSet(cpus))[:count]


@pytest.mark.parametrize("policy", ["FullPCPUs", "SpreadByPCPUs"])
def test_shared_cpus_are_given_as_often_as_allowed_and_no_more(policy: str) -> None:
    rows = [CPUInfo(id=n, core=n // 2, socket=0, node=0) for n in range(8)]
    node = node_of(valid(CpuTopology.from_details(rows)), max_ref_count=3)
    ledger, placed = NumaLedger.build(node.cpu), 0
    while isinstance(
        found := allocate_numa(
            node,
            ledger,
            NumaRequest(amounts={"cpu": 4000}, binding=CpuBinding(count=4, policy=policy, required=False)),
        ),
        NumaAllocation,
    ):
        placed += 1
        ledger = ledger.add(f"p{placed}", found)
    assert placed == 6
    assert ledger.refcounts.levels == (255, 255, 255)
