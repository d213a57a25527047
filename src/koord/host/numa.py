"""NUMA nodes of this machine: their memory and huge pages, from sysfs."""

from __future__ import annotations

import msgspec

from koord.host.fault import Fault, malformed
from koord.host.host import Host
from koord.host.procfs import kilobytes
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.quotation import integer


class NumaNode(msgspec.Struct, frozen=True):
    """The memory of one NUMA node in bytes. Used is without page cache and reclaimable slabs, never below 0."""

    id: int
    total: int
    used: int


class HugePages(msgspec.Struct, frozen=True):
    """The huge pages reserved on one NUMA node."""
    node: int
    pages_2m: int
    pages_1g: int


def numa_ids(host: Host) -> list[int] | Fault:
    """Return the ids of nodes with CPUs or memory. A gap in the ids is an error: positions and ids
    must agree everywhere.
    """
    folder = f"{host.paths.sys}/bus/node/devices"
    names = host.names(folder)
    if isinstance(names, Fault):
        return names
    generic = _generic(host)
    ids = sorted(int(name[4:]) for name in names if name.startswith("node") and name[4:].isdecimal())
    ids = [node for node in ids if node not in generic]
    if ids != list(range(len(ids))) or not ids:
        return malformed(folder, f"NUMA nodes are not numbered from 0 without holes: {ids}")
    return ids


def numa_nodes(host: Host) -> list[NumaNode] | Fault:
    ids = numa_ids(host)
    if isinstance(ids, Fault):
        return ids
    found: list[NumaNode] = []
    for node in ids:
        path = f"{host.paths.sys}/bus/node/devices/node{node}/meminfo"
        text = host.read(path)
        if isinstance(text, Fault):
            return text
        have = kilobytes(text)
        if not {"MemTotal", "MemFree"} <= have.keys():
            return malformed(path, "MemTotal or MemFree is missing")
        free = have["MemFree"] + sum(have.get(name, 0) for name in ("Active(file)", "Inactive(file)", "SReclaimable"))
        found.append(NumaNode(node, have["MemTotal"], max(have["MemTotal"] - free, 0)))
    return found


def huge_pages(host: Host) -> list[HugePages] | Fault:
    """Return the huge pages reserved on each node; a size that the kernel does not have counts as none."""
    ids = numa_ids(host)
    if isinstance(ids, Fault):
        return ids
    return [HugePages(node, _pages(host, node, 2048), _pages(host, node, 1_048_576)) for node in ids]


def _pages(host: Host, node: int, kilobytes_each: int) -> int:
    folder = f"{host.paths.sys}/bus/node/devices/node{node}/hugepages/hugepages-{kilobytes_each}kB"
    text = host.read(f"{folder}/nr_hugepages")
    return 0 if isinstance(text, Fault) else integer(text.strip()) or 0


def _generic(host: Host) -> CPUSet:
    """Return the nodes that only hold generic initiators (devices that start memory accesses)."""
    text = host.read(f"{host.paths.sys}/devices/system/node/has_generic_initiator")
    if isinstance(text, Fault):
        return CPUSet()
    try:
        return CPUSet.parse(text)  # node lists are written like CPU lists
    except CPUSetError:
        return CPUSet()
