"""The NodeResourceTopology at the API server: made once, written when something changed, and otherwise left alone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.protocol import (
    A_CPU_MANAGER_POLICY,
    A_CPU_SHARED_POOLS,
    A_POD_CPU_ALLOCS,
    L_ENABLE_NUMA_RESERVATION,
)
from koord.api.koordinator.sigs_scheduling import NodeResourceTopology
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.node import Node
from koord.host.hardware import CpuModel, MachineCpu, NumaNode
from koord.koordlet.collect.node_resource import NodeHardwareInfo
from koord.koordlet.inputs.kubelet_client import KubeletConfiguration
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.object_reporter import TopologyInputs, TopologyReporter, TopologyReporterSettings
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from tests.host.fake_machine import FakeMachine
from tests.koordlet.inputs.fake_kubelet import FakeKubelet
from tests.koordlet.reporters import cluster_fixture
from tests.koordlet.reporters.cluster_fixture import GIB, NODE

INFO = NodeHardwareInfo(
    processors=tuple(MachineCpu(0, 0, cpu % 2, cpu) for cpu in range(4)),
    model=CpuModel(model="Model", vendor="Maker"),
    numa_nodes=(NumaNode(0, 8 * GIB, GIB),),
)


class World:
    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: LoopClock,
        root: Path,
        node: Node,
        settings: TopologyReporterSettings,
    ) -> None:
        self.client = client
        self.machine = FakeMachine(root, 1, only=frozenset({"cpu.stat"}))
        self.kubelet = FakeKubelet()
        self.read_inputs = TopologyInputs(node=node, pods=(), info=INFO)
        follow = informers.for_resource(NODE_RESOURCE_TOPOLOGIES, fields=f"metadata.name={NODE}")
        self.reporter = TopologyReporter(
            client, clock, self.machine.host, self.kubelet, follow, lambda: self.read_inputs, settings
        )

    async def there(self) -> NodeResourceTopology:
        return unwrap(await self.client.get(NODE_RESOURCE_TOPOLOGIES, NODE))

    async def said(self, key: str) -> Any:
        return json.loads((await self.there()).metadata.annotations[key])

    def state(self, **entries: dict[str, str]) -> None:
        text = json.dumps({"policyName": "static", "defaultCpuSet": "0", "entries": entries, "checksum": 1})
        self.machine.put("var/lib/kubelet/cpu_manager_state", text)


def run(root: Path, test: Callable[[World], Awaitable[None]], settings: TopologyReporterSettings | None = None) -> None:
    async def main(client: Client, informers: InformerFactory, clock: LoopClock) -> None:
        status = {"allocatable": {"cpu": "3", "memory": "6Gi"}}
        node = unwrap(await client.create(NODES, {"metadata": {"name": NODE}, "status": status}))
        world = World(client, informers, clock, root, node, settings or TopologyReporterSettings())
        await informers.wait_for_cache_sync()
        task = asyncio.create_task(world.reporter.run())
        try:
            await test(world)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    cluster_fixture.run(main)


def test_it_is_made_with_its_owner_and_then_left_alone(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await asyncio.sleep(1)
        first = await world.there()
        owner = first.metadata.owner_references[0]
        assert (owner.kind, owner.name, owner.controller) == ("Node", NODE, True)
        assert first.topology_policies == ("None",)
        assert first.metadata.labels["app.kubernetes.io/managed-by"] == "Koordinator"
        assert await world.said(A_CPU_SHARED_POOLS) == [{"socket": 0, "node": 0, "cpuset": "0-3"}]
        await asyncio.sleep(60)
        assert (await world.there()).metadata.resource_version == first.metadata.resource_version
        assert not world.reporter.problem

    run(tmp_path, test)


def test_a_new_pod_changes_the_pools(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await asyncio.sleep(1)
        text = json.dumps({"cpuset": "2-3"})
        pinned = PodMeta(
            uid="p",
            labels={"koordinator.sh/qosClass": "LSR"},
            annotations={"scheduling.koordinator.sh/resource-status": text},
        )
        world.read_inputs = TopologyInputs(node=world.read_inputs.node, pods=(pinned,), info=INFO)
        await asyncio.sleep(4)
        assert await world.said(A_CPU_SHARED_POOLS) == [{"socket": 0, "node": 0, "cpuset": "0-1"}]

    run(tmp_path, test)


def test_what_somebody_overwrote_is_put_right_and_what_he_added_stays(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await asyncio.sleep(1)
        before = await world.there()
        zone = {
            "name": "node-0",
            "type": "Node",
            "resources": [{"name": "koordinator.sh/gpu", "capacity": "1", "allocatable": "1", "available": "1"}],
        }
        patch = {
            "metadata": {"annotations": {A_CPU_SHARED_POOLS: "[]", "mine": "1"}, "labels": {"mine": "2"}},
            "zones": [zone],
        }
        unwrap(await world.client.patch(NODE_RESOURCE_TOPOLOGIES, NODE, patch, kind="merge"))
        await asyncio.sleep(4)
        after = await world.there()
        assert after.metadata.annotations[A_CPU_SHARED_POOLS] == before.metadata.annotations[A_CPU_SHARED_POOLS]
        assert after.metadata.annotations["mine"] == "1"
        assert after.metadata.labels["mine"] == "2"
        assert "koordinator.sh/gpu" in [one.name for one in after.zones[0].resources]
        assert "cpu" in [one.name for one in after.zones[0].resources]

    run(tmp_path, test)


def test_a_deleted_one_comes_back(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await asyncio.sleep(1)
        unwrap(await world.client.delete(NODE_RESOURCE_TOPOLOGIES, NODE))
        await asyncio.sleep(7)
        assert (await world.there()).zones

    run(tmp_path, test)


def test_cpus_that_a_static_kubelet_bound(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.kubelet.config = KubeletConfiguration(cpu_manager_policy="static", reserved_system_cpus="0")
        world.read_inputs = TopologyInputs(
            node=world.read_inputs.node, pods=(PodMeta(uid="g", namespace="work", name="g"),), info=INFO
        )
        await asyncio.sleep(65)
        assert "cpu_manager_state" in world.reporter.problem, "without its file it is not known whose CPUs are whose"
        world.state(g={"c": "3"})
        await asyncio.sleep(4)
        assert [one["cpuset"] for one in await world.said(A_POD_CPU_ALLOCS)] == ["3"]
        assert await world.said(A_CPU_SHARED_POOLS) == [{"socket": 0, "node": 0, "cpuset": "0-2"}]
        world.state()
        await asyncio.sleep(4)
        assert await world.said(A_POD_CPU_ALLOCS) is None

    run(tmp_path, test)


def test_what_the_kubelet_said_once_counts_while_it_is_silent(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await asyncio.sleep(1)
        world.kubelet.problem = "busy"
        await asyncio.sleep(130)
        assert not world.reporter.problem
        assert (await world.said(A_CPU_MANAGER_POLICY))["policy"] == "none"

    run(tmp_path, test)


def test_its_file_stands_in_for_a_kubelet_that_never_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        world.kubelet.problem = "forbidden"
        await asyncio.sleep(30)
        assert "how it binds CPUs" in world.reporter.problem
        world.state(g={"c": "3"})
        await asyncio.sleep(4)
        assert (await world.said(A_CPU_MANAGER_POLICY))["policy"] == "static"

    with caplog.at_level(logging.INFO, "koord.koordlet.reporters"):
        run(tmp_path, test)
    assert len([line for line in caplog.messages if "forbidden" in line]) == 1


def test_the_label_of_the_node_is_followed_both_ways(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for value in ("true", None):
            patch = {"metadata": {"labels": {L_ENABLE_NUMA_RESERVATION: value}}}
            node = unwrap(await world.client.patch(NODES, NODE, patch, kind="merge"))
            world.read_inputs = TopologyInputs(node=node, pods=(), info=INFO)
            await asyncio.sleep(4)
            found = await world.there()
            assert found.metadata.labels.get(L_ENABLE_NUMA_RESERVATION) == value
            assert found.zones[0].resources[0].allocatable == ("3" if value else "4")
            assert found.zones[0].resources[0].capacity == "4"

    run(tmp_path, test)


def test_without_publishing_it_is_only_known_here(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await asyncio.sleep(4)
        assert world.reporter.latest is not None
        assert not unwrap(await world.client.list(NODE_RESOURCE_TOPOLOGIES)).items

    run(tmp_path, test, TopologyReporterSettings(publish=False))
