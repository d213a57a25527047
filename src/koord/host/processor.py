"""The hardware topology from sysfs: which CPUs share a core, an L3 cache, a socket and a NUMA node, and NUMA memory.

Numbers are those that lscpu prints (cores and caches counted over the whole machine), so that annotations say the same
as upstream's, which runs lscpu. Offline CPUs are left out: nothing can run there.
"""

from __future__ import annotations

import msgspec

from koord.host.fault import Fault, malformed
from koord.host.host import Host
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.quotation import integer


class Processor(msgspec.Struct, frozen=True, order=True):
    """One online logical CPU, ordered as reports want them: by NUMA node, socket, core and number."""

    node: int
    socket: int
    core: int
    cpu: int
    l3: int = 0


class CpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model and features of the first CPU."""
    model: str = ""
    vendor: str = ""
    flags: frozenset[str] = frozenset()
    hyper_threads: bool = False
    turbo: bool = False
    cat_l3_mask: str = ""


def processors(host: Host) -> list[Processor] | Fault:
    """Return all online CPUs in order."""
    base = f"{host.paths.sys}/devices/system/cpu"
    online = _cpus(host, f"{base}/online")
    if isinstance(online, Fault):
        return online
    nodes = _node_of_cpu(host)
    cores: dict[CPUSet, int] = {}
    sockets: dict[int, int] = {}
    caches: dict[CPUSet, int] = {}
    found: list[Processor] = []
    for cpu in online:
        siblings = _cpus(host, f"{base}/cpu{cpu}/topology/thread_siblings_list")
        if isinstance(siblings, Fault):
            siblings = CPUSet.of((cpu,))  # some virtual machines have no topology folder: one thread per core
        package = _number(host, f"{base}/cpu{cpu}/topology/physical_package_id")
        core = cores.setdefault(siblings, len(cores))
        socket = sockets.setdefault(max(package, 0), len(sockets))
        shared = _l3(host, f"{base}/cpu{cpu}/cache")
        l3 = 0 if shared is None else caches.setdefault(shared, len(caches))
        found.append(Processor(nodes.get(cpu, 0), socket, core, cpu, l3))
    return sorted(found)


def cpu_model(host: Host) -> CpuModel | Fault:
    """Read the model of the first CPU. Turbo and SMT switches that the machine does not show count as off."""
    text = host.read(f"{host.paths.proc}/cpuinfo")
    if isinstance(text, Fault):
        return text
    have: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            have[name.strip()] = value.strip()
    cpu = f"{host.paths.sys}/devices/system/cpu"
    mask = host.read(f"{host.paths.sys_fs}/resctrl/info/L3/cbm_mask")
    return CpuModel(
        model=have.get("model name", ""),
        vendor=have.get("vendor_id", have.get("CPU implementer", "")),
        flags=frozenset(have.get("flags", have.get("Features", "")).split()),
        hyper_threads=_text(host, f"{cpu}/smt/active") == "1",
        turbo=_text(host, f"{cpu}/intel_pstate/no_turbo") == "0",
        cat_l3_mask="" if isinstance(mask, Fault) else mask.strip(),
    )


def _node_of_cpu(host: Host) -> dict[int, int]:
    found: dict[int, int] = {}
    base = f"{host.paths.sys}/devices/system/node"
    names = host.names(base)
    for name in [] if isinstance(names, Fault) else names:
        if name.startswith("node") and name[4:].isdecimal():
            cpus = _cpus(host, f"{base}/{name}/cpulist")
            if not isinstance(cpus, Fault):
                found.update(dict.fromkeys(cpus, int(name[4:])))
    return found


def _l3(host: Host, folder: str) -> CPUSet | None:
    for index in range(8):
        level = _text(host, f"{folder}/index{index}/level")
        if level == "":
            return None
        if level == "3":
            shared = _cpus(host, f"{folder}/index{index}/shared_cpu_list")
            return None if isinstance(shared, Fault) else shared
    return None


def _cpus(host: Host, path: str) -> CPUSet | Fault:
    text = host.read(path)
    if isinstance(text, Fault):
        return text
    try:
        return CPUSet.parse(text)
    except CPUSetError as error:
        return malformed(path, str(error))


def _number(host: Host, path: str) -> int:
    return integer(_text(host, path)) or 0


def _text(host: Host, path: str) -> str:
    text = host.read(path)
    return "" if isinstance(text, Fault) else text.strip()
