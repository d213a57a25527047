"""Measure the programs outside of pods that the NodeSLO names as host applications."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api.koordinator.slo_strategy import HostApplicationSpec
from koord.host.cgroup.knob import MEMORY_USAGE, CgroupFile
from koord.host.cgroup.stat import parse_amount
from koord.host.cgroup.usage import CgroupUsageReader, KeepOpenFile
from koord.host.io_error import IoError, malformed
from koord.koordlet.collect.collector import CollectContext, UsageCollector
from koord.koordlet.series import metric_kind

HOST_APPLICATIONS = "host-applications"


class HostApplicationsUsage(msgspec.Struct, kw_only=True, gc=False):
    cores: float = 0.0
    memory_bytes: int = 0


class HostApplicationCollector(UsageCollector):
    """Samples CPU and memory of each host application; with `page_cache` their page cache counts as theirs."""

    def __init__(self, context: CollectContext) -> None:
        super().__init__(context)
        self._known: dict[str, tuple[CgroupUsageReader, KeepOpenFile]] = {}
        self._seen: Sequence[HostApplicationSpec] = ()
        self.page_cache = False  # whether their page cache counts as theirs

    def sample(self, now_s: float, applications: Sequence[HostApplicationSpec], cpus: int) -> HostApplicationsUsage:
        if applications is not self._seen:
            self._track(applications)
        total = HostApplicationsUsage()
        trouble: IoError | None = None
        for name, (usage_reader, charged) in self._known.items():
            io_error = self._measure(name, usage_reader, charged, now_s, cpus, total)
            trouble = io_error if io_error is not None and not io_error.vanished else trouble
        self._set_status(HOST_APPLICATIONS, trouble)
        return total

    def close(self) -> None:
        self._track(())

    def groups(self) -> dict[str, str]:
        return {name: usage_reader.group for name, (usage_reader, _) in self._known.items()}

    def _measure(
        self,
        name: str,
        usage_reader: CgroupUsageReader,
        charged: KeepOpenFile,
        now_s: float,
        cpus: int,
        total: HostApplicationsUsage,
    ) -> IoError | None:
        usage_ns = usage_reader.cpu_ns()
        if isinstance(usage_ns, IoError):
            return usage_ns
        ceiling = float(cpus) if cpus else float("inf")
        cores = self._counters.rate(name, self._clock.monotonic(), usage_ns / 1e9, 2 * ceiling)
        memory, text = usage_reader.memory(), charged.read()
        if isinstance(memory, IoError):
            return memory
        if isinstance(text, IoError):
            return text
        everything = parse_amount(text.decode("ascii", "replace"))
        if everything is None:
            return malformed(charged.path, f"unexpected text {text[:80]!r}")
        if cores is None:
            return None
        cores = min(cores, ceiling)
        self._store.add((metric_kind.APPLICATION_CPU, name), now_s, cores)
        self._store.add((metric_kind.APPLICATION_MEMORY, name), now_s, memory[0])
        self._store.add((metric_kind.APPLICATION_MEMORY_WITH_PAGE_CACHE, name), now_s, everything)
        total.cores += cores
        total.memory_bytes += everything if self.page_cache else memory[0]
        return None

    def _track(self, applications: Sequence[HostApplicationSpec]) -> None:
        before, self._known, self._seen = self._known, {}, applications
        for one in applications:
            group = self._tree.layout.host_application_dir(one)
            known = before.pop(one.name, None)
            if known is not None and known[0].group != group:
                before[one.name] = known
                known = None
            self._known[one.name] = known or (
                CgroupUsageReader(self._tree, group, self._budget),
                KeepOpenFile(self._tree.path(CgroupFile(MEMORY_USAGE, group)) or "", self._budget),
            )
        for usage_reader, charged in before.values():
            usage_reader.close()
            charged.close()
