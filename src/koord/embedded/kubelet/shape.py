"""Node profiles and hardware: the file that says how many nodes of which kind exist, parsed and validated,
and what each simulated machine is made of.
"""

from __future__ import annotations

import hashlib
import uuid

import msgspec


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """One logical CPU and its place in the topology that Linux would report."""

    cpu: int
    core: int
    numa: int
    socket: int


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    minor: int
    uuid: str
    model: str
    memory_bytes: int
    numa: int
    socket: int
    pcie: str
    bus_id: str


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """An RDMA network card."""

    minor: int
    bus_id: str
    numa: int
    socket: int
    pcie: str
    virtual_functions: int


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of one node."""

    sockets: int
    numa_nodes: int  # in all, a multiple of `sockets`
    cores: int  # in all, a multiple of `numa_nodes`
    threads_per_core: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()

    @property
    def cpus(self) -> int:
        return self.cores * self.threads_per_core

    def processors(self) -> tuple[Processor, ...]:
        """Return the CPUs numbered as Linux does on x86: first every core's first thread, then every core's second
        one.
        """
        per_numa, per_socket = self.cores // self.numa_nodes, self.cores // self.sockets
        return tuple(
            Processor(cpu=cpu, core=core, numa=core // per_numa, socket=core // per_socket)
            for cpu in range(self.cpus)
            for core in (cpu % self.cores,)
        )


class GpuLayout(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Describes the wiring of the GPUs of a pool's nodes; they are spread evenly over the NUMA nodes."""

    count: int
    model: str = "A100-SXM4-80GB"
    memory: str | int = "80Gi"
    per_pcie: int = 2  # cards behind one PCIe switch
    resource: str = "nvidia.com/gpu"


class RdmaLayout(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    count: int
    per_pcie: int = 1
    virtual_functions: int = 0


def identity(kind: str, node: str, number: int = 0) -> str:
    """Return a UUID that is the same in every run for the same part of the same node."""
    digest = hashlib.blake2b(f"{kind}/{node}/{number}".encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))


def gpus(layout: GpuLayout, memory_bytes: int, node: str, numa_nodes: int, sockets: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            minor=minor,
            uuid=f"GPU-{identity('gpu', node, minor)}",
            model=layout.model,
            memory_bytes=memory_bytes,
            numa=numa,
            socket=numa * sockets // numa_nodes,
            pcie=_switch(minor // layout.per_pcie),
            bus_id=f"0000:{0x10 + minor:02x}:00.0",
        )
        for minor in range(layout.count)
        for numa in (minor * numa_nodes // layout.count,)
    )


def nics(layout: RdmaLayout, numa_nodes: int, sockets: int) -> tuple[Nic, ...]:
    return tuple(
        Nic(
            minor=minor,
            bus_id=f"0000:{0x90 + minor:02x}:00.0",
            numa=numa,
            socket=numa * sockets // numa_nodes,
            pcie=_switch(minor // layout.per_pcie),
            virtual_functions=layout.virtual_functions,
        )
        for minor in range(layout.count)
        for numa in (minor * numa_nodes // layout.count,)
    )


def _switch(number: int) -> str:
    return f"pci0000:{number:02x}"
