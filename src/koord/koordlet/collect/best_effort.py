"""Measure what best-effort pods use together, what they request, and what they may really use now, in milli-cores."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.qos_class import BE, BEST_EFFORT
from koord.api.resource_name import BATCH_CPU
from koord.host.cgroup import usage
from koord.host.cgroup.gauge import Gauge
from koord.host.cgroup.knob import CPUSET, CPUSET_EFFECTIVE
from koord.host.cgroup.tree import File, Tree
from koord.host.fault import Fault, malformed
from koord.host.held_file import Descriptors, HeldFile
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.pod import PodView
from koord.koordlet.series import kind
from koord.koordlet.series.counter import Counters
from koord.koordlet.series.store import Store
from koord.telemetry.clock import Clock
from koord.values.cpuset import CPUSet, CPUSetError

BEST_EFFORT_USE = "best-effort"
_KEY = (kind.NODE_BE, kind.BE_USAGE)


class BestEffortCollector:
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
        self._root = tree.layout.qos_dir(BEST_EFFORT)
        self._gauge = Gauge(tree, self._root, budget)
        self._cpusets: dict[str, _Cpuset] = {}
        self._seen: Sequence[PodView] | None = None
        self._request_milli = 0

    def sample(self, now_s: float, pods: Sequence[PodView] | None, cpus: int) -> None:
        """Take one sample. While the pods are unknown there is still a usage, and a limit of the group of them all."""
        if pods is not self._seen:
            self._follow(pods or ())
            self._seen = pods
        fault = self._usage(now_s, cpus)
        limit = self._limit_milli()
        if isinstance(limit, Fault):
            fault = fault or limit
        else:
            self._store.add((kind.NODE_BE, kind.BE_REAL_LIMIT), now_s, limit)
        if pods is not None:
            self._store.add((kind.NODE_BE, kind.BE_REQUEST), now_s, self._request_milli)
        if fault is None:
            self._conditions.works(BEST_EFFORT_USE)
        else:
            # A kubelet that never had a best-effort pod may not have made the group: nobody needs to wait for it.
            self._conditions.fails(BEST_EFFORT_USE, fault, for_good=fault.vanished)

    def _usage(self, now_s: float, cpus: int) -> Fault | None:
        usage_ns = self._gauge.cpu_ns()
        if isinstance(usage_ns, Fault):
            return usage_ns
        ceiling = float(cpus) if cpus else float("inf")
        cores = self._counters.rate(_KEY, self._clock.monotonic(), usage_ns / 1e9, 2 * ceiling)
        if cores is not None:
            self._store.add(_KEY, now_s, int(min(cores, ceiling) * 1000))
        return None

    def expire(self, at_s: float) -> None:
        self._counters.expire(at_s)

    def close(self) -> None:
        self._gauge.close()
        for one in self._cpusets.values():
            one.file.close()
        self._cpusets = {}

    def _limit_milli(self) -> int | Fault:
        """Return the smallest number of CPUs of the group or one of its containers, or the quota if that is less."""
        least: int | None = None
        for group, held in self._cpusets.items():
            found = held.count()
            if isinstance(found, Fault):
                if found.vanished and group != self._root:
                    continue  # it ended meanwhile
                return found
            if found:
                least = found if least is None else min(least, found)
        quota = usage.cpu_limit_milli(self._tree, self._root)
        if isinstance(quota, Fault):
            return quota
        by_cpus = 1000 * (least or 0)
        return by_cpus if quota is None else min(by_cpus, quota)

    def _follow(self, pods: Sequence[PodView]) -> None:
        alive = [pod for pod in pods if pod.is_alive]
        self._request_milli = sum(
            max(container.requests.get(BATCH_CPU, 0), 0)
            for pod in alive
            if pod.qos == BE
            for container in pod.containers
        )
        groups = [self._root]
        for pod in alive:
            if pod.kube_qos == BEST_EFFORT:
                groups += [one.group for one in pod.containers if one.group and one.running]
        before, self._cpusets = self._cpusets, {}
        name = CPUSET if self._tree.version == 1 else CPUSET_EFFECTIVE
        for group in groups:
            path = self._tree.path(File(name, group)) or ""
            known = before.pop(group) if group in before else None
            self._cpusets[group] = known or _Cpuset(HeldFile(path, self._budget))
        for gone in before.values():
            gone.file.close()


class _Cpuset:
    """Reads how many CPUs a group has; the text is parsed only when it changed."""

    __slots__ = ("_count", "_text", "file")

    def __init__(self, file: HeldFile) -> None:
        self.file = file
        self._text: bytes | None = None
        self._count = 0

    def count(self) -> int | Fault:
        text = self.file.read()
        if isinstance(text, Fault):
            return text
        if text != self._text:
            try:
                self._count = len(CPUSet.parse(text.decode("ascii", "replace")))
            except CPUSetError as error:
                return malformed(self.file.path, str(error))
            self._text = text
        return self._count
