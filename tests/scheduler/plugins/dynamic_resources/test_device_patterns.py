"""What is kept by pattern is what a search on each node says, whatever happened before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.kubernetes.dynamic_resources import ResourceClaim, ResourceSlice
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_table import ALL_ROWS
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.plugins.dynamic_resources import allocator
from koord.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from tests.scheduler.builders import make_node, make_state
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.dynamic_resources.device_objects import (
    DRIVER,
    DeviceHandle,
    claimant,
    exactly,
    first_of,
    make_claim,
    make_device,
    make_slice,
    results,
)

NODES = ("n0", "n1", "n2", "n3")
NUMA = f'device.attributes["{DRIVER}"].numa == 0'
SPECIAL = f'"special" in device.attributes["{DRIVER}"]'
FAULTY = f'device.attributes["{DRIVER}"].special > 1'  # an error on the devices that do not have it
OWN = f'device.driver == "{DRIVER}" && device.capacity["{DRIVER}"].memory.compareTo(quantity("2Gi")) >= 0'
ANYTHING = f'device.attributes["{DRIVER}"].size() > 1'  # reads no name: all of the device counts
SHARED_NUMA = {"matchAttribute": f"{DRIVER}/numa"}
# what claims ask for: requests, constraints
DEMANDS: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]]], ...] = (
    ([exactly()], []),
    ([exactly("r", 2)], [SHARED_NUMA]),
    ([exactly("r", 1, NUMA)], []),
    ([exactly("r", 1, SPECIAL), exactly("s", 1)], []),
    ([exactly("r", 1, FAULTY)], []),
    ([exactly("r", 1, OWN)], []),
    ([exactly("r", 1, ANYTHING)], []),
    ([exactly("r", 0, allocationMode="All")], []),
    ([exactly("r", 0, SPECIAL, allocationMode="All")], [SHARED_NUMA]),
    ([first_of("r", exactly("a", 2, NUMA), exactly("b", 1))], []),
    ([exactly("r", 1, adminAccess=True), exactly("s", 1)], []),
)


@st.composite
def devices(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for i in range(draw(st.integers(0, 3))):
        attributes: dict[str, Any] = {"numa": draw(st.integers(0, 1)), "uuid": f"u{draw(st.integers(0, 99))}"}
        if draw(st.booleans()):
            attributes["special"] = draw(st.integers(0, 2))
        device = make_device(f"d{i}", memory=draw(st.sampled_from(("1Gi", "2Gi"))), **attributes)
        if draw(st.integers(0, 3)) == 0:
            device["taints"] = [{"key": "worn", "effect": "NoSchedule"}]
        if draw(st.integers(0, 3)) == 0:
            device["consumesCounters"] = [{"counterSet": "card", "counters": {"memory": {"value": "1"}}}]
        made.append(device)
    return made


@st.composite
def slices(draw: st.DrawFn) -> ResourceSlice:
    counters = [{"name": "card", "counters": {"memory": {"value": draw(st.sampled_from(("0", "1", "2")))}}}]
    where = draw(st.sampled_from((*NODES, "all", "zone")))
    reach: dict[str, Any] = {"node": where}
    if where == "zone":
        wanted = {"key": "zone", "operator": "In", "values": ["z0"]}
        reach = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}}
    elif where == "all":
        reach = {}
    announced = draw(st.sampled_from((1, 1, 1, 2)))
    return make_slice(f"s-{where}", draw(devices()), pool=where, slices=announced, sharedCounters=counters, **reach)


@st.composite
def allocated_claims(draw: st.DrawFn) -> ResourceClaim:
    pool, device = draw(st.sampled_from((*NODES, "all", "zone"))), f"d{draw(st.integers(0, 2))}"
    free = draw(st.booleans())
    name = f"used{draw(st.integers(0, 3))}"
    return make_claim(
        name, allocation=None if free else results((DRIVER, pool, device)), version=draw(st.integers(1, 9))
    )


def node_named(name: str, zone: int) -> Any:
    return make_node(name, labels={"zone": f"z{zone}"})


def check_kept_matches_fresh(plugin: DynamicResources, state: ClusterState, handle: DeviceHandle) -> None:
    """Compare columns and the per-node form, which are kept, with a plugin that has seen nothing."""
    fresh = DynamicResources(None, handle, taints=True, partitionable=True)
    for i in range(len(DEMANDS)):
        info = state.pod_info(claimant(f"p{i}", f"c{i}"))
        kept, anew = CycleState(state), CycleState(state)
        assert plugin.pre_filter(kept, info) == fresh.pre_filter(anew, info)
        codes, scores = (
            form(kept, info, state.table, ALL_ROWS) for form in (plugin.filter_columns, plugin.score_columns)
        )
        some = state.table.live_rows()[::2]
        assert np.array_equal(plugin.filter_columns(kept, info, state.table, some), codes[some])
        assert np.array_equal(plugin.score_columns(kept, info, state.table, some), scores[some])
        for node in state.nodes():
            said = plugin.filter(kept, info, node)
            told = plugin.explain_code(kept, info, int(codes[node.row])) if codes[node.row] else None
            assert (told is None) == (said is None)
            assert (codes[node.row] in plugin.fault_codes(kept)) is isinstance(said, Fault)
            alone = fresh._allocate(fresh._verdicts_of(demands_of(anew)).demands, node)
            if isinstance(alone, allocator.AllocationRefusal):
                assert said == fresh._refusal(info, alone) or "cannot add device" in alone.reason
                assert scores[node.row] == 0
            else:
                assert said is None
                assert scores[node.row] == plugin.score(kept, info, node)
                assert scores[node.row] == allocator.preference_score(alone, 8)


def demands_of(cycle: CycleState) -> Any:
    return cycle.plugin_data["DynamicResources"].verdicts.demands


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_kept_answers_are_those_of_a_search_on_each_node(data: st.DataObject) -> None:
    state = make_state([node_named(name, i % 2) for i, name in enumerate(NODES)])
    claims = [make_claim(f"c{i}", *requests, constraints=limits) for i, (requests, limits) in enumerate(DEMANDS)]
    handle = DeviceHandle(state, *claims)
    plugin = DynamicResources(None, handle, taints=True, partitionable=True)
    for _ in range(data.draw(st.integers(1, 6))):
        step = data.draw(st.one_of(slices(), slices(), allocated_claims(), st.sampled_from(NODES)))
        if isinstance(step, str):
            if data.draw(st.booleans()):
                state.set_node(node_named(step, data.draw(st.integers(0, 1))))
            else:
                state.drop_node(step)
        else:
            handle.put_object(step)
        check_kept_matches_fresh(plugin, state, handle)


@pytest.mark.parametrize("count", [1, 40])
def test_nodes_with_like_devices_are_searched_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    state = make_state([make_node(f"n{i}") for i in range(count)])
    owned = [
        make_slice(
            f"s{i}", [make_device("d0", uuid=f"u{i}", numa=0), make_device("d1", uuid=f"v{i}", numa=1)], node=f"n{i}"
        )
        for i in range(count)
    ]
    handle = DeviceHandle(state, *owned, make_claim("c0", exactly("r", 1, NUMA)))
    plugin = DynamicResources(None, handle)
    asked: list[str] = []
    search = plugin._allocate

    def counted(demands: Any, node: Any) -> Any:
        asked.append(node.name)
        return search(demands, node)

    monkeypatch.setattr(plugin, "_allocate", counted)
    engine = SchedulingEngine(profile_of([plugin]), state)
    engine.decide(state.pod_info(claimant("p", "c0")))
    assert len(asked) == 1
    handle.put_object(make_claim("other", allocation=results((DRIVER, "n0", "d0"))))
    engine.decide(state.pod_info(claimant("q", "c0")))
    assert asked[1:] == ["n0"]


def test_pods_that_name_equal_claims_are_one_class() -> None:
    state = make_state([make_node("n0")])
    handle = DeviceHandle(state, *(make_claim(f"c{i}", exactly("r", 1, NUMA)) for i in range(2)), make_claim("c2"))
    profile = profile_of([DynamicResources(None, handle)])
    infos = [state.pod_info(claimant(f"p{i}", f"c{i}")) for i in range(3)]
    keys = [profile.equivalence_key(info) for info in infos]
    assert keys[0] == keys[1] != keys[2]
