"""The bit-mask search finds exactly the CPUs of the reference implementation."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.annotations.cpu_codecs import CPUInfo
from koord.scheduler.plugins.node_numa_resource.cpu_accumulator import CpuRequest, take_cpus
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import CpuPool
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import refcounts_of, valid
from tests.scheduler.plugins.node_numa_resource.reference_accumulator import Cpu, ReferenceAccumulator


@st.composite
def machines(draw: st.DrawFn) -> list[CPUInfo]:
    sockets, zones = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    cores, threads = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 2, 2, 4]))
    total, apart = sockets * zones * cores, draw(st.booleans())
    return [
        CPUInfo(
            id=core + thread * total if apart else core * threads + thread,
            core=core % (zones * cores),
            socket=core // (zones * cores),
            node=core // cores,
        )
        for core in range(total)
        for thread in range(threads)
    ]


@settings(max_examples=100, deadline=None)
@given(
    machines(),
    st.data(),
    st.sampled_from(["FullPCPUs", "SpreadByPCPUs"]),
    st.sampled_from(["", "PCPULevel", "NUMANodeLevel"]),
    st.sampled_from(["MostAllocated", "LeastAllocated"]),
    st.integers(1, 3),
)
def test_same_cpus(
    rows: list[CPUInfo], data: st.DataObject, policy: str, exclusive: str, strategy: str, max_ref: int
) -> None:
    topology = valid(CpuTopology.from_details(rows))
    subsets = st.integers(0, topology.cpus)
    holdings = [data.draw(subsets) & data.draw(subsets) for _ in range(data.draw(st.integers(0, max_ref + 1)))]
    tally = refcounts_of(holdings)
    available = topology.cpus & ~tally.at_least(max_ref)
    marked = tally.referenced & data.draw(subsets)
    count = data.draw(st.integers(1, max(available.bit_count(), 1)))
    pool = CpuPool(
        available=available, refcounts=tally, pcpu_exclusive=marked, numa_exclusive=marked, max_ref_count=max_ref
    )
    found = take_cpus(topology, pool, CpuRequest(count, policy, exclusive, strategy))
    plain = ReferenceAccumulator(
        [Cpu(r.id, (r.socket, r.core), r.node, r.socket) for r in rows],
        set(CPUSet(available)),
        {r.id: tally.total_references(1 << r.id) for r in rows},
        set(CPUSet(marked)),
        set(CPUSet(marked)),
        count=count,
        policy=policy,
        exclusive=exclusive,
        most=strategy == "MostAllocated",
        max_ref=max_ref,
    ).run()
    assert (None if isinstance(found, NumaRefusal) else set(CPUSet(found))) == plain
