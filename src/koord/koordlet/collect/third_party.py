"""Measure the containers of other orchestrators, such as YARN's, one by one: who uses most is needed to choose among
them. What they use together is that of a host application.
"""

from __future__ import annotations

from collections.abc import Sequence

from koord.host.cgroup.usage import CgroupUsageReader
from koord.host.io_error import IoError
from koord.koordlet.collect.collector import CollectContext, UsageCollector
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind

THIRD_PARTY = "third-party"


class ThirdPartyCollector(UsageCollector):
    """Samples CPU and memory of each container. One without a group in a controller has no sample of it."""

    def __init__(self, context: CollectContext) -> None:
        super().__init__(context)
        self._known: dict[str, CgroupUsageReader] = {}
        self._seen: Sequence[PodMeta] = ()

    def sample(self, now_s: float, containers: Sequence[PodMeta], cpus: int) -> None:
        if containers is not self._seen:
            self._track(containers)
        trouble: IoError | None = None
        for uid, reader in self._known.items():
            for problem in (self._measure_cpu(uid, reader, now_s, cpus), self._measure_memory(uid, reader, now_s)):
                trouble = problem if problem is not None and not problem.vanished else trouble
        if self._known:
            self._set_status(THIRD_PARTY, trouble, permanent=True)

    def close(self) -> None:
        self._track(())

    def _measure_cpu(self, uid: str, reader: CgroupUsageReader, now_s: float, cpus: int) -> IoError | None:
        usage_ns = reader.cpu_ns()
        if isinstance(usage_ns, IoError):
            return usage_ns
        ceiling = float(cpus) if cpus else float("inf")
        cores = self._counters.rate(uid, self._clock.monotonic(), usage_ns / 1e9, 2 * ceiling)
        if cores is not None:
            self._store.add((metric_kind.THIRD_PARTY_CPU, uid), now_s, min(cores, ceiling))
        return None

    def _measure_memory(self, uid: str, reader: CgroupUsageReader, now_s: float) -> IoError | None:
        memory = reader.memory()
        if isinstance(memory, IoError):
            return memory
        self._store.add((metric_kind.THIRD_PARTY_MEMORY, uid), now_s, memory[0])
        return None

    def _track(self, containers: Sequence[PodMeta]) -> None:
        before, self._known, self._seen = self._known, {}, containers
        for one in containers:
            known = before.get(one.uid)
            if known is not None and known.group == one.group:
                self._known[one.uid] = before.pop(one.uid)
            else:
                self._known[one.uid] = CgroupUsageReader(self._tree, one.group, self._budget)
        for reader in before.values():
            reader.close()
