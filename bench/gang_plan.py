"""What planning a whole gang costs on 5,000 nodes in blocks and spines, on one core: the nodes of all members at once,
and room for all of them by preemption. Median of several plans; nothing is placed between them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from koord.api.annotations.gang_codecs import GatherStrategy, NetworkTopologySpec
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator.custom_kinds import CLUSTER_NETWORK_TOPOLOGIES
from koord.api.koordinator.scheduling import ClusterNetworkTopology
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig, EmptyLister, ValidationHandle
from koord.scheduler.framework.decision import Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.nominated_pods import NoNominations
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.plugins.coscheduling.job_preemption import (
    JobPreemption,
    JobPreemptionRules,
    find_job_preemption,
    find_network_job_preemption,
)
from koord.scheduler.plugins.coscheduling.network_planner import NetworkPlanner
from koord.scheduler.plugins.coscheduling.network_plugin import NetworkCoscheduling
from koord.scheduler.plugins.coscheduling.node_capacity import run_pre_filters
from koord.scheduler.plugins.registry import REGISTRY

NODES, BLOCK, SPINE = 5_000, 40, 400
RUNNING = 10  # pods on every node
TIMES = 7

_LAYERS = [
    {"topologyLayer": "SpineLayer", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["spine"]},
    {"topologyLayer": "BlockLayer", "parentTopologyLayer": "SpineLayer", "labelKey": ["block"]},
    {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "BlockLayer"},
]


class _Topology(EmptyLister[Any]):
    def get(self, namespace: str, name: str) -> Any:
        body = {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": _LAYERS}}
        return convert(body, ClusterNetworkTopology)


class _Handle(ValidationHandle):
    def lister(self, resource: Resource[Any]) -> EmptyLister[Any]:
        return _Topology() if resource is CLUSTER_NETWORK_TOPOLOGIES else EmptyLister()


def _node(i: int) -> Node:
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": f"node-{i}", "block": f"block-{i // BLOCK}", "spine": f"spine-{i // SPINE}"}
    return convert({"metadata": {"name": f"node-{i}", "labels": labels}, "status": {"allocatable": room}}, Node)


def _pod(name: str, cpu: int, node: str = "", priority: int = 0) -> Pod:
    container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": str(cpu), "memory": "1Gi"}}}
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return convert({"metadata": meta, "spec": {"containers": [container], "nodeName": node, "priority": priority}}, Pod)


def _scene() -> tuple[ClusterState, SchedulerProfile, NetworkCoscheduling]:
    args = {"name": "Coscheduling", "args": {"awareNetworkTopology": True, "enablePreemption": True}}
    plugins = {"multiPoint": {"enabled": [{"name": "Coscheduling"}]}}
    shape = {"schedulerName": "koord-scheduler", "plugins": plugins, "pluginConfig": [args]}
    assembly = CompletedConfig.complete(convert({"profiles": [shape]}, KubeSchedulerConfiguration), REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    handle = _Handle()
    state = handle.state
    for i in range(NODES):
        state.set_node(_node(i))
        for k in range(RUNNING):
            state.set_pod(_pod(f"low-{i}-{k}", 5, f"node-{i}"))
    (made,) = assembly.make_profiles(handle)
    plugin = next(p for p in made.plugins() if isinstance(p, NetworkCoscheduling))
    return state, made, plugin


def _median_ms(what: Callable[[], Any]) -> float:
    took = []
    for _ in range(TIMES):
        began = time.process_time()
        what()
        took.append(time.process_time() - began)
    return 1000 * statistics.median(took)


def _members(state: ClusterState, count: int, cpu: int) -> list[PodInfo]:
    return [state.pod_info(_pod(f"member-{n}", cpu, priority=100)) for n in range(count)]


def run() -> dict[str, Any]:
    state, profile, plugin = _scene()
    wish = NetworkTopologySpec(gather_strategy=(GatherStrategy(layer="SpineLayer", strategy="MustGather"),))
    planner = plugin.planner
    found: dict[str, Any] = {"nodes": NODES, "pods_on_a_node": RUNNING}
    for size in (64, 512):
        members = _members(state, size, 4)
        assert isinstance(planner.plan_nodes(members, wish), dict)
        found[f"plan_{size}_ms"] = _median_ms(lambda members=members: planner.plan_nodes(members, wish))  # type: ignore[misc]
    hopeless = _members(state, 64, 63)
    found["no_plan_64_ms"] = _median_ms(lambda: planner.plan_nodes(hopeless, wish))
    return found | _preempted_for(state, profile, planner, wish)


def _preempted_for(
    state: ClusterState, profile: SchedulerProfile, planner: NetworkPlanner, wish: NetworkTopologySpec
) -> dict[str, float]:
    """Every node has 14 cores left: members of 16 need somebody to go, 6,400 of 60 are more than there is room for."""
    engine, rules = SchedulingEngine(profile, state, seed=1), JobPreemptionRules()

    def search(members: list[PodInfo], *, near: bool) -> JobPreemption | str:
        attempt = engine.decide(members[0])
        assert isinstance(attempt.decision, Unschedulable)
        chance = np.random.default_rng(1)
        refused = PostFilterContext(
            profile, attempt.cycle, members[0], attempt.decision, attempt.filter_results, NoNominations(), chance
        )
        trials = run_pre_filters(profile, state, members)
        assert isinstance(trials, dict)
        if near:
            return find_network_job_preemption(profile, refused, members, trials, rules, planner, wish)
        return find_job_preemption(profile, refused, members, trials, rules)

    fitting, hopeless = _members(state, 64, 16), _members(state, 6400, 60)
    assert isinstance(search(fitting, near=False), JobPreemption)
    assert isinstance(search(fitting, near=True), JobPreemption)
    assert isinstance(search(hopeless, near=False), str)
    return {
        "room_for_64_ms": _median_ms(lambda: search(fitting, near=False)),
        "room_for_64_near_ms": _median_ms(lambda: search(fitting, near=True)),
        "no_room_for_6400_ms": _median_ms(lambda: search(hopeless, near=False)),
    }
