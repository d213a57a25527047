"""Measure CPU, memory and throttling of pods and their containers every second.

A pod whose group does not exist is skipped quietly: it is starting, or it has ended. Any other error is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.host.cgroup.gauge import Gauge
from koord.host.cgroup.tree import Tree
from koord.host.fault import Fault, lacking
from koord.host.held_file import Descriptors
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.pod import PodView
from koord.koordlet.series import kind
from koord.koordlet.series.counter import Counters
from koord.koordlet.series.store import Key, Store
from koord.telemetry.clock import Clock

POD, THROTTLED = "pods", "throttled"
NAMES = (POD, THROTTLED)
_PATIENCE_S = 30.0  # that all running pods may lack their groups before it counts as a mistake
_POD_KINDS = (kind.POD_CPU, kind.POD_MEMORY, kind.POD_THROTTLED, kind.POD_MEMORY_WITH_PAGE_CACHE)
_CONTAINER_KINDS = (
    kind.CONTAINER_CPU,
    kind.CONTAINER_MEMORY,
    kind.CONTAINER_THROTTLED,
    kind.CONTAINER_MEMORY_WITH_PAGE_CACHE,
)


class PodsUse(msgspec.Struct, kw_only=True, gc=False):
    """The sum over all pods that could be measured in one tick."""

    cores: float = 0.0
    memory_bytes: int = 0
    numa_bytes: dict[int, int] | None = None


class _Subject:
    """One measured pod or container: its reader, and the keys of its series."""

    __slots__ = ("cpu", "gauge", "memory", "page_cache", "throttled")

    def __init__(self, gauge: Gauge, kinds: tuple[str, str, str, str], name: str) -> None:
        self.gauge = gauge
        self.cpu: Key = (kinds[0], name)
        self.memory: Key = (kinds[1], name)
        self.throttled: Key = (kinds[2], name)
        self.page_cache: Key = (kinds[3], name)


class _Pod:
    __slots__ = ("containers", "subject", "view")

    def __init__(self, view: PodView, subject: _Subject) -> None:
        self.view = view
        self.subject = subject
        self.containers: dict[str, _Subject] = {}


class PodCollector:
    """Samples all pods and containers of the node."""
    def __init__(
        self,
        tree: Tree,
        store: Store,
        clock: Clock,
        conditions: Conditions,
        budget: Descriptors,
        longest_gap_s: float,
        *,
        page_cache: bool,
    ) -> None:
        self._tree = tree
        self._store = store
        self._clock = clock
        self._conditions = conditions
        self._budget = budget
        self._counters = Counters(longest_gap_s)
        self._known: dict[str, _Pod] = {}
        self._seen: Sequence[PodView] = ()
        self._ceiling = 1.0
        self._fault: Fault | None = None
        self._throttle_fault: Fault | None = None
        self._found = 0  # groups of pods that were there in this tick
        self._lost_s: float | None = None  # since when none is there
        self.page_cache = page_cache

    def sample(self, now_s: float, pods: Sequence[PodView], cpus: int, numa_ids: tuple[int, ...]) -> PodsUse:
        if pods is not self._seen:
            self._follow(pods)
        self._ceiling = float(cpus) if cpus else float("inf")
        self._fault = self._throttle_fault = None
        self._found = 0
        total = PodsUse()
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
        self._tell(POD, self._fault or self._lost())
        self._tell(THROTTLED, self._throttle_fault)
        return total

    def close(self) -> None:
        self._follow(())

    def expire(self, at_s: float) -> None:
        self._counters.expire(at_s)

    # -- inside

    def _measure(self, subject: _Subject, now_s: float) -> tuple[float, int] | None:
        """Sample one group; return cores and bytes when both are known."""
        gauge, counters, store = subject.gauge, self._counters, self._store
        usage_ns = gauge.cpu_ns()
        if isinstance(usage_ns, Fault):
            self._note(usage_ns)
            return None
        self._found += 1
        at_s = self._clock.monotonic()  # right after the read: the process may be held up between two groups
        cores = counters.rate(subject.cpu, at_s, usage_ns / 1e9, 2 * self._ceiling)
        self._throttling(subject, at_s, now_s)
        memory = gauge.memory()
        if isinstance(memory, Fault):
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

    def _throttling(self, subject: _Subject, at_s: float, now_s: float) -> None:
        found = subject.gauge.throttling()
        if isinstance(found, Fault):
            if not found.vanished:
                self._throttle_fault = found
            return
        share = self._counters.share(subject.throttled, at_s, found[1], found[0])
        if share is not None:
            self._store.add(subject.throttled, now_s, share)

    def _add_numa(self, subject: _Subject, memory: int, by_numa: dict[int, int]) -> None:
        if len(by_numa) < 2:  # on one NUMA node everything is there, and the file need not be read
            for node in by_numa:
                by_numa[node] += memory
            return
        found = subject.gauge.numa_bytes()
        if isinstance(found, Fault):
            self._note(found)
            return
        for node, held in found.items():
            if node in by_numa:
                by_numa[node] += held

    def _lost(self) -> Fault | None:
        """Return an error when all running pods lack their groups: then they are looked for in the wrong place."""
        if self._found:
            self._lost_s = None
            return None
        running = [pod.view for pod in self._known.values() if any(one.running for one in pod.view.containers)]
        at_s = self._clock.monotonic()
        self._lost_s = (at_s if self._lost_s is None else self._lost_s) if running else None
        if self._lost_s is None or at_s - self._lost_s < _PATIENCE_S:
            return None
        return lacking(running[0].group, f"none of {len(running)} running pods has its cgroup; is the layout right?")

    def _note(self, fault: Fault) -> None:
        if not fault.vanished:
            self._fault = fault

    def _tell(self, name: str, fault: Fault | None) -> None:
        if fault is None:
            self._conditions.works(name)
        else:
            self._conditions.fails(name, fault)

    def _follow(self, pods: Sequence[PodView]) -> None:
        """Keep the readers of pods that are still the same, and close those of the others."""
        before, self._known, self._seen = self._known, {}, pods
        for view in pods:
            if not view.group or not view.is_alive:
                continue
            pod = before.pop(view.uid, None)
            if pod is not None and pod.subject.gauge.group != view.group:
                _close(pod)
                pod = None
            if pod is None:
                pod = _Pod(view, self._subject(view.group, _POD_KINDS, view.uid))
                self._follow_containers(pod, view)
            elif pod.view is not view:
                pod.view = view
                self._follow_containers(pod, view)
            self._known[view.uid] = pod
        for gone in before.values():
            _close(gone)

    def _follow_containers(self, pod: _Pod, view: PodView) -> None:
        before, pod.containers = pod.containers, {}
        for container in view.containers:
            if container.id and container.group:
                known = before.pop(container.id, None)
                pod.containers[container.id] = known or self._subject(container.group, _CONTAINER_KINDS, container.id)
        for gone in before.values():
            gone.gauge.close()

    def _subject(self, group: str, kinds: tuple[str, str, str, str], name: str) -> _Subject:
        return _Subject(Gauge(self._tree, group, self._budget), kinds, name)


def _close(pod: _Pod) -> None:
    for subject in (pod.subject, *pod.containers.values()):
        subject.gauge.close()
