"""The hardware topology from sysfs: which CPUs share a core, an L3 cache, a socket and a NUMA node, and NUMA memory.

Numbers are those that lscpu prints (cores and caches counted over the whole machine), so that annotations say the same
as upstream's, which runs lscpu. Offline CPUs are left out: nothing can run there.
"""

from __future__ import annotations

from koord.host.filesystem import Host
from koord.host.hardware import CpuModel, HugePages, MachineCpu, NumaNode
from koord.host.io_error import IoError, malformed
from koord.host.procfs import parse_kilobytes
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.go_format import parse_decimal_int


def online_cpus(host: Host) -> list[MachineCpu] | IoError:
    """Return all online CPUs in order."""
    base = f"{host.paths.sys}/devices/system/cpu"
    online = _read_cpu_list(host, f"{base}/online")
    if isinstance(online, IoError):
        return online
    nodes = _node_of_cpu(host)
    cores: dict[CPUSet, int] = {}
    sockets: dict[int, int] = {}
    caches: dict[CPUSet, int] = {}
    found: list[MachineCpu] = []
    for cpu in online:
        siblings = _read_cpu_list(host, f"{base}/cpu{cpu}/topology/thread_siblings_list")
        if isinstance(siblings, IoError):
            siblings = CPUSet.of((cpu,))  # some virtual machines have no topology folder: one thread per core
        package = parse_decimal_int(_read_text(host, f"{base}/cpu{cpu}/topology/physical_package_id")) or 0
        core = cores.setdefault(siblings, len(cores))
        socket = sockets.setdefault(max(package, 0), len(sockets))
        shared = _l3(host, f"{base}/cpu{cpu}/cache")
        l3 = 0 if shared is None else caches.setdefault(shared, len(caches))
        found.append(MachineCpu(nodes.get(cpu, 0), socket, core, cpu, l3))
    return sorted(found)


def cpu_model(host: Host) -> CpuModel | IoError:
    """Read the model of the first CPU. Turbo and SMT switches that the machine does not show count as off."""
    text = host.read(f"{host.paths.proc}/cpuinfo")
    if isinstance(text, IoError):
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
        hyper_threads=_read_text(host, f"{cpu}/smt/active") == "1",
        turbo=_read_text(host, f"{cpu}/intel_pstate/no_turbo") == "0",
        cat_l3_mask="" if isinstance(mask, IoError) else mask.strip(),
    )


def _node_of_cpu(host: Host) -> dict[int, int]:
    found: dict[int, int] = {}
    base = f"{host.paths.sys}/devices/system/node"
    names = host.list_names(base)
    for name in [] if isinstance(names, IoError) else names:
        if name.startswith("node") and name[4:].isdecimal():
            cpus = _read_cpu_list(host, f"{base}/{name}/cpulist")
            if not isinstance(cpus, IoError):
                found.update(dict.fromkeys(cpus, int(name[4:])))
    return found


def _l3(host: Host, folder: str) -> CPUSet | None:
    for index in range(8):
        level = _read_text(host, f"{folder}/index{index}/level")
        if level == "":
            return None
        if level == "3":
            shared = _read_cpu_list(host, f"{folder}/index{index}/shared_cpu_list")
            return None if isinstance(shared, IoError) else shared
    return None


def _read_cpu_list(host: Host, path: str) -> CPUSet | IoError:
    text = host.read(path)
    if isinstance(text, IoError):
        return text
    try:
        return CPUSet.parse(text)
    except CPUSetError as error:
        return malformed(path, str(error))


def _read_text(host: Host, path: str) -> str:
    text = host.read(path)
    return "" if isinstance(text, IoError) else text.strip()


def numa_ids(host: Host) -> list[int] | IoError:
    """Return the ids of nodes with CPUs or memory. A gap is an error: positions and ids must agree everywhere."""
    folder = f"{host.paths.sys}/bus/node/devices"
    names = host.list_names(folder)
    if isinstance(names, IoError):
        return names
    generic = _initiator_only_nodes(host)
    ids = sorted(int(name[4:]) for name in names if name.startswith("node") and name[4:].isdecimal())
    ids = [node for node in ids if node not in generic]
    if ids != list(range(len(ids))) or not ids:
        return malformed(folder, f"NUMA nodes are not numbered from 0 without holes: {ids}")
    return ids


def numa_nodes(host: Host) -> list[NumaNode] | IoError:
    ids = numa_ids(host)
    if isinstance(ids, IoError):
        return ids
    found: list[NumaNode] = []
    for node in ids:
        path = f"{host.paths.sys}/bus/node/devices/node{node}/meminfo"
        text = host.read(path)
        if isinstance(text, IoError):
            return text
        have = parse_kilobytes(text)
        if not {"MemTotal", "MemFree"} <= have.keys():
            return malformed(path, "MemTotal or MemFree is missing")
        free = have["MemFree"] + sum(have.get(name, 0) for name in ("Active(file)", "Inactive(file)", "SReclaimable"))
        found.append(NumaNode(node, have["MemTotal"], max(have["MemTotal"] - free, 0)))
    return found


def huge_pages(host: Host) -> list[HugePages] | IoError:
    """Return the huge pages reserved on each node; a size that the kernel does not have counts as none."""
    ids = numa_ids(host)
    if isinstance(ids, IoError):
        return ids
    return [
        HugePages(node, _huge_page_count(host, node, 2048), _huge_page_count(host, node, 1_048_576)) for node in ids
    ]


def _huge_page_count(host: Host, node: int, kilobytes_each: int) -> int:
    folder = f"{host.paths.sys}/bus/node/devices/node{node}/hugepages/hugepages-{kilobytes_each}kB"
    text = host.read(f"{folder}/nr_hugepages")
    return 0 if isinstance(text, IoError) else parse_decimal_int(text.strip()) or 0


def _initiator_only_nodes(host: Host) -> CPUSet:
    """Return the nodes that only hold generic initiators (devices that start memory accesses)."""
    text = host.read(f"{host.paths.sys}/devices/system/node/has_generic_initiator")
    if isinstance(text, IoError):
        return CPUSet()
    return CPUSet.parse_or_empty(text)  # node lists are written like CPU lists
