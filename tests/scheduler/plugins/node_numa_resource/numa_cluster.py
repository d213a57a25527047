"""A small cluster with CPU topologies for tests of NodeNUMAResource, with builders of nodes and pods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koord.api.config.scheduler.configuration import typed_args
from koord.api.config.scheduler.koordinator_args import NodeNUMAResourceArgs
from koord.api.koordinator.sigs_scheduling import NodeResourceTopology
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.attempt import failure_of_decision
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import Fault, PodPatch, Reject
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocationCache
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation
from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from tests.scheduler.fake_handles import FakeLister
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.node_numa_resource.numa_builders import rows, zone

DOMAIN = "scheduling.koordinator.sh"
NODE_DOMAIN = "node.koordinator.sh"
SPEC, STATUS, NUMA = f"{DOMAIN}/resource-spec", f"{DOMAIN}/resource-status", f"{DOMAIN}/numa-topology-spec"
GI = 1 << 30


class TopologyHandle:
    """A handle whose only lister is of NodeResourceTopologies."""

    def __init__(self, state: ClusterState, topologies: FakeLister) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self._topologies = topologies

    def lister(self, resource: Resource[Any]) -> Any:
        assert resource.plural == "noderesourcetopologies"
        return self._topologies

    def now(self) -> float:
        return 0.0


def args(**fields: Any) -> NodeNUMAResourceArgs:
    found = typed_args("NodeNUMAResource", fields or None)
    assert isinstance(found, NodeNUMAResourceArgs), found
    return found


def node(name: str, cpu: int = 16, memory: str = "32Gi", *, labels: Any = None, annotations: Any = None) -> Node:
    meta = {
        "name": name,
        "labels": {"kubernetes.io/hostname": name, **{_key(k): v for k, v in (labels or {}).items()}},
        "annotations": {_key(k): _text(v) for k, v in (annotations or {}).items()},
    }
    room = {"cpu": str(cpu), "memory": memory, "pods": "110"}
    return convert({"metadata": meta, "status": {"allocatable": room}}, Node)


def topology(
    name: str,
    shape: tuple[int, int, int, int] = (1, 2, 4, 2),
    *,
    annotations: Mapping[str, Any] | None = None,
    zones: Sequence[Mapping[str, Any]] | None = None,
    policies: Sequence[str] = ("None",),
) -> NodeResourceTopology:
    written = {"node.koordinator.sh/cpu-topology": {"detail": rows(*shape)}, **(annotations or {})}
    per_zone = shape[2] * shape[3]
    listed = zones if zones is not None else [zone(f"node-{n}", cpu=per_zone) for n in range(shape[0] * shape[1])]
    return convert(
        {
            "metadata": {"name": name, "annotations": {_key(k): _text(v) for k, v in written.items()}},
            "topologyPolicies": list(policies),
            "zones": list(listed),
        },
        NodeResourceTopology,
    )


def pod(
    name: str,
    cpu: object = 4,
    *,
    qos: str = "LSR",
    memory: str = "1Gi",
    spec: Any = None,
    numa: Any = None,
    annotations: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    node_name: str = "",
    priority: int | None = None,
    more: Mapping[str, str] | None = None,
) -> Pod:
    written = {_key(k): _text(v) for k, v in (annotations or {}).items()}
    for key, value in ((SPEC, spec), (NUMA, numa)):
        if value is not None:
            written[key] = _text(value)
    marks = {"koordinator.sh/qosClass": qos, "koordinator.sh/priority-class": "koord-prod"} if qos else {}
    asked = {"cpu": str(cpu), "memory": memory, **(more or {})} if cpu is not None else {}
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {**marks, **(labels or {})}}
    body = {
        "containers": [{"name": "c", "resources": {"requests": asked}}],
        "nodeName": node_name,
        "priority": priority,
    }
    return convert({"metadata": {**meta, "annotations": written}, "spec": body}, Pod)


class NumaCluster:
    """Schedules pods one after another, and lets the test bind, forget or delete each."""

    def __init__(self, *others: Plugin, fit: bool = True, **fields: Any) -> None:
        self.state = ClusterState()
        self.topologies = FakeLister()
        self.plugin = NodeNUMAResource(args(**fields), TopologyHandle(self.state, self.topologies))
        self.books: NodeAllocationCache = self.state.derived(NodeAllocationCache)
        fit_args: Any = typed_args("NodeResourcesFit", None)
        fits = [NodeResourcesFit(fit_args)] if fit else []
        self.engine = SchedulingEngine(profile_of([*fits, self.plugin, *others]), self.state, seed=1)
        self.pods: dict[str, Pod] = {}  # as the server has them

    def add(self, *nodes: Node) -> NumaCluster:
        for one in nodes:
            self.state.set_node(one)
        return self

    def describe(self, *found: NodeResourceTopology) -> NumaCluster:
        for one in found:
            self.topologies.put(one)
        return self

    # One pod -----------------------------------------------------------------------------------------------------

    def info(self, one: Pod) -> PodInfo:
        return self.state.pod_info(one)

    def place(self, one: Pod) -> str:
        """Schedule and bind a pod; return its node, CPUs and NUMA nodes, or the rejection."""
        found = self.decide(one)
        if isinstance(found, str):
            return found
        self.bind(one.metadata.uid)
        entry = self.books.pod_allocations().get(found[0], {}).get(one.metadata.uid)
        return f"{found[0]} {told(entry.allocation)}".strip() if entry is not None else found[0]

    def decide(self, one: Pod) -> tuple[str, PodPatch | None] | str:
        """Schedule a pod; return its node and patch, or the text of the rejection."""
        info = self.info(one)
        attempt = self.engine.decide(info)
        decision = attempt.decision
        if not isinstance(decision, ChosenNode):
            return failure_of_decision(decision).message
        self.state.assume(info, decision.node)
        cycle = attempt.cycle
        answer = self.plugin.reserve(cycle, info, self.state.table.index[decision.node])
        if isinstance(answer, Reject | Fault):
            self.plugin.unreserve(cycle, info, decision.node)
            self.state.forget(info.uid)
            return f"reserve: {answer.text if isinstance(answer, Reject) else answer.message}"
        mark = self.plugin.pre_bind(cycle, info, decision.node)
        if isinstance(mark, Reject):
            self.plugin.unreserve(cycle, info, decision.node)
            self.state.forget(info.uid)
            return f"prebind: {mark.text}"
        assert mark is None or isinstance(mark, PodPatch)
        self.pods[info.uid] = bound(one, decision.node, mark)
        return decision.node, mark

    def bind(self, uid: str) -> None:
        """Show the pod on its node, as the watch does."""
        self.state.set_pod(self.pods[uid])

    def forget(self, one: Pod, node_name: str) -> None:
        self.plugin.unreserve(CycleState(self.state), self.info(one), node_name)
        self.state.forget(one.metadata.uid)


def bound(one: Pod, node_name: str, mark: PodPatch | None) -> Pod:
    written = {**one.metadata.annotations, **(mark.annotations if mark is not None else {})}
    meta = msgspec.structs.replace(one.metadata, annotations=written)
    return msgspec.structs.replace(one, metadata=meta, spec=msgspec.structs.replace(one.spec, node_name=node_name))


def told(given: NumaAllocation) -> str:
    """For example `0-3 {0: cpu 4000}`."""
    zones = ", ".join(f"{n}: cpu {amounts.get('cpu', 0)}" for n, amounts in sorted(given.zones.items()))
    return f"{given.cpus} {{{zones}}}".strip() if zones else str(given.cpus)


def _key(key: str) -> str:
    return key if "/" in key else f"{NODE_DOMAIN}/{key}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
