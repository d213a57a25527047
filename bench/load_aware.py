"""What looking at load costs: the engine alone with LoadAwareScheduling and reports, beside the plain profile.

Each of 5,000 nodes reports once a minute, so 83 reports arrive for every second of deciding. Each has percentiles and
the usage of the pods on its node. Ratios are of decisions per second of one process on one core, taken in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bench.alternating_rounds import compared
from bench.engine import NODES, _cluster, _distinct, _equal, _same_spec
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.plugins.load_aware.node_load import LoadNodeMetric
from koord.scheduler.plugins.registry import REGISTRY

REPORTS_PER_SECOND = NODES / 60
PODS_PER_NODE = 10
ROUNDS = 9
NOW = datetime(2026, 1, 1, tzinfo=UTC)
_LATER = NOW.timestamp() + 30
# Most nodes are cool, some are warm, a few are hot: what pods meet.
_CORES = (5, 8, 12, 12, 20, 20, 28, 35, 43)


class Reports:
    """A lister of NodeMetrics: what is put is told at once."""

    version = 0

    def __init__(self) -> None:
        self._held: dict[str, LoadNodeMetric] = {}
        self._callbacks: list[Callable[[Any, Any], None]] = []

    def get(self, namespace: str, name: str) -> LoadNodeMetric | None:
        return self._held.get(name)

    def list(self, namespace: str | None = None) -> list[LoadNodeMetric]:
        return list(self._held.values())

    def on_change(self, callback: Callable[[Any, Any], None]) -> None:
        self._callbacks.append(callback)
        for known in self._held.values():
            callback(None, known)

    def put(self, metric: LoadNodeMetric) -> None:
        old = self._held.get(metric.metadata.name)
        self._held[metric.metadata.name] = metric
        for callback in self._callbacks:
            callback(old, metric)


class Handle:
    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self.reports = Reports()

    def lister(self, resource: Resource[Any]) -> Any:
        return self.reports if resource.kind == "NodeMetric" else Reports()

    def now(self) -> float:
        return _LATER


def _report(node: int, turn: int, pods: list[str]) -> LoadNodeMetric:
    cores = _CORES[(node + turn) % len(_CORES)] * 1000 + (node * 7919 + turn * 104729) % 1000
    usage = {"resources": {"cpu": f"{cores}m", "memory": f"{cores * 3 + turn}Mi"}}
    percentiles = dict.fromkeys(("avg", "p50", "p90", "p95", "p99"), usage)
    windows = [{"duration": window, "usage": percentiles} for window in ("5m0s", "15m0s", "30m0s")]
    measured = [
        {
            "namespace": "default",
            "name": name,
            "priority": "koord-prod",
            "podUsage": {"resources": {"cpu": f"{10 + (i * turn) % 40}m", "memory": f"{90 + turn + i}Mi"}},
        }
        for i, name in enumerate(pods)
    ]
    return convert(
        {
            "metadata": {"name": f"node-{node}"},
            "status": {
                "updateTime": NOW.isoformat(),
                "nodeMetric": {"nodeUsage": usage, "aggregatedNodeUsages": windows},
                "podsMetric": measured,
            },
        },
        LoadNodeMetric,
    )


def _engine(state: ClusterState, handle: Handle, *, load: bool) -> SchedulingEngine:
    off = [] if load else [{"name": "LoadAwareScheduling"}]
    plugins = {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}] if load else [], "disabled": off}}
    config = convert(
        {"profiles": [{"schedulerName": "default-scheduler", "plugins": plugins}]}, KubeSchedulerConfiguration
    )
    assembly = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    (profile,) = assembly.make_profiles(handle)
    return SchedulingEngine(profile, state, seed=1)


class Side:
    """An engine over its own cluster. `put` brings the next report, if this one has any."""

    def __init__(self, *, load: bool) -> None:
        self.state = _cluster(NODES * PODS_PER_NODE)
        handle = Handle(self.state)
        self._names: dict[str, list[str]] = {}
        for pod in self.state.pods():
            self._names.setdefault(pod.node_name, []).append(pod.name)
        self._reports = handle.reports
        self._next = 0
        self._load = load
        if load:
            for report in self.upcoming(NODES):
                self._reports.put(report)
        self._coming = iter(self.upcoming(2_000) if load else ())
        self.engine = _engine(self.state, handle, load=load)

    def upcoming(self, count: int) -> list[LoadNodeMetric]:
        numbers = range(self._next, self._next + count)
        self._next += count
        return [_report(i % NODES, i // NODES, self._names[f"node-{i % NODES}"]) for i in numbers]

    def put(self, reports: list[LoadNodeMetric]) -> None:
        for report in reports:
            self._reports.put(report)

    def took(self, infos: list[PodInfo]) -> float:
        """Seconds of deciding these pods; for each second of it as many reports come as come in a second."""
        state, engine = self.state, self.engine
        reported = 0
        engine.decide(infos[0])  # what was taken back after the last round is not to be paid for in this one
        started = time.process_time()
        for number, info in enumerate(infos):
            decision = engine.decide(info).decision
            assert isinstance(decision, ChosenNode), decision
            state.assume(info, decision.node)
            if self._load and number % 20 == 19:
                while reported < (time.process_time() - started) * REPORTS_PER_SECOND:
                    self._reports.put(next(self._coming))
                    reported += 1
        took = time.process_time() - started
        for info in infos:
            state.forget(info.uid)
        return took


def run() -> dict[str, Any]:
    plain, loaded = Side(load=False), Side(load=True)
    results: dict[str, Any] = {"nodes": NODES, "reports_per_second": REPORTS_PER_SECOND}
    for name, pods, count in (
        ("equal", _equal, 5_000),
        ("distinct", _distinct, 500),
        ("own_labels", _same_spec, 5_000),
    ):
        results[name] = compared((plain, loaded), ("plain", "load_aware"), pods, count, ROUNDS)
    reports = loaded.upcoming(NODES)
    started = time.process_time()
    loaded.put(reports)
    results["microseconds_per_report"] = 1e6 * (time.process_time() - started) / NODES
    return results
