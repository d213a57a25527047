"""Properties that hold for every node, whatever it reports."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.manager.colocation.models import PodShare
from koord.manager.colocation.node_patch import decide_node_patch
from koord.manager.colocation.overcommitment import BatchDecision
from tests.manager.colocation.colocation_builders import colocation, decided, metric, node, pod, sample, topology, used
from tests.manager.colocation.test_node_patch import after

policies = st.sampled_from(["usage", "maxUsageRequest", "request"])
percents = st.integers(0, 100)
milli = st.integers(0, 120_000)
mebi = st.integers(0, 120_000)
qos = st.sampled_from(["LS", "LSR", "LSE", "", "BE"])


@st.composite
def pods(draw: st.DrawFn) -> tuple[PodShare, ...]:
    asked = draw(st.lists(st.tuples(qos, st.integers(0, 9_000), st.integers(0, 9_000), st.integers(-1, 3)), max_size=6))
    return tuple(
        pod(
            f"p{i}",
            kind,
            {"cpu": f"{cpu}m", "memory": f"{memory}Mi"},
            zone="" if zone < 0 else f'{{"numaNodeResources":[{{"node":{zone}}}]}}',
        )
        for i, (kind, cpu, memory, zone) in enumerate(asked)
    )


@st.composite
def reports(draw: st.DrawFn) -> dict[str, Any]:
    seen = draw(st.dictionaries(st.integers(0, 8), st.tuples(milli, mebi), max_size=6))
    return {
        "pods": [sample(f"p{i}", f"{cpu}m", f"{memory}Mi") for i, (cpu, memory) in seen.items()],
        "system": used(f"{draw(milli)}m", f"{draw(mebi)}Mi"),
    }


def strategies(least: int = 0, most: int = 100) -> st.SearchStrategy[Any]:
    share = st.integers(least, most)
    return st.builds(
        lambda cpu, memory, cp, mp: colocation(
            cpu_reclaim_threshold_percent=cpu,
            memory_reclaim_threshold_percent=memory,
            cpu_calculate_policy=cp,
            memory_calculate_policy=mp,
        ),
        share,
        share,
        policies,
        policies,
    )


def batch(
    strategy: Any, report: dict[str, Any], on: tuple[PodShare, ...], cpu: int = 100_000, **seen: Any
) -> BatchDecision:
    of = node({"cpu": f"{cpu}m", "memory": f"{cpu}Mi"})
    found = decided(strategy, of, metric(*report["pods"], system=report["system"]), on, **seen).batch
    assert found is not None
    assert found.memory is not None
    return found


def lent(found: BatchDecision) -> tuple[int, int]:
    assert found.cpu_milli is not None
    assert found.memory is not None
    return found.cpu_milli, found.memory.value()


def _busier(seen: dict[str, Any], more: int) -> dict[str, Any]:
    usage = seen["podUsage"]["resources"]
    return sample(seen["name"], f"{int(usage['cpu'][:-1]) + more}m", usage["memory"])


@given(strategy=strategies(0, 150), report=reports(), on=pods(), who=st.integers(0, 8), more=st.integers(1, 50_000))
def test_more_usage_never_buys_batch_more(
    strategy: Any, report: dict[str, Any], on: tuple[PodShare, ...], who: int, more: int
) -> None:
    busier = {**report, "pods": [_busier(p, more) if p["name"] == f"p{who}" else p for p in report["pods"]]}
    before, then = lent(batch(strategy, report, on)), lent(batch(strategy, busier, on))
    assert then[0] <= before[0]
    assert then[1] == before[1]


@given(strategy=strategies(), report=reports(), on=pods())
def test_batch_and_prod_never_exceed_the_node(strategy: Any, report: dict[str, Any], on: tuple[PodShare, ...]) -> None:
    found = batch(strategy, report, on)
    assert found.cpu_formula is not None
    assert found.memory_formula is not None
    for formula in (found.cpu_formula, found.memory_formula):
        if formula.result.sign() > 0:
            assert formula.result + formula.held + formula.pods <= formula.capacity


@given(strategy=strategies(), report=reports(), on=pods(), cpu=st.integers(1, 200_000), more=st.integers(0, 100_000))
def test_a_larger_node_never_lends_less(
    strategy: Any, report: dict[str, Any], on: tuple[PodShare, ...], cpu: int, more: int
) -> None:
    small, large = lent(batch(strategy, report, on, cpu)), lent(batch(strategy, report, on, cpu + more))
    # A truncated margin may be one milli-core or byte off its exact share.
    assert large[0] >= small[0] - 1
    assert large[1] >= small[1] - 1


@given(strategy=strategies(), report=reports(), on=pods(), zones=st.integers(1, 4))
def test_zones_lend_no_more_than_they_have(
    strategy: Any, report: dict[str, Any], on: tuple[PodShare, ...], zones: int
) -> None:
    split = topology(*({"cpu": f"{100_000 // zones}m", "memory": f"{100_000 // zones}Mi"},) * zones)
    found = batch(strategy, report, on, topology=split)
    assert len(found.zones) == zones
    for zone in found.zones:
        assert zone.cpu.result.sign() >= 0
        assert zone.cpu.result <= zone.terms.capacity.cpu
        assert zone.memory.result <= zone.terms.capacity.memory


@settings(max_examples=60)
@given(
    strategy=strategies(0, 150),
    report=reports(),
    on=pods(),
    annotations=st.dictionaries(st.sampled_from(["a", "node.koordinator.sh/originExtendedAllocatable"]), st.just("{}")),
)
def test_a_second_look_writes_nothing(
    strategy: Any, report: dict[str, Any], on: tuple[PodShare, ...], annotations: dict[str, str]
) -> None:
    of = node(annotations=annotations)
    seen = metric(*report["pods"], system=report["system"])
    then = after(of, decide_node_patch(of, decided(strategy, of, seen, on), None))
    assert decide_node_patch(then, decided(strategy, then, seen, on), 0).is_empty
    assert decide_node_patch(then, decided(strategy, then, seen, on), None).is_empty
