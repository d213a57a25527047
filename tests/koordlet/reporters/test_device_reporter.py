"""The Device at the API server: accelerators from vendors' files, RDMA cards from sysfs."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koord.api.annotations import device_codecs
from koord.api.koordinator.custom_kinds import DEVICES
from koord.api.koordinator.protocol import (
    A_GPU_PARTITIONS,
    L_GPU_DRIVER_VERSION,
    L_GPU_MODEL,
    L_GPU_PARTITION_POLICY,
    L_GPU_VENDOR,
)
from koord.api.koordinator.scheduling import Device
from koord.api.kubernetes.builtin_kinds import NODES
from koord.host.devices import rdma_cards, xpus
from koord.host.hardware import GpuCard, GpuHealth, GpuInventory
from koord.host.io_error import IoError
from koord.host.nvml import HealthTiming, Nvml
from koord.koordlet.reporters.object_reporter import DeviceReporter, DeviceReporterSettings
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from tests.host.fake_machine import FakeMachine
from tests.host.nvml_stub import NvmlStub
from tests.koordlet.reporters import cluster_fixture
from tests.koordlet.reporters.cluster_fixture import NODE

FOLDER = "var/run/koordlet/xpu-device-infos"


def npu(minor: int, *, healthy: bool = True, peers: str = "", honor: bool = False) -> dict[str, Any]:
    return {
        "vendor": "huawei",
        "model": "Ascend-910B",
        "uuid": f"npu-{minor}",
        "minor": str(minor),
        "resources": {"gpu-core": "100", "gpu-memory": "64Gi", "huawei.com/npu-cpu": "14"},
        "topology": {
            "p2pLinks": [{"peerMinor": peers, "type": "HCCS"}] if peers else [],
            "mustHonorPartition": honor,
            "socketID": "0",
            "nodeID": "",
            "pcieID": "pci0000:00",
            "busID": f"0000:{minor:02x}:00.0",
        },
        "status": {"healthy": healthy, "errCode": "" if healthy else "E7", "errMessage": "" if healthy else "hot"},
    }


def put_xpus(machine: FakeMachine, *devices: dict[str, Any], file: str = "npu.json") -> None:
    machine.put(f"{FOLDER}/{file}", json.dumps(devices))


def put_card(machine: FakeMachine, address: str, name: str, *, state: str = "4: ACTIVE", functions: int = 0) -> None:
    real = f"sys/devices/pci0000:3a/{address}"
    machine.put(f"{real}/class", "0x020700\n")
    machine.put(f"{real}/numa_node", "1\n")
    machine.put(f"{real}/sriov_numvfs", f"{functions}\n")
    machine.put(f"{real}/infiniband/{name}/ports/1/state", f"{state}\n")
    links = machine.root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    os.symlink(machine.root / real, links / address)
    for number in range(functions):
        os.symlink(f"../0000:3b:00.{number + 2}", machine.root / real / f"virtfn{number}")


class World:
    reporter: DeviceReporter

    def __init__(self, client: Client, machine: FakeMachine) -> None:
        self.client = client
        self.machine = machine
        self.gpus: GpuInventory | None = GpuInventory()

    async def there(self) -> Device:
        return unwrap(await self.client.get(DEVICES, NODE))


def run(root: Path, test: Callable[[World], Awaitable[None]]) -> None:
    machine = FakeMachine(root, 1, only=frozenset({"cpu.stat"}))

    async def main(client: Client, informers: InformerFactory, clock: LoopClock) -> None:
        node = unwrap(await client.create(NODES, {"metadata": {"name": NODE}}))
        follow = informers.for_resource(DEVICES, fields=f"metadata.name={NODE}")
        await informers.wait_for_cache_sync()
        settings = DeviceReporterSettings(accelerators=True, rdma=True, folder=str(root / FOLDER))
        world = World(client, machine)
        world.reporter = DeviceReporter(
            client, clock, machine.host, follow, lambda: node, settings, gpus=lambda: world.gpus
        )
        task = asyncio.create_task(world.reporter.run())
        try:
            await test(world)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    (root / "sys/bus/pci/devices").mkdir(parents=True)
    cluster_fixture.run(main)


def test_accelerators_of_a_vendor(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        put_xpus(world.machine, npu(1, peers="0,x,0"), npu(0, peers="1", honor=True))
        await asyncio.sleep(4)
        found = await world.there()
        assert [one.minor for one in found.spec.devices] == [0, 1]
        first = found.spec.devices[0]
        assert first.resources == {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "64Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
            "huawei.com/npu-cpu": "14",
        }
        assert first.health
        assert first.topology is not None
        assert (first.topology.socket_id, first.topology.node_id) == (-1, -1)
        assert first.conditions[0].reason == "DeviceHealthy"
        labels = found.metadata.labels
        assert (labels[L_GPU_VENDOR], labels[L_GPU_MODEL]) == ("huawei", "Ascend-910B")
        assert labels[L_GPU_PARTITION_POLICY] == "Honor"
        table = device_codecs.parse_gpu_partition_table(found.metadata.annotations)
        assert isinstance(table, dict)
        assert [one.minors for one in table[2]] == [(0, 1)]
        assert found.metadata.owner_references[0].kind == "Node"

    run(tmp_path, test)


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        put_xpus(world.machine, npu(0))
        await asyncio.sleep(4)
        first = await world.there()
        await asyncio.sleep(60)
        assert (await world.there()).metadata.resource_version == first.metadata.resource_version
        put_xpus(world.machine, npu(0, healthy=False))
        await asyncio.sleep(4)
        sick = (await world.there()).spec.devices[0]
        assert not sick.health
        assert (sick.conditions[0].reason, sick.conditions[0].message) == ("E7", "hot")
        before = first.spec.devices[0].conditions[0].last_transition_time
        assert before is not None
        assert sick.conditions[0].last_transition_time is not None
        assert sick.conditions[0].last_transition_time > before

    run(tmp_path, test)


def test_a_broken_file_takes_no_device_away(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        put_xpus(world.machine, npu(0))
        await asyncio.sleep(4)
        world.machine.put(f"{FOLDER}/other.json", "{")
        put_xpus(world.machine)
        await asyncio.sleep(10)
        assert len((await world.there()).spec.devices) == 1
        assert "other.json" in world.reporter.problem
        (world.machine.root / FOLDER / "other.json").unlink()
        await asyncio.sleep(4)
        found = await world.there()
        assert not found.spec.devices
        assert L_GPU_VENDOR not in found.metadata.labels

    run(tmp_path, test)


def test_labels_of_others_stay(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        put_xpus(world.machine, npu(0, peers="1"))
        await asyncio.sleep(4)
        patch = {"metadata": {"labels": {"mine": "1", L_GPU_MODEL: "wrong"}, "annotations": {"mine": "2"}}}
        unwrap(await world.client.patch(DEVICES, NODE, patch, kind="merge"))
        put_xpus(world.machine)
        await asyncio.sleep(4)
        meta = (await world.there()).metadata
        assert meta.labels == {"mine": "1"}
        assert meta.annotations == {"mine": "2"}
        assert A_GPU_PARTITIONS not in meta.annotations

    run(tmp_path, test)


def test_network_cards_with_virtual_functions(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        put_card(world.machine, "0000:3b:00.0", "mlx5_0", functions=2)
        put_card(world.machine, "0000:3b:00.1", "mlx5_1", state="1: DOWN")
        await asyncio.sleep(4)
        cards = (await world.there()).spec.devices
        assert [(one.type, one.minor, one.health) for one in cards] == [("rdma", 0, True), ("rdma", 1, False)]
        assert cards[0].resources == {"koordinator.sh/rdma": "100"}
        assert [one.bus_id for one in cards[0].vf_groups[0].vfs] == ["0000:3b:00.2", "0000:3b:00.3"]
        assert cards[0].topology is not None
        assert (cards[0].topology.node_id, cards[0].topology.pcie_id) == (1, "pci0000:3a")
        assert not cards[1].vf_groups

    run(tmp_path, test)


def test_what_a_vendor_leaves_out(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        silent, odd = npu(0, peers="1"), npu(1, peers="")
        del silent["status"]
        odd["topology"] |= {
            "nodeID": "x",
            "p2pLinks": [{"peerMinor": "0", "type": ""}, {"peerMinor": "", "type": "HCCS"}],
        }
        put_xpus(world.machine, silent, odd)
        await asyncio.sleep(4)
        found = await world.there()
        first, second = found.spec.devices
        assert (first.health, first.conditions) == (True, ()), "a card of which nothing is said works"
        assert second.topology is not None
        assert second.topology.node_id == 0
        table = device_codecs.parse_gpu_partition_table(found.metadata.annotations)
        assert isinstance(table, dict)
        assert list(table) == [2], "links without a peer or a type are none"

    run(tmp_path, test)


def test_a_network_card_is_as_healthy_as_its_first_ibdev(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        put_card(world.machine, "0000:3b:00.0", "mlx5_0")
        world.machine.put("sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_7/ports/1/state", "1: DOWN\n")
        await asyncio.sleep(4)
        assert [one.health for one in (await world.there()).spec.devices] == [True]

    run(tmp_path, test)


def test_a_node_without_devices_says_so(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await asyncio.sleep(4)
        assert not (await world.there()).spec.devices
        assert not world.reporter.problem

    run(tmp_path, test)


def test_nvidia_cards_are_told_where_no_file_describes_accelerators(tmp_path: Path) -> None:
    cards = tuple(
        GpuCard(uuid=f"GPU-{n}", minor=n, total_bytes=80 * 2**30, address=f"0000:3b:0{n}.0", model="NVIDIA A100 80GB")
        for n in range(2)
    )

    async def test(world: World) -> None:
        put_card(world.machine, "0000:3b:00.0", "mlx5_0")
        world.gpus = GpuInventory(cards, "550.54")
        await asyncio.sleep(4)
        world.gpus = None
        await asyncio.sleep(4)
        assert world.reporter.problem
        found = await world.there()
        first, second = (one for one in found.spec.devices if one.type == "gpu")
        assert first.resources["koordinator.sh/gpu-memory"] == "80Gi"
        assert first.topology is not None
        assert (first.topology.node_id, first.topology.pcie_id) == (1, "pci0000:3a")
        assert second.topology is None, "nobody knows where it sits"
        assert found.metadata.labels[L_GPU_MODEL] == "A100-80GB"
        assert found.metadata.labels[L_GPU_DRIVER_VERSION] == "550.54"
        assert first.conditions == (), "nobody looked"
        sick = GpuHealth(False, "Xid79", "it fell off the bus")
        world.gpus = GpuInventory(cards, "550.54", {"GPU-0": sick, "GPU-1": GpuHealth()})
        await asyncio.sleep(4)
        told = [one for one in (await world.there()).spec.devices if one.type == "gpu"]
        assert [(one.health, one.conditions[0].status, one.conditions[0].reason) for one in told] == [
            (False, "False", "Xid79"),
            (True, "True", "DeviceHealthy"),
        ]
        since = told[0].conditions[0].last_transition_time
        await asyncio.sleep(4)
        assert (await world.there()).spec.devices[0].conditions[0].last_transition_time == since
        put_xpus(world.machine, npu(0))
        await asyncio.sleep(4)
        found = await world.there()
        assert [one.id for one in found.spec.devices if one.type == "gpu"] == ["npu-0"]
        assert L_GPU_DRIVER_VERSION not in found.metadata.labels

    run(tmp_path, test)


def test_a_critical_error_is_in_the_device_until_the_card_has_recovered(tmp_path: Path) -> None:
    stub = NvmlStub(tmp_path)
    nvml = Nvml.open(stub.path, HealthTiming(look_s=0.02, quiet_s=0.1))
    assert isinstance(nvml, Nvml)
    cards = nvml.cards()
    assert not isinstance(cards, IoError)

    def tell(world: World, *, healthy: bool) -> None:
        deadline = time.monotonic() + 20
        while nvml.health()["GPU-1"].healthy != healthy:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        world.gpus = GpuInventory(tuple(cards), nvml.driver(), nvml.health())

    async def test(world: World) -> None:
        stub.set("event", 1, 8, 79)
        tell(world, healthy=False)
        await asyncio.sleep(4)  # in virtual time: the reporter looks every three seconds
        first, second = (await world.there()).spec.devices
        assert (first.health, second.health, second.conditions[0].reason) == (True, False, "Xid79")
        stub.set("recovery", 1, 0)
        tell(world, healthy=True)
        await asyncio.sleep(4)
        first, second = (await world.there()).spec.devices
        assert (first.health, second.health, second.conditions[0].reason) == (True, True, "DeviceHealthy")

    try:
        run(tmp_path / "machine", test)
    finally:
        nvml.close()


class TestReaders:
    def test_a_virtual_function_is_no_card_of_its_own(self, tmp_path: Path) -> None:
        machine = FakeMachine(tmp_path, 1, only=frozenset({"cpu.stat"}))
        put_card(machine, "0000:3b:00.2", "mlx5_2")
        (machine.root / "sys/devices/pci0000:3a/0000:3b:00.2/physfn").mkdir()
        assert rdma_cards(machine.host) == []

    def test_cards_without_a_number_have_the_numbers_that_are_left(self, tmp_path: Path) -> None:
        machine = FakeMachine(tmp_path, 1, only=frozenset({"cpu.stat"}))
        put_card(machine, "0000:3b:00.0", "mlx5_1")
        put_card(machine, "0000:5e:00.0", "rocep94s0f0")
        put_card(machine, "0000:86:00.0", "bnxt_re0")
        cards = rdma_cards(machine.host)
        assert not isinstance(cards, IoError)
        assert [(card.minor, card.address) for card in cards] == [
            (0, "0000:5e:00.0"),
            (1, "0000:3b:00.0"),
            (2, "0000:86:00.0"),
        ]

    def test_a_machine_without_pci_is_a_fault(self, tmp_path: Path) -> None:
        assert isinstance(rdma_cards(FakeMachine(tmp_path, 1).host), IoError)

    @pytest.mark.parametrize("text", ["{", '[{"minor":"one"}]', '{"minor":"1"}'])
    def test_files_without_sense_are_faults(self, tmp_path: Path, text: str) -> None:
        machine = FakeMachine(tmp_path, 1, only=frozenset({"cpu.stat"}))
        machine.put(f"{FOLDER}/x.json", text)
        assert isinstance(xpus(machine.host, str(tmp_path / FOLDER)), IoError)

    def test_no_folder_is_no_device(self, tmp_path: Path) -> None:
        machine = FakeMachine(tmp_path, 1, only=frozenset({"cpu.stat"}))
        assert xpus(machine.host, str(tmp_path / FOLDER)) == []
