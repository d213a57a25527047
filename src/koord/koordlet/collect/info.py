"""Measure the whole node and its NUMA nodes from /proc and sysfs, and read its hardware once a minute."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.host import numa
from koord.host.fault import Fault
from koord.host.host import Host
from koord.host.numa import HugePages, NumaNode
from koord.host.processor import CpuModel, Processor, cpu_model, processors
from koord.host.storage import Storage, storage
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.collect.settings import Settings, Timer

INFO, STORAGE = "node-info", "storage"


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of the node: CPUs, NUMA nodes, CPU model, disks. Empty until read; a later failure
    keeps what is known.
    """

    processors: tuple[Processor, ...] = ()
    model: CpuModel = CpuModel()
    numa_nodes: tuple[NumaNode, ...] = ()
    huge_pages: tuple[HugePages, ...] = ()
    storage: Storage | None = None
    numa_of_cpu: Mapping[int, int] = {}

    @property
    def numa_ids(self) -> tuple[int, ...]:
        return tuple(node.id for node in self.numa_nodes)

    @property
    def cpus(self) -> int:
        return len(self.processors)


class InfoCollector:
    """Reads the node's hardware periodically and keeps the last result in `now`."""
    def __init__(self, host: Host, conditions: Conditions, settings: Settings) -> None:
        self._host = host
        self._conditions = conditions
        self._timer = Timer(settings.info_s)
        self._storage_timer = Timer(settings.storage_s) if settings.storage else None
        self.now = Info()

    def sample(self, at_s: float) -> Info:
        if self._timer.due(at_s):
            self._look()
        if self._storage_timer is not None and self._storage_timer.due(at_s):
            found = storage(self._host)
            if isinstance(found, Fault):
                self._conditions.fails(STORAGE, found)
            else:
                self._conditions.works(STORAGE)
                self.now = msgspec.structs.replace(self.now, storage=found)
        return self.now

    def _look(self) -> None:
        cpus, model = processors(self._host), cpu_model(self._host)
        if isinstance(cpus, Fault):
            self._conditions.fails(INFO, cpus)
            return
        if isinstance(model, Fault):
            self._conditions.fails(INFO, model)
            return
        # Missing NUMA memory is reported by its own collector; the CPUs are known all the same.
        nodes, huge = numa.numa_nodes(self._host), numa.huge_pages(self._host)
        self.now = msgspec.structs.replace(
            self.now,
            processors=tuple(cpus),
            model=model,
            numa_nodes=() if isinstance(nodes, Fault) else tuple(nodes),
            huge_pages=() if isinstance(huge, Fault) else tuple(huge),
            numa_of_cpu={one.cpu: one.node for one in cpus},
        )
        self._conditions.works(INFO)
