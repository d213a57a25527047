"""This module asks vendors' tools about their cards: Huawei, Kunlun, Cambricon and MetaX.

A probe that cannot tell which cards there are fails as a whole. A card that cannot be described is named in `failed`,
and the others are kept.

The tools are run on the host: from a container they are run with the host's root as their own.

The cards of a vendor are kept over several rounds, with those that a round could not describe. A tool that fails once
is not believed: the cards are as they were. One that fails again makes them unhealthy, so that nobody is given a card
that cannot be looked after; pods that have one keep it. A good round ends it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable

import msgspec

from koord.host.devices import pci_addresses, pci_attribute, pci_location
from koord.host.filesystem import Host
from koord.host.hardware import Xpu, XpuStatus, XpuTopology
from koord.host.io_error import IoError

TIMEOUT_S = 30.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/mxdriver/bin:/opt/maca/bin"
# The image has no chroot program. `warnings` is imported by execvp, and cannot be after the change of root.
_CHROOT = (
    "import os, sys, warnings\n"
    "os.chroot(sys.argv[1]); os.chdir('/')\n"
    "try:\n    os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error:\n    sys.exit(f'{sys.argv[2]}: {error.strerror}')\n"
)


class ToolFailed(msgspec.Struct, frozen=True):
    """ToolFailed says why a tool gave no usable answer."""

    reason: str

    def __str__(self) -> str:
        return self.reason


RunTool = Callable[..., str | ToolFailed]  # the words of the command to what it printed


class HostTools:
    """HostTools runs the tools of the machine whose root is at `root`."""

    def __init__(self, root: str, timeout_s: float = TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s

    def run(self, *command: str) -> str | ToolFailed:
        """Return what the command printed. One that fails, or does not end in time, is a failure with its words."""
        elsewhere = self._root != "/"
        words = [sys.executable, "-I", "-c", _CHROOT, self._root, *command] if elsewhere else list(command)
        shown = " ".join(command)
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                env={**os.environ, "PATH": _PATH, "LC_ALL": "C"} if elsewhere else {**os.environ, "LC_ALL": "C"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ToolFailed(f"{shown}: no answer after {self._timeout_s:g} s")
        except OSError as error:
            return ToolFailed(f"{shown}: {error.strerror}")
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            said = (done.stderr.decode("utf-8", "replace").strip() or text.strip())[-500:]
            return ToolFailed(f"{shown}: exit status {done.returncode}: {said}")
        return text


GPU_CORE, GPU_MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
_ASCEND_MEMORY = "21527Mi"  # of cards whose tool cannot tell it
_ASCEND_CORES = {"Ascend-310P3": 8}
_ASCEND_CPUS = {"Ascend-910B": 0, "Ascend-910B2": 6, "Ascend-910B3": 7, "Ascend-910B4": 7}
_PCI_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-7]")
_HEALTHY = XpuStatus(healthy=True)


class CardFailed(msgspec.Struct, frozen=True):
    """CardFailed says why one card could not be described."""

    minor: str
    reason: str


class ProbeResult(msgspec.Struct, frozen=True):
    """The cards of one vendor."""

    devices: tuple[Xpu, ...] = ()
    failed: tuple[CardFailed, ...] = ()


Probe = Callable[[Host, RunTool], ProbeResult | ToolFailed]


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor by the PCI ids of its cards. `other_products` are ids of its devices that are no accelerators."""

    name: str
    pci_vendor: str
    probe: Probe
    other_products: frozenset[str] = frozenset()


def present_vendors(host: Host) -> list[Vendor] | IoError:
    """Return the vendors that have a card in this machine."""
    addresses = pci_addresses(host)
    if isinstance(addresses, IoError):
        return addresses
    ids = {(_pci_id(host, address, "vendor"), _pci_id(host, address, "device")) for address in addresses}
    return [
        vendor
        for vendor in VENDORS
        if any(maker == vendor.pci_vendor and product not in vendor.other_products for maker, product in ids)
    ]


def _pci_id(host: Host, address: str, name: str) -> str:
    return pci_attribute(host, address, name).lower().removeprefix("0x")


# Huawei Ascend -------------------------------------------------------------------------------------------------------


class _Ascend(msgspec.Struct, frozen=True):
    """The facts that all Ascend cards of a machine have in common."""

    model: str
    core: int
    cpu: int


def probe_ascend(host: Host, run: RunTool) -> ProbeResult | ToolFailed:
    listed = run("npu-smi", "info", "-l")
    if isinstance(listed, ToolFailed):
        return listed
    cards = [words[-1] for words in _words_of_lines(listed, "NPU ID")]
    if not cards:
        return ToolFailed("npu-smi info -l: no NPU ID in its answer")
    minors = _davinci_numbers(host)
    common = _ascend_common(run, cards[0])
    if isinstance(common, ToolFailed):
        return common
    if len(minors) < len(cards):
        return ToolFailed(f"npu-smi info -l: {len(cards)} cards, but only {len(minors)} devices /dev/davinci<N>")
    return _each_card(
        [(minor, card) for card, minor in zip(cards, minors)],
        lambda minor, card: _ascend(host, run, common, card, minor),
    )


def _ascend_common(run: RunTool, card: str) -> _Ascend | ToolFailed:
    named = run("npu-smi", "info", "-m")
    if isinstance(named, ToolFailed):
        return named
    rows = [line.split() for line in named.splitlines() if line.strip()]
    if len(rows) < 2 or len(rows[1]) < 2:
        return ToolFailed("npu-smi info -m: no chip name in its second line")
    model = "-".join(rows[1][-2:])
    core = _ASCEND_CORES.get(model)
    if core is None:
        found = _sum(run("npu-smi", "info", "-t", "common", "-i", card), "Aicore Count")
        if isinstance(found, ToolFailed):
            return found
        core = found
    cpu = _ASCEND_CPUS.get(model)
    if cpu is None:
        counted = _sum(run("npu-smi", "info", "-t", "cpu-num-cfg", "-i", card), "AI")
        if isinstance(counted, ToolFailed):
            return counted
        cpu = counted
    return _Ascend(model, core, cpu)


def _ascend(host: Host, run: RunTool, common: _Ascend, card: str, minor: str) -> Xpu | ToolFailed:
    memory = _ascend_memory(run, card)
    board = run("npu-smi", "info", "-t", "board", "-i", card)
    for answer in (memory, board):
        if isinstance(answer, ToolFailed):
            return answer
    text = str(board)
    bus = next((words[-1] for words in _words_of_lines(text, "PCIe Bus Info")), "")
    faults = _sum(text, "Chip Fault")
    if isinstance(faults, ToolFailed):
        return faults
    return Xpu(
        vendor="huawei",
        model=common.model,
        uuid=f"npu-{card}-{minor}",
        minor=minor,
        resources={
            GPU_MEMORY: str(memory),
            NPU_CORE: str(common.core),
            NPU_CPU: str(common.cpu),
            NPU_DVPP: "100",
        },
        topology=_topology(host, bus),
        status=_HEALTHY
        if faults == 0
        else XpuStatus(err_code="chip error", err_message=f"NPU index {card} has {faults} chip faults"),
    )


def _ascend_memory(run: RunTool, card: str) -> str | ToolFailed:
    answer = run("npu-smi", "info", "-t", "memory", "-i", card)
    if "Command or option is not found" in str(answer):
        return _ASCEND_MEMORY
    if isinstance(answer, ToolFailed):
        return answer
    found = [_sum(answer, name) for name in ("DDR Capacity", "HBM Capacity")]
    total = 0
    for amount in found:
        if isinstance(amount, ToolFailed):
            return amount
        total += amount
    return f"{total}Mi" if total else ToolFailed(f"npu-smi info -t memory -i {card}: no capacity in its answer")


def _davinci_numbers(host: Host) -> list[str]:
    names = host.list_names(host.paths.dev)
    found = [re.fullmatch(r"davinci(\d+)", name) for name in ([] if isinstance(names, IoError) else names)]
    return [match[1] for match in sorted(filter(None, found), key=lambda match: int(match[1]))]


# Kunlun, Cambricon, MetaX --------------------------------------------------------------------------------------------


def probe_kunlun(host: Host, run: RunTool) -> ProbeResult | ToolFailed:
    listed = run("xpu_smi", "-m")
    if isinstance(listed, ToolFailed):
        return listed
    rows = [line.split() for line in listed.splitlines() if line.strip()]
    if not rows or len(rows[0]) < 22 or not rows[0][18].isdecimal():
        return ToolFailed("xpu_smi -m: its first line has no model and memory")
    model, memory = rows[0][21], f"{rows[0][18]}Mi"

    def describe(minor: str, _: str) -> Xpu | ToolFailed:
        answer = run("xpu_smi", "-m", "-d", f"/dev/xpu{minor}")
        if isinstance(answer, ToolFailed):
            return answer
        bus = (answer.split() or [""])[0]
        return _card("kunlun", model, f"xpu-{minor}", minor, memory, _topology(host, bus), _HEALTHY)

    return _each_card([(str(number), "") for number in range(len(rows))], describe)


def probe_cambricon(host: Host, run: RunTool) -> ProbeResult | ToolFailed:
    listed, shown = run("cnmon", "-l"), run("cnmon", "info")
    for answer in (listed, shown):
        if isinstance(answer, ToolFailed):
            return answer
    count = len(_words_of_lines(str(listed), "UUID"))
    model = next((word for word in str(listed).split() if "MLU" in word), "")
    _, _, after = str(shown).partition("Physical Memory Usage")
    memory = next((words[-2] for words in _words_of_lines(after, "Total") if len(words) > 1), "")
    if not count or not model or not memory.isdecimal():
        return ToolFailed("cnmon: no card, model or memory in its answers")

    def describe(minor: str, _: str) -> Xpu | ToolFailed:
        answer = run("cnmon", "info", "-c", minor)
        return answer if isinstance(answer, ToolFailed) else _cambricon(host, answer, model, memory, minor)

    return _each_card([(str(number), "") for number in range(count)], describe)


def _cambricon(host: Host, answer: str, model: str, memory: str, minor: str) -> Xpu | ToolFailed:
    def last(name: str) -> str:
        return next((words[-1] for words in _words_of_lines(answer, name)), "")

    uuid = next((words[2] for words in _words_of_lines(answer, "UUID") if len(words) > 2), "")
    stated = [words[-1] for words in _words_of_lines(answer, "Device") if words[0] == "Device"]
    device = next((word for word in stated if re.fullmatch(r"(0x)?[0-9a-fA-F]+", word)), "")
    health = next((word for word in stated if word != device), "")
    if not uuid or not health:
        return ToolFailed(f"cnmon info -c {minor}: no UUID or state in its answer")
    bus = f"{last('Domain ID')}:{last('Bus num')}:{device}.{last('Function')}"
    found = _topology(host, bus)
    return _card(
        "cambricon",
        model,
        uuid,
        minor,
        f"{memory}Mi",
        msgspec.structs.replace(found, node_id=last("NUMA node id") or found.node_id, bus_id=bus),
        _HEALTHY
        if health == "Good"
        else XpuStatus(err_code="device error", err_message=f"Device is unhealthy, status: {health}"),
    )


def probe_metax(host: Host, run: RunTool) -> ProbeResult | ToolFailed:
    shown, listed = run("mx-smi", "--show-hwinfo"), run("mx-smi", "--list")
    for answer in (shown, listed):
        if isinstance(answer, ToolFailed):
            return answer
    models = [words[3] for words in _words_of_lines(str(shown), "Model Name") if len(words) > 3]
    sizes = [words[3] for words in _words_of_lines(str(shown), "Memory Capacity") if len(words) > 3]
    if not models or not sizes or not sizes[0].isdecimal():
        return ToolFailed("mx-smi --show-hwinfo: no model or memory in its answer")

    def describe(minor: str, _: str) -> Xpu | ToolFailed:
        named = [words for words in _words_of_lines(str(listed), f"GPU#{minor}") if not any("SGPU" in w for w in words)]
        mine = [words for words in named if f"GPU#{minor}" in words]
        if not mine or len(mine[0]) < 6:
            return ToolFailed(f"mx-smi --list: no line of GPU#{minor}")
        return _metax(host, run, models[0], f"{sizes[0]}Gi", mine[0][5].strip("()"), minor)

    return _each_card([(str(number), "") for number in range(len(models))], describe)


def _metax(host: Host, run: RunTool, model: str, memory: str, uuid: str, minor: str) -> Xpu | ToolFailed:
    placed, errors = run("mx-smi", "--show-hwinfo", "-i", minor), run("mx-smi", "--count-ecc", "-i", minor)
    for answer in (placed, errors):
        if isinstance(answer, ToolFailed):
            return answer
    bus = _PCI_ADDRESS.search(str(placed))
    counted = 0
    for line in str(errors).splitlines():
        if "Uncorrectable" in line or "Double Bit" in line:
            last = line.split()[-1]
            counted += int(last) if last.isdecimal() else 0
    message = f"MX index {minor} has {counted} SRAM/DRAM Uncorrectable or Double Bit  ECC errors"
    return _card(
        "metax",
        model,
        uuid,
        minor,
        memory,
        _topology(host, bus[0] if bus else ""),
        XpuStatus(err_code="ECC error", err_message=message) if counted else _HEALTHY,
    )


# What all have in common ---------------------------------------------------------------------------------------------


def _each_card(cards: Iterable[tuple[str, str]], describe: Callable[[str, str], Xpu | ToolFailed]) -> ProbeResult:
    """Describe the cards one by one, each given by its minor and the tool's own number of it."""
    found: list[Xpu] = []
    failed: list[CardFailed] = []
    for minor, number in cards:
        device = describe(minor, number)
        if isinstance(device, ToolFailed):
            failed.append(CardFailed(minor, device.reason))
        else:
            found.append(device)
    return ProbeResult(tuple(found), tuple(failed))


def _card(vendor: str, model: str, uuid: str, minor: str, memory: str, topology: XpuTopology, status: XpuStatus) -> Xpu:
    return Xpu(
        vendor=vendor,
        model=model,
        uuid=uuid,
        minor=minor,
        resources={GPU_CORE: "100", GPU_MEMORY: memory},
        topology=topology,
        status=status,
    )


def _topology(host: Host, bus: str) -> XpuTopology:
    """Return the place of a PCI device; one that sysfs does not have is on NUMA node 0 and behind no known switch."""
    address = bus.lower() if bus.count(":") == 2 else f"0000:{bus.lower()}"
    domain, _, rest = address.partition(":")
    address = f"{domain[-4:].rjust(4, '0')}:{rest}"
    place = pci_location(host, address) if _PCI_ADDRESS.fullmatch(address) else None
    if place is None or not place.root:
        return XpuTopology(socket_id="-1", node_id="0")
    return XpuTopology(socket_id="-1", node_id=str(place.numa), pcie_id=place.root, bus_id=address)


def _words_of_lines(text: str, name: str) -> list[list[str]]:
    """Return the words of each line that has the name in it."""
    return [line.split() for line in text.splitlines() if name in line]


def _sum(answer: str | ToolFailed, name: str) -> int | ToolFailed:
    """Return the sum of the last words of the lines that have the name in them."""
    if isinstance(answer, ToolFailed):
        return answer
    total = 0
    for words in _words_of_lines(answer, name):
        if not words[-1].isdecimal():
            return ToolFailed(f"{name}: {words[-1]!r} is no number")
        total += int(words[-1])
    return total


VENDORS = (
    Vendor(name="huawei", pci_vendor="19e5", probe=probe_ascend, other_products=frozenset({"1710", "1711"})),
    Vendor(name="kunlun", pci_vendor="1d22", probe=probe_kunlun),
    Vendor(name="cambricon", pci_vendor="cabc", probe=probe_cambricon),
    Vendor(name="metax", pci_vendor="9999", probe=probe_metax),
)


PROBE_FAILED = "ProbeFailed"
PATIENCE = 1  # failed rounds in a row that change nothing


class KnownCards(msgspec.Struct, frozen=True):
    """The cards of one vendor, and how many rounds in a row failed."""

    devices: tuple[Xpu, ...] = ()
    failures: int = 0


def next_cards(before: KnownCards, outcome: ProbeResult | ToolFailed) -> KnownCards:
    """Return the cards after a round."""
    if isinstance(outcome, ToolFailed):
        failures = before.failures + 1
        if failures <= PATIENCE:
            return KnownCards(before.devices, failures)
        return KnownCards(tuple(_unhealthy(one, outcome.reason) for one in before.devices), failures)
    reasons = {one.minor: one.reason for one in outcome.failed}
    kept = [_unhealthy(one, reasons[one.minor]) for one in before.devices if one.minor in reasons]
    return KnownCards(tuple(sorted((*outcome.devices, *kept), key=lambda one: int(one.minor))))


def _unhealthy(device: Xpu, reason: str) -> Xpu:
    return msgspec.structs.replace(device, status=XpuStatus(err_code=PROBE_FAILED, err_message=reason))
