"""The bit-mask search finds exactly the CPUs of the reference implementation."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.annotations.cpu_topology import CPUInfo
from koord.policy.topology.accumulator import Want, take
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.pool import Pool
from koord.policy.topology.refusal import Short
from koord.policy.topology.tally import Tally
from koord.values.cpuset import CPUSet
from tests.policy.topology.machine import valid
from tests.policy.topology.plain_search import Cpu, PlainSearch


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
    topology = valid(CpuTopology.of(rows))
    subsets = st.integers(0, topology.cpus)
    holdings = [data.draw(subsets) & data.draw(subsets) for _ in range(data.draw(st.integers(0, max_ref + 1)))]
    tally = Tally.of(holdings)
    available = topology.cpus & ~tally.at_least(max_ref)
    marked = tally.held & data.draw(subsets)
    count = data.draw(st.integers(1, max(available.bit_count(), 1)))
    pool = Pool(available=available, held=tally, pcpu_marked=marked, numa_marked=marked, max_ref_count=max_ref)
    found = take(topology, pool, Want(count, policy, exclusive, strategy))
    plain = PlainSearch(
        [Cpu(r.id, (r.socket, r.core), r.node, r.socket) for r in rows],
        set(CPUSet(available)),
        {r.id: tally.total(1 << r.id) for r in rows},
        set(CPUSet(marked)),
        set(CPUSet(marked)),
        count=count,
        policy=policy,
        exclusive=exclusive,
        most=strategy == "MostAllocated",
        max_ref=max_ref,
    ).run()
    assert (None if isinstance(found, Short) else set(CPUSet(found))) == plain
