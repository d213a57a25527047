"""Measure CPU, memory and throttling of pods and their containers every second, and of programs outside of pods: host
applications that the NodeSLO names, and containers of other orchestrators, such as YARN's, one by one: who uses
most is needed to choose among them.

A pod whose group does not exist is skipped quietly: it is starting, or it has ended. Any other error is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api.koordinator.slo import HostApplicationSpec
from koord.host.cgroup.knob import MEMORY_USAGE, CgroupFile
from koord.host.cgroup.usage import CgroupUsageReader, KeepOpenFile, parse_amount
from koord.host.io_error import IoError, malformed, unsupported
from koord.koordlet.collect.collector import CollectContext, UsageCollector
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesKey

POD, THROTTLED = "pods", "throttled"
POD_COLLECTORS = (POD, THROTTLED)
_MISSING_GROUPS_TIMEOUT_S = 30.0  # that all running pods may lack their groups before it counts as a mistake
_POD_KINDS = (
    metric_kind.POD_CPU,
    metric_kind.POD_MEMORY,
    metric_kind.POD_THROTTLED,
    metric_kind.POD_MEMORY_WITH_PAGE_CACHE,
)
_CONTAINER_KINDS = (
    metric_kind.CONTAINER_CPU,
    metric_kind.CONTAINER_MEMORY,
    metric_kind.CONTAINER_THROTTLED,
    metric_kind.CONTAINER_MEMORY_WITH_PAGE_CACHE,
)


class PodsUsageSample(msgspec.Struct, kw_only=True, gc=False):
    """The sum over all pods that could be measured in one tick."""

    cores: float = 0.0
    memory_bytes: int = 0
    numa_bytes: dict[int, int] | None = None


class _MeasuredGroup:
    """One measured pod or container: its reader, and the keys of its series."""

    __slots__ = ("cpu", "memory", "page_cache", "throttled", "usage_reader")

    def __init__(self, usage_reader: CgroupUsageReader, kinds: tuple[str, str, str, str], name: str) -> None:
        self.usage_reader = usage_reader
        self.cpu: SeriesKey = (kinds[0], name)
        self.memory: SeriesKey = (kinds[1], name)
        self.throttled: SeriesKey = (kinds[2], name)
        self.page_cache: SeriesKey = (kinds[3], name)


class _MeasuredPod:
    __slots__ = ("containers", "subject", "view")

    def __init__(self, view: PodMeta, subject: _MeasuredGroup) -> None:
        self.view = view
        self.subject = subject
        self.containers: dict[str, _MeasuredGroup] = {}


class PodResourceCollector(UsageCollector):
    """Samples all pods and containers of the node."""

    def __init__(self, context: CollectContext, *, page_cache: bool) -> None:
        super().__init__(context)
        self._known: dict[str, _MeasuredPod] = {}
        self._seen: Sequence[PodMeta] = ()
        self._ceiling = 1.0
        self._io_error: IoError | None = None
        self._throttle_io_error: IoError | None = None
        self._found = 0  # groups of pods that were there in this tick
        self._lost_s: float | None = None  # since when none is there
        self.page_cache = page_cache

    def sample(self, now_s: float, pods: Sequence[PodMeta], cpus: int, numa_ids: tuple[int, ...]) -> PodsUsageSample:
        if pods is not self._seen:
            self._track_pods(pods)
        self._ceiling = float(cpus) if cpus else float("inf")
        self._io_error = self._throttle_io_error = None
        self._found = 0
        total = PodsUsageSample()
        by_numa = dict.fromkeys(numa_ids, 0)
        for pod in self._known.values():
            measured = self._measure(pod.subject, now_s)
            if measured is not None:
                cores, memory = measured
                total.cores += cores
                total.memory_bytes += memory
                self._add_numa(pod.subject, memory, by_numa)
            for container in pod.containers.values():
                self._measure(container, now_s)
        total.numa_bytes = by_numa or None
        self._set_status(POD, self._io_error or self._layout_problem())
        self._set_status(THROTTLED, self._throttle_io_error)
        return total

    def close(self) -> None:
        self._track_pods(())

    # -- inside

    def _measure(self, subject: _MeasuredGroup, now_s: float) -> tuple[float, int] | None:
        """Sample one group; return cores and bytes when both are known."""
        usage_reader, counters, store = subject.usage_reader, self._counters, self._store
        usage_ns = usage_reader.cpu_ns()
        if isinstance(usage_ns, IoError):
            self._note(usage_ns)
            return None
        self._found += 1
        at_s = self._clock.monotonic()  # right after the read: the process may be held up between two groups
        cores = counters.rate(subject.cpu, at_s, usage_ns / 1e9, 2 * self._ceiling)
        self._throttling(subject, at_s, now_s)
        memory = usage_reader.memory()
        if isinstance(memory, IoError):
            self._note(memory)
            return None
        if cores is None:
            return None
        cores = min(cores, self._ceiling)
        store.add(subject.cpu, now_s, cores)
        store.add(subject.memory, now_s, memory[0])
        if self.page_cache:
            store.add(subject.page_cache, now_s, memory[1])
        return cores, memory[0]

    def _throttling(self, subject: _MeasuredGroup, at_s: float, now_s: float) -> None:
        found = subject.usage_reader.throttling()
        if isinstance(found, IoError):
            if not found.vanished:
                self._throttle_io_error = found
            return
        share = self._counters.share(subject.throttled, at_s, found[1], found[0])
        if share is not None:
            self._store.add(subject.throttled, now_s, share)

    def _add_numa(self, subject: _MeasuredGroup, memory: int, by_numa: dict[int, int]) -> None:
        if len(by_numa) < 2:  # on one NUMA node everything is there, and the file need not be read
            for node in by_numa:
                by_numa[node] += memory
            return
        found = subject.usage_reader.numa_bytes()
        if isinstance(found, IoError):
            self._note(found)
            return
        for node, held in found.items():
            if node in by_numa:
                by_numa[node] += held

    def _layout_problem(self) -> IoError | None:
        """Return an error when all running pods lack their groups: then they are looked for in the wrong place."""
        if self._found:
            self._lost_s = None
            return None
        running = [pod.view for pod in self._known.values() if any(one.running for one in pod.view.containers)]
        at_s = self._clock.monotonic()
        self._lost_s = (at_s if self._lost_s is None else self._lost_s) if running else None
        if self._lost_s is None or at_s - self._lost_s < _MISSING_GROUPS_TIMEOUT_S:
            return None
        return unsupported(
            running[0].group, f"none of {len(running)} running pods has its cgroup; is the layout right?"
        )

    def _note(self, io_error: IoError) -> None:
        if not io_error.vanished:
            self._io_error = io_error

    def _track_pods(self, pods: Sequence[PodMeta]) -> None:
        """Keep the readers of pods that are still the same, and close those of the others."""
        before, self._known, self._seen = self._known, {}, pods
        for view in pods:
            if not view.group or not view.is_alive:
                continue
            pod = before.pop(view.uid, None)
            if pod is not None and pod.subject.usage_reader.group != view.group:
                _close(pod)
                pod = None
            if pod is None:
                pod = _MeasuredPod(view, self._subject(view.group, _POD_KINDS, view.uid))
                self._track_containers(pod, view)
            elif pod.view is not view:
                pod.view = view
                self._track_containers(pod, view)
            self._known[view.uid] = pod
        for gone in before.values():
            _close(gone)

    def _track_containers(self, pod: _MeasuredPod, view: PodMeta) -> None:
        before, pod.containers = pod.containers, {}
        for container in view.containers:
            if container.id and container.group:
                known = before.pop(container.id, None)
                pod.containers[container.id] = known or self._subject(container.group, _CONTAINER_KINDS, container.id)
        for gone in before.values():
            gone.usage_reader.close()

    def _subject(self, group: str, kinds: tuple[str, str, str, str], name: str) -> _MeasuredGroup:
        return _MeasuredGroup(CgroupUsageReader(self._tree, group, self._budget), kinds, name)


def _close(pod: _MeasuredPod) -> None:
    for subject in (pod.subject, *pod.containers.values()):
        subject.usage_reader.close()


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
