"""A card that a claim uses is not given to a pod by DeviceShare, and one that a pod holds is not given to a claim."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.scheduling import Device
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices
from koord.scheduler.plugins.device_share.cache import CLAIMED, AssumedDevices, NodeDeviceCache
from koord.scheduler.plugins.device_share.selection import SelectedDevice
from koord.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from tests.scheduler.builders import make_node, make_state
from tests.scheduler.plugins.dynamic_resources.device_objects import (
    DRIVER,
    DeviceHandle,
    claimant,
    make_claim,
    make_device,
    make_slice,
    results,
)

GPU_CORE = "koordinator.sh/gpu-core"
CARDS: dict[str, Any] = {
    "metadata": {"name": "n0"},
    "spec": {
        "devices": [
            {
                "type": "gpu",
                "minor": i,
                "id": f"GPU-{i}",
                "health": True,
                "resources": {GPU_CORE: "100"},
            }
            for i in range(2)
        ]
    },
}
SLICE = make_slice("s", [make_device(f"d{i}", uuid=f"gpu-{i}") for i in range(2)], node="n0")
TAKEN = make_claim("c", allocation=results((DRIVER, "n0", "d1")))


def held_minors(state: ClusterState) -> list[int]:
    node_devices = state.derived(NodeDeviceCache).nodes["n0"]
    return sorted((node_devices.allocated_to(CLAIMED) or {}).get("gpu", {}))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_cards_of_claims_are_held_whatever_is_seen_first(order: tuple[int, ...]) -> None:
    state = ClusterState()
    handle = DeviceHandle(state)
    DynamicResources(None, handle)
    cards = state.derived(NodeDeviceCache)
    device = convert(CARDS, Device)
    steps = (
        lambda: handle.put_object(SLICE),
        lambda: handle.put_object(TAKEN),
        lambda: cards.device_changed(None, device),
    )
    for step in order:
        steps[step]()
    assert held_minors(state) == [1]
    handle.put_object(make_claim("c", version=2))
    assert held_minors(state) == []


def test_cards_of_pods_are_not_given_to_claims() -> None:
    state = make_state([make_node("n0")])
    handle = DeviceHandle(state, SLICE, make_claim("one"), make_claim("two"))
    plugin = DynamicResources(None, handle)
    cards = state.derived(NodeDeviceCache)
    cards.device_changed(None, convert(CARDS, Device))
    card = cards.nodes["n0"].inventory.of_type("gpu")[0]
    half = SelectedDevice(card=card, amounts={GPU_CORE: 50})
    cards.assume("uid-of-a-pod", AssumedDevices("n0", AllocatedDevices({"gpu": (half,)})))
    node = state.node("n0")
    assert node is not None
    pod = state.pod_info(claimant("p", "one"))
    cycle = CycleState(state)
    assert plugin.pre_filter(cycle, pod) is None
    assert plugin.filter(cycle, pod, node) is None
    assert plugin.reserve(cycle, pod, node) is None
    assert held_minors(state) == [1], "the card that nobody held"
    second = state.pod_info(claimant("q", "two"))
    assert plugin.pre_filter(cycle, second) is None
    refused = plugin.filter(cycle, second, node)
    assert getattr(refused, "reasons", ()) == ("cannot allocate all claims",)
    plugin.unreserve(cycle, pod, "n0")
    assert held_minors(state) == []


def test_a_card_that_a_pod_takes_or_frees_changes_what_is_kept_of_its_node() -> None:
    state = make_state([make_node("n0")])
    handle = DeviceHandle(state, SLICE, make_claim("one"))
    plugin = DynamicResources(None, handle)
    cards = state.derived(NodeDeviceCache)
    cards.device_changed(None, convert(CARDS, Device))
    node = state.node("n0")
    assert node is not None
    pod, cycle = state.pod_info(claimant("p", "one")), CycleState(state)
    assert plugin.pre_filter(cycle, pod) is None
    assert plugin.filter(cycle, pod, node) is None
    for minor in range(2):
        card = SelectedDevice(card=cards.nodes["n0"].inventory.of_type("gpu")[minor], amounts={GPU_CORE: 50})
        cards.assume(f"uid-of-pod-{minor}", AssumedDevices("n0", AllocatedDevices({"gpu": (card,)})))
    assert getattr(plugin.filter(cycle, pod, node), "reasons", ()) == ("cannot allocate all claims",)
    cards.forget("uid-of-pod-1")
    assert plugin.filter(cycle, pod, node) is None
