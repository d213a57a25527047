"""The hardware that a node profile describes can be scheduled on `koord up`: CPUs, NUMA nodes, GPUs and RDMA cards."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from koord.api.koordinator.custom_kinds import DEVICES, NODE_RESOURCE_TOPOLOGIES
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.pod import Pod
from koord.cli.commands.node_occupancy import print_cpu_occupancy, read_cpu_occupancy
from koord.cli.up.components import choose_components
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.telemetry.clock import LoopClock, run_virtual

Story = Callable[[Client, LoopClock], Awaitable[None]]

PROFILE = """
pools:
  - name: gpu
    count: 1
    cpu: 96
    memory: 768Gi
    sockets: 2
    numaNodes: 4
    gpus: {count: 8, model: H100, memory: 80Gi, perPcie: 2}
    rdma: {count: 4, virtualFunctions: 8}
    reserved: {cpu: 500m, memory: 2Gi}
"""


def on_cluster(tmp_path: Path, story: Story, *, profile: str = PROFILE, **settings: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(textwrap.dedent(profile))

    async def main(clock: LoopClock) -> None:
        made = choose_components("all", nodes=2, profile=file if profile else None, settings=settings)
        assert not isinstance(made, str), made
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), made, clock=clock)
        await cluster.start()
        assert cluster.client is not None
        try:
            await clock.sleep(20)
            await story(cluster.client, clock)
        finally:
            await cluster.stop()

    run_virtual(main)


def pod(name: str, requests: dict[str, str], *, qos: str = "", **annotations: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"koordinator.sh/qosClass": qos} if qos else {},
            "annotations": {f"scheduling.koordinator.sh/{k}": json.dumps(v) for k, v in annotations.items()},
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "priorityClassName": "koord-prod",
            "containers": [{"name": "main", "image": "x", "resources": {"requests": requests, "limits": requests}}],
        },
    }


async def placed(client: Client, clock: LoopClock, wanted: dict[str, Any]) -> Pod:
    name = unwrap(await client.create(PODS, wanted)).metadata.name
    await clock.sleep(10)
    found = unwrap(await client.get(PODS, name, "default"))
    why = [one.message for one in found.status.conditions if one.type == "PodScheduled"]
    assert found.spec.node_name, why
    assert found.status.phase == "Running", found.status
    return found


def allocated(found: Pod) -> dict[str, list[int]]:
    text = found.metadata.annotations["scheduling.koordinator.sh/device-allocated"]
    return {kind: [one["minor"] for one in entries] for kind, entries in json.loads(text).items()}


AGENTS = pytest.mark.parametrize("agents", ["false", "true"])


@AGENTS
def test_cpus_numa_nodes_gpus_and_rdma_of_a_profile_are_scheduled(tmp_path: Path, agents: str) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        bound = await placed(client, clock, pod("bound", {"cpu": "4", "memory": "8Gi"}, qos="LSR"))
        status = json.loads(bound.metadata.annotations["scheduling.koordinator.sh/resource-status"])
        assert status["cpuset"]
        whole = await placed(client, clock, pod("whole", {"cpu": "1", "nvidia.com/gpu": "2"}))
        assert allocated(whole) == {"gpu": [0, 1]}
        share = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
        first = await placed(client, clock, pod("first", {"cpu": "1", **share}))
        second = await placed(client, clock, pod("second", {"cpu": "1", **share}))
        assert len(allocated(first)["gpu"]) == len(allocated(second)["gpu"]) == 1
        joint = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
        near = pod("near", {"cpu": "1", "koordinator.sh/gpu": "100", "koordinator.sh/rdma": "1"})
        near["metadata"]["annotations"]["scheduling.koordinator.sh/device-joint-allocate"] = json.dumps(joint)
        cards = allocated(await placed(client, clock, near))
        assert cards["gpu"][0] // 2 == cards["rdma"][0]

    on_cluster(tmp_path, story, **{"nodes.agents": agents})


@AGENTS
def test_the_reports_are_those_of_koordlet_for_such_a_machine(tmp_path: Path, agents: str) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        topology = unwrap(await client.get(NODE_RESOURCE_TOPOLOGIES, "gpu-0"))
        node = unwrap(await client.get(NODES, "gpu-0"))
        assert [owner.uid for owner in topology.metadata.owner_references] == [node.metadata.uid]
        cpus = json.loads(topology.metadata.annotations["node.koordinator.sh/cpu-topology"])["detail"]
        assert len(cpus) == 96
        assert cpus[47] == {"id": 47, "core": 47, "socket": 1, "node": 3}
        assert cpus[48] == {"id": 48, "core": 0, "socket": 0, "node": 0}
        assert [zone.name for zone in topology.zones] == ["node-0", "node-1", "node-2", "node-3"]
        amounts = {one.name: one.capacity for one in topology.zones[1].resources}
        assert (amounts["cpu"], amounts["memory"]) == ("24", "192Gi")
        device = unwrap(await client.get(DEVICES, "gpu-0"))
        assert device.metadata.labels["node.koordinator.sh/gpu-model"] == "H100"
        gpus = [one for one in device.spec.devices if one.type == "gpu"]
        cards = [one for one in device.spec.devices if one.type == "rdma"]
        assert [(one.minor, one.topology.node_id) for one in gpus if one.topology] == [(n, n // 2) for n in range(8)]
        assert len(cards) == 4
        functions = [vf.bus_id for vf in cards[0].vf_groups[0].vfs]
        assert functions == [f"0000:90:00.{n}" for n in range(1, 8)] + ["0000:90:01.0"]
        assert {one.topology.pcie_id for one in cards if one.topology} == {
            one.topology.pcie_id for one in gpus if one.topology
        }

    on_cluster(tmp_path, story, **{"nodes.agents": agents})


def test_cpus_that_pods_hold_leave_the_shared_pools_where_agents_run(tmp_path: Path) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        await placed(client, clock, pod("bound", {"cpu": "4", "memory": "8Gi"}, qos="LSR"))
        topology = unwrap(await client.get(NODE_RESOURCE_TOPOLOGIES, "gpu-0"))
        pools = json.loads(topology.metadata.annotations["node.koordinator.sh/cpu-shared-pools"])
        bound = unwrap(await client.get(PODS, "bound", "default"))
        held = json.loads(bound.metadata.annotations["scheduling.koordinator.sh/resource-status"])["cpuset"]
        assert held
        assert all(held not in pool["cpuset"] for pool in pools)

    on_cluster(tmp_path, story, **{"nodes.agents": "true"})


def test_plain_nodes_bind_cpus_too_and_have_no_devices(tmp_path: Path) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        assert len(unwrap(await client.list(NODE_RESOURCE_TOPOLOGIES)).items) == 2
        assert unwrap(await client.list(DEVICES)).items == ()
        await placed(client, clock, pod("bound", {"cpu": "4", "memory": "8Gi"}, qos="LSR"))

    on_cluster(tmp_path, story, profile="")


def test_what_is_deleted_comes_back_and_what_others_wrote_stays(tmp_path: Path) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.dynamic.delete(DEVICES, "gpu-0"))
        await clock.sleep(5)
        assert len(unwrap(await client.get(DEVICES, "gpu-0")).spec.devices) == 12
        by_hand = {"metadata": {"ownerReferences": None}, "spec": {"devices": []}}
        unwrap(await client.patch(DEVICES, "gpu-0", by_hand, kind="merge"))
        await clock.sleep(30)
        assert unwrap(await client.get(DEVICES, "gpu-0")).spec.devices == ()

    on_cluster(tmp_path, story)


def test_the_drawing_of_a_node_names_amounts_as_people_do(tmp_path: Path) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        await clock.sleep(60)
        console = Console(file=io.StringIO(), width=200)
        print_cpu_occupancy(console, await read_cpu_occupancy(client, "gpu-0"))
        assert isinstance(console.file, io.StringIO)
        line = next(line for line in console.file.getvalue().splitlines() if "NUMA node 1" in line)
        assert line.startswith("Socket 0, NUMA node 1  CPUs 12-23,60-71, left: cpu 24000m of 24000m, batch-cpu ")
        assert line.endswith("memory 192.0Gi of 192.0Gi")
        assert "hugepages" not in line

    on_cluster(tmp_path, story)


def test_reports_go_with_their_node(tmp_path: Path) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.dynamic.delete(NODES, "gpu-0"))
        await clock.sleep(60)
        for resource in (DEVICES, NODE_RESOURCE_TOPOLOGIES):
            assert isinstance(await client.get(resource, "gpu-0"), ApiError)

    on_cluster(tmp_path, story)
