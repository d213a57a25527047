"""Measure the programs outside of pods that the NodeSLO names as host applications."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api.slo_strategy import HostApplicationSpec
from koord.host.cgroup.gauge import Gauge
from koord.host.cgroup.knob import MEMORY_USAGE
from koord.host.cgroup.layout import Layout
from koord.host.cgroup.stat import parse_amount
from koord.host.cgroup.tree import File, Tree
from koord.host.fault import Fault, malformed
from koord.host.held_file import Descriptors, HeldFile
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.series import kind
from koord.koordlet.series.counter import Counters
from koord.koordlet.series.store import Store
from koord.telemetry.clock import Clock

APPLICATION = "host-applications"


class ApplicationsUse(msgspec.Struct, kw_only=True, gc=False):
    cores: float = 0.0
    memory_bytes: int = 0


class ApplicationCollector:
    """Samples CPU and memory of each host application; with `page_cache` their page cache counts as theirs."""
    def __init__(
        self,
        tree: Tree,
        store: Store,
        clock: Clock,
        conditions: Conditions,
        budget: Descriptors,
        longest_gap_s: float,
    ) -> None:
        self._tree = tree
        self._store = store
        self._clock = clock
        self._conditions = conditions
        self._budget = budget
        self._counters = Counters(longest_gap_s)
        self._known: dict[str, tuple[Gauge, HeldFile]] = {}
        self._seen: Sequence[HostApplicationSpec] = ()
        self.page_cache = False  # whether their page cache counts as theirs

    def sample(self, now_s: float, applications: Sequence[HostApplicationSpec], cpus: int) -> ApplicationsUse:
        if applications is not self._seen:
            self._follow(applications)
        total = ApplicationsUse()
        trouble: Fault | None = None
        for name, (gauge, charged) in self._known.items():
            fault = self._measure(name, gauge, charged, now_s, cpus, total)
            trouble = fault if fault is not None and not fault.vanished else trouble
        if trouble is None:
            self._conditions.works(APPLICATION)
        else:
            self._conditions.fails(APPLICATION, trouble)
        return total

    def expire(self, at_s: float) -> None:
        self._counters.expire(at_s)

    def close(self) -> None:
        self._follow(())

    def groups(self) -> dict[str, str]:
        """Return the group of each application by its name."""
        return {name: gauge.group for name, (gauge, _) in self._known.items()}

    def _measure(
        self, name: str, gauge: Gauge, charged: HeldFile, now_s: float, cpus: int, total: ApplicationsUse
    ) -> Fault | None:
        usage_ns = gauge.cpu_ns()
        if isinstance(usage_ns, Fault):
            return usage_ns
        ceiling = float(cpus) if cpus else float("inf")
        cores = self._counters.rate(name, self._clock.monotonic(), usage_ns / 1e9, 2 * ceiling)
        memory, text = gauge.memory(), charged.read()
        if isinstance(memory, Fault):
            return memory
        if isinstance(text, Fault):
            return text
        everything = parse_amount(text.decode("ascii", "replace"))
        if everything is None:
            return malformed(charged.path, f"unexpected text {text[:80]!r}")
        if cores is None:
            return None
        cores = min(cores, ceiling)
        self._store.add((kind.APPLICATION_CPU, name), now_s, cores)
        self._store.add((kind.APPLICATION_MEMORY, name), now_s, memory[0])
        self._store.add((kind.APPLICATION_MEMORY_WITH_PAGE_CACHE, name), now_s, everything)
        total.cores += cores
        total.memory_bytes += everything if self.page_cache else memory[0]
        return None

    def _follow(self, applications: Sequence[HostApplicationSpec]) -> None:
        before, self._known, self._seen = self._known, {}, applications
        for one in applications:
            group = application_group(self._tree.layout, one)
            known = before.pop(one.name, None)
            if known is not None and known[0].group != group:
                before[one.name] = known
                known = None
            self._known[one.name] = known or (
                Gauge(self._tree, group, self._budget),
                HeldFile(self._tree.path(File(MEMORY_USAGE, group)) or "", self._budget),
            )
        for gauge, charged in before.values():
            gauge.close()
            charged.close()


def application_group(layout: Layout, one: HostApplicationSpec) -> str:
    """Return the cgroup of a host application."""
    path = one.cgroup_path
    if path is None:
        return layout.host_application_dir(one.name, one.qos)
    return layout.host_application_dir(one.name, one.qos, path.base, path.parent_dir, path.relative_path)
