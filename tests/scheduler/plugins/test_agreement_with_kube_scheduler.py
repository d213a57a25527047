"""Every message and every score that a real kube-scheduler was recorded to give, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from koord.api.config.scheduler.configuration import SCHEDULER_PLUGIN_CATALOG, typed_args
from koord.api.config.scheduler.in_tree_args import SchedulerPluginArgs
from koord.api.kubernetes.node import Node
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.decision import Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.builders import make_state
from tests.scheduler.fake_handles import StateOnlyHandle
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.kube_scheduler_cases import CONFIGS, PLUGINS, WEIGHTS, recorded


def plugins(config: str, state: ClusterState) -> Sequence[Plugin]:
    return [REGISTRY[name](_args(config, name), StateOnlyHandle(state)) for name in PLUGINS]


def _args(config: str, name: str) -> SchedulerPluginArgs | None:
    if name not in SCHEDULER_PLUGIN_CATALOG:
        return None
    args = typed_args(name, CONFIGS[config].get(name))
    assert not isinstance(args, list)
    return args


def answer(case: dict[str, Any], nodes: Sequence[Node], pods: Sequence[Pod]) -> dict[str, Any]:
    """What our engine says, in the form of the record."""
    state = make_state((nodes[i] for i in case["nodes"]), (pods[i] for i in case["pods"]))
    engine = SchedulingEngine(profile_of(plugins(case["config"], state), WEIGHTS), state)
    pod = state.pod_info(convert(case["pod"], Pod))
    attempt = engine.decide(pod)
    evaluation = attempt.evaluation
    if isinstance(attempt.decision, Unschedulable):
        return {"message": attempt.decision.message()}
    assert evaluation is not None
    scores = {
        node.name: evaluation.score_results.breakdown(node.row)
        for node in state.nodes()
        if evaluation.filter_results.verdict(node.row) is None
    }
    return {"scores": scores} if len(scores) > 1 else {"only": next(iter(scores))}


@pytest.mark.parametrize("config", CONFIGS)
def test_says_what_kube_scheduler_says(config: str) -> None:
    record = recorded()
    nodes = [convert(node, Node) for node in record["nodes"]]
    pods = [convert(pod, Pod) for pod in record["pods"]]
    cases = [case for case in record["cases"] if case["config"] == config]
    assert len(cases) > 80
    kinds = {kind: sum(kind in case for case in cases) for kind in ("message", "scores", "only")}
    assert min(kinds.values()) > 5, kinds  # the record holds enough of each to mean something
    for case in cases:
        said = {kind: case[kind] for kind in kinds if kind in case}
        assert answer(case, nodes, pods) == said, case["pod"]
