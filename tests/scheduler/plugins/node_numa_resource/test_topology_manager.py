"""Hints are filtered, merged and admitted by exclusivity and the three policies."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.framework.reservation import NumaTopologyHint, NumaTopologyHints
from koord.scheduler.plugins.node_numa_resource.ledger import IDLE, SHARED, SINGLE, NumaLedger
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_manager import (
    NumaAffinity,
    NumaZones,
    admit_pod,
    collect_hints,
    decide_affinity,
    merge_best_effort,
    merge_preferred,
    numa_zones_of,
    resolve_exclusive_policy,
    resolve_numa_policy,
)
from koord.values.bitmask import BitMask
from tests.scheduler.plugins.node_numa_resource.numa_builders import holding, machine, node_of

BEST, RESTRICTED, SINGLE_NODE = "BestEffort", "Restricted", "SingleNUMANode"
TWO = NumaZones((0, 1))
BOTH = BitMask.of(0, 1)


def hint(*zones: int, preferred: bool = True, score: int = 0) -> NumaTopologyHint:
    return NumaTopologyHint(BitMask.of(*zones), preferred, score)


def nodes(found: NumaAffinity | NumaRefusal) -> tuple[int, ...] | str | None:
    if isinstance(found, NumaRefusal):
        return str(found)
    return None if found.mask is None else tuple(found.mask)


@pytest.mark.parametrize(
    ("node", "pod", "policy"),
    [
        pytest.param("", "", "", id="neither"),
        pytest.param("", RESTRICTED, RESTRICTED, id="pod-alone"),
        pytest.param(RESTRICTED, "", RESTRICTED, id="node-alone"),
        pytest.param(BEST, BEST, BEST, id="the-same"),
        pytest.param(
            BEST,
            SINGLE_NODE,
            NumaRefusal(("node(s) NUMA Topology policy not match",), is_unresolvable=True),
            id="conflict",
        ),
    ],
)
def test_policy_of_node_and_pod(node: str, pod: str, policy: str | NumaRefusal) -> None:
    assert resolve_numa_policy(node, pod) == policy


@pytest.mark.parametrize(
    ("policy", "stated", "exclusive"),
    [
        pytest.param(SINGLE_NODE, "", "Required", id="required-by-default"),
        pytest.param(SINGLE_NODE, "Preferred", "Preferred", id="as-stated"),
        pytest.param("", "", "", id="no-policy-no-exclusivity"),
    ],
)
def test_exclusivity_of_a_pod(policy: str, stated: str, exclusive: str) -> None:
    assert resolve_exclusive_policy(policy, stated) == exclusive


@pytest.mark.parametrize(
    ("mask", "statuses", "borne"),
    [
        pytest.param((0,), (IDLE, SINGLE), True, id="one-idle"),
        pytest.param((0,), (SHARED, IDLE), False, id="one-shared"),
        pytest.param((0,), (SINGLE, SHARED), True, id="one-single"),
        pytest.param((0, 1), (SHARED, SINGLE), False, id="both-with-a-single"),
        pytest.param((0, 1), (SHARED, IDLE), True, id="both-shared-and-idle"),
        pytest.param((0, 1), (SHARED, SHARED), True, id="both-shared"),
    ],
)
def test_exclusivity(mask: tuple[int, ...], statuses: tuple[str, str], borne: bool) -> None:
    table = dict(enumerate(statuses))
    assert NumaZones((0, 1), table, "Required").allows(BitMask.of(*mask)) is borne
    assert NumaZones((0, 1), table, "Preferred").allows(BitMask.of(*mask))
    assert NumaZones((0, 1), table).allows(BitMask.of(*mask))


def test_status_of_numa_nodes() -> None:
    topology = machine(1, 3, 2, 2)
    ledger = holding(topology, "0-1,4")
    zones = numa_zones_of(node_of(topology), ledger, "Required")
    assert zones.statuses == {0: SHARED, 1: SHARED, 2: IDLE}
    assert numa_zones_of(node_of(topology), holding(topology, "8-9"), "").statuses == {0: IDLE, 1: IDLE, 2: SINGLE}
    assert numa_zones_of(node_of(topology), NumaLedger.build(topology), "").statuses == {0: IDLE, 1: IDLE, 2: IDLE}


UNSATISFIED = "Unsatisfied NUMA cpu"


@pytest.mark.parametrize(
    ("hints", "best", "restricted", "single"),
    [
        pytest.param({}, (0, 1), (0, 1), None, id="no-preference-at-all"),
        pytest.param({"cpu": None}, (0, 1), (0, 1), None, id="no-preference-of-cpu"),
        pytest.param({"cpu": []}, (0, 1), UNSATISFIED, UNSATISFIED, id="cpu-is-impossible"),
        pytest.param({"cpu": [hint(0)], "memory": [hint(0)]}, (0,), (0,), (0,), id="same-and-liked"),
        pytest.param(
            {"cpu": [hint(0)], "memory": [hint(1)]},
            (0, 1),
            "Unaligned NUMA Hint cause cpu prefer [01] among [01] & memory prefer [10] among [10]",
            "Unaligned NUMA Hint cause cpu prefer [01] among [01],memory prefer [10] among [10]",
            id="nothing-in-common",
        ),
        pytest.param(
            {"cpu": [hint(0)], "memory": [hint(0, preferred=False)]},
            (0,),
            "Unaligned NUMA Hint cause cpu prefer [01] among [01] & memory prefer [] among [01]",
            "Unaligned NUMA Hint cause cpu prefer [01] among [01],memory prefer [] among [01]",
            id="liked-by-one-only",
        ),
        pytest.param(
            {"cpu": [hint(0)], "memory": [hint(0, 1)]},
            (0, 1),
            "Unaligned NUMA Hint cause cpu prefer [01] among [01] & memory prefer [11] among [11]",
            "Unaligned NUMA Hint cause cpu prefer [01] among [01],memory prefer [11] among [11]",
            id="liked-but-not-the-same",
        ),
        pytest.param(
            {"cpu": [hint(0, preferred=False), hint(0, 1)]},
            (0, 1),
            (0, 1),
            "Unaligned NUMA Hint cause cpu prefer [11] among [01 11]",
            id="wider-and-liked-beats-narrower",
        ),
        pytest.param({"cpu": [hint(1), hint(0)]}, (0,), (0,), (0,), id="lower-number-first"),
        pytest.param({"cpu": [hint(0, score=10), hint(1, score=30)]}, (1,), (1,), (1,), id="higher-score"),
        pytest.param(
            {"cpu": [hint(0, score=10), hint(1, score=30)], "gpu": [hint(0, score=500), hint(1)]},
            (0,),
            (0,),
            (0,),
            id="scores-add-up",
        ),
        pytest.param({"cpu": [hint(0), hint(1)], "gpu": None}, (0,), (0,), (0,), id="one-has-no-preference"),
    ],
)
def test_decision(
    hints: NumaTopologyHints,
    best: tuple[int, ...] | str | None,
    restricted: tuple[int, ...] | str | None,
    single: tuple[int, ...] | str | None,
) -> None:
    assert nodes(decide_affinity(BEST, TWO, [hints])) == best
    assert nodes(decide_affinity(RESTRICTED, TWO, [hints])) == restricted
    assert nodes(decide_affinity(SINGLE_NODE, TWO, [hints])) == single


def test_machine_of_one_numa_node_gets_no_affinity() -> None:
    one = NumaZones((0,))
    assert decide_affinity(SINGLE_NODE, one, [{"cpu": [hint(0)]}]) == NumaAffinity(None)
    assert decide_affinity(RESTRICTED, one, [{"cpu": [hint(0)]}]) == NumaAffinity(BitMask.of(0))


def test_exclusivity_turns_a_liked_set_down() -> None:
    zones = NumaZones((0, 1), {0: SHARED, 1: IDLE}, "Required")
    hints: NumaTopologyHints = {"cpu": [hint(0, score=99), hint(1)]}
    assert nodes(decide_affinity(SINGLE_NODE, zones, [hints])) == (1,)
    full = NumaZones((0, 1), {0: SHARED, 1: SHARED}, "Required")
    refused = "Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10]"
    assert nodes(decide_affinity(SINGLE_NODE, full, [hints])) == refused
    assert nodes(decide_affinity(BEST, full, [hints])) == (0,)


def test_policy_none_admits_without_numa_nodes() -> None:
    assert decide_affinity("", TWO, [{"cpu": []}]) == NumaAffinity(None)


def test_every_provider_is_heard() -> None:
    found = collect_hints([lambda _: NumaRefusal(("one",)), lambda _: {}, lambda _: NumaRefusal(("two", "three"))], 1)
    assert found == NumaRefusal(("one", "two", "three"))
    assert admit_pod(RESTRICTED, TWO, [lambda _: NumaRefusal(("one",))]) == NumaRefusal(("one",))


# The rule in full, combination by combination.


def all_combinations(lists: list[list[NumaTopologyHint]], zones: NumaZones) -> NumaTopologyHint:
    best = NumaTopologyHint(zones.all_zones)
    for combination in product(*lists):
        value, masks = zones.all_zones.value, [h.mask for h in combination if h.mask is not None]
        for mask in masks:
            value &= mask.value
        if not value:
            continue
        merged = BitMask(value)
        preferred = all(h.preferred for h in combination) and len(set(masks)) <= 1 and zones.allows(merged)
        unsatisfied = any(h.unsatisfied for h in combination) or (
            bool(masks) and max(len(mask) for mask in masks) != len(merged)
        )
        score = sum(h.score for h in combination if h.mask == merged)
        new = NumaTopologyHint(merged, preferred, score, unsatisfied)
        if new.preferred != best.preferred:
            best = new if new.preferred else best
        elif best.mask is not None and (
            merged.is_narrower_than(best.mask) or (len(merged) == len(best.mask) and score > best.score)
        ):
            best = new
    return best


@st.composite
def hint_lists(draw: st.DrawFn) -> tuple[list[list[NumaTopologyHint]], NumaZones]:
    count = draw(st.integers(1, 3))
    masks = [BitMask(value) for value in range(1, 1 << count)]
    statuses = {n: draw(st.sampled_from([IDLE, SINGLE, SHARED])) for n in range(count)}
    zones = NumaZones(tuple(range(count)), statuses, draw(st.sampled_from(["", "Required", "Preferred"])))
    lists: list[list[NumaTopologyHint]] = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 4)) == 0:
            lists.append([NumaTopologyHint(preferred=True)])
            continue
        chosen = draw(st.lists(st.sampled_from(masks), min_size=1, max_size=len(masks), unique=True))
        lists.append([NumaTopologyHint(m, draw(st.booleans()), draw(st.sampled_from([0, 30, 500]))) for m in chosen])
    return lists, zones


@settings(max_examples=100, deadline=None)
@given(hint_lists())
def test_merging_is_that_of_all_combinations(case: tuple[list[list[NumaTopologyHint]], NumaZones]) -> None:
    lists, zones = case
    expected = all_combinations(lists, zones)
    assert merge_best_effort(lists, zones) == expected
    assert merge_preferred(lists, zones) == (expected if expected.preferred else None)


def test_too_many_combinations_fall_back_to_all_numa_nodes() -> None:
    eight = NumaZones(tuple(range(8)))
    lists = [[NumaTopologyHint(BitMask(value)) for value in range(1, 256)] for _ in range(3)]
    assert merge_best_effort(lists, eight) == NumaTopologyHint(eight.all_zones)
    liked = [[NumaTopologyHint(BitMask(value), preferred=value == 7) for value in range(1, 256)] for _ in range(3)]
    assert merge_best_effort(liked, eight).mask == BitMask(7)
