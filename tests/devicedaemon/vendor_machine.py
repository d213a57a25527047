"""A machine with accelerators of some vendor, and the answers of the vendor's tool."""

from __future__ import annotations

import os
from pathlib import Path

from koord.devicedaemon.vendor_probe import ToolFailed
from koord.host.filesystem import Host, HostPaths

HUAWEI, KUNLUN, CAMBRICON, METAX = (
    ("0x19e5", "0xd802"),
    ("0x1d22", "0x3684"),
    ("0xcabc", "0x0370"),
    ("0x9999", "0x4000"),
)
NOT_FOUND = "Command or option is not found"

ASCEND: dict[str, str] = {
    "npu-smi info -l": (
        "\tTotal Count          : 2\n\n\tNPU ID          : 1\n\tChip Count          : 1\n"
        "\n\tNPU ID          : 4\n\tChip Count          : 1\n"
    ),
    "npu-smi info -m": (
        "\tNPU ID    Chip ID    Chip Logic ID    Chip Name\n\t1         0          0                Ascend 910B3\n"
        "\t1         1          -                Mcu\n"
    ),
    "npu-smi info -t common -i 1": "\tAicore Count          : 20\n\tAicore Usage Rate(%)           : 0\n",
    "npu-smi info -t memory -i 1": "\tDDR Capacity(MB)          : 0\n\tHBM Capacity(MB)          : 65536\n",
    "npu-smi info -t memory -i 4": "\tDDR Capacity(MB)          : 512\n\tHBM Capacity(MB)          : 65536\n",
    "npu-smi info -t board -i 1": "\tPCIe Bus Info          : 0000:C1:00.0\n\tChip Fault          : 0\n",
    "npu-smi info -t board -i 4": "\tPCIe Bus Info          : 0000:81:00.0\n\tChip Fault          : 2\n",
}


class VendorMachine:
    """The files of a machine below a folder, and a tool that answers from `answers`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Host(HostPaths().below_root(str(root)))
        self.answers: dict[str, str] = {}
        (root / "sys/bus/pci/devices").mkdir(parents=True)
        (root / "dev").mkdir()

    def put_card(self, address: str, ids: tuple[str, str], numa: int = 0, switch: str = "pci0000:80") -> None:
        real = self.root / "sys/devices" / switch / address
        real.mkdir(parents=True)
        for name, text in (("vendor", ids[0]), ("device", ids[1]), ("numa_node", str(numa))):
            (real / name).write_text(f"{text}\n")
        os.symlink(real, self.root / "sys/bus/pci/devices" / address)

    def put_devices(self, *names: str) -> None:
        for name in names:
            (self.root / "dev" / name).touch()

    def put_ascends(self) -> None:
        """Put in two cards, whose devices are davinci2 and davinci10."""
        self.put_card("0000:81:00.0", HUAWEI, 1)
        self.put_card("0000:c1:00.0", HUAWEI, 0, "pci0000:c0")
        self.put_devices("davinci10", "davinci2", "davinci_manager")
        self.answers |= ASCEND

    def run(self, *command: str) -> str | ToolFailed:
        answer = self.answers.get(" ".join(command))
        return ToolFailed(f"{' '.join(command)}: exit status 1: {NOT_FOUND}") if answer is None else answer
