"""Who holds which devices, after anything that can happen: exactly what live pods carry, and nothing twice."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESERVATION_ALLOCATED
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.plugins.device_share.device_builders import device, gpu, place
from tests.scheduler.plugins.device_share.device_cluster import DeviceCluster, asking, named, reference_machine
from tests.scheduler.plugins.device_share.test_allocator_properties import function_counts
from tests.scheduler.plugins.device_share.test_device_columns import pods

GPU = "koordinator.sh/gpu"
NAMES = ("n0", "n1")
SICK = named(device(*[gpu(m, place(m // 4, str(m // 2)), health=m % 3 > 0) for m in range(8)]), "n0")

steps = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "reserve", "bind", "bind", "undo", "delete", "end", "strip", "device"]),
        st.sampled_from(NAMES),
        pods(),
        st.integers(0, 20),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(steps)
def test_freed_equals_taken_and_nothing_is_given_twice(story: list[tuple[str, str, Pod, int]]) -> None:
    world = DeviceCluster(*(reference_machine(name) for name in NAMES))
    reserved: dict[str, tuple[Pod, str]] = {}
    bound: dict[str, Pod] = {}
    for number, (what, node, pod, pick) in enumerate(story):
        uid = f"u{number}"
        if what == "reserve":
            meta = msgspec.structs.replace(pod.metadata, uid=uid, name=f"p{number}")
            mine = msgspec.structs.replace(pod, metadata=meta)
            if not world.judged(mine, node) and not world.reserve(mine, node):
                reserved[uid] = (mine, node)
        elif what in ("bind", "undo") and reserved:
            uid = sorted(reserved)[pick % len(reserved)]
            mine, node = reserved.pop(uid)
            if what == "undo":
                world.undo(mine, node)
                world.undo(mine, node)  # more than once must do no harm
            else:
                try:
                    bound[uid] = world.bound(mine, node)
                except AssertionError:  # a card failed after it was chosen
                    world.undo(mine, node)
        elif what in ("delete", "end", "strip") and bound:
            uid = sorted(bound)[pick % len(bound)]
            mine = bound.pop(uid)
            if what == "delete":
                world.state.drop_pod(uid)
            elif what == "end":
                world.state.set_pod(
                    msgspec.structs.replace(mine, status=msgspec.structs.replace(mine.status, phase="Failed"))
                )
            else:
                bare = msgspec.structs.replace(mine, metadata=msgspec.structs.replace(mine.metadata, annotations={}))
                world.state.set_pod(bare)
        elif what == "device":
            match pick % 3:
                case 0:
                    world.devices.put(named(SICK, node))
                case 1:
                    world.devices.put(reference_machine(node))
                case _ if world.devices.get("", node) is not None:
                    world.devices.drop(node)
        world.check()
        for site in world.book.nodes.values():
            assert site.ledger.overcommits() == []
            assert all(count == 1 for count in function_counts(site.ledger).values())
    for uid, (mine, node) in reserved.items():
        world.undo(mine, node)
        assert world.state.placed_pod(uid) is None
    for uid in bound:
        world.state.drop_pod(uid)
    assert list(world.book.iter_allocations()) == []
    assert all(not site.used for site in world.book.nodes.values())
    assert world.book.assumed == {}


def carrying(name: str, node: str, *minors: int, share: int = 100, **more: Any) -> Pod:
    amounts = {"koordinator.sh/gpu-core": str(share), "koordinator.sh/gpu-memory-ratio": str(share)}
    text = json.dumps({"gpu": [{"minor": minor, "resources": amounts} for minor in minors]})
    annotations = {A_DEVICE_ALLOCATED: text, **more.pop("annotations", {})}
    return make_pod(name, node=node, more={GPU: str(share * len(minors))}, annotations=annotations, **more)


def used(site: NodeDevices) -> dict[int, int]:
    return {minor: amounts["koordinator.sh/gpu-memory-ratio"] for minor, amounts in site.used.get("gpu", {}).items()}


def test_a_scheduler_that_starts_counts_what_pods_carry() -> None:
    world = DeviceCluster()
    world.state.set_node(make_node("n0"))
    world.state.set_pod(carrying("old", "n0", 0, 5))
    world.devices.put(reference_machine())  # pods may be seen before their devices
    assert used(world.book.nodes["n0"]) == {0: 100, 5: 100}
    assert world.place(asking("new", {GPU: 700})) == "Insufficient GPU Devices"
    assert world.place(asking("new", {GPU: 600})) == {"gpu": (1, 2, 3, 4, 6, 7)}
    world.check()


def test_a_pending_pod_that_carries_devices_holds_none() -> None:
    world = DeviceCluster(reference_machine())
    stale = carrying("again", "", 0)
    assert world.place(stale) == {"gpu": (0,)}
    world.state.drop_pod(stale.metadata.uid)
    assert list(world.book.iter_allocations()) == []


def test_a_new_pod_of_an_old_name_is_another() -> None:
    world = DeviceCluster(reference_machine())
    world.state.set_pod(carrying("same", "n0", 0, uid="first"))
    world.state.set_pod(carrying("same", "n0", 1, uid="second"))
    world.state.drop_pod("first")
    assert used(world.book.nodes["n0"]) == {1: 100}


def test_devices_stay_known_while_their_object_is_away() -> None:
    world = DeviceCluster(reference_machine())
    world.state.set_pod(carrying("old", "n0", 0))
    world.devices.drop("n0")
    assert world.judged(asking("p", {GPU: 100})) == "Insufficient GPU Devices"
    world.devices.put(reference_machine())
    assert world.place(asking("p", {GPU: 800})) == "Insufficient GPU Devices"
    assert world.place(asking("p", {GPU: 100})) == {"gpu": (1,)}


def test_another_node_of_the_same_name_starts_without_devices() -> None:
    world = DeviceCluster(reference_machine())
    world.devices.drop("n0")
    assert world.judged(asking("p", {GPU: 100}))
    world.state.drop_node("n0")
    fresh = make_node("n0")
    world.state.set_node(msgspec.structs.replace(fresh, metadata=msgspec.structs.replace(fresh.metadata, uid="new")))
    assert world.judged(asking("p", {GPU: 100})) == ""  # as on any node whose devices nobody told of
    assert world.place(asking("p", {GPU: 100})) == {}


@pytest.mark.parametrize(
    "text",
    ["{", '{"gpu":[{"minor":"x"}]}', '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"many"}}]}', "[]"],
    ids=["no-json", "minor-no-number", "no-quantity", "no-map"],
)
def test_an_unreadable_annotation_holds_nothing_and_is_told_of(text: str) -> None:
    world = DeviceCluster(reference_machine())
    odd = make_pod("odd", node="n0", annotations={A_DEVICE_ALLOCATED: text})
    world.state.set_pod(odd)
    assert A_DEVICE_ALLOCATED in str(world.book.unreadable[odd.metadata.uid])
    assert world.place(asking("p", {GPU: 800})) == {"gpu": tuple(range(8))}
    world.state.drop_pod(odd.metadata.uid)
    assert world.book.unreadable == {}
    world.check()


def test_cards_that_nobody_lists_are_held_without_harm() -> None:
    world = DeviceCluster(reference_machine())
    world.state.set_pod(carrying("stranger", "n0", 11))
    assert world.book.nodes["n0"].ledger.unlisted_devices() == [("gpu", 11)]
    assert world.place(asking("p", {GPU: 800})) == {"gpu": tuple(range(8))}
    world.check()


def test_pods_of_a_reservation_are_not_counted_twice() -> None:
    world = DeviceCluster(reference_machine())
    world.state.set_pod(carrying("reserve", "n0", 0, share=50, uid="r"))
    inside = {A_RESERVATION_ALLOCATED: json.dumps({"name": "r", "uid": "r"})}
    world.state.set_pod(carrying("owner", "n0", 0, share=30, annotations=inside))
    assert used(world.book.nodes["n0"]) == {0: 50}
    world.state.set_pod(carrying("large", "n0", 0, share=40, annotations=inside))
    assert used(world.book.nodes["n0"]) == {0: 70}  # all that its pods have, as it is more than was reserved
    world.state.drop_pod("r")
    assert used(world.book.nodes["n0"]) == {0: 70}
