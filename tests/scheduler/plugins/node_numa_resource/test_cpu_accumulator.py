"""The accumulator takes the CPUs of upstream's tables."""

from __future__ import annotations

import pytest

from koord.api.annotations.cpu_codecs import CPUInfo
from koord.scheduler.plugins.node_numa_resource.cpu_accumulator import CpuRequest, take_cpus, take_preferred_cpus
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import NO_REFERENCES, CpuPool
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from tests.scheduler.plugins.node_numa_resource.numa_builders import bits, machine, refcounts_of, text, valid

FULL, SPREAD = "FullPCPUs", "SpreadByPCPUs"
MOST, LEAST = "MostAllocated", "LeastAllocated"


@pytest.mark.parametrize(
    ("shape", "policy", "strategy", "held", "count", "chosen"),
    [
        pytest.param((1, 1, 4, 2), FULL, MOST, "0,1", 2, "2-3", id="next-core"),
        pytest.param((2, 1, 4, 2), FULL, MOST, "", 12, "0-11", id="socket-and-a-half"),
        pytest.param((2, 1, 4, 2), FULL, MOST, "0,1", 8, "8-15", id="socket-that-is-free-whole"),
        pytest.param((2, 2, 4, 2), FULL, MOST, "0-5,16-23", 6, "24-29", id="most-takes-the-fuller-socket"),
        pytest.param((2, 2, 4, 2), FULL, LEAST, "0-5,16-23", 6, "8-13", id="least-takes-the-emptier-socket"),
        pytest.param((2, 2, 4, 2), FULL, MOST, "0-5,16-23", 12, "6-15,24-25", id="most-across-sockets"),
        pytest.param((2, 2, 4, 2), FULL, LEAST, "0-5,16-23", 12, "6-15,24-25", id="least-across-sockets"),
        pytest.param((2, 2, 4, 2), FULL, MOST, "0-3,8-11", 4, "4-7", id="most-fills-the-zone-up"),
        pytest.param((2, 2, 4, 2), FULL, LEAST, "0-3,8-11", 4, "16-19", id="least-opens-the-free-socket"),
        pytest.param((2, 2, 2, 2), FULL, MOST, "0,2,4,8,12", 4, "10-11,14-15", id="most-whole-cores-of-one-socket"),
        pytest.param((2, 2, 2, 2), FULL, LEAST, "0,2,4,8,12", 4, "10-11,14-15", id="least-whole-cores-of-one-socket"),
        pytest.param((2, 2, 2, 2), FULL, MOST, "0,2,4,8,10,12", 6, "5-7,13-15", id="most-broken-cores-of-fuller-zones"),
        pytest.param((2, 2, 2, 2), FULL, LEAST, "0,2,4,8,10,12", 6, "1,3,6-7,14-15", id="least-broken-cores"),
        pytest.param((2, 2, 2, 2), FULL, MOST, "0,2,4,8-10,12", 6, "6-7,11,13-15", id="most-fuller-socket-first"),
        pytest.param((2, 2, 4, 2), FULL, LEAST, "0,2,4,8,9,10,12", 6, "16-21", id="least-untouched-zone"),
        pytest.param((1, 1, 4, 2), SPREAD, MOST, "", 4, "0,2,4,6", id="a-thread-of-each-core"),
        pytest.param((2, 1, 4, 2), SPREAD, MOST, "0,2", 4, "1,3-4,6", id="most-beside-others"),
        pytest.param((2, 1, 4, 2), SPREAD, LEAST, "0,2", 4, "8,10,12,14", id="least-away-from-others"),
        pytest.param((2, 1, 4, 2), SPREAD, MOST, "0-3", 4, "8,10,12,14", id="too-few-cores-left"),
        pytest.param((2, 1, 4, 2), SPREAD, MOST, "0,2", 6, "1,3-7", id="most-second-threads"),
        pytest.param((2, 1, 4, 2), SPREAD, LEAST, "0,2", 6, "8-12,14", id="least-second-threads"),
        pytest.param((1, 2, 4, 2), FULL, LEAST, "0-3,8-9", 8, "4-7,10-13", id="across-zones-of-one-socket"),
        pytest.param((1, 2, 4, 2), SPREAD, LEAST, "0,2,4,6,8,10", 6, "9,11-15", id="what-is-left-of-a-zone"),
        pytest.param((1, 1, 4, 1), SPREAD, LEAST, "0", 2, "1-2", id="no-threads-spread-is-whole-cores"),
        pytest.param((2, 1, 2, 2), "", LEAST, "", 2, "0,2", id="no-policy-spreads"),
        pytest.param((2, 1, 2, 2), "Default", LEAST, "", 2, "0,2", id="default-spreads"),
        pytest.param((2, 1, 2, 2), "ConstrainedBurst", LEAST, "", 2, "0,2", id="burst-spreads"),
        pytest.param((2, 1, 4, 2), FULL, "DistributeEvenly", "0,1", 2, "8-9", id="unknown-strategy-is-least"),
        pytest.param((2, 1, 4, 2), FULL, LEAST, "", 11, "0-10", id="odd-number-across-sockets"),
        pytest.param((2, 1, 4, 2), FULL, LEAST, "0,8,10", 11, "1-7,12-15", id="single-cpu-beside-what-is-taken"),
        pytest.param((1, 1, 2, 4), SPREAD, LEAST, "3,5-7", 3, "0-2", id="few-cpus-are-taken-in-order"),
        pytest.param((1, 1, 4, 2), FULL, MOST, "", 0, "", id="nothing-asked"),
        pytest.param((1, 1, 4, 2), FULL, MOST, "0-5", 2, "6-7", id="all-that-is-left"),
    ],
)
def test_choice(
    shape: tuple[int, int, int, int], policy: str, strategy: str, held: str, count: int, chosen: str
) -> None:
    topology = machine(*shape)
    pool = CpuPool(available=topology.cpus & ~bits(held), refcounts=refcounts_of([bits(held)]))
    assert text(take_cpus(topology, pool, CpuRequest(count, policy, "", strategy))) == chosen


def test_more_than_there_are_is_refused() -> None:
    topology = machine(1, 1, 4, 2)
    found = take_cpus(topology, CpuPool(available=bits("0-3")), CpuRequest(5, FULL))
    assert found == NumaRefusal(("not enough cpus available to satisfy request",))


@pytest.mark.parametrize(
    ("shape", "marked", "policy", "exclusive", "count", "chosen"),
    [
        pytest.param((2, 1, 4, 2), "PCPULevel", SPREAD, "PCPULevel", 4, "8,10,12,14", id="cores-kept-apart"),
        pytest.param((2, 1, 4, 2), "", SPREAD, "PCPULevel", 10, "0-4,6,8,10,12,14", id="own-cores-may-be-doubled"),
        pytest.param((2, 1, 8, 2), "PCPULevel", SPREAD, "PCPULevel", 4, "4,6,8,10", id="other-cores-of-the-zone"),
        pytest.param((2, 1, 8, 2), "PCPULevel", SPREAD, "None", 4, "1,3-4,6", id="who-does-not-ask-may-share-cores"),
        pytest.param((2, 1, 4, 2), "NUMANodeLevel", SPREAD, "NUMANodeLevel", 4, "8,10,12,14", id="zones-kept-apart"),
        pytest.param(
            (2, 1, 4, 2), "NUMANodeLevel", FULL, "NUMANodeLevel", 4, "8-11", id="zones-kept-apart-whole-cores"
        ),
        pytest.param(
            (2, 1, 4, 2), "NUMANodeLevel", SPREAD, "None", 4, "1,3-4,6", id="who-does-not-ask-may-share-zones"
        ),
        pytest.param((2, 1, 4, 2), "NUMANodeLevel", FULL, "None", 4, "4-7", id="sharing-zones-whole-cores"),
        pytest.param(
            (1, 1, 4, 2), "NUMANodeLevel", FULL, "NUMANodeLevel", 4, "4-7", id="only-zone-is-shared-after-all"
        ),
        pytest.param((1, 1, 2, 2), "PCPULevel", SPREAD, "PCPULevel", 2, "1,3", id="only-cores-are-shared-after-all"),
    ],
)
def test_exclusive_choice(
    shape: tuple[int, int, int, int], marked: str, policy: str, exclusive: str, count: int, chosen: str
) -> None:
    topology = machine(*shape)
    held = bits("0,2") if marked else 0
    pool = CpuPool(
        available=topology.cpus & ~held,
        refcounts=refcounts_of([held]),
        pcpu_exclusive=held if marked == "PCPULevel" else 0,
        numa_exclusive=held if marked == "NUMANodeLevel" else 0,
    )
    assert text(take_cpus(topology, pool, CpuRequest(count, policy, exclusive, MOST))) == chosen


def test_exclusive_pod_counts_its_own_zones() -> None:
    """Two cores into the second socket, the last CPU comes from a NUMA node that the pod is not in yet."""
    topology = machine(2, 2, 4, 2)
    found = take_cpus(topology, CpuPool(available=topology.cpus), CpuRequest(19, FULL, "NUMANodeLevel", MOST))
    assert text(found) == "0-17,24"


def test_zones_are_not_kept_apart_within_a_socket() -> None:
    """No NUMA node has five CPUs free; the socket is chosen as if nobody wanted its zones alone."""
    topology = machine(2, 2, 4, 2)
    free = bits("0,2,4,8,10,12,16,18,20,24,26,28")
    held = topology.cpus & ~free
    pool = CpuPool(available=free, refcounts=refcounts_of([held]), numa_exclusive=held & bits("0-7"))
    assert text(take_cpus(topology, pool, CpuRequest(5, SPREAD, "NUMANodeLevel", MOST))) == "0,2,4,8,10"


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        pytest.param(
            (1, 1, 4, 2), [(FULL, 4, "0-3"), (FULL, 5, "0,4-7"), (FULL, 4, "2-5")], id="least-held-cores-first"
        ),
        pytest.param(
            (1, 1, 16, 2),
            [
                (SPREAD, 16, ",".join(map(str, range(0, 32, 2)))),
                (FULL, 16, "0-15"),
                (SPREAD, 16, ",".join(map(str, range(1, 32, 2)))),
                (FULL, 16, "16-31"),
                (FULL, 1, "not enough cpus available to satisfy request"),
            ],
            id="each-cpu-twice",
        ),
    ],
)
def test_cpus_held_twice(shape: tuple[int, int, int, int], steps: list[tuple[str, int, str]]) -> None:
    topology, held = machine(*shape), NO_REFERENCES
    for policy, count, chosen in steps:
        pool = CpuPool(available=topology.cpus & ~held.at_least(2), refcounts=held, max_ref_count=2)
        found = take_cpus(topology, pool, CpuRequest(count, policy, "", MOST))
        assert text(found) == chosen
        held = held.add(found) if isinstance(found, int) else held


@pytest.mark.parametrize(
    ("preferred", "count", "chosen"),
    [
        pytest.param("0,2", 2, "0,2", id="enough-of-them"),
        pytest.param("5,9", 1, "5", id="one-of-them"),
        pytest.param("5", 3, "5,32,34", id="the-rest-elsewhere"),
        pytest.param("", 2, "32,34", id="none"),
    ],
)
def test_preferred_cpus_first(preferred: str, count: int, chosen: str) -> None:
    topology = machine(2, 1, 16, 2)
    pool = CpuPool(available=topology.cpus & ~bits("1"), refcounts=refcounts_of([bits("1")]))
    assert text(take_preferred_cpus(topology, pool, bits(preferred), CpuRequest(count, SPREAD))) == chosen


def test_siblings_need_not_be_neighbours() -> None:
    """Linux numbers the first threads of all cores before the second ones."""
    topology = valid(CpuTopology.from_details([CPUInfo(id=c, core=c % 4, socket=0, node=c % 4 // 2) for c in range(8)]))
    pool = CpuPool(available=topology.cpus)
    assert text(take_cpus(topology, pool, CpuRequest(2, FULL))) == "0,4"
    assert text(take_cpus(topology, pool, CpuRequest(2, SPREAD))) == "0-1"
    assert text(take_cpus(topology, pool, CpuRequest(3, SPREAD))) == "0-1,4"
