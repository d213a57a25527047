"""Devices for claims on one node: what is chosen, what is refused and why, and the same as trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.dynamic_resources import DeviceClass, ResourceClaim, ResourceSlice
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.dynamic_resources.allocator import (
    CANNOT_ALLOCATE,
    INVALID_POOLS,
    TIMED_OUT,
    AllocationRefusal,
    AllocatorFeatures,
    allocate,
    preference_score,
)
from koord.scheduler.plugins.dynamic_resources.claim_demand import ClaimDemand, ClaimDemands
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import DeviceId, ReachablePool, ResourceSliceCache
from tests.scheduler.builders import make_node, make_state
from tests.scheduler.plugins.dynamic_resources.device_objects import (
    DRIVER,
    exactly,
    first_of,
    make_claim,
    make_class,
    make_device,
    make_slice,
)

ALL_FEATURES = AllocatorFeatures(taints=True, partitionable=True)
TWO = [make_device("d0", model="a", numa=0, memory="40Gi"), make_device("d1", model="b", numa=1, memory="80Gi")]
FOUR = [make_device(f"d{i}", model="ab"[i % 2], numa=i // 2) for i in range(4)]


def pools(*slices: ResourceSlice) -> tuple[ReachablePool, ...]:
    state = make_state([make_node("n0", labels={"zone": "z0"})])
    cache = ResourceSliceCache(state)
    for each in slices:
        cache.slice_changed(None, each)
    node = state.node("n0")
    assert node is not None
    return cache.pools_of(node)


def demands(claims: Sequence[ResourceClaim], *classes: DeviceClass) -> list[ClaimDemand]:
    known = {each.metadata.name: each for each in (make_class(), *classes)}
    made = [ClaimDemands(known.get, lambda: 0).demand_of(claim) for claim in claims]
    assert all(isinstance(each, ClaimDemand) for each in made), made
    return [each for each in made if isinstance(each, ClaimDemand)]


def outcome(
    slices: Sequence[ResourceSlice],
    claims: Sequence[ResourceClaim],
    *classes: DeviceClass,
    in_use: Sequence[str] = (),
    features: AllocatorFeatures = ALL_FEATURES,
) -> list[list[str]] | str:
    """Return the names of the devices of each claim, in order; the reason where there are none."""
    used = {(DRIVER, "n0", name) for name in in_use}
    found = allocate(pools(*slices), demands(claims, *classes), used, features)
    if isinstance(found, AllocationRefusal):
        return found.reason
    return [[f"{pick.demand.request}={pick.device.id[2]}" for pick in each.devices] for each in found]


def of_node(devices: Sequence[dict[str, Any]], **more: Any) -> ResourceSlice:
    return make_slice("s0", devices, node="n0", **more)


MODEL_B = f'device.attributes["{DRIVER}"].model == "b"'
NOT_ENOUGH = CANNOT_ALLOCATE


@pytest.mark.parametrize(
    ("slices", "claims", "expected"),
    [
        pytest.param([of_node(TWO)], [make_claim("c")], [["r=d0"]], id="the-first-device"),
        pytest.param([of_node(TWO)], [make_claim("c", exactly("r", 2))], [["r=d0", "r=d1"]], id="two"),
        pytest.param([of_node(TWO)], [make_claim("c", exactly("r", 3))], NOT_ENOUGH, id="more-than-there-are"),
        pytest.param([], [make_claim("c")], NOT_ENOUGH, id="no-slices"),
        pytest.param([of_node(TWO)], [make_claim("c", exactly("r", 1, MODEL_B))], [["r=d1"]], id="by-attribute"),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", exactly("r", 1, f'device.capacity["{DRIVER}"].memory.compareTo(quantity("64Gi")) > 0'))],
            [["r=d1"]],
            id="by-capacity",
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", exactly("r", 1, 'device.driver == "other"'))],
            NOT_ENOUGH,
            id="other-driver",
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", exactly("r", 1, 'has(device.attributes["no.such.domain"].x)'))],
            NOT_ENOUGH,
            id="an-unknown-domain-has-nothing",
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", exactly("r", 1, f'device.attributes["{DRIVER}"].nope == 1'))],
            ": selector #0: CEL runtime error: no such key: nope",
            id="an-unknown-name-is-an-error",
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", exactly("first", 1), exactly("second", 1))],
            [["first=d0", "second=d1"]],
            id="two-requests",
        ),
        pytest.param(
            [of_node(TWO)],
            [
                make_claim(
                    "c", exactly("any", 1), exactly("second", 1, 'device.attributes["gpu.example.com"].numa == 0')
                )
            ],
            [["any=d1", "second=d0"]],
            id="goes-back-for-a-choosy-request",
        ),
        pytest.param([of_node(TWO)], [make_claim("a"), make_claim("b")], [["r=d0"], ["r=d1"]], id="two-claims"),
        pytest.param(
            [of_node(TWO)], [make_claim("a", exactly("r", 2)), make_claim("b")], NOT_ENOUGH, id="one-too-many"
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", exactly("r", 0, allocationMode="All"))],
            [["r=d0", "r=d1"]],
            id="all-devices",
        ),
        pytest.param(
            [of_node([])], [make_claim("c", exactly("r", 0, allocationMode="All"))], NOT_ENOUGH, id="all-of-none"
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("a"), make_claim("b", exactly("r", 0, allocationMode="All"))],
            NOT_ENOUGH,
            id="all-of-which-one-is-taken",
        ),
        pytest.param(
            [of_node(TWO, slices=2)],
            [make_claim("c", exactly("r", 0, allocationMode="All"))],
            f", request r: asks for all devices, but resource pool {DRIVER}/n0 is currently being updated",
            id="all-of-an-incomplete-pool",
        ),
        pytest.param([of_node(TWO, slices=2)], [make_claim("c")], NOT_ENOUGH, id="an-incomplete-pool"),
        pytest.param([of_node([TWO[0], TWO[0]])], [make_claim("c")], INVALID_POOLS, id="an-invalid-pool"),
        pytest.param(
            [of_node([{**TWO[0], "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}, TWO[1]])],
            [make_claim("c")],
            [["r=d1"]],
            id="a-device-that-nobody-waits-for",
        ),
        pytest.param(
            [of_node(TWO)],
            [
                make_claim(
                    "c", exactly("r", 0, allocationMode="All"), constraints=[{"matchAttribute": f"{DRIVER}/numa"}]
                )
            ],
            f", request r: cannot add device {DRIVER}/n0/d1 because a claim constraint would not be satisfied",
            id="all-devices-against-a-constraint",
        ),
        pytest.param(
            [of_node(TWO), make_slice("s1", [make_device("new")], node="n0", generation=2)],
            [make_claim("c")],
            [["r=new"]],
            id="the-newest-generation",
        ),
        pytest.param(
            [of_node(TWO), make_slice("s1", [make_device("new")], node="n9", pool="n0", generation=2)],
            [make_claim("c")],
            NOT_ENOUGH,
            id="a-newer-generation-elsewhere",
        ),
        pytest.param([make_slice("s", TWO, node="n1")], [make_claim("c")], NOT_ENOUGH, id="on-another-node"),
        pytest.param([make_slice("s", TWO, pool="n0")], [make_claim("c")], [["r=d0"]], id="for-all-nodes"),
        pytest.param(
            [
                make_slice(
                    "s",
                    [
                        {"name": "far", "nodeName": "n1"},
                        {"name": "near", "nodeName": "n0"},
                        {"name": "any", "allNodes": True},
                    ],
                    pool="n0",
                    perDeviceNodeSelection=True,
                )
            ],
            [make_claim("c", exactly("r", 2))],
            [["r=near", "r=any"]],
            id="nodes-by-device",
        ),
        pytest.param(
            [of_node(FOUR)],
            [make_claim("c", exactly("r", 2), constraints=[{"matchAttribute": f"{DRIVER}/model"}])],
            [["r=d0", "r=d2"]],
            id="of-one-model",
        ),
        pytest.param(
            [of_node(FOUR)],
            [make_claim("c", exactly("r", 3), constraints=[{"matchAttribute": f"{DRIVER}/model"}])],
            NOT_ENOUGH,
            id="not-so-many-of-one-model",
        ),
        pytest.param(
            [of_node(FOUR)],
            [make_claim("c", exactly("r", 2), constraints=[{"matchAttribute": f"{DRIVER}/nope"}])],
            NOT_ENOUGH,
            id="without-the-attribute",
        ),
        pytest.param(
            [of_node(FOUR)],
            [make_claim("c", exactly("r", 2), constraints=[{"distinctAttribute": f"{DRIVER}/numa"}])],
            [["r=d0", "r=d2"]],
            id="of-two-zones",
        ),
        pytest.param(
            [of_node(FOUR)],
            [
                make_claim(
                    "c",
                    exactly("x", 1),
                    exactly("y", 1),
                    exactly("z", 1),
                    constraints=[{"requests": ["x", "z"], "matchAttribute": f"{DRIVER}/numa"}],
                )
            ],
            [["x=d0", "y=d2", "z=d1"]],
            id="a-constraint-on-some-requests",
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", first_of("r", exactly("big", 3), exactly("small", 1, MODEL_B)))],
            [["r/small=d1"]],
            id="the-second-alternative",
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", first_of("r", exactly("two", 2), exactly("one", 1)), exactly("other", 1))],
            [["r/one=d0", "other=d1"]],
            id="an-alternative-that-leaves-room",
        ),
        pytest.param(
            [of_node(TWO)],
            [make_claim("c", exactly("r", 2, adminAccess=True)), make_claim("d", exactly("r", 2))],
            [["r=d0", "r=d1"], ["r=d0", "r=d1"]],
            id="administrators-take-nothing-away",
        ),
    ],
)
def test_devices(slices: list[ResourceSlice], claims: list[ResourceClaim], expected: list[list[str]] | str) -> None:
    assert outcome(slices, claims) == expected


def test_devices_in_use_are_left_out_but_for_administrators() -> None:
    assert outcome([of_node(TWO)], [make_claim("c")], in_use=["d0"]) == [["r=d1"]]
    assert outcome([of_node(TWO)], [make_claim("c")], in_use=["d0", "d1"]) == NOT_ENOUGH
    admin = make_claim("c", exactly("r", 1, adminAccess=True))
    assert outcome([of_node(TWO)], [admin], in_use=["d0", "d1"]) == [["r=d0"]]
    everything = make_claim("c", exactly("r", 0, allocationMode="All"))
    assert outcome([of_node(TWO)], [everything], in_use=["d0"]) == NOT_ENOUGH


def test_the_class_selects_before_the_request() -> None:
    claim = make_claim("c", exactly("r", 1, device_class="b"))
    assert outcome([of_node(TWO)], [claim], make_class("b", MODEL_B)) == [["r=d1"]]
    broken = make_class("b", "device.nope.x", MODEL_B)
    assert outcome([of_node(TWO)], [claim], broken) == "class b: selector #0: CEL runtime error: no such key: nope"
    wrong = outcome([of_node(TWO)], [claim], make_class("b", "1 +"))
    assert isinstance(wrong, str)
    assert wrong.startswith("class b: selector #0: CEL compile error: ")


def test_taints_keep_claims_off_where_the_gate_is_on() -> None:
    tainted = {**TWO[0], "taints": [{"key": "broken", "value": "fan", "effect": "NoSchedule"}]}
    slices = [of_node([tainted, TWO[1]])]
    claim = make_claim("c")
    assert outcome(slices, [claim]) == [["r=d1"]]
    assert outcome(slices, [claim], features=AllocatorFeatures()) == [["r=d0"]]
    tolerant = make_claim("c", exactly("r", 1, tolerations=[{"key": "broken", "operator": "Exists"}]))
    assert outcome(slices, [tolerant]) == [["r=d0"]]
    other = make_claim("c", exactly("r", 1, tolerations=[{"key": "broken", "operator": "Equal", "value": "leg"}]))
    assert outcome(slices, [other]) == [["r=d1"]]


def test_partitions_take_from_the_counters_that_they_share() -> None:
    def part(name: str, memory: str) -> dict[str, Any]:
        return {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": memory}}}]}

    counters = [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]
    devices = [part("whole", "80Gi"), part("half0", "40Gi"), part("half1", "40Gi")]
    slices = [of_node(devices, slices=2), make_slice("s1", [], node="n0", slices=2, sharedCounters=counters)]
    assert outcome(slices, [make_claim("c", exactly("r", 2))]) == [["r=half0", "r=half1"]]
    assert outcome(slices, [make_claim("c")], in_use=["half0"]) == [["r=half1"]]
    assert outcome(slices, [make_claim("c")], in_use=["half0", "half1"]) == NOT_ENOUGH
    assert outcome(slices, [make_claim("c")], in_use=["half0"], features=AllocatorFeatures()) == NOT_ENOUGH
    admin = make_claim("c", exactly("r", 1, adminAccess=True))
    assert outcome(slices, [admin], in_use=["whole"]) == NOT_ENOUGH
    unknown = [of_node([part("lost", "1Gi")])]
    assert outcome(unknown, [make_claim("c")]) == INVALID_POOLS


def test_a_partition_that_is_passed_over_takes_nothing_from_the_counters() -> None:
    def part(name: str, memory: str, numa: int, **more: Any) -> dict[str, Any]:
        taken = [{"counterSet": "card", "counters": {"memory": {"value": memory}}}]
        return {**make_device(name, numa=numa), "consumesCounters": taken, **more}

    counters = [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]
    worn = {"taints": [{"key": "worn", "effect": "NoSchedule"}]}
    halves = [part("half0", "40Gi", 0), part("half1", "40Gi", 0)]
    tainted = [of_node([part("whole", "80Gi", 0, **worn), *halves], sharedCounters=counters)]
    assert outcome(tainted, [make_claim("c", exactly("r", 2))]) == [["r=half0", "r=half1"]]
    apart = [of_node([halves[0], part("other", "40Gi", 1), halves[1]], sharedCounters=counters)]
    matched = make_claim("c", exactly("r", 2), constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    assert outcome(apart, [matched]) == [["r=half0", "r=half1"]]


def test_counters_belong_to_the_pool_of_one_driver() -> None:
    def of_driver(driver: str, amount: str) -> ResourceSlice:
        taken = [{"counterSet": "card", "counters": {"memory": {"value": "40Gi"}}}]
        counters = [{"name": "card", "counters": {"memory": {"value": amount}}}]
        devices = [{"name": f"d-{driver}", "consumesCounters": taken}]
        return make_slice(f"s-{driver}", devices, node="n0", driver=driver, sharedCounters=counters)

    slices = [of_driver("a.example.com", "0"), of_driver("b.example.com", "40Gi")]
    assert outcome(slices, [make_claim("c")]) == [["r=d-b.example.com"]]


def test_gates_that_are_off_keep_requests_from_devices() -> None:
    admin = make_claim("c", exactly("r", 1, adminAccess=True))
    words = ", request r: admin access is requested, but the feature is disabled"
    assert outcome([of_node(TWO)], [admin], features=AllocatorFeatures(admin_access=False)) == words
    listed = make_claim("c", first_of("r", exactly("a"), exactly("b")))
    refused = ClaimDemands(lambda name: make_class(), lambda: 0, lists=False).demand_of(listed)
    words = "resource claim default/c, request r: has subrequests, but the DRAPrioritizedList feature is disabled"
    assert isinstance(refused, Reject)
    assert refused.reasons == (words,)


def test_a_search_ends_after_so_many_steps() -> None:
    many = [of_node([make_device(f"d{i}", n=i % 3) for i in range(40)])]
    claim = make_claim("c", exactly("r", 20), constraints=[{"matchAttribute": f"{DRIVER}/n"}])
    assert outcome(many, [claim], features=AllocatorFeatures(max_steps=1000)) == TIMED_OUT
    assert outcome(many, [make_claim("c", exactly("r", 32))]) == [[f"r=d{i}" for i in range(32)]]
    assert outcome(many, [make_claim("c", exactly("r", 33))]) == NOT_ENOUGH


def test_the_first_alternative_scores_most() -> None:
    claim = make_claim(
        "c", first_of("x", exactly("two", 3), exactly("one", 1)), first_of("y", exactly("z", 1)), exactly()
    )
    found = allocate(pools(of_node(FOUR[:3])), demands([claim]), (), ALL_FEATURES)
    assert not isinstance(found, AllocationRefusal)
    assert preference_score(found, 8) == 7 + 8


# Against trying everything --------------------------------------------------------------------------------------------

_DEVICES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), min_size=0, max_size=5)
_REQUEST = st.tuples(st.integers(1, 3), st.sampled_from(["", "a", "b"]), st.booleans())
_CLAIMS = st.lists(st.tuples(st.lists(_REQUEST, min_size=1, max_size=2), st.booleans()), min_size=1, max_size=2)


def _fits(
    models: Sequence[tuple[str, int]], chosen: Sequence[int], wants: Sequence[tuple[int, str]], matched: bool
) -> bool:
    """Return whether the devices at these places serve the requests of a claim, in order."""
    at = 0
    for count, model in wants:
        if any(model and models[i][0] != model for i in chosen[at : at + count]):
            return False
        at += count
    return not matched or len({models[i][1] for i in chosen}) == 1


def _is_possible(models: Sequence[tuple[str, int]], free: Sequence[int], claims: Sequence[Any]) -> bool:
    if not claims:
        return True
    (requests, matched), rest = claims[0], claims[1:]
    wants = [(count, model) for count, model, _ in requests]
    for chosen in itertools.permutations(free, sum(count for count, _ in wants)):
        if _fits(models, chosen, wants, matched) and _is_possible(models, [i for i in free if i not in chosen], rest):
            return True
    return False


@given(models=_DEVICES, wanted=_CLAIMS, used=st.sets(st.integers(0, 4), max_size=2))
def test_the_search_finds_a_solution_where_there_is_one(
    models: list[tuple[str, int]], wanted: list[tuple[list[tuple[int, str, bool]], bool]], used: set[int]
) -> None:
    devices = [make_device(f"d{i}", model=model, numa=numa) for i, (model, numa) in enumerate(models)]
    claims = []
    for c, (requests, matched) in enumerate(wanted):
        asked = [
            exactly(f"r{i}", count, *([f'device.attributes["{DRIVER}"].model == "{model}"'] if model else []))
            for i, (count, model, _) in enumerate(requests)
        ]
        constraints = [{"matchAttribute": f"{DRIVER}/numa"}] if matched else []
        claims.append(make_claim(f"c{c}", *asked, constraints=constraints))
    in_use: set[DeviceId] = {(DRIVER, "n0", f"d{i}") for i in used}
    found = allocate(pools(of_node(devices)), demands(claims), in_use, ALL_FEATURES)
    free = [i for i in range(len(models)) if i not in used]
    assert isinstance(found, AllocationRefusal) is not _is_possible(models, free, wanted)
    if isinstance(found, AllocationRefusal):
        return
    given_away = [pick.device.id for allocation in found for pick in allocation.devices]
    assert len(given_away) == len(set(given_away))
    assert not in_use & set(given_away)
    for (requests, matched), allocation in zip(wanted, found, strict=True):
        chosen = [int(pick.device.id[2][1:]) for pick in allocation.devices]
        assert _fits(models, chosen, [(count, model) for count, model, _ in requests], matched)
