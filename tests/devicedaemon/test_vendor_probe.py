"""What vendors' tools print becomes devices; cards that cannot be described are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from koord.devicedaemon import vendor_probe
from koord.devicedaemon.vendor_probe import Probe, ProbeResult, ToolFailed, present_vendors
from koord.host.filesystem import Host, HostPaths
from koord.host.hardware import Xpu, XpuStatus, XpuTopology
from koord.host.io_error import IoError
from tests.devicedaemon.vendor_machine import CAMBRICON, HUAWEI, KUNLUN, METAX, VendorMachine

CORE, MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"


@pytest.fixture
def machine(tmp_path: Path) -> VendorMachine:
    return VendorMachine(tmp_path)


def probed(machine: VendorMachine, probe: Probe) -> ProbeResult:
    found = probe(machine.host, machine.run)
    assert isinstance(found, ProbeResult), found
    return found


class TestPresence:
    def test_vendors_are_known_by_their_pci_ids(self, machine: VendorMachine) -> None:
        machine.put_card("0000:01:00.0", ("0x8086", "0x1710"))
        assert present_vendors(machine.host) == []
        machine.put_card("0000:02:00.0", (HUAWEI[0], "0x1711"))  # a display adapter of a server
        assert present_vendors(machine.host) == []
        machine.put_card("0000:03:00.0", (HUAWEI[0].removeprefix("0x"), "d802"))
        machine.put_card("0000:04:00.0", METAX)
        machine.put_card("0000:05:00.0", CAMBRICON)
        machine.put_card("0000:06:00.0", KUNLUN)
        found = present_vendors(machine.host)
        assert not isinstance(found, IoError)
        assert [one.name for one in found] == ["huawei", "kunlun", "cambricon", "metax"]

    def test_a_machine_without_pci_is_a_fault(self, tmp_path: Path) -> None:
        assert isinstance(present_vendors(Host(HostPaths().below_root(str(tmp_path / "none")))), IoError)


class TestAscend:
    def test_cards_with_their_memory_place_and_faults(self, machine: VendorMachine) -> None:
        machine.put_ascends()
        found = probed(machine, vendor_probe.probe_ascend)
        assert found.failed == ()
        first, second = found.devices
        assert first == Xpu(
            vendor="huawei",
            model="Ascend-910B3",
            uuid="npu-1-2",
            minor="2",
            resources={
                MEMORY: "65536Mi",
                "huawei.com/npu-core": "20",
                "huawei.com/npu-cpu": "7",
                "huawei.com/npu-dvpp": "100",
            },
            topology=XpuTopology(socket_id="-1", node_id="0", pcie_id="pci0000:c0", bus_id="0000:c1:00.0"),
            status=XpuStatus(healthy=True),
        )
        assert (second.uuid, second.resources[MEMORY]) == ("npu-4-10", "66048Mi"), "davinci2 comes before davinci10"
        assert second.topology == XpuTopology(socket_id="-1", node_id="1", pcie_id="pci0000:80", bus_id="0000:81:00.0")
        assert second.status == XpuStatus(err_code="chip error", err_message="NPU index 4 has 2 chip faults")

    @pytest.mark.parametrize(
        ("model", "core", "cpu"),
        [
            ("Ascend 310P3", "8", "6"),
            ("Ascend 910B2", "20", "6"),
            ("Ascend 910B", "20", "0"),
            ("Ascend 910", "20", "6"),
        ],
    )
    def test_cores_and_cpus_by_model(self, machine: VendorMachine, model: str, core: str, cpu: str) -> None:
        machine.put_ascends()
        machine.answers["npu-smi info -m"] = f"\tNPU ID  Chip Name\n\t1  0  0  {model}\n"
        machine.answers["npu-smi info -t cpu-num-cfg -i 1"] = "\tAI CPU number : 6\n\tControl CPU number : 1\n"
        resources = probed(machine, vendor_probe.probe_ascend).devices[0].resources
        assert (resources["huawei.com/npu-core"], resources["huawei.com/npu-cpu"]) == (core, cpu)

    def test_a_tool_that_cannot_tell_the_memory(self, machine: VendorMachine) -> None:
        machine.put_ascends()
        del machine.answers["npu-smi info -t memory -i 1"]
        assert probed(machine, vendor_probe.probe_ascend).devices[0].resources[MEMORY] == "21527Mi"

    def test_a_card_that_cannot_be_described_is_named_and_the_others_stay(self, machine: VendorMachine) -> None:
        machine.put_ascends()
        del machine.answers["npu-smi info -t board -i 1"]
        found = probed(machine, vendor_probe.probe_ascend)
        assert [one.minor for one in found.devices] == ["10"]
        assert [one.minor for one in found.failed] == ["2"]
        assert "board -i 1" in found.failed[0].reason

    @pytest.mark.parametrize("command", ["npu-smi info -l", "npu-smi info -m", "npu-smi info -t common -i 1"])
    @pytest.mark.parametrize("answer", [None, "", "garbage\nAicore Count : many\n"])
    def test_without_the_list_there_is_no_half_of_it(
        self, machine: VendorMachine, command: str, answer: str | None
    ) -> None:
        machine.put_ascends()
        if answer is None:
            del machine.answers[command]
        else:
            machine.answers[command] = answer
        found = vendor_probe.probe_ascend(machine.host, machine.run)
        if command.endswith("-i 1") and answer == "":
            assert isinstance(found, ProbeResult), "no line is a count of 0"
        else:
            assert isinstance(found, ToolFailed)

    def test_cards_without_device_files_are_a_fault(self, machine: VendorMachine) -> None:
        machine.put_ascends()
        (machine.root / "dev/davinci10").unlink()
        assert isinstance(vendor_probe.probe_ascend(machine.host, machine.run), ToolFailed)


class TestOthers:
    def test_kunlun(self, machine: VendorMachine) -> None:
        machine.put_card("0000:81:00.0", KUNLUN, 1)
        row = " ".join(["0000:81:00.0", *(str(n) for n in range(2, 19)), "32768", "20", "21", "P800", "23"])
        machine.answers = {"xpu_smi -m": f"{row}\n{row}\n", "xpu_smi -m -d /dev/xpu0": row}
        found = probed(machine, vendor_probe.probe_kunlun)
        assert found.devices == (
            Xpu(
                vendor="kunlun",
                model="P800",
                uuid="xpu-0",
                minor="0",
                resources={CORE: "100", MEMORY: "32768Mi"},
                topology=XpuTopology(socket_id="-1", node_id="1", pcie_id="pci0000:80", bus_id="0000:81:00.0"),
                status=XpuStatus(healthy=True),
            ),
        )
        assert [one.minor for one in found.failed] == ["1"]

    def test_cambricon(self, machine: VendorMachine) -> None:
        def card(uuid: str, device: int, state: str) -> str:
            return (
                f"UUID : {uuid}\nNUMA node id : 1\nDomain ID : 0000\nBus num : 81\nDevice : 0{device}\nFunction : 0\n"
                f"Health State\n    Device : {state}\n"
            )

        machine.put_card("0000:81:00.0", CAMBRICON, 1)
        machine.answers = {
            "cnmon -l": "Card 0 MLU370-X8\n  UUID : a\nCard 1 MLU370-X8\n  UUID : b\n",
            "cnmon info": "Virtual Memory Usage\n  Total : 1 MiB\nPhysical Memory Usage\n  Total : 24576 MiB\n",
            "cnmon info -c 0": card("mlu-a", 0, "Good"),
            "cnmon info -c 1": card("mlu-b", 1, "Bad"),
        }
        first, second = probed(machine, vendor_probe.probe_cambricon).devices
        assert (first.model, first.uuid, first.resources) == ("MLU370-X8", "mlu-a", {CORE: "100", MEMORY: "24576Mi"})
        assert first.topology == XpuTopology(socket_id="-1", node_id="1", pcie_id="pci0000:80", bus_id="0000:81:00.0")
        assert first.status == XpuStatus(healthy=True)
        assert second.topology is not None
        assert second.topology.bus_id == "0000:81:01.0"
        assert second.status is not None
        assert second.status.err_message == "Device is unhealthy, status: Bad"

    def test_metax(self, machine: VendorMachine) -> None:
        machine.put_card("0000:0f:00.0", METAX)
        board = "Model Name : MXC500\nMemory Capacity : 64 GB\n"
        machine.answers = {
            "mx-smi --show-hwinfo": board * 2,
            "mx-smi --list": (
                "GPU#0 MXC500 0000:0f:00.0 Available UUID: (GPU-aa)\n  SGPU of GPU#0 x y z (no)\n"
                "GPU#1 MXC500 0000:10:00.0 Available UUID: (GPU-bb)\n"
            ),
            "mx-smi --show-hwinfo -i 0": "GPU#0 MXC500 0000:0f:00.0\n",
            "mx-smi --show-hwinfo -i 1": "GPU#1 MXC500 0000:10:00.0\n",
            "mx-smi --count-ecc -i 0": "SRAM Uncorrectable ECC : 0\nDRAM Uncorrectable ECC : 0\nDouble Bit ECC : 0\n",
            "mx-smi --count-ecc -i 1": "SRAM Uncorrectable ECC : 1\nDRAM Uncorrectable ECC : 2\nDouble Bit ECC : 0\n",
        }
        first, second = probed(machine, vendor_probe.probe_metax).devices
        assert (first.model, first.uuid, first.resources) == ("MXC500", "GPU-aa", {CORE: "100", MEMORY: "64Gi"})
        assert first.topology is not None
        assert first.topology.bus_id == "0000:0f:00.0"
        assert first.status == XpuStatus(healthy=True)
        assert second.topology == XpuTopology(socket_id="-1", node_id="0"), "sysfs does not know that address"
        assert second.status == XpuStatus(
            err_code="ECC error", err_message="MX index 1 has 3 SRAM/DRAM Uncorrectable or Double Bit  ECC errors"
        )

    @pytest.mark.parametrize(
        "probe", [vendor_probe.probe_kunlun, vendor_probe.probe_cambricon, vendor_probe.probe_metax]
    )
    def test_a_tool_that_is_missing_or_says_nothing_is_a_fault(self, machine: VendorMachine, probe: Probe) -> None:
        assert isinstance(probe(machine.host, machine.run), ToolFailed)
        assert isinstance(probe(machine.host, lambda *_: "garbage\n"), ToolFailed)
