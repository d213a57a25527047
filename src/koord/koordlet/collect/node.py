"""What the whole node and its NUMA nodes use, from /proc and sysfs."""

from __future__ import annotations

import msgspec

from koord.host import numa, procfs
from koord.host.fault import Fault
from koord.host.host import Host
from koord.host.procfs import CpuTimes
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.collect.info import Info
from koord.koordlet.series import kind
from koord.koordlet.series.counter import Counters
from koord.koordlet.series.store import Store
from koord.telemetry.clock import Clock

CPU, MEMORY, NUMA = "node-cpu", "node-memory", "node-numa"
NAMES = (CPU, MEMORY, NUMA)


class NodeUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the node used in one tick, in cores and bytes; None where there is no number."""

    cores: float | None = None
    memory_bytes: int | None = None
    numa_cores: dict[int, float] | None = None
    numa_bytes: dict[int, int] | None = None


class NodeCollector:
    """Samples CPU and memory of the node and of each NUMA node."""
    def __init__(
        self, host: Host, store: Store, clock: Clock, conditions: Conditions, longest_gap_s: float, *, page_cache: bool
    ) -> None:
        self._host = host
        self._store = store
        self._clock = clock
        self._conditions = conditions
        self._counters = Counters(longest_gap_s)
        self.page_cache = page_cache

    def sample(self, now_s: float, info: Info) -> NodeUse:
        cores, by_numa = self._cpu(now_s, info)
        return NodeUse(
            cores=cores, memory_bytes=self._memory(now_s), numa_cores=by_numa, numa_bytes=self._numa_memory(now_s)
        )

    def _cpu(self, now_s: float, info: Info) -> tuple[float | None, dict[int, float] | None]:
        times = procfs.cpu_times(self._host)
        if isinstance(times, Fault):
            self._conditions.fails(CPU, times)
            return None, None
        at_s, ticks = self._clock.monotonic(), self._host.ticks_per_s
        ceiling = max(len(times.by_cpu), 1)
        total = self._counters.rate("all", at_s, times.total / ticks, 2 * ceiling)
        by_numa = self._by_numa(times, at_s, info)
        if total is None:
            return None, None  # the first look, or a counter that went back: the next tick has a number again
        # Ticks are whole, so the sum over a second may lie a little above what there is.
        cores = min(total, float(ceiling))
        self._store.add((kind.NODE_CPU,), now_s, cores)
        self._conditions.works(CPU)
        for node, used in by_numa.items():
            self._store.add((kind.NUMA_CPU, str(node)), now_s, used)
        return cores, by_numa or None

    def _by_numa(self, times: CpuTimes, at_s: float, info: Info) -> dict[int, float]:
        """Return the used cores by NUMA node; a CPU that came online just now has no rate yet."""
        found: dict[int, float] = {}
        known = set(info.numa_ids)
        for number, node in info.numa_of_cpu.items():
            busy = times.by_cpu.get(number)
            if busy is None or node not in known:
                continue
            rate = self._counters.rate(number, at_s, busy / self._host.ticks_per_s, 2.0)
            if rate is not None:
                found[node] = found.get(node, 0.0) + min(rate, 1.0)
        return found

    def _memory(self, now_s: float) -> int | None:
        memory = procfs.memory(self._host)
        if isinstance(memory, Fault):
            self._conditions.fails(MEMORY, memory)
            return None
        used = max(memory.used, 0)
        self._store.add((kind.NODE_MEMORY,), now_s, used)
        if self.page_cache:
            self._store.add((kind.NODE_MEMORY_WITH_PAGE_CACHE,), now_s, max(memory.used_with_page_cache, 0))
        self._conditions.works(MEMORY)
        return used

    def _numa_memory(self, now_s: float) -> dict[int, int] | None:
        nodes = numa.numa_nodes(self._host)
        if isinstance(nodes, Fault):
            self._conditions.fails(NUMA, nodes, for_good=nodes.vanished)  # a kernel without NUMA has no such folder
            return None
        for node in nodes:
            self._store.add((kind.NUMA_MEMORY, str(node.id)), now_s, node.used)
        self._conditions.works(NUMA)
        return {node.id: node.used for node in nodes}

    def expire(self, at_s: float) -> None:
        self._counters.expire(at_s)
