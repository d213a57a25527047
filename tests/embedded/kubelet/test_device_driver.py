"""Nodes with a device driver publish their GPUs, and start pods with claims when these are theirs."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koord.embedded.kubelet.node_profile import GpuLayout, InvalidProfile, SimulatedPool, parse_profile
from koord.kube.transport.api_error import ApiError, unwrap
from tests.embedded.kubelet.fleet_harness import SMALL, Sim, pod, simulate

DRIVER = "gpu.example.com"
POOL = SimulatedPool(
    name="g",
    count=2,
    cpu=8,
    memory="16Gi",
    numa_nodes=2,
    gpus=GpuLayout(count=4, model="H100", memory="80Gi", driver=DRIVER),
)
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}


async def published(sim: Sim, name: str) -> dict[str, Any]:
    await sim.clock.sleep(1)
    found: dict[str, Any] = unwrap(await sim.client.dynamic.get(RESOURCE_SLICES, name))
    return found


def test_a_slice_holds_what_the_profile_says_of_the_cards() -> None:
    async def story(sim: Sim) -> None:
        found = await published(sim, f"g-1-{DRIVER}")
        spec, node = found["spec"], await sim.node("g-1")
        assert (spec["driver"], spec["nodeName"]) == (DRIVER, "g-1")
        assert spec["pool"] == {"name": "g-1", "generation": 1, "resourceSliceCount": 1}
        assert found["metadata"]["ownerReferences"][0]["uid"] == node.metadata.uid
        assert [device["name"] for device in spec["devices"]] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
        last = spec["devices"][3]
        assert last["capacity"] == {"memory": {"value": "80Gi"}}
        assert last["attributes"]["model"] == {"string": "H100"}
        assert last["attributes"]["numaNode"] == {"int": 1}
        uuids = {device["attributes"]["uuid"]["string"] for device in spec["devices"]}
        assert len(uuids) == 4
        assert "nvidia.com/gpu" not in node.status.capacity

    simulate(story, [POOL])


def test_a_deleted_slice_comes_back_and_a_changed_one_is_corrected() -> None:
    async def story(sim: Sim) -> None:
        name = f"g-0-{DRIVER}"
        before = await published(sim, name)
        unwrap(await sim.client.delete(RESOURCE_SLICES, name))
        assert (await published(sim, name))["metadata"]["uid"] != before["metadata"]["uid"]
        unwrap(await sim.client.patch(RESOURCE_SLICES, name, {"spec": {"devices": []}}, kind="merge"))
        assert len((await published(sim, name))["spec"]["devices"]) == 4

    simulate(story, [POOL])


def test_nodes_without_a_driver_publish_nothing() -> None:
    async def story(sim: Sim) -> None:
        await sim.clock.sleep(1)
        assert not unwrap(await sim.client.list(RESOURCE_SLICES)).items
        with pytest.raises(ValueError, match="made without device drivers"):
            await sim.fleet.add_pool(POOL)

    simulate(story, [SMALL])


async def make_claim(sim: Sim, uid: str = "") -> None:
    unwrap(await sim.client.create(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": SPEC}, "default"))
    if uid:
        await reserve(sim, uid)


async def reserve(sim: Sim, uid: str) -> None:
    result = {"request": "gpu", "driver": DRIVER, "pool": "g-0", "device": "gpu-0"}
    consumer = {"resource": "pods", "name": "train", "uid": uid}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
    unwrap(
        await sim.client.patch(RESOURCE_CLAIMS, "c", {"status": status}, "default", kind="merge", subresource="status")
    )


def test_a_pod_starts_when_its_claim_is_reserved_for_it() -> None:
    async def story(sim: Sim) -> None:
        body = pod("train", resourceClaims=[{"name": "devices", "resourceClaimName": "c"}])
        made = await sim.put(body)
        await sim.clock.sleep(5)
        events = unwrap(await sim.client.list(CORE_EVENTS, "default")).items
        told = [event.message for event in events if event.reason == "FailedPrepareDynamicResources"]
        assert len(told) == 1
        assert "fetch ResourceClaim c: " in told[0]
        await make_claim(sim)
        await sim.clock.sleep(5)
        assert (await sim.shown("train")).status.start_time is None  # not allocated
        await reserve(sim, "another pod")
        await sim.clock.sleep(5)
        assert (await sim.shown("train")).status.start_time is None  # not reserved for it
        await reserve(sim, made.metadata.uid)
        await sim.clock.sleep(10)
        assert (await sim.shown("train")).status.phase == "Running"

    simulate(story)


def test_a_pod_that_waits_for_its_claim_can_be_deleted() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("train", resourceClaims=[{"name": "devices", "resourceClaimTemplateName": "t"}]))
        await sim.clock.sleep(3)
        unwrap(await sim.client.delete(PODS, "train", "default"))
        await sim.clock.sleep(5)
        assert isinstance(await sim.client.get(PODS, "train", "default"), ApiError)

    simulate(story)


@pytest.mark.parametrize("driver", ["Bad_Driver", "x" * 64])
def test_a_wrong_driver_name_is_refused_with_its_field(driver: str) -> None:
    text = f"pools: [{{name: g, count: 1, gpus: {{count: 1, driver: {driver}}}}}]"
    found = parse_profile(text)
    assert isinstance(found, InvalidProfile)
    assert "pools[0].gpus.driver" in str(found)
