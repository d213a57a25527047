"""The drawing of a node's CPUs has the right marks and reports every contradiction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations.codec import MalformedAnnotation
from koord.scheduler.plugins.node_numa_resource.cpu_topology import InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation
from koord.scheduler.plugins.node_numa_resource.occupancy import (
    CONTESTED_CPU,
    FREE_CPU,
    HOLDER_MARKS,
    RESERVED_CPU,
    CpuOccupancy,
    CpuOccupant,
    cpu_occupancy,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import bits, machine, node_of


def tenant(name: str, cpus: str, *, reservation: bool = False, lives_in: str = "") -> CpuOccupant:
    given = NumaAllocation(cpus=CPUSet.parse(cpus))
    return CpuOccupant(uid=f"uid-{name}", name=name, given=given, reservation=reservation, lives_in=lives_in)


def drawn(found: CpuOccupancy) -> list[str]:
    return [" ".join(zone.cores) for zone in found.zones]


def test_every_cpu_has_a_mark() -> None:
    node = node_of(machine(1, 2, 2, 2), reserved=bits("0-1"))
    found = cpu_occupancy("a", node, [tenant("d/x", "2,4-5"), tenant("d/y", "6")])
    assert drawn(found) == ["## A.", "AA B."]
    assert (found.kept, found.shared) == ("0-1", "3,7")
    assert [(h.mark, h.name, h.count) for h in found.holders] == [("A", "d/x", 3), ("B", "d/y", 1)]
    assert found.flaws == ()


def test_every_numa_node_names_its_socket_and_the_cpus_of_its_cores() -> None:
    found = cpu_occupancy("a", node_of(machine(2, 2, 1, 2)), [])
    assert [(zone.number, zone.sockets) for zone in found.zones] == [(0, (0,)), (1, (0,)), (2, (1,)), (3, (1,))]
    assert [zone.core_cpus for zone in found.zones] == [((0, 1),), ((2, 3),), ((4, 5),), ((6, 7),)]


def test_owners_are_drawn_over_their_reservation() -> None:
    found = cpu_occupancy(
        "a",
        node_of(machine(1, 1, 4, 2)),
        [tenant("r", "0-3", reservation=True), tenant("d/x", "0-1", lives_in="uid-r")],
    )
    assert drawn(found) == ["AA BB .. .."]
    assert found.flaws == ()


def test_contradictions_are_told() -> None:
    node = node_of(machine(1, 1, 2, 2), reserved=bits("3"))
    found = cpu_occupancy(
        "a",
        node,
        [
            tenant("d/x", "0-1"),
            tenant("d/y", "1,3,9"),
            CpuOccupant(uid="u", name="d/z", given=MalformedAnnotation("key", "no good")),
            CpuOccupant(uid="v", name="d/v", given=NumaAllocation(zones={7: {"cpu": 1000}})),
        ],
    )
    assert drawn(found) == ["B! .C"]
    assert found.flaws == (
        "d/z: key: no good",
        "d/v has amounts on NUMA node 7, which is not there",
        "CPU 1 is held by d/x and by d/y",
        "d/y holds CPUs 9, which the topology does not have",
        "d/y holds CPUs 3, which are reserved",
    )


def test_a_node_whose_cpus_are_unknown_still_lists_its_holders() -> None:
    found = cpu_occupancy("a", TopologyOptions(cpu=InvalidCpuTopology("there is none")), [tenant("d/x", "0-3")])
    assert found.zones == ()
    assert found.flaws == ("there is none",)
    assert found.holders[0].cpus == "0-3"


@given(parts=st.lists(st.sets(st.integers(0, 15)), max_size=5), kept=st.sets(st.integers(0, 15)))
def test_marks_are_those_of_the_holders(parts: list[set[int]], kept: set[int]) -> None:
    node = node_of(machine(2, 1, 4, 2), reserved=CPUSet.of(kept).bits)
    tenants = [tenant(f"d/p{i}", str(CPUSet.of(part))) for i, part in enumerate(parts) if part]
    found = cpu_occupancy("a", node, tenants)
    text = "".join("".join(zone.cores) for zone in found.zones)
    assert len(text) == 16
    by_mark = {holder.mark: CPUSet.parse(holder.cpus) for holder in found.holders}
    for cpu, mark in enumerate(text):
        holders = [m for m, cpus in by_mark.items() if cpu in cpus]
        if mark == FREE_CPU:
            assert not holders
            assert cpu not in kept
        elif mark == RESERVED_CPU:
            assert not holders
            assert cpu in kept
        elif mark == CONTESTED_CPU:
            assert len(holders) > 1
        else:
            assert holders == [mark]
            assert mark in HOLDER_MARKS
