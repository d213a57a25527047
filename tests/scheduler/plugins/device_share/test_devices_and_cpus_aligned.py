"""Devices and CPUs of one pod come from the same NUMA node where the node's policy says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.config.scheduler.koordinator_args import DeviceShareArgs, defaulted_device_share
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.runtime import run_reserve
from koord.scheduler.framework.verdict import PodPatch
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from tests.scheduler.fake_handles import FakeLister
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.device_share.device_cluster import reference_machine
from tests.scheduler.plugins.device_share.test_device_cache import carrying
from tests.scheduler.plugins.node_numa_resource.numa_cluster import args, node, pod, topology

GPU = "koordinator.sh/gpu"
POLICY = "node.koordinator.sh/numa-topology-policy"


class Both:
    """The handle of both plugins."""

    def __init__(self, policy: str) -> None:
        self.state = ClusterState()
        self.actions = SchedulerActions()
        self._listers: dict[str, FakeLister] = {}
        self.state.set_node(node("n0", labels={POLICY: policy}))
        self.lister_of("NodeResourceTopology").put(topology("n0"))
        self.lister_of("Device").put(reference_machine())
        self.devices = DeviceShare(defaulted_device_share(DeviceShareArgs()), self)
        self.plugins = (NodeNUMAResource(args(), self), self.devices)
        self.engine = SchedulingEngine(profile_of(self.plugins), self.state, seed=1)

    def lister(self, resource: Any) -> Any:
        return self.lister_of(resource.kind)

    def lister_of(self, kind: str) -> FakeLister:
        return self._listers.setdefault(kind, FakeLister())

    def now(self) -> float:
        return 0.0

    def place(self, name: str, cpu: int, gpus: int) -> tuple[str, tuple[int, ...]] | str:
        """The pod's CPUs and its GPUs, or why it got none."""
        info = self.state.pod_info(pod(name, cpu, more={GPU: str(100 * gpus)}))
        attempt = self.engine.decide(info)
        decision = attempt.decision
        if isinstance(decision, Unschedulable):
            return "; ".join(sorted({refusal.verdict.text for refusal in decision.rejections}))
        assert isinstance(decision, ChosenNode), decision
        self.state.assume(info, decision.node)
        refused = run_reserve(attempt)
        assert refused is None, refused
        carried: dict[str, str] = {}
        for plugin in self.plugins:
            mark = plugin.pre_bind(attempt.cycle, info, decision.node)
            assert isinstance(mark, PodPatch)
            carried |= mark.annotations
        cpus = json.loads(carried["scheduling.koordinator.sh/resource-status"])["cpuset"]
        given = json.loads(carried["scheduling.koordinator.sh/device-allocated"])
        return cpus, tuple(card["minor"] for card in given["gpu"])


def test_gpus_draw_the_cpus_to_their_numa_node() -> None:
    both = Both("SingleNUMANode")
    both.state.set_pod(carrying("old", "n0", 0, 1, 2))
    assert both.place("a", 4, 2) == ("8-11", (4, 5))  # NUMA node 1: only there two GPUs are free
    assert both.place("b", 4, 1) == ("0-3", (3,))  # beside cards in use


def test_a_pod_that_no_numa_node_can_serve_is_refused() -> None:
    both = Both("SingleNUMANode")
    both.state.set_pod(carrying("old", "n0", 0, 4))
    assert "NUMA" in str(both.place("a", 4, 4))
    both.state.drop_pod("uid-default-old")
    assert both.place("a", 4, 4) == ("0-3", (0, 1, 2, 3))


@pytest.mark.parametrize("policy", ["BestEffort", "Restricted"])
def test_a_milder_policy_lets_a_large_pod_span_both(policy: str) -> None:
    both = Both(policy)
    both.state.set_pod(carrying("old", "n0", 0, 4))
    found = both.place("a", 4, 4)
    assert isinstance(found, tuple)
    assert found[1] == (1, 2, 3, 5)
