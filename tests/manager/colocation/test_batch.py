"""Batch resources of known nodes match the numbers of Koordinator's own tests and recorded behaviour."""

from __future__ import annotations

from typing import Any

import pytest

from koord.manager.colocation.decision import ColocationDecision
from koord.manager.colocation.models import ColocationNode, ColocationNodeMetric, PodShare
from tests.manager.colocation.colocation_builders import colocation, decided, metric, node, pod, sample, topology, used

LS = pod("a", "LS", {"cpu": 20, "memory": "20G"})
BE = pod("b", "BE")
PLAIN = pod("c", "", {"cpu": 10, "memory": "20G"}, {"cpu": 10, "memory": "20G"})
PODS = (LS, BE, PLAIN)
SAMPLES = (sample("a", 11, "11G", "koord-prod"), sample("b", 10, "10G", "koord-batch"), sample("c", 22, "22G"))
RESERVATION = "node.koordinator.sh/reservation"


def lent(decision: ColocationDecision) -> tuple[int | None, str | None]:
    batch = decision.batch
    assert batch is not None
    return batch.cpu_milli, None if batch.memory is None else str(batch.memory)


def reserving(text: str) -> ColocationNode:
    return node(annotations={RESERVATION: text})


def policy(cpu: int, memory: int, **fields: Any) -> Any:
    return colocation(cpu_reclaim_threshold_percent=cpu, memory_reclaim_threshold_percent=memory, **fields)


@pytest.mark.parametrize(
    ("strategy", "of", "cpu", "memory"),
    [
        pytest.param(policy(65, 65), node(), 25000, "33G", id="usage"),
        pytest.param(policy(65, 65), reserving('{"reservedCPUs":"0-1"}'), 25000, "33G", id="few-reserved-cpus"),
        pytest.param(policy(65, 65), reserving('{"reservedCPUs":"0-19"}'), 12000, "33G", id="many-reserved-cpus"),
        pytest.param(policy(65, 65), reserving('{"resources":{"cpu":"20"}}'), 12000, "33G", id="reserved-amount"),
        pytest.param(
            policy(65, 65),
            reserving('{"resources":{"cpu":"20"},"reservedCPUs":"0-9"}'),
            22000,
            "33G",
            id="reserved-cpus-beat-the-amount",
        ),
        pytest.param(policy(65, 65), reserving('{"resources":{"memory":"20G"}}'), 25000, "25G", id="reserved-memory"),
        pytest.param(
            policy(65, 65), reserving('{"resources":{"cpu":"30"},"reservedCPUs":"a-b"}'), 25000, "33G", id="bad-cpus"
        ),
        pytest.param(policy(65, 65), reserving("{bad"), 25000, "33G", id="bad-reservation"),
        pytest.param(
            policy(65, 65), node(allocatable={"cpu": "90", "memory": "100G"}), 22000, "25G", id="kubelet-reserves-most"
        ),
        pytest.param(policy(70, 80, memory_calculate_policy="request"), node(), 30000, "36G", id="memory-by-request"),
        pytest.param(
            policy(70, 80, memory_calculate_policy="request"),
            reserving('{"resources":{"memory":"5G"}}'),
            30000,
            "31G",
            id="memory-by-request-and-reserved",
        ),
        pytest.param(
            policy(70, 80, cpu_calculate_policy="maxUsageRequest", memory_calculate_policy="request"),
            node(),
            21000,
            "36G",
            id="cpu-by-the-larger",
        ),
        pytest.param(
            policy(150, 120, cpu_calculate_policy="maxUsageRequest", memory_calculate_policy="request"),
            node(),
            101000,
            "84G",
            id="more-than-there-is",
        ),
        pytest.param(
            policy(
                150,
                120,
                cpu_calculate_policy="maxUsageRequest",
                memory_calculate_policy="request",
                batch_cpu_threshold_percent=100,
            ),
            node(),
            100000,
            "84G",
            id="never-above-the-threshold",
        ),
        pytest.param(
            policy(150, 120, memory_calculate_policy="maxUsageRequest"),
            node(),
            110000,
            "72G",
            id="memory-by-the-larger",
        ),
        pytest.param(
            policy(65, 65, cpu_calculate_policy="request"), node(), 25000, "33G", id="no-request-policy-of-cpu"
        ),
    ],
)
def test_amounts(strategy: Any, of: ColocationNode, cpu: int, memory: str) -> None:
    assert lent(decided(strategy, of, metric(*SAMPLES), PODS)) == (cpu, memory)


@pytest.mark.parametrize(
    ("report", "pods", "cpu", "memory"),
    [
        pytest.param(
            metric(
                sample("a", 11, "11G"),
                sample("b", 10, "10G", "koord-batch"),
                sample("c", 17, "17G"),
                sample("l", 5, "5G"),
            ),
            (*PODS, pod("l", "LSE", {"cpu": 10, "memory": "10G"}, priority=9500, limits=True)),
            20000,
            "33G",
            id="LSE-holds-the-cpus-it-asked-for",
        ),
        pytest.param(
            metric(
                *SAMPLES,
                system=used(4, "6G"),
                applications=[{"name": "h", "usage": used(3, "6G"), "priority": "koord-prod"}],
            ),
            PODS,
            25000,
            "33G",
            id="prod-application",
        ),
        pytest.param(
            metric(
                *SAMPLES,
                system=used(4, "6G"),
                applications=[{"name": "h", "usage": used(3, "6G"), "priority": "koord-mid"}],
            ),
            PODS,
            25000,
            "33G",
            id="mid-application",
        ),
        pytest.param(
            metric(
                *SAMPLES,
                system=used(4, "6G"),
                applications=[{"name": "h", "usage": used(3, "6G"), "priority": "koord-batch"}],
            ),
            PODS,
            28000,
            "39G",
            id="batch-application",
        ),
        pytest.param(metric(*SAMPLES[1:]), PODS, 16000, "24G", id="no-sample-counts-its-request"),
        pytest.param(metric(*SAMPLES), (BE, PLAIN), 25000, "33G", id="pod-that-is-gone-still-counts"),
        pytest.param(metric(*SAMPLES), (LS, PLAIN), 25000, "33G", id="gone-batch-pod-does-not"),
        pytest.param(metric(), (), 58000, "66G", id="no-pods"),
        pytest.param(metric(sample("a", 1000, "1T")), PODS, 0, "0", id="nothing-left"),
    ],
)
def test_pods(report: ColocationNodeMetric, pods: tuple[PodShare, ...], cpu: int, memory: str) -> None:
    assert lent(decided(policy(65, 65), node(), report, pods)) == (cpu, memory)


def test_digits_are_lost_only_at_the_end() -> None:
    report = metric(sample("a", "100000001n", "99999Ki"), system=used("123456789n", "777777k"))
    pods = (pod("a", "LS", {"cpu": "333m", "memory": "123456789"}),)
    assert lent(decided(policy(63, 67), node({"cpu": "7", "memory": "16123456Ki"}), report, pods))[0] == 4187


def test_a_percentage_is_a_float() -> None:
    decision = decided(policy(65, 65), node({"cpu": "100", "memory": "90G"}), metric(system=used(0, "45G")))
    assert lent(decision)[1] == "13500000001"


def test_sentences() -> None:
    batch = decided(policy(65, 65), node(), metric(*SAMPLES), PODS).batch
    assert batch is not None
    assert str(batch.cpu_formula) == (
        "batchAllocatable[CPU(Milli-Core)]:25000 = nodeCapacity:100000 - nodeSafetyMargin:35000"
        " - systemUsageOrNodeReserved:7000 - podHPUsed:33000"
    )
    assert str(batch.memory_formula) == (
        "batchAllocatable[Mem(GB)]:33 = nodeCapacity:120 - nodeSafetyMargin:42 - systemUsage:12 - podHPUsed:33"
    )


def test_sentences_of_other_policies() -> None:
    strategy = policy(
        70,
        50,
        cpu_calculate_policy="maxUsageRequest",
        memory_calculate_policy="request",
        batch_cpu_threshold_percent=10,
    )
    batch = decided(strategy, node(), metric(*SAMPLES), PODS).batch
    assert batch is not None
    assert str(batch.cpu_formula) == (
        "batchAllocatable[CPU(Milli-Core)]:10000 = min(nodeCapacity:100000 * thresholdRatio:0.1, nodeCapacity:100000"
        " - nodeSafetyMargin:30000 - systemUsageOrNodeReserved:7000 - podHPMaxUsedRequest:42000)"
    )
    assert str(batch.memory_formula).endswith("- nodeReserved:0 - podHPRequest:60")


@pytest.mark.parametrize(
    ("strategy", "bound"),
    [
        pytest.param(policy(65, 65), "formula", id="formula"),
        pytest.param(policy(10, 65), "nothing left", id="nothing-left"),
        pytest.param(policy(65, 65, batch_cpu_threshold_percent=5), "threshold", id="threshold"),
    ],
)
def test_the_binding_term_is_named(strategy: Any, bound: str) -> None:
    batch = decided(strategy, node(), metric(*SAMPLES), PODS).batch
    assert batch is not None
    assert batch.cpu_formula is not None
    assert batch.cpu_formula.bound_by == bound


def test_pods_counted_without_a_sample_are_named() -> None:
    """Estimates are reported apart from measurements, so that a low result can be explained."""
    batch = decided(policy(65, 65), node(), metric(sample("gone", 1, "1G")), PODS).batch
    assert batch is not None
    assert batch.terms is not None
    assert batch.terms.consumption.estimated == (("default", "a"), ("default", "c"))
    assert batch.terms.consumption.dangling == (("default", "gone"),)


PINNED = '{"numaNodeResources":[{"node":0}]}'


@pytest.mark.parametrize(
    ("strategy", "report", "pods", "cpus", "memories"),
    [
        pytest.param(
            policy(65, 65),
            metric(sample("x", 5, "5G"), sample("a", 6, "6G"), sample("c", 22, "22G")),
            (pod("x", "LSR", {"cpu": 10, "memory": "10G"}, zone=PINNED), LS, PLAIN),
            [10000, 15000],
            ["15300M", "17700M"],
            id="pinned-pod",
        ),
        pytest.param(
            policy(65, 65, memory_calculate_policy="request"),
            metric(sample("x", 5, "5G"), sample("a", 6, "6G"), sample("c", 22, "22G")),
            (
                pod("x", "LSE", {"cpu": 10, "memory": "10G"}, zone=PINNED),
                pod("a", "LS", {"cpu": 10, "memory": "10G"}),
                PLAIN,
            ),
            [5000, 15000],
            ["5300M", "12700M"],
            id="LSE-pinned-and-memory-by-request",
        ),
        pytest.param(
            policy(65, 65, cpu_calculate_policy="maxUsageRequest", memory_calculate_policy="maxUsageRequest"),
            metric(),
            (pod("x", "LSR", {"cpu": 10, "memory": "10G"}, zone=PINNED), LS, PLAIN),
            [0, 9000],
            ["0", "1700M"],
            id="no-samples-count-by-request",
        ),
    ],
)
def test_zones(
    strategy: Any, report: ColocationNodeMetric, pods: tuple[PodShare, ...], cpus: list[int], memories: list[str]
) -> None:
    split = topology({"cpu": 50, "memory": "62G"}, {"cpu": 50, "memory": "58G"})
    batch = decided(strategy, node(), report, pods, topology=split).batch
    assert batch is not None
    assert [zone.cpu.result.milli_value() for zone in batch.zones] == cpus
    assert [str(zone.memory.result) for zone in batch.zones] == memories


def test_zones_round_up() -> None:
    three = topology(*({"cpu": "30", "memory": "40G"},) * 3)
    batch = decided(policy(100, 100), node(), metric(system=used(7, "10G")), (), topology=three).batch
    assert batch is not None
    assert [z.terms.system_used.cpu.milli_value() for z in batch.zones] == [2334] * 3
    assert str(batch.zones[0].terms.system_used.memory) == "3333333333334m"


def test_a_zone_that_is_not_there_pins_nothing() -> None:
    far = pod("x", "LS", {"cpu": 10, "memory": "10G"}, zone='{"numaNodeResources":[{"node":7}]}')
    two = topology(*({"cpu": "50", "memory": "60G"},) * 2)
    batch = decided(policy(100, 100), node(), metric(system=used(0, "0")), (far,), topology=two).batch
    assert batch is not None
    assert [zone.cpu.result.milli_value() for zone in batch.zones] == [45000, 45000]


def test_zones_without_cpu_and_memory_are_no_zones() -> None:
    batch = decided(policy(65, 65), node(), metric(), (), topology=topology({"huge": 1}, {})).batch
    assert batch is not None
    assert batch.zones == ()
