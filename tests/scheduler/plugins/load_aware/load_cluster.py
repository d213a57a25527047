"""Builders of nodes, NodeMetrics and pods for tests of load, and a cluster with a fake clock that holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from koord.api.config.scheduler.configuration import typed_args
from koord.api.config.scheduler.koordinator_args import LoadAwareSchedulingArgs
from koord.api.koordinator.protocol import A_USAGE_THRESHOLDS
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Lister, SchedulerActions
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.load_aware.node_load import LoadNodeMetric
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.fake_handles import FakeLister

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
PROD = {"koordinator.sh/priority-class": "koord-prod"}
BATCH = {"koordinator.sh/priority-class": "koord-batch"}
MID = {"koordinator.sh/priority-class": "koord-mid"}


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def args(**stated: Any) -> LoadAwareSchedulingArgs:
    """Return defaulted arguments, given by their names in configuration files."""
    found = typed_args("LoadAwareScheduling", stated)
    assert isinstance(found, LoadAwareSchedulingArgs), found
    return found


def amounts(cpu: str = "0", memory: str = "0", **more: str) -> dict[str, Any]:
    return {"resources": {"cpu": cpu, "memory": memory, **more}}


def big_node(name: str = "n0", thresholds: Mapping[str, Any] | None = None, **words: Any) -> Node:
    annotations = dict(words.pop("annotations", {}))
    if thresholds is not None:
        annotations[A_USAGE_THRESHOLDS] = json.dumps(thresholds)
    return make_node(name, **({"cpu": "96", "memory": "512Gi", "annotations": annotations} | words))


def report(
    name: str = "n0",
    cpu: str = "0",
    memory: str = "0",
    *,
    age: float = 0,
    pods: Mapping[str, tuple[str, str] | tuple[str, str, str]] | None = None,
    windows: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    system: tuple[str, str] = ("0", "0"),
    interval: int | None = None,
    timed: bool = True,
    measured: bool = True,
    now: float = NOW,
) -> LoadNodeMetric:
    """`pods` by name: (cpu, memory[, priority]), prod unless said; `windows` by duration, then by aggregation."""
    usages = [
        {"duration": window, "usage": {kind: amounts(*usage) for kind, usage in kinds.items()}}
        for window, kinds in (windows or {}).items()
    ]
    status: dict[str, Any] = {
        "podsMetric": [
            {
                "namespace": "default",
                "name": pod,
                "podUsage": amounts(usage[0], usage[1]) if usage[0] else {},
                "priority": usage[2] if len(usage) > 2 else "koord-prod",
            }
            for pod, usage in (pods or {}).items()
        ]
    }
    if timed:
        status["updateTime"] = stamp(now - age)
    if measured:
        status["nodeMetric"] = {
            "nodeUsage": amounts(cpu, memory),
            "aggregatedNodeUsages": usages,
            "systemUsage": amounts(*system),
        }
    policy = {"metricCollectPolicy": {"reportIntervalSeconds": interval}} if interval is not None else {}
    return convert({"metadata": {"name": name}, "spec": policy, "status": status}, LoadNodeMetric)


def pod_on(
    name: str,
    node: str,
    *,
    scheduled: float | None = NOW - 600,
    initialized: float | None = None,
    conditions: Sequence[tuple[str, float | None]] = (),
    phase: str = "Running",
    **words: Any,
) -> Pod:
    """Placed ten minutes ago unless said."""
    pod = make_pod(name, node=node, **words)
    told = [("PodScheduled", scheduled), ("Initialized", initialized), *conditions]
    status = {
        "phase": phase,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": stamp(at)} for kind, at in told if at is not None
        ],
    }
    return msgspec.structs.replace(pod, status=convert(status, type(pod.status)))


class LoadCluster:
    """A handle with a state, a lister of NodeMetrics, and a clock that the test moves."""

    def __init__(self, *objects: Node | LoadNodeMetric | Pod, now: float = NOW) -> None:
        self.state = ClusterState()
        self.actions = SchedulerActions()
        self.clock = now
        self.reports = FakeLister()
        self.put(*objects)

    def put(self, *objects: Node | LoadNodeMetric | Pod) -> None:
        for obj in objects:
            if isinstance(obj, Node):
                self.state.set_node(obj)
            elif isinstance(obj, LoadNodeMetric):
                self.reports.put(obj)
            else:
                self.state.set_pod(obj)

    def lister(self, resource: Resource[Any]) -> Lister[Any]:
        assert resource.kind == "NodeMetric"
        return self.reports

    def now(self) -> float:
        return self.clock

    def plugin(self, **stated: Any) -> LoadAwareScheduling:
        return LoadAwareScheduling(args(**stated), self)

    def node(self, name: str = "n0") -> NodeInfo:
        found = self.state.node(name)
        assert found is not None
        return found

    def info(self, **words: Any) -> PodInfo:
        return self.state.pod_info(make_pod(**words))


def refusal(plugin: LoadAwareScheduling, world: LoadCluster, pod: PodInfo, node: str = "n0") -> str | None:
    """Return the text of a rejection, None when the node takes the pod."""
    plugin.note_expired_rows()
    found: Reject | None = plugin.filter(CycleState(world.state), pod, world.node(node))
    assert found is None or found.resolvable
    return None if found is None else found.text


def score(plugin: LoadAwareScheduling, world: LoadCluster, pod: PodInfo, node: str = "n0") -> int:
    plugin.note_expired_rows()
    return plugin.score(CycleState(world.state), pod, world.node(node))
