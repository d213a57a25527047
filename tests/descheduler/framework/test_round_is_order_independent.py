"""In whatever order objects came, a round chooses the same pods, so that a dry run shows what a real one does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.slo import NodeMetric
from koord.api.model import convert
from koord.descheduler.configuration import DeschedulerSetup, build_setup, load_config
from koord.descheduler.explain.round_report import report_round
from koord.descheduler.framework.round import run_round
from koord.descheduler.framework.snapshot import Workload
from tests.descheduler.cluster_builders import NOW_S, make_node, make_pod, make_snapshot

AT_ONCE = {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1}
PLUGINS: dict[str, dict[str, Any]] = {
    "LowNodeLoad": {"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 40}, "anomalyCondition": AT_ONCE},
    "RemoveDuplicates": {},
    "LowNodeUtilization": {"thresholds": {"cpu": 10}, "targetThresholds": {"cpu": 30}},
    "FragmentationAware": {"imbalanceThreshold": 0.01, "minImprovementThreshold": 0.001},
    "ScaleDownBinPack": {"strategy": "EvictDirectly", "maxPodsToEvict": 3},
}


def descheduler_setup(plugin: str) -> DeschedulerSetup:
    args = {"apiVersion": "descheduler/v1alpha2", "kind": f"{plugin}Args", **PLUGINS[plugin]}
    profile = {
        "plugins": {"balance": {"enabled": [{"name": plugin}]}},
        "pluginConfig": [
            {"name": plugin, "args": args},
            {
                "name": "MigrationController",
                "args": {"maxMigratingPerWorkload": "80%", "maxUnavailablePerWorkload": "90%"},
            },
        ],
    }
    config = load_config({"profiles": [profile]})
    assert not isinstance(config, list), config
    made = build_setup(config)
    assert isinstance(made, DeschedulerSetup), made
    return made


def pods() -> list[Any]:
    """Equal pods on two of four nodes, all made in the same second."""
    ask = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "800m", "memory": "512Mi"}}}]
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"creationTimestamp": "2027-01-15T07:00:00Z"}
    return [
        make_pod(
            f"p{i}",
            f"n{i % 2}",
            owner="ReplicaSet/web",
            metadata=meta,
            spec={"containers": ask, "schedulerName": "koord-scheduler"},
            status=ready,
        )
        for i in range(10)
    ]


def metric(name: str, used: list[str]) -> NodeMetric:
    nothing = {"resources": {"cpu": "0", "memory": "0"}}
    reported = [{"namespace": "default", "name": p, "podUsage": {"resources": {"cpu": "900m"}}} for p in used]
    status = {
        "updateTime": "2027-01-15T07:59:30Z",
        "nodeMetric": {"nodeUsage": nothing, "systemUsage": nothing},
        "podsMetric": reported,
    }
    return convert({"metadata": {"name": name}, "status": status}, NodeMetric)


def chosen(plugin: str, order: list[int], nodes: list[int]) -> list[tuple[str, str]]:
    made, all_pods = descheduler_setup(plugin), pods()
    web = Workload(kind="ReplicaSet", namespace="default", name="web", uid="ReplicaSet-web", replicas=10)
    snapshot = make_snapshot(
        [make_node(f"n{i}") for i in nodes],
        [all_pods[i] for i in order],
        metrics=[metric(f"n{i}", [p.metadata.name for p in all_pods if p.spec.node_name == f"n{i}"]) for i in range(4)],
        workloads={"ReplicaSet-web": web},
    )
    account = report_round(run_round(made.profiles, snapshot, made.limits), made.plugins(), NOW_S)
    return [(one.pod, one.target) for one in account.proposals]


@pytest.mark.parametrize("plugin", PLUGINS)
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(10)), nodes=st.permutations(range(4)))
def test_in_any_order(plugin: str, order: list[int], nodes: list[int]) -> None:
    usual = chosen(plugin, list(range(10)), list(range(4)))
    assert usual, "a plugin that moves nothing proves nothing"
    assert chosen(plugin, order, nodes) == usual
