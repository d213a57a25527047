"""Measure what best-effort pods use together, what they request, and what they may really use now, in milli-cores."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.koordinator.protocol import BE, BEST_EFFORT
from koord.api.koordinator.resource_name import BATCH_CPU
from koord.host.cgroup import usage
from koord.host.cgroup.knob import CPUSET, CPUSET_EFFECTIVE, CgroupFile
from koord.host.cgroup.usage import CgroupUsageReader, KeepOpenFile
from koord.host.io_error import IoError, malformed
from koord.koordlet.collect.collector import CollectContext, UsageCollector
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.values.cpuset import CPUSet, CPUSetError

BE_RESOURCE = "best-effort"
_KEY = (metric_kind.NODE_BE, metric_kind.BE_USAGE)


class BeResourceCollector(UsageCollector):
    def __init__(self, context: CollectContext) -> None:
        super().__init__(context)
        self._root = context.tree.layout.qos_dir(BEST_EFFORT)
        self._usage_reader = CgroupUsageReader(context.tree, self._root, context.budget)
        self._cpusets: dict[str, _CpusetReader] = {}
        self._seen: Sequence[PodMeta] | None = None
        self._request_milli = 0

    def sample(
        self, now_s: float, pods: Sequence[PodMeta] | None, cpus: int, third_party: Sequence[PodMeta] = ()
    ) -> None:
        """Take one sample. While the pods are unknown there is still a usage, and a limit of the group of them all.

        Containers of other orchestrators request as well; they run below the group of best-effort pods.
        """
        if pods is not self._seen:
            self._track_pods(pods or ())
            self._seen = pods
        io_error = self._usage(now_s, cpus)
        limit = self._limit_milli()
        if isinstance(limit, IoError):
            io_error = io_error or limit
        else:
            self._store.add((metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT), now_s, limit)
        if pods is not None:
            others = sum(max(one.requests.get(BATCH_CPU, 0), 0) for one in third_party)
            self._store.add((metric_kind.NODE_BE, metric_kind.BE_REQUEST), now_s, self._request_milli + others)
        # A kubelet that never had a best-effort pod may not have made the group: nobody needs to wait for it.
        self._set_status(BE_RESOURCE, io_error, permanent=io_error is not None and io_error.vanished)

    def _usage(self, now_s: float, cpus: int) -> IoError | None:
        usage_ns = self._usage_reader.cpu_ns()
        if isinstance(usage_ns, IoError):
            return usage_ns
        ceiling = float(cpus) if cpus else float("inf")
        cores = self._counters.rate(_KEY, self._clock.monotonic(), usage_ns / 1e9, 2 * ceiling)
        if cores is not None:
            self._store.add(_KEY, now_s, int(min(cores, ceiling) * 1000))
        return None

    def close(self) -> None:
        self._usage_reader.close()
        for one in self._cpusets.values():
            one.file.close()
        self._cpusets = {}

    def _limit_milli(self) -> int | IoError:
        """Return the smallest number of CPUs of the group or one of its containers, or the quota if that is less."""
        least: int | None = None
        for group, held in self._cpusets.items():
            found = held.count()
            if isinstance(found, IoError):
                if found.vanished and group != self._root:
                    continue  # it ended meanwhile
                return found
            if found:
                least = found if least is None else min(least, found)
        quota = usage.cpu_limit_milli(self._tree, self._root)
        if isinstance(quota, IoError):
            return quota
        by_cpus = 1000 * (least or 0)
        return by_cpus if quota is None else min(by_cpus, quota)

    def _track_pods(self, pods: Sequence[PodMeta]) -> None:
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
            path = self._tree.path(CgroupFile(name, group)) or ""
            known = before.pop(group) if group in before else None
            self._cpusets[group] = known or _CpusetReader(KeepOpenFile(path, self._budget))
        for gone in before.values():
            gone.file.close()


class _CpusetReader:
    """Reads how many CPUs a group has; the text is parsed only when it changed."""

    __slots__ = ("_count", "_text", "file")

    def __init__(self, file: KeepOpenFile) -> None:
        self.file = file
        self._text: bytes | None = None
        self._count = 0

    def count(self) -> int | IoError:
        text = self.file.read()
        if isinstance(text, IoError):
            return text
        if text != self._text:
            try:
                self._count = len(CPUSet.parse(text.decode("ascii", "replace")))
            except CPUSetError as error:
                return malformed(self.file.path, str(error))
            self._text = text
        return self._count
